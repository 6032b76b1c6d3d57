"""What is slow: state that is long written, a channel that stands still, checkpoints that take too long."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import numbered
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nights import LONG, nightly
from numbered import check
from test_streams_ends import seen, until
from test_streams_functions import LONGS, Lists, batch

import fastbuf_spark as fbs
from fastbuf_spark.streams.commits import MOST_DUE


def stands_still(batches: Any) -> Any:
    """The task with this row does nothing for a while; the other goes on."""
    for each in batches:
        if 210 in each["v"].to_pylist():
            time.sleep(60 if LONG else 4)  # what is tested: longer than the two seconds that a checkpoint must take
        yield each


def test_a_channel_that_stands_still(spark: Any, tmp_path: Path) -> None:
    """Others wait for its barrier, and it is said for which; then all goes on, and nothing is lost."""
    sink = fbs.to_memory()
    stream = fbs.stream(spark, Lists(2, 400, 0.01), LONGS, tasks=2).map_in_arrow(stands_still, LONGS)
    query = stream.shuffle("v", partitions=1).write_stream(sink, tmp_path / "chk", every=0.1)
    words: set[str] = set()

    def look() -> bool:
        words.add(query.progress().get("waiting", ""))
        return not query.is_active

    until(look, 180.0)
    assert query.await_termination(60)
    assert sorted(sink.table()["v"].to_pylist()) == list(range(400))
    assert any(re.match(r"waits \d+\.\d s for task ", each) for each in words), words
    assert any("it waits for the barrier of channel" in each or "of source" in each for each in words), words
    assert max(each["duration_s"] for each in query.progress()["checkpoints"]) > (50 if LONG else 2)


def test_a_stage_between_two_others_waits_for_the_slow_one(spark: Any, tmp_path: Path) -> None:
    """All tasks' gates have one number and secret: it took the full one behind it for its own, and the stream ended."""

    def slow(batches: Any) -> Any:
        for each in batches:
            if each["value"][0].as_py() == 0:
                time.sleep(2)  # a writer looks what it waits for behind a quarter of a second
            yield each

    sink, conf = fbs.to_memory(), fbs.ShuffleConf(memory_bytes="256k", segment_size="8k", buffer_timeout=0.005)
    stream = fbs.stream_rate(spark, 0, rows=300_000, tasks=1, conf=conf).shuffle("value", partitions=1)
    stream = stream.shuffle("value", partitions=1).map_in_arrow(slow, "timestamp timestamp, value long")
    assert stream.write_stream(sink, tmp_path / "chk", every=0.5).await_termination(60)
    assert sorted(sink.table()["value"].to_pylist()) == list(range(300_000))


class SlowToWrite:
    """Its state takes long to encode."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("s", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n = (self.state.get() or (0,))[0] + sum(each.num_rows for each in rows)
        self.state.update((n,))
        yield pa.RecordBatch.from_arrays([pa.array([key[0]], pa.int64()), pa.array([n])], names=["v", "n"])

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
        return ()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("timeout", [60.0, 0.4])
def test_checkpoints_that_take_longer_than_their_interval(spark: Any, tmp_path: Path, timeout: float) -> None:
    """The next comes when one has ended; with a timeout they fail, which is tolerated, and rows go on meanwhile."""

    class Writes(SlowToWrite):
        def init(self, handle: Any) -> None:
            from pyspark import TaskContext

            from fastbuf_spark.streams import stateful

            super().init(handle)
            if TaskContext.get() is None:
                return  # the driver, where init is tried first
            real = stateful.__dict__.setdefault("real_encode", stateful.encode_state)  # workers are used again
            slow = iter([1.0, 1.0])

            def encode(keys: Any, parts: Any) -> bytes:
                time.sleep(next(slow, 0.0))
                return real(keys, parts)

            stateful.encode_state = encode

    sink = fbs.to_memory()
    stream = fbs.stream(spark, Lists(1, 300, 0.1), LONGS, tasks=1)
    keyed = stream.map_in_arrow(lambda given: (batch([0] * b.num_rows) for b in given), LONGS)
    counted = keyed.group_by("v", partitions=1).transform_with_state(Writes(), "v long, n long", arrow=True, name="n")
    query = counted.write_stream(sink, tmp_path / "chk", every=0.1, timeout=timeout, tolerated_failures=100)
    assert query.await_termination(60)
    assert query.status["restarts"] == 0
    counts = sink.table()["n"].to_pylist()  # rows that came meanwhile are in one batch
    assert counts == sorted(set(counts))
    assert counts[-1] == 300
    if timeout < 1:
        assert seen(query, "failed") >= 2
        reasons = [each["reason"] for each in query.progress()["checkpoints"] if each["reason"]]
        assert "had not acknowledged it after 0.4 s" in reasons[0]
    else:
        assert seen(query, "failed") == 0
        assert max(each["async_s"] for each in query.progress()["checkpoints"]) >= 1.0


def test_too_many_checkpoints_fail(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is started again, which helps where a disk comes back."""
    from fastbuf.checkpoint.store import CheckpointStore

    real, failures = CheckpointStore.write, [5]

    def write(store: Any, checkpoint: int, metadata: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(28, "No space left on device")
        real(store, checkpoint, metadata)

    monkeypatch.setattr(CheckpointStore, "write", write)
    sink = fbs.to_memory()
    query = numbered.numbered(spark, 3000, 3000.0).write_stream(
        sink, tmp_path / "chk", every=0.1, tolerated_failures=2, guarantee="at_least_once"
    )
    assert query.await_termination(60)
    assert query.status["restarts"] == 1
    values = sink.table()["v"].to_pylist()
    assert set(values) == set(range(3000))  # nothing is lost
    assert len(values) >= 3000
    exact = fbs.to_memory()
    query = numbered.numbered(spark, 3000, 0).write_stream(exact, tmp_path / "chk2", every=0.1)
    assert query.await_termination(60)
    check(exact.table(), 3000)


@nightly(shuffled=False)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_sink_that_commits_more_slowly_than_checkpoints_come(spark: Any, tmp_path: Path, shuffled: bool) -> None:
    """Rows do not wait in ever more files: they are not read."""
    (tmp_path / "out").mkdir()

    def take(table: pa.Table, number: int) -> None:
        time.sleep(0.4)
        pq.write_table(table, tmp_path / "out" / f"{number}.parquet")

    stream = fbs.stream(spark, Lists(1, 2000, 0.01), LONGS, tasks=1)
    stream = stream.rebalance(1) if shuffled else stream
    query = stream.write_stream(fbs.to_function(take), tmp_path / "chk", every=0.03)
    waiting, states = [0], set()

    def look() -> bool:
        for path in sorted((tmp_path / "chk" / "checkpoints").glob("*.json"))[-1:]:
            with contextlib.suppress(OSError):  # it has been removed
                rows = json.loads(path.read_text().partition("\n")[2])["rows"].get("results", [])
                waiting.append(sum(bool(committables) for _, committables in rows))
        states.update(task["state"] for task in query.progress()["stages"][-1]["subtasks"])
        return not query.is_active

    until(look)
    assert query.await_termination(0)
    assert 2 <= max(waiting) <= MOST_DUE + 2  # those that are due, the one that was complete just now, and its own
    assert "commit" in states
    table = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "out").iterdir()])
    assert sorted(table["v"].to_pylist()) == list(range(2000))
