"""Parquet files as a sink: seen when they are committed, once, whatever became of them since."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastbuf.errors import ConfigError
from fastbuf_spark.streams import parquet
from fastbuf_spark.streams.parquet import STAGING, to_parquet
from fastbuf_spark.streams.sink import CommitFailed, SinkContext

SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.string())])


def written(sink: Any, context: SinkContext, value: int) -> tuple[Any, Any]:
    writer = sink.writer(context)
    writer.write(pa.record_batch([pa.array([value]), pa.array(["a"])], SCHEMA))
    return writer, writer.prepare(value)


def seen(folder: Path) -> list[int]:
    files = [path for path in folder.rglob("*.parquet") if STAGING not in path.parts]
    return sorted(value for path in files for value in pq.read_table(path, partitioning=None)["v"].to_pylist())


@pytest.mark.parametrize("by", [(), ("k",)])
def test_a_commit_that_comes_again(tmp_path: Path, by: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    sink = to_parquet(out, by)
    context = SinkContext("job", 0, 1, SCHEMA, str(tmp_path), True)
    sink.check(SCHEMA, True)
    writer, first = written(sink, context, 1)
    _, second = written(sink, context, 2)
    _, unknown = written(sink, context, 3)  # of a checkpoint that was never complete
    assert seen(out) == []
    writer.commit(1, first)
    writer.commit(1, first)
    assert seen(out) == [1]
    sink.restore(context, [*first, *second])
    again: Any = sink.writer(context)
    again.commit(1, first)
    again.commit(2, second)
    assert seen(out) == [1, 2]
    for path in [path for path in out.rglob("*.parquet") if STAGING not in path.parts]:
        path.unlink()  # another program has taken them
    again.commit(1, first)
    assert seen(out) == []
    with pytest.raises(CommitFailed, match="1 rows of checkpoint 3 are at risk"):
        again.commit(3, unknown)
    again.forget([*first, *second])
    assert [path for path in out.rglob("*") if path.is_file()] == []
    with pytest.raises(CommitFailed, match="1 rows of checkpoint 1 are at risk"):
        again.commit(1, first)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("z", r"partition_by is \['z'\]: give names of \['v', 'k'\], each once, and leave one for the files"),
        (("v", "k"), "leave one for the files"),
        (("k", "k"), "each once"),
        (3, r"partition_by is \[3\]"),
        ("", r"partition_by is \[''\]"),
    ],
    ids=str,
)
def test_what_names_no_directories(tmp_path: Path, by: Any, words: str) -> None:
    """As for the writers of pipelines."""
    with pytest.raises(ConfigError, match=words):
        to_parquet(tmp_path / "out", by).check(SCHEMA, True)
    assert not (tmp_path / "out").exists()


def test_a_directory_that_readers_do_not_see(tmp_path: Path) -> None:
    hidden = pa.schema([("v", pa.int64()), (".k", pa.string())])
    with pytest.raises(ConfigError, match=r"partition_by has '\.k': readers do not see"):
        to_parquet(tmp_path / "out", ".k").check(hidden, True)


def test_no_directories(tmp_path: Path) -> None:
    for none in (None, (), []):
        sink = to_parquet(tmp_path / "out", none)
        sink.check(SCHEMA, True)
        assert sink.partition_by == ()


@pytest.mark.parametrize("by", [(), ("k",)])
def test_a_stop_amid_a_file_is_silent(
    tmp_path: Path, by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its writer is let go with it: nothing is written behind the end."""
    monkeypatch.setattr(parquet, "MEMORY_BYTES", 0)  # rows are written at once
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    sink = to_parquet(tmp_path / "out", by)
    context = SinkContext("job", 0, 1, SCHEMA, str(tmp_path), True)
    writer = sink.writer(context)
    for value in range(3):
        writer.write(pa.record_batch([pa.array([value]), pa.array(["a"])], SCHEMA))
    assert list((tmp_path / "out" / STAGING).rglob("*.parquet"))
    writer.close()
    del writer
    gc.collect()
    assert told == []
    assert "Exception ignored" not in capfd.readouterr().err
    assert seen(tmp_path / "out") == []
