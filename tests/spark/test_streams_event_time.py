"""Event time in streams: windows, late rows, joins and unions, beside what the rows alone say."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streams_people_write as people
from pyspark.sql import functions as F
from test_streams_ends import seen, until

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.streams import fail_points

BASE = 1_700_000_000_000_000
SCHEMA = "at timestamp, k long, v long"


class Rows:
    """A bounded source of rows in splits: batch n of a split is at offset n.

    With a gate, the last batch of the first split waits until that file is there: what a test looks for
    in the running stream stays until the test has seen it.
    """

    bounded = True

    def __init__(
        self,
        *splits: list[tuple[int, int, int]],
        size: int = 100,
        names: str = "at k v",
        every: float = 0.0,
        gate: Path | None = None,
    ) -> None:
        self.splits_of = splits
        self.size = size
        self.names = names.split()
        self.every = every
        self.gate = gate

    def splits(self) -> dict[str, int]:
        return {f"{self.names[2]}{i}": 0 for i in range(len(self.splits_of))}

    def read(self, split: str, offset: int) -> Any:
        import time

        rows = self.splits_of[int(split[len(self.names[2]) :])]
        while offset * self.size < len(rows):
            some = rows[offset * self.size : (offset + 1) * self.size]
            times, keys, values = zip(*some, strict=True)
            columns = [pa.array([BASE + t for t in times], pa.timestamp("us", "UTC")), pa.array(keys), pa.array(values)]
            waits = self.gate is not None and rows is self.splits_of[0] and (offset + 1) * self.size >= len(rows)
            while waits and not self.gate.exists():
                time.sleep(0.01)  # as a source with nothing to give does
                yield None, offset
            offset += 1
            time.sleep(self.every)
            yield pa.RecordBatch.from_arrays(columns, names=self.names), offset


def shuffled(count: int, seed: int, keys: int = 5, delay_us: int = 50_000) -> list[tuple[int, int, int]]:
    """Rows 10 ms apart, each up to `delay_us` out of its place."""
    random = np.random.default_rng(seed)
    times = np.arange(count) * 10_000
    order = np.argsort(times + random.integers(0, delay_us, count), kind="stable")
    return [(int(times[i]), int(i) % keys, int(i)) for i in order]


def windows_of(rows: Any, size: int, slide: int | None = None) -> Counter[tuple[int, int, int]]:
    """Sum of the values by key and window's start."""
    slide = slide or size
    found: Counter[tuple[int, int, int]] = Counter()
    for at, key, value in rows:
        last = (BASE + at) // slide * slide
        for start in range(last, BASE + at - size, -slide):
            found[key, start, 0] += value
            found[key, start, 1] += 1
    return found


def found_in(table: pa.Table) -> Counter[tuple[int, int, int]]:
    starts = table.column("window_start").cast(pa.int64()).to_pylist()
    columns = (table.column(name).to_pylist() for name in ("k", "v_sum", "count_all"))
    found: Counter[tuple[int, int, int]] = Counter()
    for start, key, total, count in zip(starts, *columns, strict=True):
        assert (key, start, 1) not in found, "a window is there twice"
        found[key, start, 0] += total
        found[key, start, 1] += count
    return found


@pytest.mark.parametrize(("size", "slide"), [("1 second", None), ("1 second", "250 ms")])
def test_windows_of_rows_out_of_order_under_a_kill_and_another_parallelism(
    spark: Any, tmp_path: Path, size: str, slide: str | None
) -> None:
    splits = [shuffled(1500, seed) for seed in (1, 2)]
    source = Rows(*splits, every=0.02)

    def stream(partitions: int) -> Any:
        made = fbs.stream(spark, source, SCHEMA, tasks=1).with_watermark("at", "60 ms")
        return (
            made.group_by("k", partitions=partitions)
            .window(size, slide=slide)
            .agg_arrow([("v", "sum"), ([], "count_all")], name="windows")
        )

    sink, killed = fbs.to_memory(), tmp_path / "killed"
    killed.mkdir()
    fail_points.ask(f"acknowledged;{killed}")
    try:
        query = stream(2).write_stream(sink, tmp_path / "chk", every=0.1)
        while not any(killed.iterdir()) and query.is_active:
            query.await_termination(0.05)
        query.stop()
    finally:
        fail_points.ask("")
    assert any(killed.iterdir())
    query = stream(1).write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(120)
    wanted = windows_of([row for split in splits for row in split], 1_000_000, 250_000 if slide else None)
    assert found_in(sink.table()) == wanted


