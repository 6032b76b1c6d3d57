"""A stream's rows in a Delta table: once, whoever commits them, in whatever order, and however often."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
pytest.importorskip("pyspark", reason="pip install 'fastbuf[spark]'")

from fastbuf.errors import ConfigError, SchemaError  # noqa: E402
from fastbuf_spark.streams.delta import DeltaSink, to_delta  # noqa: E402
from fastbuf_spark.streams.sink import CommitFailed, SinkContext  # noqa: E402

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("t", pa.timestamp("us", "Europe/Paris"))])
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def writer(sink: DeltaSink, task: int, generation: int = 0) -> Any:
    return sink.writer(SinkContext("0" * 32, task, generation, SCHEMA, "", True))


def batch(*values: int) -> pa.RecordBatch:
    columns = [[f"{x % 2}/é" for x in values], list(values), [AT] * len(values)]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def numbers(path: Path) -> list[int]:
    table = deltalake.DeltaTable(path).to_pyarrow_table()
    assert set(table["t"].to_pylist()) <= {AT}
    assert all(k == f"{x % 2}/é" for k, x in zip(table["k"].to_pylist(), table["x"].to_pylist(), strict=True))
    return sorted(table["x"].to_pylist())


def test_rows_are_seen_when_they_are_committed_and_once(tmp_path: Path) -> None:
    sink = to_delta(tmp_path, "k")
    sink.check(SCHEMA, True)
    first = writer(sink, 0)
    assert first.prepare(1) == []
    first.write(batch(1, 2, 3))
    made = first.prepare(2)
    assert numbers(tmp_path) == []
    for _ in range(2):
        first.commit(2, made)
        assert numbers(tmp_path) == [1, 2, 3]
    first.write(batch(4))
    first.prepare(3)  # no checkpoint has it
    writer(sink, 0, 1).commit(2, made)  # of a restored stream
    assert numbers(tmp_path) == [1, 2, 3]


def test_another_order(tmp_path: Path) -> None:
    """A restored stream's tasks share out what is to be committed: an older checkpoint may come after a newer one."""
    sink = to_delta(tmp_path)
    sink.check(SCHEMA, True)
    task = writer(sink, 0)
    made = []
    for checkpoint in (1, 2, 3):
        task.write(batch(checkpoint))
        made.append(task.prepare(checkpoint))
    task.commit(1, made[0])
    for order in ((2, 1, 0), (0, 1, 2), (1, 0, 2)):
        for at in order:
            writer(sink, at, 1).commit(at + 1, made[at])
        assert numbers(tmp_path) == [1, 2, 3]


def test_many_at_once(tmp_path: Path) -> None:
    """Tasks that commit at the same time, each also by one that was thought dead."""
    sink = to_delta(tmp_path)
    sink.check(SCHEMA, True)
    tasks = [writer(sink, task) for task in range(4)]
    with ThreadPoolExecutor(8) as threads:
        for checkpoint in (1, 2):
            made = []
            for number, task in enumerate(tasks):
                task.write(batch(10 * checkpoint + number))
                made.append(task.prepare(checkpoint))
            twice = [*zip(tasks, made, strict=True)] * 2
            for done in [threads.submit(task.commit, checkpoint, some) for task, some in twice]:
                done.result()
    assert numbers(tmp_path) == [10, 11, 12, 13, 20, 21, 22, 23]


