"""The demo's stages against a plain-Python telling of the same story."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict

import pyarrow as pa
import pytest

from fastbuf.cli import delays
from fastbuf.cli.demo import flights
from fastbuf.cli.ways import difference


def batch_of(rows: list[tuple[str, int, int, int | None, int]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    types = (pa.string(), pa.int64(), pa.int32(), pa.int32(), pa.int32())
    names = ["tailnum", "sched_min", "dep_delay", "arr_delay", "distance"]
    return pa.RecordBatch.from_arrays([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def some_rows(seed: int, count: int) -> list[tuple[str, int, int, int | None, int]]:
    rng = random.Random(seed)
    return [
        (
            f"N{rng.randrange(12)}",
            rng.randrange(20_000),
            rng.choice([rng.randrange(-43, 15), rng.randrange(15, 1302)]),
            rng.choice([None, rng.randrange(-60, 1300)]),
            rng.randrange(80, 5000),
        )
        for _ in range(count)
    ]


def told_plainly(rows: list[tuple[str, int, int, int | None, int]]) -> list[dict[str, object]]:
    aircraft = defaultdict(list)
    for row in rows:
        aircraft[row[0]].append(row)
    result = []
    for name in sorted(aircraft):
        own = sorted(aircraft[name], key=lambda r: (r[1], r[2]))
        pairs = [(a[2], b[2]) for a, b in itertools.pairwise(own) if b[1] - a[1] <= delays.LINK_MIN]
        arrived_late = sum(max(a, 0) for a, _ in pairs)
        handed = sum(min(max(a, 0), max(b, 0)) for a, b in pairs)
        longest = chain = 0
        for i, row in enumerate(own):
            linked = i > 0 and row[1] - own[i - 1][1] <= delays.LINK_MIN
            chain = 0 if row[2] <= delays.LATE_MIN else (chain if linked else 0) + 1
            longest = max(longest, chain)
        n = len(pairs)
        x, y = [a for a, _ in pairs], [b for _, b in pairs]
        xx, yy = n * sum(v * v for v in x) - sum(x) ** 2, n * sum(v * v for v in y) - sum(y) ** 2
        xy = n * sum(a * b for a, b in pairs) - sum(x) * sum(y)
        result.append(
            {
                "tailnum": name,
                "flights": len(own),
                "miles": sum(r[4] for r in own),
                "late_min": sum(max(r[2], 0) for r in own),
                "made_up_min": sum(r[2] - r[3] for r in own if r[3] is not None),
                "links": n,
                "arrived_late_min": arrived_late,
                "handed_on_min": handed,
                "share": handed / arrived_late if arrived_late else None,
                "correlation": xy / (math.sqrt(xx) * math.sqrt(yy)) if xx and yy else None,
                "longest_chain": longest,
            }
        )
    return result


@pytest.mark.parametrize("count", [0, 1, 2, 13, 400])
def test_handed_on_is_what_it_says(count: int) -> None:
    rows = some_rows(count, count)
    (result,) = delays.handed_on(iter([batch_of(rows)]))
    expected = told_plainly(rows)
    assert result.num_rows == len(expected)
    for ours, theirs in zip(result.to_pylist(), expected, strict=True):
        assert ours["correlation"] == pytest.approx(theirs["correlation"])
        assert {**ours, "correlation": None} == {**theirs, "correlation": None}


def test_result_does_not_depend_on_order_or_batches() -> None:
    rows = some_rows(7, 500)
    (reference,) = delays.handed_on(iter([batch_of(rows)]))
    for seed in range(5):
        shuffled = rows[:]
        random.Random(seed).shuffle(shuffled)
        size = 1 + seed * 37
        batches = [batch_of(shuffled[i : i + size]) for i in range(0, len(shuffled), size)]
        assert next(delays.handed_on(iter([*batches, batch_of([])]))).equals(reference)


def test_no_batches_give_no_aircraft() -> None:
    (result,) = delays.handed_on(iter([]))
    assert result.num_rows == 0
    assert result.schema.names == [part.split()[0] for part in delays.RESULT_SCHEMA.split(", ")]


@pytest.mark.parametrize("field", [(1 << 20, 0), (-1, 0), (0, 2048), (0, -2049)])
def test_what_does_not_fit_the_packing_is_refused(field: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is outside of"):
        list(delays.handed_on(iter([batch_of([("N1", field[0], field[1], 0, 100)])])))


def test_clean_drops_what_never_left() -> None:
    table = flights()
    assert table.num_rows == 336_776
    cleaned = pa.Table.from_batches(delays.clean(iter(table.to_batches())))
    assert cleaned.num_rows == 328_521
    assert all(
        column.null_count == 0
        for name, column in zip(cleaned.column_names, cleaned.columns, strict=True)
        if name != "arr_delay"
    )
    first = cleaned.slice(0, 1).to_pylist()[0]
    assert first == {"tailnum": "N14228", "sched_min": 5 * 60 + 15, "dep_delay": 2, "arr_delay": 11, "distance": 1400}


def test_difference_tells_what_differs() -> None:
    table = pa.table({"k": ["a", "b", "c"], "v": [1, 2, 3]})
    assert difference(table, table, "k") == ""
    assert "other partitions" in difference(table, table.take([2, 0, 1]), "k")
    assert "2 rows instead of 3" in difference(table, table.slice(0, 2), "k")
    assert "row 1" in difference(table, pa.table({"k": ["a", "b", "c"], "v": [1, 9, 3]}), "k")
    assert "columns" in difference(table, table.rename_columns(["k", "w"]), "k")