def test_windows_that_do_not_fit_into_memory(spark: Any, tmp_path: Path) -> None:
    """Most of their state is in files, through a checkpoint and a restart with another parallelism."""
    rows = [(at, at * 7919 % 150_001, at) for at in range(200_000)]
    gate = tmp_path / "gate"
    source, sink = Rows(rows, size=2000, every=0.03, gate=gate), fbs.to_memory()
    conf = fbs.ShuffleConf(memory_bytes=512 << 10, segment_size=8 << 10)

    def stream(partitions: int) -> Any:
        made = fbs.stream(spark, source, SCHEMA, tasks=1, conf=conf).with_watermark("at", "60 ms")
        groups = made.group_by("k", partitions=partitions)
        return groups.window("100 ms").agg_arrow([("v", "sum"), ([], "count_all")], name="windows")

    query = stream(2).write_stream(sink, tmp_path / "chk", every=0.2)
    until(lambda: query.progress()["stages"][-1].get("spilled_bytes", 0) > 0 and query.progress()["checkpoints"])
    query.stop()
    gate.touch()
    query = stream(1).write_stream(sink, tmp_path / "chk", every=0.2)
    assert query.await_termination(120)
    assert found_in(sink.table()) == windows_of(rows, 100_000)


def test_late_rows_go_to_a_sink_of_their_own(spark: Any, tmp_path: Path) -> None:
    rows = [(t * 10_000, 0, t) for t in range(1000)]
    late = [(0, 0, -1), (5_000_000, 0, -2)]
    sink, missed, gate = fbs.to_memory(), fbs.to_memory(), tmp_path / "gate"
    source = Rows([*rows, *late], size=100, gate=gate)
    made = fbs.stream(spark, source, SCHEMA, tasks=1).with_watermark("at")
    query = (
        made.group_by("k", partitions=1)
        .window("1 second", late=missed)
        .agg_arrow([("v", "sum"), ([], "count_all")])
        .write_stream(sink, tmp_path / "chk", every=0.2)
    )
    until(lambda: sink.table().num_rows == 9)  # the watermark is behind all windows but the last
    gate.touch()
    assert query.await_termination(120)
    assert found_in(sink.table()) == windows_of(rows, 1_000_000)
    assert sorted(missed.table().column("v").to_pylist()) == [-2, -1]
    assert query.progress()["stages"][1]["late_rows"] == 2


def test_sessions_functions_and_running_results(spark: Any, tmp_path: Path) -> None:
    rows = [(burst * 3_000_000 + t * 10_000, t % 2, burst) for burst in range(4) for t in range(100)]
    source = fbs.stream(spark, Rows(rows), SCHEMA, tasks=1).with_watermark("at")
    sessions = source.group_by("k", partitions=2).session("1 second")

    def largest(key: Any, window: Any, frame: Any) -> Any:
        return frame.groupby("k", as_index=False).agg(burst=("v", "max"), rows=("v", "count"))

    made = {
        "sessions": sessions.apply_in_pandas(largest, "k long, burst long, rows long"),
        "running": source.group_by("k", partitions=2).global_window().agg_arrow([("v", "sum")]),
    }
    tables = {}
    for name, stream in made.items():
        sink = fbs.to_memory()
        query = stream.write_stream(sink, tmp_path / name, output_mode="append" if name == "sessions" else "update")
        assert query.await_termination(120)
        tables[name] = sink.table()
    found = sorted(zip(*(column.to_pylist() for column in tables["sessions"].columns), strict=True))
    assert found == [(k, burst, 50) for k in (0, 1) for burst in range(4)]
    last = dict(zip(*(column.to_pylist() for column in tables["running"].columns), strict=True))
    assert last == {0: 300, 1: 300}


class Listed(Rows):
    """Rows whose splits are listed when a file is there."""

    def __init__(self, gate: Path, *splits: list[tuple[int, int, int]], names: str) -> None:
        super().__init__(*splits, names=names)
        self.list_gate = gate

    def splits(self) -> dict[str, int]:
        until(self.list_gate.exists)
        return super().splits()


