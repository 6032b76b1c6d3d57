"""Each verb and option of windows in a stream, row for row beside what the rows alone say."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nights import nightly
from test_streams_ends import until
from test_streams_event_time import BASE, SCHEMA, Rows, shuffled

import fastbuf_spark as fbs

SECOND = 1_000_000
RESULT = "k long, start long, end long, v string"
ROWS = shuffled(1200, 7)
#: With a gap of 2 s behind each 60 rows, by their places: by their values some would come 2 s late.
BURSTS = [(at + place // 60 * 2 * SECOND, key, value) for place, (at, key, value) in enumerate(ROWS)]
Window = tuple[Any, Any]
Answers = list[tuple[int, Any, Any, tuple[int, ...]]]


def texts(spark: Any, rows: Any = ROWS, **more: Any) -> Any:
    """A stream with its values as text, which a function can put one behind the other."""
    source = Rows(*rows, **more) if isinstance(rows[0], list) else Rows(rows, **more)
    made = fbs.stream(spark, source, SCHEMA, tasks=1)
    return made.select("at", "k", v=pc.field("v").cast("string")).with_watermark("at", "60 ms").group_by


def windows_of(at: int, size: int, slide: int, offset: int = 0) -> list[Window]:
    """All windows that a moment is in."""
    last = (at - offset) // slide * slide + offset
    return [(start, start + size) for start in range(last, at - size, -slide)]


def by_hand(rows: Iterable[tuple[int, int, int]], of: Callable[[int], list[Window]]) -> Answers:
    """The values of each key and window, as they came."""
    values: dict[Any, list[int]] = defaultdict(list)
    for at, key, value in rows:
        for start, end in of(BASE + at):
            values[key, start, end].append(value)
    return sorted((*place, tuple(some)) for place, some in values.items())


def sessions_by_hand(rows: Iterable[tuple[int, int, int]], gap: int) -> Answers:
    answers = []
    keys = defaultdict(list)
    for at, key, value in rows:
        keys[key].append((BASE + at, value))
    for key, some in keys.items():
        last: list[tuple[int, int]] = []
        for at, value in [*sorted(some), (1 << 62, 0)]:
            if last and at - last[-1][0] > gap:
                answers.append((key, last[0][0], last[-1][0] + gap, tuple(v for _, v in last)))
                last = []
            last.append((at, value))
    return sorted(answers)


def arrow(key: Any, window: Any, table: pa.Table) -> pa.Table:
    assert table.column_names == ["at", "k", "v"]
    row = {"k": key[0].as_py(), "start": window.start, "end": window.end, "v": ",".join(table["v"].to_pylist())}
    return pa.Table.from_pylist([row], table_schema())


def table_schema() -> pa.Schema:
    return pa.schema([("k", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("v", pa.string())])


def pandas(key: Any, window: Any, frame: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"k": [key[0]], "start": [window.start], "end": [window.end], "v": [",".join(frame["v"])]})


def polars(key: Any, window: Any, frame: Any) -> Any:
    import polars as pl

    row = {"k": [key[0]], "start": [window.start], "end": [window.end], "v": [",".join(frame["v"])]}
    return pl.DataFrame(row, schema={"k": pl.Int64, "start": pl.Int64, "end": pl.Int64, "v": pl.String})


def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, "v": f"{one['v']},{other['v']}"}


FUNCTIONS = {"arrow": arrow, "pandas": pandas, "polars": polars}
VERBS = ["reduce", *FUNCTIONS]


def applied(windows: Any, verb: str) -> Any:
    if verb == "polars":
        pytest.importorskip("polars", reason="polars is not installed: it comes with the extra 'bench'")
    if verb == "reduce":
        return windows.reduce(both)
    return getattr(windows, f"apply_in_{verb}")(FUNCTIONS[verb], RESULT)


def answers_of(table: pa.Table) -> Answers:
    """Results in their order."""
    names = ("start", "end") if "start" in table.column_names else ("window_start", "window_end")
    nothing = pa.nulls(table.num_rows)
    bounds = [table[name].cast(pa.int64()) if name in table.column_names else nothing for name in names]
    columns = [column.to_pylist() for column in (table["k"], *bounds, table["v"])]
    return [(k, start, end, tuple(map(int, v.split(",")))) for k, start, end, v in zip(*columns, strict=True)]


def ended(stream: Any, folder: Path, mode: str = "append") -> Answers:
    sink = fbs.to_memory()
    assert stream.write_stream(sink, folder, every=0.2, output_mode=mode).await_termination(120)
    return answers_of(sink.table())


def in_order(answers: Answers) -> Answers:
    """Where state is put together from parts, their rows are in the order of these."""
    return sorted((k, start, end, tuple(sorted(values))) for k, start, end, values in answers)


@nightly(but_one="verb")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["tumbling", "offset", "sliding", "session", "global"])
def test_each_verb_of_each_window(spark: Any, tmp_path: Path, kind: str, verb: str) -> None:
    rows = BURSTS if kind == "session" else ROWS
    groups = texts(spark, rows)("k", partitions=2)
    windows = {
        "tumbling": lambda: groups.window("1 second"),
        "offset": lambda: groups.window("1 second", offset="-300 ms"),
        "sliding": lambda: groups.window("1 second", slide="400 ms", offset="150 ms"),
        "session": lambda: groups.session("1 second"),
        "global": lambda: groups.global_window(early_rows=None),
    }[kind]()
    wanted = {
        "tumbling": lambda: by_hand(rows, lambda at: windows_of(at, SECOND, SECOND)),
        "offset": lambda: by_hand(rows, lambda at: windows_of(at, SECOND, SECOND, -300_000)),
        "sliding": lambda: by_hand(rows, lambda at: windows_of(at, SECOND, 400_000, 150_000)),
        "session": lambda: sessions_by_hand(rows, SECOND),
        "global": lambda: by_hand(rows, lambda at: [(None, None)]),
    }[kind]()
    answers = sorted(ended(applied(windows, verb), tmp_path))
    if kind == "session" or (kind, verb) == ("sliding", "reduce"):
        answers, wanted = in_order(answers), in_order(wanted)
    assert answers == wanted


def parts_of(answers: Answers) -> dict[tuple[int, Any, Any], list[tuple[int, ...]]]:
    """The results of each key and window, one behind the other."""
    parts = defaultdict(list)
    for k, start, end, values in answers:
        parts[k, start, end].append(values)
    return dict(parts)


KINDS = {
    "window": lambda groups, **more: groups.window("2 seconds", **more),
    "sliding": lambda groups, **more: groups.window("2 seconds", slide="1 second", **more),
    "global": lambda groups, **more: groups.global_window(**more),
}
BY_HAND = {
    "window": lambda at: windows_of(at, 2 * SECOND, 2 * SECOND),
    "sliding": lambda at: windows_of(at, 2 * SECOND, SECOND),
    "global": lambda at: [(None, None)],
}


@nightly(but_one="verb")
@pytest.mark.parametrize("verb", ["reduce", "arrow"])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_early_results_by_the_number_of_rows(
    spark: Any, tmp_path: Path, kind: str, accumulate: bool, verb: str
) -> None:
    """All rows so far, or those alone that came since: a window has 40 of a key, and each 15 give a result."""
    windows = KINDS[kind](texts(spark, size=25)("k", partitions=2), early_rows=15, accumulate=accumulate)
    parts = parts_of(ended(applied(windows, verb), tmp_path, "update" if accumulate else "append"))
    wanted = parts_of(by_hand(ROWS, BY_HAND[kind]))
    assert set(parts) == set(wanted)
    for place, (whole,) in wanted.items():
        some = parts[place]
        if not accumulate:
            assert sum(some, ()) == whole
            assert all(len(each) >= 15 for each in some[:-1])
            continue
        lengths = [0, *map(len, some)]
        assert some == [whole[:n] for n in lengths[1:]]
        assert all(after - before >= 15 for before, after in pairwise(lengths[:-1]))
        assert some[-1] == whole
    assert sum(map(len, parts.values())) > len(parts)


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("kind", ["window", "session"])
def test_early_results_by_the_clock(spark: Any, tmp_path: Path, kind: str, accumulate: bool) -> None:
    """While the source has nothing to give, its windows have results; then they end with all rows."""
    rows = [(n * 1000, n % 2, n) for n in range(100)]
    gate, sink = tmp_path / "gate", fbs.to_memory()
    groups = texts(spark, rows, size=50, gate=gate)("k", partitions=1)
    asked = {"early_every": "50 ms", "accumulate": accumulate}
    windows = groups.window("10 seconds", **asked) if kind == "window" else groups.session("10 seconds", **asked)
    query = applied(windows, "reduce").write_stream(
        sink, tmp_path / "chk", every=0.1, output_mode="update" if accumulate else "append"
    )
    until(lambda: sink.table().num_rows >= 2)
    gate.touch()
    assert query.await_termination(120)
    for k in (0, 1):
        some = [values for key, _, _, values in answers_of(sink.table()) if key == k]
        assert len(some) > 1
        whole = tuple(range(k, 100, 2))
        if accumulate:
            assert some == [whole[: len(each)] for each in some]
            assert some[-1] == whole
        else:
            assert sum(some, ()) == whole


@nightly(but_one="kind")
@pytest.mark.parametrize(("output", "accumulate"), [("update", True), ("append", True), ("append", False)])
@pytest.mark.parametrize("kind", ["window", "sliding", "session"])
def test_a_late_row_within_lateness(spark: Any, tmp_path: Path, kind: str, output: str, accumulate: bool) -> None:
    """It changes its window's result; one that comes later goes to the late rows."""
    rows = [(n * SECOND + 100_000, n % 2, n) for n in range(40)]
    late, lost = [(35 * SECOND, 1, 100)], [(10 * SECOND, 0, 200), (11 * SECOND, 1, 300)]
    gate, sink, missed = tmp_path / "gate", fbs.to_memory(), fbs.to_memory()
    groups = texts(spark, [*rows, *late, *lost], size=40, gate=gate)("k", partitions=1)
    asked = {"lateness": "10 seconds", "late": missed, "accumulate": accumulate}
    windows = {
        "window": lambda: groups.window("1 second", **asked),
        "sliding": lambda: groups.window("2 seconds", slide="1 second", **asked),
        "session": lambda: groups.session("1 second", **asked),
    }[kind]()
    query = applied(windows, "reduce").write_stream(sink, tmp_path / "chk", every=0.1, output_mode=output)
    until(lambda: (query.progress()["stages"] or [{}])[-1].get("watermark_ms") == (BASE + rows[-1][0]) // 1000 - 61)
    gate.touch()
    assert query.await_termination(120)
    taken = [*rows, *late]
    if kind == "session":
        wanted = sessions_by_hand(taken, SECOND)
        first = sessions_by_hand(rows, SECOND)
    else:
        size = SECOND if kind == "window" else 2 * SECOND
        wanted = by_hand(taken, lambda at: windows_of(at, size, SECOND))
        first = by_hand(rows, lambda at: windows_of(at, size, SECOND))
    answers = answers_of(sink.table())
    if output == "update":
        news = [each for each in wanted if each not in first]
        assert in_order(answers) == in_order([*first, *news])
    elif accumulate:
        assert in_order(answers) == in_order(wanted)
    else:
        # The session that is the longer for it has another start, and this row alone
        second = [each for each in wanted if each not in first]
        assert in_order(answers) == in_order([*first, *((k, start, end, (100,)) for k, start, end, _ in second)])
    assert sorted(map(int, missed.table()["v"].to_pylist())) == [200, 300]
    assert query.progress()["stages"][-1]["late_rows"] == 2


CHANGES = {"spring": dt.datetime(2024, 3, 31, tzinfo=dt.UTC), "autumn": dt.datetime(2024, 10, 27, tzinfo=dt.UTC)}
BERLIN = ZoneInfo("Europe/Berlin")


def local_windows(at: int, days: int, offset: dt.timedelta) -> list[Window]:
    """The windows of so many days that begin each day at one time of the clocks in Berlin."""
    day = dt.datetime.fromtimestamp(at // SECOND, BERLIN).date()
    windows = []
    for n in range(-days - 1, 2):
        dates = [day + dt.timedelta(days=each) for each in (n, n + days)]
        moments = [dt.datetime.combine(each, dt.time(), BERLIN) + offset for each in dates]
        start, end = (int(moment.timestamp()) * SECOND for moment in moments)
        if start <= at < end:
            windows.append((start, end))
    return windows


@nightly(but_one="offset")
@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("offset", [0, 6])
def test_days_of_local_clocks(spark: Any, tmp_path: Path, kind: str, change: str, offset: int) -> None:
    """Days of 23 and of 25 hours, alone and three at a time."""
    begin = int(CHANGES[change].timestamp()) * SECOND - 5 * 86_400 * SECOND - BASE
    rows = [(begin + n * 420 * SECOND, n % 3, n) for n in range(2000)]
    groups = texts(spark, rows)("k", partitions=2)
    days, more = (1, {}) if kind == "tumbling" else (3, {"slide": "1 day"})
    windows = groups.window(f"{days} days", zone="Europe/Berlin", offset=f"{offset} hours", **more)
    wanted = by_hand(rows, lambda at: local_windows(at, days, dt.timedelta(hours=offset)))
    assert len({end - start for _, start, end, _ in wanted}) == 2
    assert in_order(ended(applied(windows, "reduce"), tmp_path)) == in_order(wanted)


@pytest.mark.parametrize("kind", ["window", "sliding", "session"])
def test_complete_results_of_windows(spark: Any, tmp_path: Path, kind: str) -> None:
    """At each change all windows that have ended: each time those of before, and the last time all."""
    rows = BURSTS
    groups = texts(spark, rows, size=100)("k", partitions=1)
    windows = {
        "window": lambda: groups.window("2 seconds"),
        "sliding": lambda: groups.window("2 seconds", slide="1 second"),
        "session": lambda: groups.session("1 second"),
    }[kind]()
    wanted = in_order(sessions_by_hand(rows, SECOND) if kind == "session" else by_hand(rows, BY_HAND[kind]))
    answers = ended(applied(windows, "reduce"), tmp_path, "complete")
    assert in_order(answers[-len(wanted) :]) == wanted
    assert set(in_order(answers)) == set(wanted)  # no window of before has other rows
    assert len(answers) > len(wanted)
    assert Counter(in_order(answers)).most_common(1)[0][0][1] == wanted[0][1]  # the first window is in each