def test_what_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"k": ["a"], "x": [1]}))
    with pytest.raises(SchemaError, match="no column 't'"):
        to_delta(tmp_path / "t").check(SCHEMA, True)
    for by in ("z", 3, ("k", "k"), SCHEMA.names):
        with pytest.raises(ConfigError, match=r"partition_by is .*each once, and leave one for the files"):
            to_delta(tmp_path / "t", by).check(SCHEMA, True)
    with pytest.raises(SchemaError, match="'d' has Spark's type interval day"):
        to_delta(tmp_path / "n").check(pa.schema([("d", pa.duration("ns")), ("x", pa.int64())]), True)
    assert not (tmp_path / "n").exists()
    assert "hidden" not in repr(to_delta(tmp_path, storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"}))


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    sink = to_delta(tmp_path)
    sink.check(SCHEMA, True)
    task = writer(sink, 0)
    task.write(batch(1))
    made = task.prepare(1)
    (file,) = made[0]["files"]
    (tmp_path / file["path"]).unlink()
    with pytest.raises(CommitFailed, match="at risk"):
        task.commit(1, made)


KEYED = pa.schema([("k", pa.string()), ("day", pa.date32()), ("x", pa.int64())])
DAY = dt.date(2026, 1, 1)


def upserts(sink: DeltaSink, folder: Path, task: int = 0, generation: int = 1) -> Any:
    return sink.writer(SinkContext("0" * 32, task, generation, KEYED, str(folder), True))


def keyed_rows(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    columns = [[k for k, _ in rows], [DAY] * len(rows), [x for _, x in rows]]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, KEYED, strict=True)], schema=KEYED)


def values_by_key(path: Path) -> dict[str | None, int]:
    rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert len({row["k"] for row in rows}) == len(rows), "a key twice"
    return {row["k"]: row["x"] for row in rows}


@pytest.mark.parametrize("by", [(), ("day",)])
def test_upserts_replace_rows_by_their_keys_once(tmp_path: Path, by: tuple[str, ...]) -> None:
    staged = tmp_path / "rows"
    staged.mkdir()
    sink = to_delta(tmp_path / "table", by, keys=["k", "day"])
    assert sink.output_modes == ("append", "update")
    assert to_delta(tmp_path).output_modes == ("append",)
    sink.check(KEYED, True)
    task = upserts(sink, staged)
    task.write(keyed_rows(("a", 1), ("b'`\"é", 1), (None, 1)))
    task.write(keyed_rows(("a", 2)))
    first = task.prepare(1)
    assert values_by_key(tmp_path / "table") == {}
    task.commit(1, first)
    assert values_by_key(tmp_path / "table") == {"a": 2, "b'`\"é": 1, None: 1}
    task.write(keyed_rows((None, 2), ("c", 2)))
    second = task.prepare(2)
    task.commit(2, second)
    task.commit(1, first)  # nobody was told
    upserts(sink, staged, generation=2).commit(2, [*second, *first])  # and a restart does it again
    assert values_by_key(tmp_path / "table") == {"a": 2, "b'`\"é": 1, None: 2, "c": 2}
    task.forget(first)
    assert len(list(staged.iterdir())) == 1
    task.write(keyed_rows(("d", 1)))
    task.prepare(3)  # no checkpoint has it
    sink.restore(SinkContext("0" * 32, 0, 2, KEYED, str(staged), True), second)
    assert [path.name for path in staged.iterdir()] == [each["file"] for each in second]


def test_upserts_of_tasks_at_the_same_time(tmp_path: Path) -> None:
    sink = to_delta(tmp_path / "table", keys="k")
    sink.check(KEYED, True)

    def work(number: int) -> None:
        staged = tmp_path / f"rows-{number}"
        staged.mkdir()
        task = upserts(sink, staged, number)
        for checkpoint in range(1, 5):
            task.write(keyed_rows(*((f"{number}-{key}", checkpoint) for key in range(3))))
            task.commit(checkpoint, task.prepare(checkpoint))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    wanted: dict[str | None, int] = {f"{number}-{key}": 4 for number in range(3) for key in range(3)}
    assert values_by_key(tmp_path / "table") == wanted


def test_keys_that_cannot_be(tmp_path: Path) -> None:
    odd = pa.schema([("x", pa.float64()), ("l", pa.list_(pa.int64()))])
    for keys, words in (("k", "'k' is no column"), ("x", "'x' is a double"), ("l", "'l' is a list")):
        with pytest.raises(ConfigError, match=words):
            to_delta(tmp_path / "table", keys=keys).check(odd, True)