def test_a_join_waits_for_a_source_that_is_listed_slowly(spark: Any, tmp_path: Path) -> None:
    """What is not listed yet may have rows as old as those of the other source."""
    rows = [(n * 10_000, n % 5, n) for n in range(600)]
    a = fbs.stream(spark, Rows(rows), SCHEMA, tasks=1).with_watermark("at")
    b = fbs.stream(spark, Listed(tmp_path / "gate", rows, names="bt k w"), "bt timestamp, k long, w long", tasks=1)
    b = b.with_watermark("bt")
    joined, sink = a.group_by("k", partitions=1).interval_join(b.group_by("k"), 0, 0), fbs.to_memory()
    query = joined.write_stream(sink, tmp_path / "chk", every=0.2)
    try:
        until(lambda: query.progress()["stages"][-1]["rows_in"] == 600)
        until(lambda: seen(query) >= 2)
        (tmp_path / "gate").touch()
        assert query.await_termination(120)
    finally:
        (tmp_path / "gate").touch()
        query.stop()
    assert sorted(sink.table()["v"].to_pylist()) == list(range(600))


def test_files_of_two_streams_that_come_by_turns_are_joined(spark: Any, tmp_path: Path) -> None:
    """While a directory has no new file, the other's watermark does not make the next one late; nor at a restart."""

    def arrive(name: str, column: str, value: str, some: range) -> None:
        times = pa.array([BASE + n * 1_000_000 for n in some], pa.timestamp("us", "UTC"))
        (tmp_path / name).mkdir(exist_ok=True)
        whole = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({column: times, "k": [1] * len(some), value: list(some)}), whole)
        whole.rename(tmp_path / name / f"{some.start}")

    def stream() -> Any:
        a = fbs.stream_files(spark, str(tmp_path / "a"), schema=SCHEMA, tasks=1).with_watermark("at")
        b = fbs.stream_files(spark, str(tmp_path / "b"), schema="bt timestamp, k long, w long", tasks=1)
        return a.group_by("k", partitions=1).interval_join(b.with_watermark("bt").group_by("k"), 0, 0, name="join")

    sink = fbs.to_memory()
    arrive("a", "at", "v", range(100))
    arrive("b", "bt", "w", range(20))
    for some in (range(20, 50), range(50, 100)):
        query = stream().write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.1)
        try:
            before = 0 if some.start == 50 else 120
            until(lambda: query.progress()["stages"][-1]["rows_in"] >= before)  # noqa: B023
            until(lambda: seen(query) >= 2)  # noqa: B023
            arrive("b", "bt", "w", some)
            until(lambda: query.progress()["stages"][-1]["rows_in"] == before + len(some))  # noqa: B023
            until(lambda: seen(query) >= 4)  # noqa: B023
        finally:
            query.stop()
    assert query.progress()["stages"][-1]["late_rows"] == 0
    stream().write_stream(sink, tmp_path / "chk").stop(drain=True)
    assert sorted(sink.table()["w"].to_pylist()) == list(range(100))


