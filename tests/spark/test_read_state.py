"""The state in a checkpoint is a table that anybody can read, while the query runs or afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numbered
import pyarrow as pa
import pytest
from conftest import in_the_end

import fastbuf_spark as fbs
from fastbuf.checkpoint.store import CheckpointError
from fastbuf.errors import ConfigError

ROWS = 800


class Several:
    """A value, a list, a map and a timer for each key."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "v long")
        self._all = handle.getListState("all", "v long")
        self._seen = handle.getMapState("seen", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for batch in rows:
            for value in batch.column("v").to_pylist():
                self._last.update((value,))
                self._all.appendValue((value,))
                self._seen.updateValue((value % 2,), (value,))
        self._handle.registerTimer(4_000_000_000_000 + key[0])
        return ()

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
        return ()

    def close(self) -> None:
        pass


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_each_kind_of_state_and_timers(spark: Any, tmp_path: Path) -> None:
    chk = tmp_path / "chk"
    stream = fbs.stream_rate(spark, 0.0, rows=ROWS, tasks=1).map_in_arrow(numbered.keyed, "k long, v long")
    held = stream.group_by("k", partitions=2).transform_with_state(
        Several(), "k long", arrow=True, name="several", time_mode="processing_time"
    )
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        fbs.read_state(chk, "several")
    query = held.write_stream(fbs.to_memory(), chk, every=0.2)
    assert query.await_termination(60)

    def table(variable: str) -> pa.Table:
        return fbs.read_state(chk, "several", variable).sort_by("k")

    last = table("last")
    assert last.column_names == ["k", "expires_ms", "value"]
    assert last["k"].to_pylist() == list(range(numbered.KEYS))
    assert [row["v"] for row in last["value"].to_pylist()] == list(range(ROWS - numbered.KEYS, ROWS))
    every = dict(zip(*(table("all")[name].to_pylist() for name in ("k", "value")), strict=True))
    assert [row["v"] for row in every[3]] == list(range(3, ROWS, numbered.KEYS))
    seen = table("seen")
    assert seen.column_names == ["k", "expires_ms", "map_key", "value"]
    assert seen.num_rows == numbered.KEYS
    assert table("__timers")["time_ms"].to_pylist() == [4_000_000_000_000 + k for k in range(numbered.KEYS)]
    with pytest.raises(ConfigError, match=r"several variables, .*: \['__timers', 'all', 'last', 'seen'\]"):
        fbs.read_state(chk, "several")
    with pytest.raises(ConfigError, match=r"no operator 'other' has state .* there are \['several'\]"):
        fbs.read_state(chk, "other")
    with pytest.raises(ConfigError, match="no entry of 'none'"):
        fbs.read_state(chk, "several", "none")


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_state_of_a_query_that_runs_and_of_its_savepoint(spark: Any, tmp_path: Path) -> None:
    query = numbered.numbered(spark, 10**9, 5000.0).write_stream(fbs.to_memory(), tmp_path / "chk", every=0.1)
    query.savepoint(tmp_path / "empty")  # asked for before there are tasks
    in_the_end(query.progress, lambda told: told["stages"][1]["rows_out"] > 0)
    query.savepoint(tmp_path / "saved")
    saved = fbs.read_state(tmp_path / "saved", "running")
    for _ in range(50):  # checkpoints come and go meanwhile
        now = fbs.read_state(tmp_path / "chk", "running")
    query.stop()
    total, later = (sum(row["n"] for row in table["value"].to_pylist()) for table in (saved, now))
    assert 0 < total <= later
    assert fbs.read_state(tmp_path / "empty", "running").num_rows <= numbered.KEYS


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_state_of_windows(spark: Any, tmp_path: Path) -> None:
    stream = fbs.stream_rate(spark, 0.0, rows=100, tasks=1).with_watermark("timestamp")
    sums = stream.group_by("value", partitions=1).window("1 hour").agg_arrow([([], "count_all")], name="hours")
    query = sums.write_stream(fbs.to_memory(), tmp_path / "chk", every=0.05)
    query.savepoint(tmp_path / "saved")
    query.await_termination(60)
    table = fbs.read_state(tmp_path / "saved", "hours")
    assert table.num_rows in (0, 100)
    assert table.column_names in ([], ["value", "window_start", "window_end", "count_all"])
    assert fbs.read_state(tmp_path / "chk", "hours").num_rows == 0, "at the end of time all windows are given"


class Waits:
    """A batch of rows with keys from one number on, and no more."""

    def __init__(self, first: int, time: str) -> None:
        self.name, self.schema = f"from {first}", f"{time} timestamp, k long, {time}_v long"
        self._first, self._time = first, time

    def splits(self) -> list[str]:
        return ["only"]

    def read(self, split: str, offset: int | None) -> Iterator[Any]:
        if not offset:
            keys = pa.array(range(self._first, self._first + 100))
            times = pa.array([1_700_000_000] * 100, pa.timestamp("s", "UTC")).cast(pa.timestamp("us", "UTC"))
            yield pa.record_batch([times, keys, keys], names=[self._time, "k", f"{self._time}_v"]), 1
        while True:
            time.sleep(0.02)  # a source that stays open, so that its rows wait in the state
            yield None, 1


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_state_of_a_join(spark: Any, tmp_path: Path) -> None:
    """Of each side a table, in which all columns have their names."""

    def side(first: int, column: str) -> Any:
        return fbs.stream(spark, Waits(first, column), tasks=1).with_watermark(column).group_by("k", partitions=1)

    joined = side(0, "a").interval_join(side(50, "b"), "-1 hour", "1 hour", how="left", name="pairs")
    query = joined.write_stream(fbs.to_memory(), tmp_path / "chk", every=0.1)

    def waiting() -> bool:
        query.savepoint(tmp_path / "saved")
        tables = [fbs.read_state(tmp_path / "saved", "pairs", each) for each in ("left", "right")]
        shutil.rmtree(tmp_path / "saved")
        return all(table.num_rows == 100 for table in tables)

    in_the_end(waiting, bool)
    query.savepoint(tmp_path / "saved")
    query.stop()
    left = fbs.read_state(tmp_path / "saved", "pairs", "left")
    right = fbs.read_state(tmp_path / "saved", "pairs", "right")
    assert left.column_names == ["k", "matched", "a", "a_v"]
    assert right.column_names == ["k", "b", "b_v"]
    assert left.sort_by("k")["matched"].to_pylist() == [False] * 50 + [True] * 50
    assert sorted(right["b_v"].to_pylist()) == list(range(50, 150))
    with pytest.raises(ConfigError, match=r"several variables, name one of them: \['left', 'right'\]"):
        fbs.read_state(tmp_path / "saved", "pairs")
