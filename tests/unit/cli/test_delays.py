"""The demo's stages against a plain-Python telling of the same story."""

from __future__ import annotations

import datetime
import random

import pyarrow as pa
import pytest

from fastbuf.cli import delays
from fastbuf.cli.demo import flights
from fastbuf.cli.ways import difference

DESTS = ["ATL", "BOS", "ORD"]
Row = tuple[str, str, int, int]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    types = (pa.string(), pa.string(), pa.int32(), pa.int32())
    names = ["tailnum", "dest", "sched_min", "dep_delay"]
    return pa.RecordBatch.from_arrays([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def some_rows(seed: int, count: int) -> list[Row]:
    rng = random.Random(seed)
    return [
        (
            f"N{rng.randrange(12)}",
            rng.choice(DESTS),
            rng.randrange(20_000),
            rng.choice([rng.randrange(-43, 15), rng.randrange(15, 1302)]),
        )
        for _ in range(count)
    ]


def told_plainly(rows: list[Row]) -> list[dict[str, object]]:
    result = []
    for name in sorted({row[0] for row in rows}):
        last = None
        for _, dest, minute, delay in sorted((r for r in rows if r[0] == name), key=lambda r: (r[2], r[3], r[1])):
            linked = last is not None and minute - last[0] <= delays.LINK_MIN
            brought = min(max(delay, 0), max(last[1], 0)) if last and linked else 0
            day = datetime.date(2013, 1, 1) + datetime.timedelta(days=minute // 1440)
            result.append({"dest": dest, "day": day, "delay": delay, "brought": brought})
            last = minute, delay
    return result


def followed(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(delays.follow(iter(batches)))


@pytest.mark.parametrize("count", [1, 2, 13, 400])
def test_a_flight_brings_along_what_it_says(count: int) -> None:
    rows = some_rows(count, count)
    order = sorted({row[0] for row in rows})
    # Aircraft come in the order in which they were first seen: here that of their names
    rows.sort(key=lambda row: order.index(row[0]))
    assert followed([batch_of(rows)]).to_pylist() == told_plainly(rows)


def test_result_does_not_depend_on_order_or_batches() -> None:
    """Nor where an aircraft has two flights at the same minute."""
    rows = [(name, dest, minute // 700 * 700, delay) for name, dest, minute, delay in some_rows(7, 500)]
    order = [(name, "ascending") for name in ("dest", "day", "delay", "brought")]
    reference = followed([batch_of(rows)]).sort_by(order)
    for seed in range(5):
        shuffled = rows[:]
        random.Random(seed).shuffle(shuffled)
        size = 1 + seed * 37
        batches = [batch_of(shuffled[i : i + size]) for i in range(0, len(shuffled), size)]
        assert followed([*batches, batch_of([])]).sort_by(order).equals(reference)


@pytest.mark.parametrize("batches", [[], [batch_of([])]])
def test_no_batches_give_no_flights(batches: list[pa.RecordBatch]) -> None:
    assert list(delays.follow(iter(batches))) == []


@pytest.mark.parametrize("row", [(1 << 20, 0), (-1, 0), (0, 2048), (0, -2049)])
def test_what_does_not_fit_the_packing_is_refused(row: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is outside of what fits"):
        list(delays.follow(iter([batch_of([("N1", "ATL", *row)])])))


def test_a_day_is_what_its_flights_are() -> None:
    flights = [(-5, 0), (30, 10), (90, 0)]
    day = datetime.date(2013, 3, 8)
    table = pa.table(
        {
            "dest": ["MIA"] * 3,
            "day": [day] * 3,
            "delay": pa.array([delay for delay, _ in flights], pa.int32()),
            "brought": pa.array([brought for _, brought in flights], pa.int32()),
        }
    )
    expected = {"dest": "MIA", "day": day, "flights": 3, "delay_min": 120, "brought_min": 10}
    expected |= {"share": 10 / 120, "median_min": 30.0, "worst_min": 90}
    assert delays.day(table).to_pylist() == [expected]
    on_time = table.slice(0, 1)
    assert delays.day(on_time).to_pylist()[0]["share"] is None


def test_clean_drops_what_never_left() -> None:
    table = flights()
    assert table.num_rows == 336_776
    cleaned = pa.Table.from_batches(delays.clean(iter(table.to_batches())))
    assert cleaned.num_rows == 328_521
    assert all(column.null_count == 0 for column in cleaned.columns)
    first = cleaned.slice(0, 1).to_pylist()[0]
    assert first == {"tailnum": "N14228", "dest": "IAH", "sched_min": 5 * 60 + 15, "dep_delay": 2}


def test_difference_tells_what_differs() -> None:
    table = pa.table({"k": ["a", "b", "c"], "v": [1, 2, 3]})
    assert difference(table, table) == ""
    assert "2 rows instead of 3" in difference(table, table.slice(0, 2))
    assert "row 1" in difference(table, pa.table({"k": ["a", "b", "c"], "v": [1, 9, 3]}))
    assert "columns" in difference(table, table.rename_columns(["k", "w"]))