def test_joins_and_unions_of_two_streams(spark: Any, tmp_path: Path) -> None:
    left, right = shuffled(600, 3), shuffled(600, 4)
    a = fbs.stream(spark, Rows(left), SCHEMA, tasks=1).with_watermark("at", "60 ms")
    b = fbs.stream(spark, Rows(right, names="bt k w"), "bt timestamp, k long, w long", tasks=1)
    b = b.with_watermark("bt", "60 ms")
    same = fbs.stream(spark, Rows(right, names="at k w"), SCHEMA.replace("v ", "w "), tasks=1)
    streams = {
        "interval": a.group_by("k", partitions=1).interval_join(b.group_by("k"), "-40 ms", "40 ms"),
        "window": a.group_by("k", partitions=1).window_join(b.group_by("k"), "500 ms"),
        "union": a.union(same.with_watermark("at", "60 ms"), partitions=1),
    }
    tables = {}
    for name, stream in streams.items():
        sink = fbs.to_memory()
        query = stream.write_stream(sink, tmp_path / name, every=0.2)
        assert query.await_termination(120)
        tables[name] = sink.table()
    by_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, key, value in right:
        by_key[key].append((at, value))
    for name, fits in (
        ("interval", lambda x, y: -40_000 <= y - x <= 40_000),
        ("window", lambda x, y: (BASE + x) // 500_000 == (BASE + y) // 500_000),
    ):
        wanted = sorted((v, w) for at, key, v in left for bt, w in by_key[key] if fits(at, bt))
        assert sorted(zip(*(tables[name].column(c).to_pylist() for c in "vw"), strict=True)) == wanted
    assert Counter(tables["union"].column("v").to_pylist()) == Counter(v for *_, v in [*left, *right])


@pytest.mark.parametrize("kind", ["interval", "window"])
def test_a_join_that_does_not_fit_into_memory(spark: Any, tmp_path: Path, kind: str) -> None:
    """Most of its state is in files, through a checkpoint and a restart with another parallelism."""
    rows = [(n * 10, n * 7919 % 60_001, n) for n in range(60_000)]
    conf = fbs.ShuffleConf(memory_bytes=512 << 10, segment_size=8 << 10)
    sink, gate = fbs.to_memory(), tmp_path / "gate"

    def started(partitions: int) -> Any:
        sides = []
        for names in ("at k v", "bt k w"):
            columns = "{} timestamp, {} long, {} long".format(*names.split())
            source = Rows(rows, size=2000, every=0.03, names=names, gate=gate)
            stream = fbs.stream(spark, source, columns, tasks=1, conf=conf).with_watermark(names[:2])
            sides.append(stream.group_by("k", partitions=partitions))
        a, b = sides
        joined = a.interval_join(b, 0, "1 second") if kind == "interval" else a.window_join(b, "1 second")
        return joined.write_stream(sink, tmp_path / "chk", every=0.2)

    query = started(2)
    until(lambda: query.progress()["stages"][-1].get("spilled_bytes", 0) > 0 and query.progress()["checkpoints"])
    query.stop()
    gate.touch()
    query = started(1)
    assert query.await_termination(120)
    pairs = sorted(zip(*(sink.table().column(name).to_pylist() for name in "vw"), strict=True))
    assert pairs == [(n, n) for n in range(60_000)]


def test_windows_of_all_rows_go_on_after_a_restart(spark: Any, tmp_path: Path) -> None:
    """Without keys: one group, in one task."""
    rows = shuffled(1500, 6)

    def stream() -> Any:
        source = fbs.stream(spark, Rows(rows, every=0.02), SCHEMA, tasks=1).with_watermark("at", "60 ms")
        return source.group_by().window("1 second").agg_arrow([("v", "sum"), ([], "count_all")])

    sink = fbs.to_memory()
    query = stream().write_stream(sink, tmp_path / "chk", every=0.1)
    until(lambda: sink.table().num_rows > 0)
    query.stop()
    query = stream().write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(120)
    table = sink.table()
    assert found_in(table.append_column("k", pa.array([0] * table.num_rows))) == windows_of(
        [(at, 0, value) for at, _, value in rows], 1_000_000
    )
    totals = fbs.to_memory()
    running = fbs.stream(spark, Rows(rows), SCHEMA, tasks=1).group_by().global_window().agg_arrow([("v", "sum")])
    assert running.write_stream(totals, tmp_path / "total", output_mode="update").await_termination(120)
    assert totals.table()["v_sum"].to_pylist()[-1] == sum(value for *_, value in rows)


def test_windows_of_what_was_joined_go_by_the_time_that_is_named(spark: Any, tmp_path: Path) -> None:
    """The sides of a join have columns of other names, and windows go by one of them, or by a third."""
    rows = shuffled(400, 5)
    a = fbs.stream(spark, Rows(rows), SCHEMA, tasks=1).with_watermark("at", "60 ms")
    b = fbs.stream(spark, Rows(rows, names="bt k w"), "bt timestamp, k long, w long", tasks=1)
    pairs = a.group_by("k", partitions=1).interval_join(b.with_watermark("bt", "60 ms").group_by("k"), None, None)
    same = pairs.filter(pa.compute.field("v") == pa.compute.field("w")).group_by("k", partitions=1)
    with pytest.raises(
        ConfigError, match=r"go by one time, and the sources have \['at', 'bt'\]: say which, as time='at'"
    ):
        same.window("1 second")
    sink = fbs.to_memory()
    sums = same.window("1 second", time="bt").agg_arrow([("v", "sum"), ([], "count_all")])
    assert sums.write_stream(sink, tmp_path, every=0.2).await_termination(120)
    assert found_in(sink.table()) == windows_of(rows, 1_000_000)


def test_what_cannot_be_is_refused(spark: Any, tmp_path: Path) -> None:
    source = fbs.stream_rate(spark, 10)
    with pytest.raises(ConfigError, match="say with_watermark behind the source first"):
        source.group_by("value").window("1 second")
    timed = source.with_watermark("timestamp")
    with pytest.raises(ConfigError, match=r"say with_watermark behind the source first \(10 rows in a second\)"):
        timed.union(source).group_by("value").window("1 second")  # its channel would hold time back for ever
    with pytest.raises(ConfigError, match="timers of time_mode='event_time' go by event time: say with_watermark"):
        source.group_by("value").transform_with_state(people.Alarm(), "v long", time_mode="event_time")
    bounded = fbs.stream_rate(spark, 10, rows=5)
    with pytest.raises(ConfigError, match="timers of time_mode='event_time' go by event time: say with_watermark"):
        bounded.group_by("value").transform_with_state(people.Alarm(), "v long", time_mode="event_time")
    timed.union(bounded).group_by("value").window("1 second")  # time goes on when it has ended
    with pytest.raises(ConfigError, match="must be a timestamp"):
        source.with_watermark("value")
    with pytest.raises(ConfigError, match="files are read one after the other"):
        fbs.stream_files(spark, str(tmp_path), schema="at timestamp").with_watermark("at", align="5 seconds")
    with pytest.raises(ConfigError, match="behind the source, or behind its select and filter"):
        source.shuffle("value").with_watermark("timestamp")
    with pytest.raises(ConfigError, match=r"which what is before group_by leaves out: say another one with time="):
        timed.map_in_arrow(lambda batches: batches, "value long").group_by("value").session("1 second")
    with pytest.raises(ConfigError, match="group_by has no keys, and state is kept for each"):
        timed.group_by().transform_with_state(people.Alarm(), "v long")
    with pytest.raises(ConfigError, match="group_by without keys has one group, and partitions=2"):
        timed.group_by(partitions=2)
    with pytest.raises(ConfigError, match="a join needs keys"):
        timed.group_by().interval_join(timed.group_by(), 0, 1)
    with pytest.raises(SchemaError, match="has 0 columns 'when'"):
        timed.group_by("value").window("1 second", time="when").agg_arrow([([], "count_all")])
    windows = source.with_watermark("timestamp").group_by("value").window("1 second", early_rows=5)
    with pytest.raises(ConfigError, match="output_mode='append' has each row once"):
        windows.agg_arrow([([], "count_all")]).write_stream(fbs.to_memory(), tmp_path)
    with pytest.raises(ConfigError, match="agg_arrow takes pairs of a column and a function"):
        windows.agg_arrow([F.sum("value")])  # type: ignore[list-item]
    parquet = fbs.to_parquet(tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot do output_mode='update'"):
        source.write_stream(parquet, tmp_path, output_mode="update")


def test_names_of_times_and_sinks_for_late_rows(spark: Any) -> None:
    source = fbs.stream_rate(spark, 10)
    column = F.col("timestamp")
    with pytest.raises(ConfigError, match="with_watermark takes the name of a column, as 'time', not a Column"):
        source.with_watermark(column)
    groups = source.with_watermark("timestamp").group_by("value")
    with pytest.raises(ConfigError, match="time takes the name of a column, as 'time', not a Column"):
        groups.window("1 second", time=column)
    with pytest.raises(ConfigError, match=r"late is 'x': give a sink, as fbs\.to_parquet\(path\)"):
        groups.window("1 second", late="x")
    with pytest.raises(ConfigError, match="late is 'x'"):
        groups.session("1 second", late="x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size is 0: windows are from a microsecond to 36,533 years long"),
        ({"size": "0 ms"}, "size is '0 ms'"),
        ({"size": 10, "slide": 0}, "slide is 0"),
        ({"size": 10, "offset": 20}, "offset is 20: it must be shorter than the windows' size, which is 10"),
        ({"size": 10, "offset": "-10 seconds"}, "offset is '-10 seconds': it must be shorter"),
        (
            {"size": "1 minute", "slide": "10 s", "offset": 10},
            "offset is 10: it must be shorter than the windows' slide, which is '10 s'",
        ),
        ({"size": "10 days", "slide": "1 ms"}, "size is '10 days' and slide is '1 ms': a row would be in 864,000,000"),
        ({"size": 10, "lateness": -1}, "lateness is -1: a duration may not be negative"),
        ({"size": 10, "lateness": 1e13}, "lateness is 10000000000000.0: at most 36,533 years"),
        ({"size": 10, "early_rows": 0}, "early_rows is 0: give a whole number from 1 on"),
        ({"size": 10, "early_rows": 1.5}, "early_rows is 1.5"),
        ({"size": 10, "early_every": 0}, "early_every is 0: give a millisecond or more"),
    ],
)
def test_windows_that_cannot_be(spark: Any, arguments: dict[str, Any], message: str) -> None:
    """The error has the user's own words for it."""
    groups = fbs.stream_rate(spark, 10).with_watermark("timestamp").group_by("value")
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        groups.window(**arguments)
    if not {"slide", "offset"} & set(arguments):
        arguments = {**arguments, "gap": arguments["size"]}
        arguments.pop("size")
        with pytest.raises(ConfigError, match=f"^{re.escape(message.replace('size is', 'gap is'))}"):
            groups.session(**arguments)


