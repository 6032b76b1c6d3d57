"""Joins of two streams against all pairs, for every bound and kind of join; restored by other owners now and then."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from nights import LONG
from test_window_streams import AUTUMN, HOUR, SPRING
from windows_by_hand import Spec

from fastbuf.errors import ConfigError, SchemaError
from fastbuf.event_time import sorted_rows, spill
from fastbuf.event_time.interval_join import IntervalJoin
from fastbuf.event_time.joins import Side
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.window_join import WindowJoin
from fastbuf.event_time.windows import MOST_US, Sliding, Tumbling
from fastbuf.serializers.partition import HashPartitioner

GROUPS = 8
LEFT = pa.schema([("k", pa.string()), ("lt", pa.timestamp("us")), ("a", pa.int64())])
RIGHT = pa.schema([("b", pa.int64()), ("key", pa.string()), ("rt", pa.timestamp("us"))])
SIDES = (Side(LEFT, ["k"], "lt"), Side(RIGHT, ["key"], "rt"))
NAMES = (("k", "lt", "a"), ("key", "rt", "b"))
EPOCH = datetime(1970, 1, 1)
Row = tuple[Any, int, int]


def batch(side: int, rows: list[tuple[Any, int | None, int]]) -> pa.RecordBatch:
    schema = (LEFT, RIGHT)[side]
    return pa.RecordBatch.from_pylist([dict(zip(NAMES[side], row, strict=True)) for row in rows], schema)


class Joined:
    """A join with its owners, and all rows that were not late."""

    def __init__(self, make: Any, dice: random.Random, start: int = 0, unit: int = 1) -> None:
        self.make, self.dice = make, dice
        self.start, self.unit = start, unit
        self.owners = [make() for _ in range(dice.choice([1, 3]))]
        self.taken: tuple[list[Row], list[Row]] = ([], [])
        self.late = 0
        self.mark = MIN
        self.came: list[tuple[Any, ...]] = []

    def out(self, batches: Any) -> None:
        for made in batches:
            assert made.schema.equals(self.owners[0].schema)
            assert made.num_rows
            for i, field in enumerate(made.schema):
                if pa.types.is_timestamp(field.type):
                    made = made.set_column(i, field.name, made.column(i).cast(pa.int64()))
            self.came += [tuple(row.values()) for row in made.to_pylist()]

    def rows(self, side: int, rows: list[Row], late: list[bool]) -> None:
        self.taken[side].extend(row for row, is_late in zip(rows, late, strict=True) if not is_late)
        self.late += sum(late)
        owner = np.zeros(len(rows), int)
        if rows:
            hashed = HashPartitioner([NAMES[side][0]], GROUPS).partition(batch(side, rows))
            owner = hashed.astype(int) * len(self.owners) // GROUPS
        for i, one in enumerate(self.owners):
            self.out(one.rows(side, batch(side, [row for row, o in zip(rows, owner, strict=True) if o == i])))

    def watermark(self, mark: int) -> None:
        self.mark = max(self.mark, mark)
        for one in self.owners:
            self.out(one.watermark(mark))

    def restore(self) -> None:
        before = self.owners
        frozen = [one.freeze() for one in before]
        assert all(one.dirty == [] for one in before)
        self.owners = [self.make() for _ in range(self.dice.choice([1, 2, 5]))]
        for one in self.owners:
            one.restore_state([old.state() for old in before])
            one.late_rows = 0
        self.owners[0].late_rows = sum(old.late_rows for old in before)
        for group in range(GROUPS):
            data = frozen[group * len(before) // GROUPS].group(group)
            self.owners[group * len(self.owners) // GROUPS].restore(group, data)

    def at(self, step: int) -> int:
        return self.start + step * self.unit

    def run(self, is_late: Any) -> None:
        dice, centre = self.dice, 0
        for _ in range(40):
            step = dice.random()
            if step < 0.6:
                rows = [
                    (dice.choice(["a", "b", "c", None]), self.at(centre + dice.randrange(-12, 12)), dice.randrange(5))
                    for _ in range(dice.randrange(7))
                ]
                side = dice.randrange(2)
                self.rows(side, rows, [is_late(row[1], self.mark) for row in rows])
                centre += dice.randrange(3)
            elif step < 0.93:
                self.watermark(self.at(centre + dice.randrange(-12, 4)))
            else:
                self.restore()
        self.watermark(MAX)
        assert sum(one.late_rows for one in self.owners) == self.late
        assert all(one.figures()["rows"] == one.figures()["bytes"] == 0 for one in self.owners)


def expected(how: str, left: list[Row], right: list[Row], pair: Any) -> Counter[tuple[Any, ...]]:
    """By the definition; pair: whether two rows meet."""
    out = Counter[tuple[Any, ...]]()
    met = [0] * len(right)
    for k, lt, a in left:
        partners = [i for i, r in enumerate(right) if k is not None and k == r[0] and pair(lt, r[1])]
        for i in partners:
            met[i] += 1
            out[k, lt, a, right[i][2], right[i][1]] += 1
        if not partners and how in ("left", "full"):
            out[k, lt, a, None, None] += 1
    if how in ("right", "full"):
        for (key, rt, b), times in zip(right, met, strict=True):
            if not times:
                out[key, None, None, b, rt] += 1
    return out


@pytest.fixture(params=["in memory", "in files", "in both"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Where the state of a join is."""
    monkeypatch.setattr(spill, "PART_ROWS", 3)
    monkeypatch.setattr(spill, "LEAST_PART_BYTES", 200)
    monkeypatch.setattr(sorted_rows, "YOUNG_ROWS", 3)
    sizes = {"in memory": None, "in files": 2, "in both": 1200}
    yield {"memory_bytes": sizes[request.param], "spill_directory": str(tmp_path)}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_interval_join_gives_all_pairs_of_rows_in_time(how: str, memory: dict[str, Any]) -> None:
    late = pairs = 0
    for seed in range(100 if LONG else 12):
        dice = random.Random(seed)
        lower = dice.randrange(-8, 8)
        upper = lower + dice.randrange(8)
        joined = Joined(lambda: IntervalJoin(*SIDES, lower, upper, how=how, groups=GROUPS, **memory), dice)  # noqa: B023
        joined.run(lambda time, mark: time <= mark)
        within = expected(how, *joined.taken, lambda lt, rt: lower <= rt - lt <= upper)  # noqa: B023
        assert Counter(joined.came) == within, seed
        late, pairs = late + joined.late, pairs + len(joined.came)
    assert late > 20
    assert pairs > 100


