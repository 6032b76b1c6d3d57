"""The sink that calls a function."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.errors import ConfigError
from fastbuf_spark.streams import function
from fastbuf_spark.streams.function import to_function
from fastbuf_spark.streams.sink import CommitFailed, SinkContext

N = pa.schema([("n", pa.int64())])


def a_context(folder: Path, **more: Any) -> SinkContext:
    given = {"job": secrets.token_hex(16), "task": 0, "generation": 0, "exactly_once": True, **more}
    return SinkContext(schema=N, folder=str(folder), **given)


def numbers(begin: int, end: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(begin, end), pa.int64())})


def test_it_is_called_when_rows_are_committed_and_once(tmp_path: Path) -> None:
    calls: list[tuple[int, list[int]]] = []
    sink = to_function(lambda table, batch_id: calls.append((batch_id, table.column("n").to_pylist())))
    sink.check(N, exactly_once=True)
    writer = sink.writer(a_context(tmp_path, task=3))
    writer.write(numbers(0, 2))
    writer.write(numbers(2, 3))
    made = writer.prepare(1)
    assert calls == []
    writer.commit(1, made)
    writer.commit(1, made)
    writer.write(numbers(3, 4))
    second = writer.prepare(2)
    writer.close()
    later = a_context(tmp_path, generation=1)
    sink.restore(later, made + second)
    again = sink.writer(later)  # another task
    again.commit(2, second + made)
    again.close()
    assert calls == [(65536 + 3, [0, 1, 2]), (2 * 65536 + 3, [3])]
    sink.restore(later, [])
    assert list(tmp_path.iterdir()) == []


def test_it_is_called_again_with_the_same_number_after_an_error(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails_once(table: pa.Table, batch_id: int) -> None:
        calls.append(batch_id)
        if len(calls) == 2:
            raise OSError("planted")

    writer = to_function(fails_once).writer(a_context(tmp_path))
    made = []
    for checkpoint in (1, 2):
        writer.write(numbers(0, 5))
        made += writer.prepare(checkpoint)
    with pytest.raises(OSError, match="planted"):
        writer.commit(2, made)
    writer.commit(2, made)
    writer.close()
    assert calls == [65536, 131072, 131072]


def test_at_least_once_calls_it_at_once(tmp_path: Path) -> None:
    calls: list[tuple[int, list[int]]] = []
    sink = to_function(lambda table, batch_id: calls.append((batch_id, table.column("n").to_pylist())))
    writer = sink.writer(a_context(tmp_path, exactly_once=False))
    writer.write(numbers(0, 2))
    assert calls == [(-1, [0, 1])]
    assert writer.prepare(1) == []
    writer.commit(1, [])
    writer.close()


def test_markers_do_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "MARKERS_KEPT", 3)
    writer = to_function(lambda table, batch_id: None).writer(a_context(tmp_path))
    for checkpoint in range(10):
        writer.write(numbers(0, 5))
        made = writer.prepare(checkpoint)
        writer.commit(checkpoint, made)
        writer.forget(made)  # no checkpoint that is kept names them
    writer.close()
    assert len(list(tmp_path.iterdir())) == 3


def test_rows_that_are_gone_are_told(tmp_path: Path) -> None:
    writer = to_function(lambda table, batch_id: None).writer(a_context(tmp_path))
    writer.write(numbers(0, 5))
    made = writer.prepare(1)
    Path(tmp_path, made[0]["file"]).unlink()
    with pytest.raises(CommitFailed, match=r"5 rows .* is gone"):
        writer.commit(1, made)
    writer.close()


def test_what_is_no_function() -> None:
    with pytest.raises(ConfigError, match="to_function takes a function, not a str"):
        to_function("print")  # type: ignore[arg-type]


def test_rows_that_wait_have_the_columns_of_the_program_that_wrote_them(tmp_path: Path) -> None:
    tables: list[pa.Table] = []
    sink = to_function(lambda table, batch_id: tables.append(table))
    writer = sink.writer(a_context(tmp_path))
    writer.write(numbers(0, 2))
    committables = writer.prepare(1)
    writer.close()
    wider = pa.schema([("m", pa.string()), *N])
    again = sink.writer(SinkContext(secrets.token_hex(16), 0, 1, wider, str(tmp_path), True))
    again.commit(1, committables)
    again.close()
    (table,) = tables
    assert table.to_pydict() == {"n": [0, 1]}
