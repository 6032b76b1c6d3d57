"""What functions of a stream may do, and what they see: epochs, open and close, early ends, sources of a user's own."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as T

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError

LONGS = "v long"


def batch(values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["v"])


class Lists:
    """Splits of numbers: an offset is the place in the list; slowly, so that there are epochs."""

    bounded = True

    def __init__(self, splits: int, rows: int, seconds: float = 0.0, step: int = 10) -> None:
        self.lists = {f"s{i}": list(range(i, rows, splits)) for i in range(splits)}
        self.seconds, self.step = seconds, step

    def splits(self) -> list[str]:
        return sorted(self.lists)

    def read(self, split: str, offset: Any) -> Any:
        values, at = self.lists[split], offset or 0
        while at < len(values):
            time.sleep(self.seconds)
            end = min(len(values), at + self.step)
            yield batch(values[at:end]), end
            at = end


class Kept:
    """Writes down when it is opened, called and closed, and by which object."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.opened = str(folder), False

    def _tell(self, word: str) -> None:
        with Path(self.folder, f"{os.getpid()}-{id(self)}").open("a") as file:
            file.write(f"{word} ")

    def open(self) -> None:
        self.opened = True
        self._tell("open")

    def __call__(self, given: Any) -> Any:
        assert self.opened
        self._tell("call")
        yield from given
        self._tell("end")

    def close(self) -> None:
        self._tell("close")