@pytest.mark.parametrize("bounds", [(-MOST_US, MOST_US), (-MOST_US, 3), (-2, MOST_US)])
def test_an_interval_without_a_bound(bounds: tuple[int, int]) -> None:
    """Rows are kept for ever; if both bounds are missing, none is late."""
    late = 0
    for seed in range(50 if LONG else 8):
        joined = Joined(lambda: IntervalJoin(*SIDES, *bounds, how="full", groups=GROUPS), random.Random(seed))
        joined.run(lambda time, mark: time <= mark and bounds != (-MOST_US, MOST_US))
        within = expected("full", *joined.taken, lambda lt, rt: bounds[0] <= rt - lt <= bounds[1])
        assert Counter(joined.came) == within, seed
        late += joined.late
    assert (late == 0) == (bounds == (-MOST_US, MOST_US))


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(
    "assigner",
    [
        Tumbling(10, 3),
        Sliding(10, 5),
        Sliding(4, 10),
        Tumbling(24 * HOUR, zone="Europe/Berlin"),
        Sliding(48 * HOUR, 24 * HOUR, 5 * HOUR // 2, zone="Europe/Berlin"),
    ],
    ids=["tumbling", "sliding", "holes", "local days", "local two days"],
)
def test_window_join_gives_all_pairs_of_a_window(assigner: Any, how: str, memory: dict[str, Any]) -> None:
    """Of local days over both changes of summer time."""
    local, zone = assigner.zone is not None, assigner.zone and assigner.zone.name
    kind = "local" if local else "sliding"
    windows = Spec(kind, assigner.size, assigner.slide, assigner.offset, zone).windows
    for seed in range(50 if LONG else 4):
        changes = ((SPRING, AUTUMN)[seed % 2] - 8 * HOUR, 2 * HOUR) if local else (0, 1)
        joined = Joined(
            lambda: WindowJoin(*SIDES, assigner, how=how, groups=GROUPS, **memory), random.Random(seed), *changes
        )
        open_windows: list[Counter[Any]] = [Counter(), Counter()]
        rows = joined.rows

        def note(side: int, given: list[Row], late: list[bool], rows: Any = rows, joined: Any = joined) -> None:
            for row in given:  # in the windows alone that are still open
                open_windows[side].update((row, window) for window in windows(row[1]) if window[1] - 1 > joined.mark)  # noqa: B023
            rows(side, given, late)

        joined.rows = note  # type: ignore[method-assign]

        def is_late(time: int, mark: int) -> bool:
            return time <= mark and all(end - 1 <= mark for _, end in windows(time))

        joined.run(is_late)
        wanted = Counter[tuple[Any, ...]]()
        for window in sorted({w for side in open_windows for _, w in side}):
            sides = [[row for (row, w), n in side.items() if w == window for _ in range(n)] for side in open_windows]
            for row, n in expected(how, *sides, lambda lt, rt: True).items():
                wanted[*window, *row] += n
        assert Counter(joined.came) == wanted, seed


def test_rows_are_kept_only_for_as_long_as_a_partner_may_come() -> None:
    join = IntervalJoin(*SIDES, 0, 10)  # the right one is up to 10 later
    list(join.rows(0, batch(0, [("a", 100, 1)])))
    list(join.rows(1, batch(1, [("a", 100, 2)])))
    assert join.figures()["rows"] == 2
    list(join.watermark(100))
    assert join.figures()["rows"] == 1  # no left row can be at 100 or before
    list(join.watermark(109))
    assert len(list(join.rows(1, batch(1, [("a", 110, 3)])))) == 1
    list(join.watermark(110))
    assert join.figures()["rows"] == 0


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("windowed", [False, True])
def test_a_key_with_many_rows_on_both_sides_has_its_pairs_one_after_the_other(how: str, windowed: bool) -> None:
    """Four million pairs, which never stand in memory together."""
    join: Any = WindowJoin(*SIDES, Tumbling(10), how=how) if windowed else IntervalJoin(*SIDES, 0, 10, how=how)
    before = pa.total_allocated_bytes()
    list(join.rows(0, batch(0, [("a", 1, n) for n in range(2000)])))
    results = join.rows(1, batch(1, [("a", 2, n) for n in range(2000)]))
    if windowed:
        assert list(results) == []
        results = join.watermark(MAX)
    pairs = most = 0
    for made in results:
        pairs += made.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert pairs == 4_000_000
    assert most < 60 << 20


@pytest.mark.parametrize("windowed", [False, True])
def test_rows_that_wait_do_not_fill_the_memory(windowed: bool, tmp_path: Path) -> None:
    """Of 40 MB of long keys a tenth stays; the rest is in files, which go with the rows."""
    more: dict[str, Any] = {"memory_bytes": 1 << 20, "spill_directory": str(tmp_path)}
    join: Any = WindowJoin(*SIDES, Tumbling(10), **more) if windowed else IntervalJoin(*SIDES, 0, 10, **more)
    before = pa.total_allocated_bytes()
    for n in range(20):
        list(join.rows(0, batch(0, [(f"{n * 5000 + i:0400}", 1, i) for i in range(5000)])))
    assert pa.total_allocated_bytes() - before < 8 << 20
    assert join.figures()["file_bytes"] > 36 << 20
    results = list(join.rows(1, batch(1, [(f"{i * 10:0400}", 2, i) for i in range(10_000)])))
    results += list(join.watermark(MAX))
    assert sum(made.num_rows for made in results) == 10_000
    assert join.figures()["file_bytes"] == join.figures()["rows"] == 0


KEYED = {
    "struct": pa.struct([("x", pa.int64())]),
    "list": pa.list_(pa.int64()),
    "uint64": pa.uint64(),
    "map": pa.map_(pa.string(), pa.int64()),
    "nanoseconds": pa.timestamp("ns"),
}


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("name", KEYED)
def test_keys_that_cannot_be_are_refused_before_any_row(windowed: bool, name: str) -> None:
    sides = [Side(pa.schema([("k", KEYED[name]), (time, pa.timestamp("us"))]), ["k"], time) for time in ("lt", "rt")]
    with pytest.raises(SchemaError, match=r"grouped by keys of these types|cannot be hashed as Spark does"):
        WindowJoin(*sides, Tumbling(10)) if windowed else IntervalJoin(*sides, 0, 10)


@pytest.mark.parametrize("windowed", [False, True])
def test_keys_in_dictionaries(windowed: bool) -> None:
    """Of each batch another one, in which a value may be twice."""
    kind = pa.dictionary(pa.int32(), pa.string())
    sides = [Side(pa.schema([("k", kind), (time, pa.timestamp("us"))]), ["k"], time) for time in ("lt", "rt")]
    join: Any = WindowJoin(*sides, Tumbling(10)) if windowed else IntervalJoin(*sides, 0, 10)
    results = []
    for side, values in ((0, ["a", "b"]), (1, ["c", "b"]), (1, ["b", "b"])):
        keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(values))
        times = pa.array([1, 1]).cast(pa.timestamp("us"))
        results += join.rows(side, pa.RecordBatch.from_arrays([keys, times], schema=sides[side].schema))
    results += join.watermark(MAX)
    assert [row["k"] for made in results for row in made.to_pylist()] == ["b"] * 3


