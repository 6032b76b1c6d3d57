"""A stream of rising numbers, and whether what came out of it is each of them once, in order, with the right state.

Splits of rising numbers go through a map, a shuffle, a processor with state, a shuffle, a sink (as Flink's own test of
checkpoints, ``UnalignedCheckpointITCase``).  The processor counts and sums the values of each key, and says when one is
not above the one before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

KEYS = 16


def keyed(batches: Any) -> Any:
    """The map: the key of each value."""
    for batch in batches:
        values = batch.column("value")
        keys = pc.bit_wise_and(values, KEYS - 1)
        yield pa.RecordBatch.from_arrays([keys, values], names=["k", "v"])


class Running:
    """Count and sum of the values of each key so far, at each value."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("sum", "n long, total long, last long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n, total, last = self._state.get() or (0, 0, -1)
        for batch in rows:
            values = batch.column("v").to_pylist()
            counts, totals, rising = [], [], []
            for value in values:
                n, total = n + 1, total + value
                counts.append(n)
                totals.append(total)
                rising.append(value > last)
                last = value
            columns = [pa.array([key[0]] * len(values), pa.int64()), values, counts, totals, rising]
            yield pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=["k", "v", "n", "total", "rising"])
        self._state.update((n, total, last))

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
        return ()

    def close(self) -> None:
        pass


SCHEMA = "k long, v long, n long, total long, rising boolean"


def keyed_sums(spark: Any, rows: int, rate: float, partitions: int = 1, splits: int = 1, conf: Any = None) -> Any:
    """The stream up to its processor."""
    import fastbuf_spark as fbs

    made = fbs.stream_rate(spark, rate, splits=splits, rows=rows, tasks=1, conf=conf).map_in_arrow(
        keyed, "k long, v long"
    )
    return made.group_by("k", partitions=partitions).transform_with_state(Running(), SCHEMA, arrow=True, name="running")


def numbered(spark: Any, rows: int, rate: float, partitions: int = 1, splits: int = 1, conf: Any = None) -> Any:
    """The stream."""
    made = keyed_sums(spark, rows, rate, partitions, splits, conf)
    return made.shuffle("v", partitions=1).map_in_arrow(lambda batches: batches, SCHEMA)


def check(table: pa.Table, rows: int, splits: int = 1) -> None:
    """Each number once, and at each the state that all before it give."""
    values = table.column("v").to_pylist()
    assert len(values) == len(set(values)), f"{len(values) - len(set(values))} rows are doubled"
    assert sorted(values) == list(range(rows)), f"{rows - len(values)} rows are lost"
    if splits > 1:  # of several splits the numbers of a key come in any order
        return
    assert all(table.column("rising").to_pylist())
    found = {
        v: (n, total) for v, n, total in zip(*(table.column(c).to_pylist() for c in ("v", "n", "total")), strict=True)
    }
    sums = [0] * KEYS
    for value in range(rows):
        sums[value % KEYS] += value
        assert found[value] == (value // KEYS + 1, sums[value % KEYS])


def nothing_waits(folder: Path) -> None:
    """No file of rows or of state is left that no checkpoint names."""
    import json

    named = set()
    for path in (folder / "checkpoints").iterdir():
        text = path.read_text().partition("\n")[2]
        held = json.loads(text)
        for operator in held["operators"].values():
            named |= {entry[0] for entry in operator["pieces"].values()}
    assert {path.name for path in (folder / "state").iterdir()} == named
