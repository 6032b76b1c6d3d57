"""A stream of rising numbers, and whether what came out of it is each of them once, in order, with the right state.

Splits of rising numbers go through a map, a shuffle, a processor with state, a shuffle, a sink (as Flink's own test of
checkpoints, ``UnalignedCheckpointITCase``).  The processor counts and sums the values of each key, and says when one is
not above the one before it.
"""

from __future__ import annotations

from itertools import accumulate
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
    """Count and sum of the values of each key so far, at each value; and whether it is above its split's last one."""

    def __init__(self, splits: int = 1) -> None:
        self._splits = splits

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("sum", "n long, total long, last array<long>")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n, total, last = self._state.get() or (0, 0, [-1] * self._splits)
        last = list(last)
        for batch in rows:
            values = batch.column("v").to_pylist()
            counts, totals, rising = [], [], []
            for value in values:
                n, total = n + 1, total + value
                counts.append(n)
                totals.append(total)
                rising.append(value > last[value % self._splits])
                last[value % self._splits] = value
            columns = [pa.array([key[0]] * len(values), pa.int64()), values, counts, totals, rising]
            yield pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=["k", "v", "n", "total", "rising"])
        self._state.update((n, total, last))

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
        return ()

    def close(self) -> None:
        pass


SCHEMA = "k long, v long, n long, total long, rising boolean"


def keyed_sums(
    spark: Any, rows: int, rate: float, partitions: int = 1, splits: int = 1, conf: Any = None, tasks: int = 1
) -> Any:
    """The stream up to its processor; ``tasks``: of its source."""
    import fastbuf_spark as fbs

    made = fbs.stream_rate(spark, rate, splits=splits, rows=rows, tasks=tasks, conf=conf).map_in_arrow(
        keyed, "k long, v long"
    )
    running = Running(splits)
    return made.group_by("k", partitions=partitions).transform_with_state(running, SCHEMA, arrow=True, name="running")


def numbered(
    spark: Any, rows: int, rate: float, partitions: int = 1, splits: int = 1, conf: Any = None, tasks: int = 1
) -> Any:
    """The stream."""
    made = keyed_sums(spark, rows, rate, partitions, splits, conf, tasks)
    return made.shuffle("v", partitions=1).map_in_arrow(lambda batches: batches, SCHEMA)


def check(table: pa.Table, rows: int, splits: int = 1, ordered: bool = False) -> None:
    """Each number once, and at each the state that all before it give.

    Parameters
    ----------
    splits
        The numbers of each rise; those of several come in any order.
    ordered
        Whether the rows of a key must be in the order in which they were made.
    """
    values = table.column("v").to_pylist()
    assert len(values) == len(set(values)), f"{len(values) - len(set(values))} rows are doubled"
    assert sorted(values) == list(range(rows)), f"{rows - len(values)} rows are lost"
    assert all(table.column("rising").to_pylist())
    by_key: dict[int, list[tuple[int, int, int]]] = {key: [] for key in range(KEYS)}
    for value, n, total in zip(*(table.column(c).to_pylist() for c in ("v", "n", "total")), strict=True):
        by_key[value % KEYS].append((n, total, value))
    for made in by_key.values():
        counts = [n for n, _, _ in made]
        assert not ordered or counts == sorted(counts), "rows of a key are out of order"
        made.sort()
        assert [n for n, _, _ in made] == list(range(1, len(made) + 1))
        assert [total for _, total, _ in made] == list(accumulate(value for _, _, value in made))
        for split in range(splits):
            of_split = [value for _, _, value in made if value % splits == split]
            assert of_split == sorted(of_split)


def nothing_waits(folder: Path) -> None:
    """No file of rows or of state is left that no checkpoint names."""
    import json

    named, rows = set(), set()
    for path in (folder / "checkpoints").iterdir():
        text = path.read_text().partition("\n")[2]
        held = json.loads(text)
        for operator in held["operators"].values():
            named |= {entry[0] for entry in operator["pieces"].values()}
        for waiting in held["rows"].values():
            rows |= {each["file"] for _, some in waiting for each in some if "file" in each}
    assert {path.name for path in (folder / "state").iterdir()} == named
    waiting = {path.name for path in (folder / "rows").rglob("rows-*.arrow")}
    assert waiting <= rows, f"no checkpoint names {sorted(waiting - rows)}"