def test_joins_that_cannot_be(spark: Any) -> None:
    groups = fbs.stream_rate(spark, 10).with_watermark("timestamp").group_by("value")
    with pytest.raises(
        ConfigError, match=r"^lower is '1 second' and upper is '-1 second': lower must not be above upper"
    ):
        groups.interval_join(groups, "1 second", "-1 second")
    with pytest.raises(ConfigError, match=r"^upper is 1e\+18: at most 36,533 years"):
        groups.interval_join(groups, None, 1e18)
    with pytest.raises(ConfigError, match=r"^offset is 5: it must be shorter than the windows' size, which is 2"):
        groups.window_join(groups, 2, offset=5)


def test_a_union_and_the_shuffle_behind_it_are_one_stage(spark: Any) -> None:
    """It costs no slots of its own, unless it is told how many it has, or something is done in between."""
    one, other = fbs.stream_rate(spark, 1.0, tasks=1), fbs.stream_rate(spark, 2.0, tasks=1)
    schema = "timestamp timestamp, value long"
    kept = one.union(other).group_by("value", partitions=2)
    assert [draft.tasks for draft in kept.global_window().agg_arrow([([], "count_all")])._drafts] == [1, 1, 2]
    assert [draft.tasks for draft in one.union(other).rebalance(2)._drafts] == [1, 1, 2]
    assert [draft.tasks for draft in one.union(other, 1).shuffle("value", partitions=2)._drafts] == [1, 1, 1, 2]
    between = one.union(other).map_in_arrow(lambda batches: batches, schema).shuffle("value", partitions=2)
    assert [draft.tasks for draft in between._drafts] == [1, 1, None, 2]


