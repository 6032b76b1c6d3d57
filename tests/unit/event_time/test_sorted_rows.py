"""Rows of a side of a join: what is found in them, and what expires, against a list."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.event_time import sorted_rows
from fastbuf.event_time.hash_index import MOST_HASH
from fastbuf.event_time.sorted_rows import SortedRows, same_keys
from fastbuf.event_time.spill import Spill

FAR = 1 << 50  #: more than fits into a code


@pytest.fixture(params=["few", "many"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs: as they are, or so small that there are many, some of which are merged no more."""
    if request.param == "many":
        for name, size in (("YOUNG_ROWS", 4), ("MOST_ROWS", 64), ("MERGED", 2), ("MOST_PAIRS", 3)):
            monkeypatch.setattr(sorted_rows, name, size)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("span", [1, 50, FAR], ids=["one moment", "some", "far apart"])
@pytest.mark.parametrize("hashes", [1, 7, 1 << 30])
def test_what_is_found_and_what_expires(span: int, hashes: int) -> None:
    random = np.random.default_rng(hashes + span)
    rows, wanted = SortedRows(), {}  # the number of a row: hash, time, whether it had a partner
    unit = max(1, span // 50)
    for step in range(40):
        count = int(random.integers(1, 30))
        new = pa.table({"n": np.arange(count) + 100 * step})
        hashed, times = random.integers(0, hashes, count), random.integers(0, span, count) + unit * step
        matched = random.random(count) < 0.5
        rows.add(new, hashed, times, matched)
        numbers = new.column("n").to_pylist()
        wanted |= dict(zip(numbers, zip(hashed.tolist(), times.tolist(), matched.tolist(), strict=True), strict=True))

        asked = np.sort(random.integers(0, hashes, 5))
        low = random.integers(0, 2 * span + 1, 5)
        high = low + random.integers(0, span, 5)
        found = []
        for run in rows.runs:
            for own, places in run.candidates(asked, low, high):
                found += list(zip(own.tolist(), run.table.column("n").take(places).to_pylist(), strict=True))
        at_least = {
            (i, n) for i in range(5) for n, (h, t, _) in wanted.items() if h == asked[i] and low[i] <= t <= high[i]
        }
        assert at_least <= set(found)
        assert len(set(found)) == len(found)
        assert {n for _, n in found} & set(wanted) == {n for _, n in at_least}

        through = unit * step - 10 * unit
        gone = {n: row[2] for n, row in wanted.items() if row[1] <= through}
        expired = [
            pair
            for table, flags in rows.expire(through)
            for pair in zip(table.column("n").to_pylist(), flags.tolist(), strict=True)
        ]
        assert len(expired) == len(gone)
        assert dict(expired) == gone
        wanted = {n: row for n, row in wanted.items() if n not in gone}
        assert sum(len(run) for run in rows.runs) == len(wanted)
        kept = {}
        for run in rows.runs:
            frozen = run.frozen()
            table = frozen.rows(time=pa.array(frozen.times), flag=pa.array(frozen.matched)).chosen(None)
            kept |= {row["n"]: (row["time"], row["flag"]) for row in table.to_pylist()}
        assert kept == {n: row[1:] for n, row in wanted.items()}


def test_what_is_frozen_stays_as_it_was() -> None:
    rows = SortedRows()
    rows.add(pa.table({"n": [1, 2, 3]}), np.array([5, 5, 6]), np.array([1, 2, 3]), np.zeros(3, bool))
    (run,) = rows.runs
    frozen = run.frozen()
    run.matched[0] = True
    assert [table.num_rows for table, _ in rows.expire(1)] == [1]
    table = frozen.rows(flag=pa.array(frozen.matched)).chosen(None)
    assert table.to_pylist() == [{"n": n, "flag": False} for n in (1, 2, 3)]
    assert frozen.times.tolist() == [1, 2, 3]


def test_what_has_ended_comes_in_parts_with_all_rows_of_a_key() -> None:
    """32 megabytes, some four at a time."""
    rows = SortedRows(Spill(1 << 20, "", lambda table: np.zeros(table.num_rows, np.int32), 1))
    hashes = np.arange(8000) * 7919 % 1000 * (MOST_HASH // 1000)
    for start in range(0, 8000, 500):
        some = slice(start, start + 500)
        table = pa.table({"h": hashes[some], "n": np.arange(8000)[some], "text": ["x" * 4000] * 500})
        rows.add(table, hashes[some], np.full(500, 5), np.zeros(500, bool))
    parts = [table for table, _ in rows.expire(5)]
    assert len(parts) == 8
    seen: set[int] = set()
    for table in parts:
        here = set(table.column("h").to_pylist())
        assert not here & seen
        seen |= here
        for key in list(here)[:5]:
            numbers = [n for h, n in zip(table["h"].to_pylist(), table["n"].to_pylist(), strict=True) if h == key]
            assert numbers == np.flatnonzero(hashes == key).tolist()  # as they came
    assert sum(table.num_rows for table in parts) == 8000
    assert len(rows) == rows.file_bytes() == 0


def test_pairs_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with more partners than a part has, rows with none, and parts that end within a row."""
    monkeypatch.setattr(sorted_rows, "MOST_PAIRS", 4)
    first, end = np.array([0, 5, 5, 20, 3]), np.array([10, 5, 8, 19, 4])
    parts = list(sorted_rows.spread(first, end))
    assert [len(rows) for rows, _ in parts] == [4, 4, 4, 2]
    pairs = [pair for rows, at in parts for pair in zip(rows.tolist(), at.tolist(), strict=True)]
    assert pairs == [(row, at) for row in range(5) for at in range(first[row], end[row])]


def test_a_lookup_takes_few_runs() -> None:
    """Of a hundred thousand small batches' rows, not one of each; no run that is merged again is large."""
    rows = SortedRows()
    for step in range(2000):
        rows.add(pa.table({"n": np.arange(50)}), np.arange(50), np.full(50, step), np.zeros(50, bool))
    assert len(rows.runs) < 20
    assert sum(len(run) for run in rows.runs) == 100_000


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ([1, 2], [1, 3], [True, False]),
        ([1, None, None], [1, None, 1], [True, False, False]),
        (["a", "b"], ["a", "a"], [True, False]),
        ([0.5, float("nan")], [0.5, float("nan")], [True, True]),
    ],
)
def test_keys_that_are_the_same(left: list[object], right: list[object], same: list[bool]) -> None:
    """Null equals nothing, NaN itself, as in Spark."""
    assert same_keys(pa.table({"k": left}), pa.table({"k": right})).tolist() == same
