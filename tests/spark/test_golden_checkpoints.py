"""A checkpoint that an earlier version wrote is gone on from: its metadata, offsets, state of each kind, and timers.

Before a version is released, ``python tests/spark/test_golden_checkpoints.py`` writes its own.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb
import fastbuf_spark as fbs

GOLDEN = Path(__file__).parent / "golden"
KEYS, ROWS = 4, 3000
SCHEMA = "k long, v long, n long, last3 string, evens long"


class EveryKind:
    """A count in a value, the last three in a list, a count of even and odd ones in a map, and a timer far away."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")
        self.last = handle.getListState("last", "v long")
        self.parity = handle.getMapState("parity", "even boolean", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Iterator[pa.RecordBatch]:
        out = []
        for batch in rows:
            for value in batch["v"].to_pylist():
                (n,) = self.n.get() or (0,)
                self.n.update((n + 1,))
                self.last.put([*self.last.get(), (value,)][-3:])
                even = (value // KEYS % 2 == 0,)
                (many,) = self.parity.getValue(even) or (0,)
                self.parity.updateValue(even, (many + 1,))
                last = ",".join(str(v) for (v,) in self.last.get())
                out.append((key[0], value, n + 1, last, (self.parity.getValue((True,)) or (0,))[0]))
        if not list(self.handle.listTimers()):
            self.handle.registerTimer(4_000_000_000_000)  # in the year 2096
        columns = [pa.array(list(column)) for column in zip(*out, strict=True)]
        yield pa.record_batch(columns, names=["k", "v", "n", "last3", "evens"])

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...


def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = batch["value"].to_numpy()
        yield pa.record_batch({"k": values % KEYS, "v": values})


def largest(batch: pa.RecordBatch, numbers: np.ndarray, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """State in columns: the greatest value of each key."""
    most = state["most"].fill_null(-1).to_numpy().copy()
    np.maximum.at(most, numbers, batch["v"].to_numpy())
    most_so_far = pa.array(most)
    return pa.record_batch({"most": most_so_far}), batch.append_column("most", most_so_far.take(pa.array(numbers)))


def stream(spark: Any, rows: int | None, rate: float) -> Any:
    numbers = fbs.stream_rate(spark, rate, rows=rows, tasks=1).map_in_arrow(keyed, "k long, v long")
    kinds = numbers.group_by("k", partitions=1).transform_with_state(
        EveryKind(), SCHEMA, time_mode="processing_time", arrow=True, name="kinds"
    )
    return kinds.group_by("k", partitions=1).transform_batches_with_state(
        largest, f"{SCHEMA}, most long", "most long", name="largest"
    )


def expected(value: int) -> tuple[int, int, int, str, int]:
    turn = value // KEYS
    last = ",".join(str(v) for v in (value - 2 * KEYS, value - KEYS, value) if v >= 0)
    return value % KEYS, value, turn + 1, last, turn // 2 + 1


@pytest.mark.parametrize("folder", sorted(path.name for path in GOLDEN.iterdir()))
def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(spark: Any, tmp_path: Path, folder: str) -> None:
    shutil.copytree(GOLDEN / folder, tmp_path / "chk")
    result = fbs.to_memory()
    query = stream(spark, ROWS, 0).write_stream(result, tmp_path / "chk", every=0.5)
    assert query.await_termination(60)
    assert query.status["state"] == "finished"
    rows = sorted(zip(*(column.to_pylist() for column in result.table().columns), strict=True), key=lambda row: row[1])
    first = rows[0][1]
    assert first > 3 * KEYS, "nothing was restored"
    assert [row[:5] for row in rows] == [expected(value) for value in range(first, ROWS)]
    assert all(row[5] >= row[1] and row[5] % KEYS == row[0] for row in rows)  # of a batch, all have the last one's
    timers = fbs.read_state(str(tmp_path / "chk"), "kinds", "__timers")
    assert timers.num_rows == KEYS


def write_golden() -> None:
    """The newest checkpoint of a stream of this version; a version that is released keeps its own."""
    from pyspark.sql import SparkSession

    folder = GOLDEN / f"checkpoint-{fb.__version__}"
    assert not folder.exists(), f"{folder} is there"
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    query = stream(spark, None, 500.0).write_stream(fbs.to_memory(), folder, every=0.3)
    while len([one for one in query.progress().get("checkpoints", ()) if one["state"] == "completed"]) < 5:
        time.sleep(0.05)  # between two looks
    query.stop()
    spark.stop()
    (folder / "lock").write_text("")  # it names the machine


if __name__ == "__main__":
    write_golden()