def rows_in(query: Any) -> int:
    """Rows that its windows have taken."""
    stages = query.progress().get("stages", [])
    return int(stages[1]["rows_in"]) if stages else 0


@pytest.mark.parametrize(
    "window",
    [
        pytest.param("tumbling", marks=pytest.mark.nightly),
        "sliding",
        pytest.param("session", marks=pytest.mark.nightly),
    ],
)
def test_sparks_watermark_gives_sparks_rows(spark: Any, tmp_path: Path, window: str) -> None:
    """A file each micro-batch and each epoch: rows that are late for a batch, and windows that come with one."""
    import pyarrow.parquet as pq
    from pyspark.sql import functions as F

    dice = np.random.default_rng(3)
    given, moved = tmp_path / "given", tmp_path / "moved"
    given.mkdir()
    moved.mkdir()
    tables = []
    for n in range(7):
        # Some rows are up to 40 s behind: late for some windows, or just in time, as the watermark is a batch behind
        times = n * 20_000_000 - dice.integers(0, 40_000_000 if n % 2 else 15_000_000, 60)
        columns = [pa.array(BASE + times, pa.timestamp("us", "UTC")), pa.array(dice.integers(0, 3, 60))]
        tables.append(pa.table([*columns, pa.array(np.arange(n * 60, n * 60 + 60))], names=["at", "k", "v"]))
        pq.write_table(tables[-1], given / f"{n}.parquet")
        os.utime(given / f"{n}.parquet", (1_700_000_000 + n, 1_700_000_000 + n))
    sparks = {
        "tumbling": F.window("at", "10 seconds"),
        "sliding": F.window("at", "20 seconds", "5 seconds"),
        "session": F.session_window("at", "2 seconds"),
    }[window]
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(given))
    wanted = rows.withWatermark("at", "8 seconds").groupBy("k", sparks.alias("w")).agg(F.sum("v"), F.count("v"))
    wanted = wanted.select("k", F.unix_micros("w.start"), F.unix_micros("w.end"), "sum(v)", "count(v)")
    name = f"sparks_{window}"
    conf = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 1)
    try:
        writer = wanted.writeStream.format("memory").queryName(name).outputMode("append").trigger(availableNow=True)
        writer.start().awaitTermination(120)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", conf)
    sparks_rows = sorted(tuple(row) for row in spark.table(name).collect())

    ours = fbs.stream_files(spark, str(moved), schema=SCHEMA, tasks=1).with_watermark("at", "8 s", watermark="spark")
    groups = ours.group_by("k", partitions=1)
    windows = {
        "tumbling": lambda: groups.window("10 seconds"),
        "sliding": lambda: groups.window("20 seconds", slide="5 seconds"),
        "session": lambda: groups.session("2 seconds"),
    }[window]()
    sink = fbs.to_memory()
    made = windows.agg_arrow([("v", "sum"), ([], "count_all")])
    query = made.write_stream(sink, tmp_path / "chk", every=3600, discover_every=0.05)
    for n in range(len(tables) + 1):  # Spark has a batch without rows behind the last one
        if n == 4:  # what was seen before is in the checkpoint
            query.stop()
            query = made.write_stream(sink, tmp_path / "chk", every=3600, discover_every=0.05)
        if n < len(tables):
            pq.write_table(tables[n], moved / f".{n}.parquet")
            os.rename(moved / f".{n}.parquet", moved / f"{n}.parquet")
            read = 60 * (n - 3 if n >= 4 else n + 1)
            until(lambda query=query, read=read: rows_in(query) >= read)
        query.savepoint(str(tmp_path / f"epoch {n}"))
    until(lambda: sink.table().num_rows >= len(sparks_rows))  # rows are seen behind the checkpoint
    query.stop()
    columns = ("k", "window_start", "window_end", "v_sum", "count_all")
    table = sink.table()
    values = [
        (table.column(c).cast(pa.int64()) if c.startswith("window") else table.column(c)).to_pylist() for c in columns
    ]
    assert sparks_rows == sorted(zip(*values, strict=True))
    counted = sum(row[4] for row in sparks_rows)
    assert counted > 0
    assert window == "sliding" or counted < 60 * len(tables)


def test_a_source_that_runs_ahead_waits_for_the_others(spark: Any, tmp_path: Path) -> None:
    slow = [(t * 10_000, 0, t) for t in range(500)]
    fast = [(t * 1_000_000, 1, t) for t in range(1000)]
    sink, gate = fbs.to_memory(), tmp_path / "gate"
    made = fbs.stream(spark, Rows(slow, fast, size=5, every=0.02, gate=gate), SCHEMA, tasks=2)
    made = made.with_watermark("at", align="5 seconds")
    query = (
        made.group_by("k", partitions=1)
        .window("1 second")
        .agg_arrow([("v", "sum"), ([], "count_all")])
        .write_stream(sink, tmp_path / "chk", every=0.5)
    )

    def paused() -> int:
        stages = query.progress().get("stages") or [{}]
        return int(stages[0].get("paused_splits", 0))

    until(lambda: paused() == 1)
    gate.touch()
    assert query.await_termination(120)
    assert found_in(sink.table()) == windows_of([*slow, *fast], 1_000_000)
