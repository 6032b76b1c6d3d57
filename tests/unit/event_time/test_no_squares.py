"""What grows with the state, and not with its square: sessions of one key, shells, windows of a join that slide."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.event_time.joins import Side
from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.spill import Spill
from fastbuf.event_time.watermarks import MAX
from fastbuf.event_time.window_join import WindowJoin
from fastbuf.event_time.windows import Session, Sliding, Tumbling
from fastbuf.event_time.work import agg_arrow, apply_in_arrow

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.int64())])
SECOND = 1_000_000


def batch(times: Any, keys: Any = 0, values: Any = 1) -> pa.RecordBatch:
    times = np.asarray(times, np.int64)
    columns = [np.broadcast_to(each, times.shape).astype(np.int64) for each in (keys, times, values)]
    arrays = [pa.array(columns[0]), pa.array(columns[1]).cast(pa.timestamp("us")), pa.array(columns[2])]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for each in batches for row in each.to_pylist()]


def most_bytes(call: Callable[[], Any]) -> int:
    """The most memory that NumPy and Python had while it ran, beyond what they had before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_long_session_of_one_key_takes_up_many_rows() -> None:
    """Each new row was paired with each later one of its key: two gigabytes for these."""
    seen: list[int] = []

    def count(key: Any, window: Any, table: pa.Table) -> pa.Table:
        seen.append(table.num_rows)
        return table.select(["v"])

    one = WindowOperator(["k"], "t", SCHEMA, Session(2000), apply_in_arrow(count, pa.schema([("v", pa.int64())])))
    list(one.rows(batch(np.arange(20_000))))
    list(one.watermark(1999))
    list(one.rows(batch(np.arange(20_000, 25_000))))
    assert most_bytes(one.freeze) < 64 << 20
    list(one.watermark(MAX))
    assert seen == [25_000]


def test_many_sessions_of_a_key_out_of_order() -> None:
    """Of 8,000 sessions, rows of the first half come behind the others."""
    one = WindowOperator(["k"], "t", SCHEMA, Session(5), agg_arrow([("v", "sum")]))
    late, early = np.arange(4000, 8000) * 10, np.arange(4000) * 10
    list(one.rows(batch(late)))
    one.freeze()
    list(one.rows(batch(early)))
    assert most_bytes(one.freeze) < 32 << 20
    list(one.rows(batch([*early + 2, *late + 2])))
    results = rows_of(one.watermark(MAX))
    assert [row["v_sum"] for row in results] == [2] * 8000


def test_shells_are_found_by_an_index() -> None:
    """Each batch looked through each table of sessions that had fired and dropped their rows."""
    one = WindowOperator(
        ["k"], "t", SCHEMA, Session(5), agg_arrow([("v", "sum")]), lateness_us=10**9, accumulate=False,
        output_mode="update",
    )  # fmt: skip
    dice = np.random.default_rng(1)
    for step in range(300):
        list(one.rows(batch(np.full(20, 10 * step), dice.integers(0, 50, 20))))
        list(one.watermark(10 * step + 4))
    assert one.figures()["rows"] == one.figures()["windows"] + len(one._windows._shells) > 1000
    assert len(one._windows._shells.runs) < 10


@pytest.mark.parametrize("assigner", [Session(5), Tumbling(5)], ids=["session", "tumbling"])
@pytest.mark.parametrize("lateness", [0, 100])
def test_shells_of_a_checkpoint_where_no_rule_makes_any(assigner: Any, lateness: int) -> None:
    """The lateness of a stream may change: sessions that had fired were written as if they had state, and none did."""

    def made(lateness_us: int) -> WindowOperator:
        work = agg_arrow([("v", "sum")])
        return WindowOperator(
            ["k"], "t", SCHEMA, assigner, work, lateness_us=lateness_us, accumulate=False, output_mode="update"
        )

    def moved(before: WindowOperator, lateness_us: int) -> WindowOperator:
        after, frozen = made(lateness_us), before.freeze()
        for group in range(128):
            after.restore(group, frozen.group(group))
        after.restore_state([before.state()])
        return after

    one = made(100)
    list(one.rows(batch([10])))
    assert [row["v_sum"] for row in rows_of(one.watermark(30))] == [1]
    for between, sums in ((100, [7]), (0, [])):  # one that had no lateness has dropped it: the row is late for good
        last = moved(moved(one, between), lateness)
        results = rows_of(last.rows(batch([12], values=7))) + rows_of(last.watermark(MAX))
        assert [row["v_sum"] for row in results] == (sums if lateness else [])
        assert last.late_rows == (0 if lateness and sums else 1)


def test_a_join_makes_no_windows_that_do_not_end() -> None:
    """Each watermark made every window of every pane: 400 MB for these."""
    sides = tuple(
        Side(SCHEMA.set(1, pa.field(time, pa.timestamp("us"))).set(2, pa.field(value, pa.int64())), ["k"], time)
        for time, value in (("lt", "a"), ("rt", "b"))
    )
    join = WindowJoin(*sides, Sliding(3600 * SECOND, SECOND))
    for side in (0, 1):
        rows = batch(np.arange(3600) * SECOND, np.arange(3600), 1)
        list(join.rows(side, rows.rename_columns(sides[side].schema.names)))
    assert most_bytes(lambda: list(join.watermark(-(10**13)))) < 16 << 20
    assert most_bytes(lambda: list(join.watermark(-3599 * SECOND))) < 16 << 20
    pairs = rows_of(join.watermark(2 * SECOND))  # the windows that end up to then have the first row, or two
    assert len(pairs) == 1 + 2
    assert {row["k"] for row in pairs} == {0, 1}


def test_rows_of_a_long_session_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch took out all rows of its session and put them back: sixty times the state was written to files."""
    written = []
    mapped = Spill.mapped

    def counted(self: Spill, tables: Any) -> Any:
        result = mapped(self, tables)
        written.append(len(result[1]))
        return result

    monkeypatch.setattr(Spill, "mapped", counted)
    seen: list[int] = []

    def note(key: Any, window: Any, table: pa.Table) -> pa.Table:
        seen.extend(table.column("v").to_pylist())
        return table.select(["v"])

    work = apply_in_arrow(note, pa.schema([("v", pa.int64())]))
    one = WindowOperator(
        ["k"], "t", SCHEMA, Session(2000), work, memory_bytes=100_000, spill_directory=str(tmp_path)
    )  # fmt: skip
    for step in range(100):
        times = np.arange(1000 * step, 1000 * step + 1000)
        list(one.rows(batch(times, values=times)))
        list(one.watermark(1000 * step))
    assert sum(written) < 2 * one.figures()["bytes"]
    list(one.watermark(MAX))
    assert seen == list(range(100_000))  # as they came
    assert one.figures()["rows"] == one.figures()["file_bytes"] == 0