@pytest.mark.parametrize("windowed", [False, True])
def test_pairs_that_are_not_read_are_not_lost_in_silence(windowed: bool) -> None:
    join: Any = WindowJoin(*SIDES, Tumbling(10)) if windowed else IntervalJoin(*SIDES, 0, 10)
    unread = join.rows(0, batch(0, [("a", 1, 1)]))
    for call in (lambda: join.rows(1, batch(1, [("a", 1, 2)])), lambda: join.watermark(5), join.freeze):
        with pytest.raises(RuntimeError, match="read them before the next call"):
            call()
    assert list(unread) == []
    pairs = [*join.rows(1, batch(1, [("a", 1, 2)])), *join.watermark(MAX)]
    assert sum(made.num_rows for made in pairs) == 1


def test_late_rows_and_rows_without_a_time_are_counted() -> None:
    join = IntervalJoin(*SIDES, 0, 10, keep_late=True)
    list(join.watermark(100))
    list(join.rows(1, batch(1, [("a", 100, 1), ("a", None, 2), ("a", 101, 3)])))
    assert (join.late_rows, join.null_times) == (1, 1)
    assert join.late[1][0].to_pylist() == [{"b": 1, "key": "a", "rt": EPOCH.replace(microsecond=100)}]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: IntervalJoin(*SIDES, 5, 4), ConfigError, "the lower bound is the greater"),
        (lambda: IntervalJoin(*SIDES, 0, 1, how="outer"), ConfigError, "one of inner, left, right, full"),
        (lambda: IntervalJoin(Side(LEFT, [], "lt"), Side(RIGHT, [], "rt"), 0, 1), ConfigError, "needs keys"),
        (lambda: IntervalJoin(Side(LEFT, ["k"], "a"), SIDES[1], 0, 1), SchemaError, "must be a timestamp"),
        (lambda: IntervalJoin(Side(LEFT, ["a"], "lt"), SIDES[1], 0, 1), SchemaError, "cast one before"),
        (lambda: IntervalJoin(SIDES[0], SIDES[0], 0, 1), SchemaError, "both sides of the join have 'a', 'lt'"),
        (lambda: IntervalJoin(Side(LEFT, ["x"], "lt"), SIDES[1], 0, 1), SchemaError, "has 0 columns 'x'"),
    ],
)
def test_settings_are_checked(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_times_may_have_zones() -> None:
    zoned = pa.schema([("k", pa.string()), ("t", pa.timestamp("ms", "UTC"))])
    join = WindowJoin(Side(zoned, ["k"], "t"), SIDES[1], Tumbling(1000))
    when = datetime(2024, 1, 1, tzinfo=UTC)
    list(join.rows(0, pa.RecordBatch.from_pylist([{"k": "a", "t": when}], zoned)))
    list(join.rows(1, batch(1, [("a", int(when.timestamp()) * 10**6, 1)])))
    (made,) = join.watermark(MAX)
    assert made.column("window_start")[0].as_py() == when


def test_state_is_restored_where_times_are_shown_in_another_zone() -> None:
    def zoned(zone: str) -> tuple[IntervalJoin, list[pa.RecordBatch]]:
        time = pa.timestamp("us", zone)
        schemas = [pa.schema([("k", time), (name, time)]) for name in ("a", "b")]
        rows = [pa.RecordBatch.from_arrays([pa.array([5], pa.int64()).view(time)] * 2, schema=s) for s in schemas]
        return IntervalJoin(Side(schemas[0], ["k"], "a"), Side(schemas[1], ["k"], "b"), 0, 0), rows

    (first, rows), (second, more) = zoned("UTC"), zoned("America/New_York")
    list(first.rows(0, rows[0]))
    frozen = first.freeze()
    for group in range(128):
        second.restore(group, frozen.group(group))
    assert list(second.rows(0, more[0])) == []
    results = list(second.rows(1, more[1]))
    assert sum(result.num_rows for result in results) == 2
    assert {result.schema for result in results} == {second.schema}