@pytest.mark.parametrize("verb", ["map_in_arrow", "map_in_pandas"])
def test_open_and_close_and_an_epoch_for_each_barrier(spark: Any, tmp_path: Path, verb: str) -> None:
    """Opened once in each task, called once for each epoch, its input and its output ended there, closed at the end."""
    (tmp_path / "told").mkdir()
    sink = fbs.to_memory()
    stream = fbs.stream(spark, Lists(1, 200, 0.02), LONGS, tasks=1)
    stream = getattr(stream, verb)(Kept(tmp_path / "told"), LONGS).rebalance(2).filter(pc.field("v") >= 0)
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(60)
    assert sorted(sink.table()["v"].to_pylist()) == list(range(200))
    (told,) = (tmp_path / "told").iterdir()
    words = told.read_text().split()
    assert (words[0], words[-1]) == ("open", "close")
    assert words[1:-1] == ["call", "end"] * ((len(words) - 2) // 2)
    assert len(words) > 6


class Early:
    """Reads no more of an epoch than its first batch, and never asks whether it was the last."""

    def __call__(self, given: Any) -> Any:
        for each in given:
            yield each
            return


class Counts:
    """A processor that counts the rows of each key."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("n", T.StructType([T.StructField("n", T.LongType())]))

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n = (self.state.get() or (0,))[0] + sum(each.num_rows for each in rows)
        self.state.update((n,))
        yield pa.RecordBatch.from_arrays([pa.array([key[0]], pa.int64()), pa.array([n])], names=["v", "n"])

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
        return ()

    def close(self) -> None:
        pass


def test_a_function_that_stops_reading(spark: Any, tmp_path: Path) -> None:
    """What it leaves of its epoch is gone, as in Spark; the state before it, and the offsets, are those of all rows."""
    sink, each_key = fbs.to_memory(), 40
    stream = fbs.stream(spark, Lists(1, each_key, 0.02, step=each_key // 4), LONGS, tasks=1)
    stream = stream.map_in_arrow(lambda given: (batch([x % 20 for x in b["v"].to_pylist()]) for b in given), LONGS)
    stream = stream.group_by("v", partitions=1).transform_with_state(Counts(), "v long, n long", arrow=True, name="n")
    query = stream.map_in_arrow(Early(), "v long, n long").write_stream(sink, tmp_path / "chk", every=600)
    assert query.await_termination(60)
    assert sink.table().num_rows == 1
    # The state is that of all rows: the same stream, longer, goes on from it
    stream = fbs.stream(spark, Lists(1, 60, 0.0), LONGS, tasks=1)
    again = fbs.to_memory()
    longer = stream.map_in_arrow(lambda given: (batch([x % 20 for x in b["v"].to_pylist()]) for b in given), LONGS)
    longer = longer.group_by("v", partitions=1).transform_with_state(Counts(), "v long, n long", arrow=True, name="n")
    state = Path(tmp_path / "chk" / "checkpoints")
    assert sorted(state.iterdir())
    query = longer.write_stream(again, tmp_path / "chk", every=600)
    assert query.await_termination(60)
    counts = _state_of(tmp_path / "chk")
    assert counts == {v: each_key // 20 for v in range(20)}


def _state_of(folder: Path) -> dict[int, int]:
    from fastbuf.checkpoint.store import CheckpointStore, pieces_of, read_piece
    from fastbuf_spark.streams.state_files import tables_of

    store = CheckpointStore(folder)
    found = {}
    latest = store.latest()
    assert latest is not None
    for entry in pieces_of(latest):
        for _, table in tables_of(read_piece(store.state_folder, entry)):
            for key, value in zip(table["v"].to_pylist(), table["value"].to_pylist(), strict=True):
                found[key] = value["n"]
    return found


def test_functions_that_give_nothing_and_epochs_without_rows(spark: Any, tmp_path: Path) -> None:
    sink = fbs.to_parquet(tmp_path / "out")
    stream = fbs.stream(spark, Lists(2, 40, 0.05), LONGS, tasks=1).shuffle("v", partitions=1)
    query = stream.map_in_arrow(lambda given: [], LONGS).write_stream(sink, tmp_path / "chk", every=0.05)
    assert query.await_termination(60)
    assert [path for path in (tmp_path / "out").rglob("*.parquet") if "_fastbuf" not in path.parts] == []
    empty = fbs.stream(spark, Lists(3, 0), LONGS, tasks=2).rebalance(1)
    sink2 = fbs.to_memory()
    query = empty.write_stream(sink2, tmp_path / "chk2", every=0.05)
    assert query.await_termination(60)
    assert sink2.table().num_rows == 0


class Swallows:
    """Catches what it should not."""

    def __call__(self, given: Any) -> Any:
        try:
            yield from given
        except BaseException as error:
            print("ignored", error)


class Broken(Lists):
    def __init__(self, folder: Path) -> None:
        super().__init__(1, 100)
        self.folder = str(folder)

    def read(self, split: str, offset: Any) -> Any:
        for each, at in super().read(split, offset):
            if at == 50 and not os.path.exists(self.folder + "/broken"):
                Path(self.folder, "broken").touch()
                raise OSError("the source is broken")
            yield each, at


def test_a_function_that_catches_the_errors_of_its_input(spark: Any, tmp_path: Path) -> None:
    """The task fails all the same, and the stream starts again; stop() ends it too."""
    sink = fbs.to_memory()
    stream = fbs.stream(spark, Broken(tmp_path), LONGS, tasks=1).map_in_arrow(Swallows(), LONGS).rebalance(1)
    query = stream.write_stream(sink, tmp_path / "chk", every=5)
    assert query.await_termination(60)
    assert query.status["restarts"] == 1
    assert sorted(sink.table()["v"].to_pylist()) == list(range(100))
    endless = fbs.stream_rate(spark, 100.0, tasks=1).map_in_arrow(Swallows(), "timestamp timestamp, value long")
    query = endless.write_stream(fbs.to_memory(), tmp_path / "chk2", every=0.1)
    deadline = time.monotonic() + 60
    while not query.progress().get("checkpoints") and time.monotonic() < deadline:
        time.sleep(0.02)
    begin = time.monotonic()
    query.stop()
    assert query.status["state"] == "stopped"
    assert time.monotonic() - begin < 30


class FloatCounts(Counts):
    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n = (self.state.get() or (0,))[0] + sum(each.num_rows for each in rows)
        self.state.update((n,))
        yield pa.RecordBatch.from_arrays([pa.array([key[0]], pa.float64()), pa.array([n])], names=["k", "n"])


def test_float_keys(spark: Any, tmp_path: Path) -> None:
    """NaN is one key, and -0.0 is 0.0, over batches, and over a restart."""

    def floats(given: Any) -> Any:
        values = [float("nan"), -0.0, 0.0, 1.5, None]
        for each in given:
            for value in values:
                yield pa.RecordBatch.from_arrays([pa.array([value] * each.num_rows, pa.float64())], names=["k"])

    rows, seen = 0, Counter[str]()
    for total in (20, 40):
        sink = fbs.to_memory()
        stream = fbs.stream(spark, Lists(1, total), LONGS, tasks=1)
        source: Any = stream._drafts[0].source
        source.source.lists = {f"{total}": list(range(20))}
        keyed = stream.map_in_arrow(floats, "k double").group_by("k", partitions=2)
        query = keyed.transform_with_state(FloatCounts(), "k double, n long", arrow=True, name="n").write_stream(
            sink, tmp_path / "chk", every=600
        )
        assert query.await_termination(60)
        rows += 20
        for key, n in zip(*(sink.table()[name].to_pylist() for name in ("k", "n")), strict=True):
            seen[str(key)] = max(seen[str(key)], n)
        assert seen == {"nan": rows, "0.0": 2 * rows, "1.5": rows, "None": rows}


def test_offsets_and_states_that_are_no_json(spark: Any, tmp_path: Path) -> None:
    class Odd(Lists):
        def read(self, split: str, offset: Any) -> Any:
            yield batch([1]), {1, 2}
            while True:
                time.sleep(0.01)
                yield None, {1, 2}

    query = fbs.stream(spark, Odd(1, 10), LONGS, tasks=1).write_stream(fbs.to_memory(), tmp_path / "a", every=0.1)
    with pytest.raises(fbs.StreamFailed, match="not JSON serializable"):
        query.await_termination(60)
    with pytest.raises(ConfigError, match="a source needs a method read"):
        fbs.stream(spark, object.__new__(type("NoRead", (), {"splits": list})), LONGS)
