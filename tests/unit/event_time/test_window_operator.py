"""The window operator at its edges: settings, late rows, nulls, types, groups that are restored, many rows."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.errors import ConfigError, RecordError, SchemaError
from fastbuf.event_time import aligned, arrow_rows, hash_index, sliding
from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.rules import Rules, Trigger
from fastbuf.event_time.watermarks import MAX
from fastbuf.event_time.windows import Global, Session, Sliding, Tumbling
from fastbuf.event_time.work import agg_arrow, apply_in_arrow, reduce

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("v", pa.int64())])
SUM = [("v", "sum")]


def batch(*rows: tuple[Any, int | None, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def operator(assigner: Any = None, work: Any = None, keys: tuple[str, ...] = ("k",), **more: Any) -> WindowOperator:
    return WindowOperator(list(keys), "t", SCHEMA, assigner or Tumbling(10), work or agg_arrow(SUM), **more)


def rows_of(batches: Any) -> list[tuple[Any, ...]]:
    """Keys and results, without the window."""
    return [tuple(v for n, v in row.items() if not n.startswith("window_")) for b in batches for row in b.to_pylist()]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: operator(keys=("x",)), SchemaError, "0 columns 'x'"),
        (lambda: WindowOperator([], "v", SCHEMA, Tumbling(10), agg_arrow(SUM)), SchemaError, "must be a timestamp"),
        (lambda: operator(Tumbling), ConfigError, "assigner is"),
        (lambda: operator(groups=0), ConfigError, "groups is 0"),
        (lambda: operator(output_mode="upsert"), ConfigError, "append, update, complete"),
        (lambda: operator(trigger=Trigger(rows=1)), ConfigError, "set output_mode='update'"),
        (lambda: operator(accumulate=False, output_mode="complete"), ConfigError, "needs accumulate=True"),
        (lambda: operator(lateness_us=-1), ConfigError, "lateness_us is -1"),
        (lambda: Trigger(rows=0), ConfigError, "rows is 0"),
        (lambda: operator(work=agg_arrow([("x", "sum")])), SchemaError, "no column 'x'"),
        (lambda: operator(work=agg_arrow([("k", "sum")])), SchemaError, "cast it to a number"),
        (lambda: agg_arrow([("v", "median")]), ConfigError, "of sum, product"),
        (lambda: agg_arrow([("v", "count_all")]), ConfigError, "count_all has no column"),
        (lambda: agg_arrow([("", "sum")]), ConfigError, "others have one"),
        (lambda: agg_arrow([]), ConfigError, "no aggregates"),
        (lambda: operator(work=agg_arrow([*SUM, *SUM])), SchemaError, "two columns 'v_sum'"),
        (
            lambda: WindowOperator(["k", "v"], "t", SCHEMA, Tumbling(10), reduce(lambda a, b: a)),
            SchemaError,
            "no columns but the keys",
        ),
    ],
)
def test_settings_are_checked(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_results_of_the_last_call_are_read_first() -> None:
    one = operator()
    assert rows_of(one.rows(batch(("a", 1, 1)))) == []
    unread = one.watermark(10)
    with pytest.raises(RuntimeError, match="read them before the next call"):
        one.rows(batch(("a", 1, 1)))
    assert rows_of(unread) == [("a", 1)]
    assert rows_of(one.rows(batch(("a", 11, 1)))) == []


def test_a_window_fires_at_its_last_moment_and_once() -> None:
    one = operator()
    list(one.rows(batch(("a", 0, 1), ("a", 9, 2))))
    assert rows_of(one.watermark(8)) == []
    assert rows_of(one.watermark(9)) == [("a", 3)]
    assert rows_of(one.watermark(9)) == rows_of(one.watermark(5)) == rows_of(one.watermark(MAX)) == []


def test_order_is_by_end_then_key() -> None:
    one = operator(work=agg_arrow([("", "count_all")]))
    list(one.rows(batch(("b", 11, 1), ("a", 11, 1), (None, 1, 1), ("c", 1, 1), ("", 1, 1))))
    assert rows_of(one.watermark(MAX)) == [("", 1), ("c", 1), (None, 1), ("a", 1), ("b", 1)]


def test_late_rows_come_as_they_were() -> None:
    one = operator(keep_late=True, work=agg_arrow([("", "count_all")]))
    list(one.watermark(15))
    given = batch(("a", 9, 1), ("a", 10, 2), (None, -5, None), ("a", None, 4))
    list(one.rows(given))
    assert pa.Table.from_batches(one.late).equals(pa.Table.from_batches([given]).take([0, 2]))
    assert (one.late_rows, one.null_times) == (2, 1)
    told = one.figures()
    assert (told["late_rows"], told["null_times"], told["watermark"]) == (2, 1, 15)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_of_every_unit(unit: str, zone: str | None) -> None:
    schema = pa.schema([("k", pa.string()), ("t", pa.timestamp(unit, zone)), ("v", pa.int64())])
    one = WindowOperator(["k"], "t", schema, Tumbling(10_000_000), agg_arrow(SUM))
    when = dt.datetime(1969, 12, 31, 23, 59, 55, tzinfo=dt.UTC)
    list(one.rows(pa.RecordBatch.from_pylist([{"k": "a", "t": when, "v": 1}], schema)))
    (made,) = one.watermark(MAX)
    assert made.schema.field("window_start").type == pa.timestamp("us", zone)
    assert made.column("window_end").cast(pa.int64()).to_pylist() == [0]


def test_times_beyond_all_windows_are_refused() -> None:
    one = operator()
    with pytest.raises(SchemaError, match="36,000 years"):
        one.rows(batch(("a", 1 << 62, 1)))
    seconds = pa.schema([("k", pa.string()), ("t", pa.timestamp("s")), ("v", pa.int64())])
    two = WindowOperator(["k"], "t", seconds, Tumbling(10), agg_arrow(SUM))
    with pytest.raises(SchemaError, match="36,000 years"):
        two.rows(batch(("a", -(1 << 50), 1), schema=seconds))


def test_aggregates_of_every_kind_and_type() -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us")),
            ("d", pa.decimal128(10, 2)),
            ("b", pa.bool_()),
            ("f", pa.float32()),
            ("s", pa.string()),
        ]
    )
    work = agg_arrow(
        [
            ("d", "sum"),
            ("d", "mean"),
            ("b", "any"),
            ("b", "all"),
            ("f", "product"),
            ("s", "min"),
            ("s", "max"),
            ("s", "count"),
        ]
    )
    one = WindowOperator([], "t", schema, Tumbling(10), work)
    for row in ((1, "1.25", True, 2, "x"), (2, "2.50", False, 3, None), (3, None, None, None, "a")):
        value = None if row[1] is None else decimal.Decimal(row[1])
        made = dict(zip(schema.names, (row[0], value, *row[2:]), strict=True))
        list(one.rows(pa.RecordBatch.from_pylist([made], schema)))
    assert rows_of(one.watermark(MAX)) == [(decimal.Decimal("3.75"), 1.875, True, False, 6.0, "a", "x", 2)]


def test_keys_that_cannot_be_grouped_are_refused() -> None:
    schema = pa.schema([("k", pa.map_(pa.string(), pa.int64())), ("t", pa.timestamp("us")), ("v", pa.int64())])
    with pytest.raises(SchemaError):
        WindowOperator(["k"], "t", schema, Tumbling(10), agg_arrow(SUM))


def test_functions_that_return_something_else_are_told() -> None:
    kind = pa.schema([("n", pa.int64())])
    for function in (lambda key, window, table: 1, lambda key, window, table: table):
        one = operator(work=apply_in_arrow(function, kind))
        list(one.rows(batch(("a", 1, 1))))
        with pytest.raises(RecordError, match=r"must return a table of \['n'\]"):
            list(one.watermark(MAX))
    two = operator(work=reduce(lambda a, b: {"w": 1}))
    list(two.rows(batch(("a", 1, 1), ("a", 2, 1))))
    with pytest.raises(RecordError, match="must return a dict with"):
        list(two.watermark(MAX))


def test_rows_of_a_function_are_in_the_order_they_came() -> None:
    kind = pa.schema([("v", pa.list_(pa.int64()))])
    work = apply_in_arrow(lambda key, window, table: pa.table([[table.column("v").to_pylist()]], schema=kind), kind)
    one = operator(Sliding(20, 10), work)
    for i in range(30):
        list(one.rows(batch(("a", (7 * i) % 10 + 10, i))))
    assert rows_of(one.watermark(MAX)) == [(list(range(30)),)] * 2


def test_a_session_takes_all_that_one_row_joins() -> None:
    one = operator(Session(5), agg_arrow([("v", "sum"), ("", "count_all")]))
    list(one.rows(batch(("a", 0, 1), ("a", 10, 2), ("b", 5, 7))))
    list(one.rows(batch(("a", 5, 4))))  # touches both
    assert rows_of(one.watermark(MAX)) == [("b", 7, 1), ("a", 7, 3)]


def test_only_groups_that_changed_are_dirty() -> None:
    one = operator(groups=16)
    assert one.dirty == []
    list(one.rows(batch(("a", 1, 1), ("b", 11, 1))))
    first = one.dirty
    assert 1 <= len(first) <= 2
    one.freeze()
    assert one.dirty == []
    list(one.watermark(9))  # drops a's window
    assert set(one.dirty) <= set(first)
    assert len(one.dirty) == 1
    frozen = one.freeze()
    list(one.rows(batch(("c", 12, 100))))
    other = operator(groups=16)
    other.restore_state([{"watermark": 9}])
    for group in range(16):
        other.restore(group, frozen.group(group))
    other.restore(0, b"")
    assert rows_of(other.watermark(MAX)) == [("b", 1)]


def test_one_group_is_as_all_have_it() -> None:
    one = operator(groups=4)
    list(one.rows(batch(*((str(i), i % 20, i) for i in range(50)))))
    frozen = one.freeze()
    assert [one.snapshot(group) for group in range(4)] == [frozen.group(group) for group in range(4)]


@pytest.mark.parametrize("assigner", [Tumbling(1000), Sliding(1000, 250), Session(3), Global()], ids=str)
def test_many_rows_and_keys_are_as_few(assigner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of state that are merged, groups by parts, windows that fire in turns: bounds make many of each."""
    rng = np.random.default_rng(7)
    rows = 40_000
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.int64())])
    arrays = [rng.integers(0, 9000, rows), np.arange(rows) // 4 + rng.integers(-40, 40, rows), rng.integers(0, 9, rows)]
    whole = pa.table(
        [pa.array(arrays[0]), pa.array(arrays[1]).cast(pa.timestamp("us")), pa.array(arrays[2])], schema=schema
    )

    def run(size: int) -> list[tuple[Any, ...]]:
        one = WindowOperator(["k"], "t", schema, assigner, agg_arrow([("v", "sum"), ("v", "max"), ("", "count_all")]))
        out = []
        for i, piece in enumerate(whole.to_batches(size)):
            out += list(one.rows(piece))
            out += list(one.watermark(i * size // 4 - 50))
        return [tuple(row.values()) for b in [*out, *one.watermark(MAX)] for row in b.to_pylist()]

    few = run(rows)
    monkeypatch.setattr(aligned, "PENDING_ROWS", 1500)
    monkeypatch.setattr(aligned, "FIRED_ROWS", 2000)
    monkeypatch.setattr(arrow_rows, "_PART_ROWS", 128)
    many = run(700)
    if isinstance(assigner, Session):
        assert sorted(many) == sorted(few)
    else:
        assert many == few
    assert sum(row[-1] for row in many) == rows * (4 if isinstance(assigner, Sliding) else 1)


def test_rules_tell_when() -> None:
    ends = np.array([10, MAX])
    assert Rules(5, output_mode="update").fires_at(ends).tolist() == [9, MAX - 1]
    assert Rules(5).fires_at(ends).tolist() == [14, MAX]
    assert Rules(5, output_mode="complete").cleaned_at(ends).tolist() == [MAX, MAX]


KINDS_OF_STACKS: dict[str, tuple[pa.DataType, Any]] = {
    "ints": (pa.int64(), lambda dice, n: dice.integers(-9, 9, n)),
    "bytes": (pa.uint8(), lambda dice, n: dice.integers(0, 250, n).astype(np.uint8)),
    "floats": (pa.float64(), lambda dice, n: dice.choice([0.5, -1.25, 3.0, float("nan"), -0.0], n)),
    "decimals": (pa.decimal128(10, 2), lambda dice, n: [decimal.Decimal(int(v)) / 4 for v in dice.integers(-9, 9, n)]),
    "texts": (pa.string(), lambda dice, n: [f"é{v}" for v in dice.integers(0, 99, n)]),
    "times": (pa.timestamp("ms"), lambda dice, n: dice.integers(-9, 9, n).astype("datetime64[ms]")),
    "days": (pa.date32(), lambda dice, n: dice.integers(-9, 9, n).astype("datetime64[D]")),
    "booleans": (pa.bool_(), lambda dice, n: dice.integers(0, 2, n).astype(bool)),
}


def join_in_place(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """A function that writes into what it is given."""
    a["texts"] = f"{a['texts']}{b['texts']}"
    return a


@pytest.mark.parametrize("work", ["aggregates", "reduce"])
def test_stacks_of_panes_give_what_panes_give(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all types, with nulls, new keys in each pane, panes without rows; and with rows that come behind windows that
    have fired, and are in others that have not."""
    flips = []
    flip = sliding.Stacks._flip
    monkeypatch.setattr(sliding.Stacks, "_flip", lambda self, *cut: (flips.append(cut), flip(self, *cut))[1])
    dice = np.random.default_rng(5)
    kinds = KINDS_OF_STACKS if work == "aggregates" else {"texts": KINDS_OF_STACKS["texts"]}
    schema = pa.schema([("k", pa.float64()), ("j", pa.string()), ("t", pa.timestamp("us"))])
    for kind, (value, _) in kinds.items():
        schema = schema.append(pa.field(kind, value))
    pieces = []
    for i in range(60):
        if 38 < i < 51:
            continue  # nothing comes for longer than a window lasts
        back = 60 if i % 25 == 24 else 20 if i % 10 == 3 else 0  # behind the watermark, within windows that go on
        times = pa.array(np.arange(i * 20, i * 20 + 20) - back).cast(pa.timestamp("us"))
        keys = pa.array(dice.choice([0.0, -0.0, float("nan"), 1.5, float(i)], 20), mask=dice.integers(0, 9, 20) == 0)
        texts = pa.array([None if n == 3 else "x" * int(n) for n in dice.integers(0, 4, 20)], pa.string())
        nulls = [dice.integers(0, 3, 20) == 0 for _ in kinds]
        values = [pa.array(of(dice, 20), v, mask=m) for (v, of), m in zip(kinds.values(), nulls, strict=True)]
        pieces.append((i, pa.record_batch([keys, texts, times, *values], schema=schema)))
    numbers = {"ints", "bytes", "floats", "decimals"}
    pairs = [(kind, call) for kind in kinds for call in ("min", "max", "count")]
    pairs += [(kind, call) for kind in kinds if kind in numbers for call in ("sum", "mean", "product")]
    pairs += [("booleans", "any"), ("booleans", "all")]

    def run(overlap: int, assigner: Any, lateness: int) -> list[Any]:
        monkeypatch.setattr(sliding, "LEAST_OVERLAP", overlap)
        more: Any = {"lateness_us": lateness, "output_mode": "update"} if lateness else {}

        def operator() -> WindowOperator:
            joined = reduce(join_in_place)
            of = agg_arrow(pairs) if work == "aggregates" else joined
            return WindowOperator(["k", "j"], "t", schema, assigner, of, **more)

        one = operator()
        out: list[Any] = []
        for i, piece in pieces:
            out += [*one.rows(piece), *one.watermark(i * 20 - 5)]
            assert one.late_rows == 0
            if i == 20:
                frozen, one = one.freeze(), operator()
                for group in frozen.dirty:
                    one.restore(group, frozen.group(group))
                one.restore_state([{"watermark": i * 20 - 5}])
        made = [rounded(row) for b in [*out, *one.watermark(MAX)] for row in b.to_pylist()]
        for row in made if work == "reduce" else ():
            row["texts"] = sorted(str(row["texts"]))  # rows that are out of order are joined by panes
        return made

    for assigner, lateness in ((Sliding(200, 20), 0), (Sliding(205, 20, 3), 0), (Sliding(90, 20, -7), 30)):
        flips.clear()
        assert run(4, assigner, lateness) == run(1000, assigner, lateness)
        assert 5 < len(flips) < 50


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value + 0.0:.12g}" if isinstance(value, float) else value for name, value in row.items()}


def test_a_key_of_another_that_has_its_hash_is_told_apart() -> None:
    index = hash_index.HashIndex()
    hashes, places = np.array([7, 7, 7 + 4096, 9]), np.arange(4)
    index.add(hashes, places)
    keys = np.array([10, 20, 30, 40])  # by place
    asked = np.array([20, 30, 99, 40, 10])
    found = index.find(np.array([7, 7 + 4096, 7, 9, 7]), lambda at, rows: keys[at] == asked[rows])
    assert found.tolist() == [1, 2, -1, 3, 0]


def test_a_session_that_fired_late_ends_in_time() -> None:
    """Its rows are gone, and its place is held for rows that are late, as long as the lateness and no longer."""
    one = operator(Session(20), output_mode="update", accumulate=False, lateness_us=6)
    list(one.rows(batch(("b", 400, 1))))
    list(one.watermark(342))
    (made,) = one.rows(batch(("a", 321, 6)))
    assert made.column("window_start").cast(pa.int64()).to_pylist() == [321]
    list(one.watermark(348))
    (made,) = one.rows(batch(("a", 328, 36)))
    assert made.column("window_start").cast(pa.int64()).to_pylist() == [328]


def test_a_session_that_a_row_made_longer_ends_once() -> None:
    """In complete results nothing comes at the end that it had before."""
    one = operator(Session(20), output_mode="complete")
    for time in (0, 100, 101, 102):  # sessions of other keys, so that the first one's place is not given up
        list(one.rows(batch((f"k{time}", 1000, 1), (f"l{time}", 1000, 1))))
    list(one.rows(batch(("a", 0, 1))))
    assert rows_of(one.watermark(5)) == []
    list(one.rows(batch(("a", 10, 2))))
    assert rows_of(one.watermark(25)) == []
    assert ("a", 3) in rows_of(one.watermark(30))


@pytest.mark.parametrize("assigner", [Tumbling(10), Session(10)])
@pytest.mark.parametrize("late_zone", ["America/New_York", "UTC"])
def test_state_is_restored_where_times_are_shown_in_another_zone(assigner: Any, late_zone: str) -> None:
    """A key and an aggregate that are times: the same moments, and later rows count to the same key."""

    def zoned(zone: str) -> tuple[WindowOperator, pa.RecordBatch]:
        time = pa.timestamp("us", zone)
        schema = pa.schema([("k", time), ("t", time), ("v", time)])
        rows = pa.RecordBatch.from_arrays([pa.array([5, 5], pa.int64()).view(time)] * 3, schema=schema)
        return WindowOperator(["k"], "t", schema, assigner, agg_arrow([("v", "min"), ("", "count_all")])), rows

    (first, rows), (second, more) = zoned("UTC"), zoned(late_zone)
    list(first.rows(rows))
    assert first.description() == second.description()
    frozen = first.freeze()
    for group in range(128):
        second.restore(group, frozen.group(group))
    list(second.rows(more))
    (result,) = second.watermark(MAX)
    assert result.schema == second.schema
    moment = dt.datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC)
    assert rows_of([result]) == [(moment, moment, 4)]


def test_least_and_greatest_decimals_keep_their_type_beside_a_sum() -> None:
    schema = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("v", pa.decimal128(9, 2))])
    pairs = [("v", "min"), ("v", "sum"), ("v", "max"), ("", "count_all")]
    one = WindowOperator(["k"], "t", schema, Tumbling(10), agg_arrow(pairs))
    assert [one.schema.field(f"v_{name}").type for name in ("min", "sum", "max")] == [
        pa.decimal128(9, 2),
        pa.decimal128(38, 2),
        pa.decimal128(9, 2),
    ]
    values = [decimal.Decimal(n) / 100 for n in (150, 25)]
    list(one.rows(batch(*(("a", 1, value) for value in values), schema=schema)))
    assert rows_of(one.watermark(10)) == [("a", min(values), sum(values), max(values), 2)]
