"""A stream is started again with another program: what fits its checkpoints goes on, what is misread is refused."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming import StatefulProcessor
from test_streams_ends import seen, until
from test_streams_functions import LONGS, Lists

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError
from fastbuf_spark.streams import query as queries
from fastbuf_spark.streams import run as runs
from fastbuf_spark.streams.query import StreamFailed

KEYED = "at timestamp, k long, j long, v long, w long"


class From(Lists):
    """Numbers from a first one on, under a name."""

    def __init__(self, name: str, first: int, rows: int, seconds: float, step: int = 10) -> None:
        super().__init__(1, rows, seconds, step)
        self.name = name
        self.lists = {"s0": list(range(first, first + rows))}


def test_sources_are_known_by_their_names(spark: Any, tmp_path: Path) -> None:
    """Two sources whose splits have the same names change places: each goes on where it was."""
    sink = fbs.to_memory()

    def source(name: str, first: int, seconds: float) -> Any:
        return fbs.stream(spark, From(name, first, 200, seconds, 10 if first else 2), LONGS, tasks=1)

    one = source("a", 0, 0.02).union(source("b", 1000, 0.02), partitions=1)
    query = one.write_stream(sink, tmp_path / "chk", every=0.1)
    until(lambda: sink.table().num_rows > 20)
    query.stop()
    two = source("b", 1000, 0).union(source("a", 0, 0), partitions=1)
    query = two.write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(60)
    numbers = [first + i for first in (0, 1000) for i in range(200)]
    assert sorted(sink.table()["v"].to_pylist()) == numbers


def test_another_source_amid_the_rows_of_one(spark: Any, tmp_path: Path) -> None:
    """Offsets of one are none of another; behind a source that has ended another one may come."""
    sink = fbs.to_memory()
    query = fbs.stream(spark, From("a", 0, 400, 0.02), LONGS, tasks=1).write_stream(sink, tmp_path / "chk", every=0.1)
    until(lambda: seen(query) >= 1)
    query.stop()
    other = fbs.stream(spark, From("b", 1000, 50, 0), LONGS, tasks=1)
    words = r"stand amid the rows of \['a'\], and the stream has \['b'\] instead.*name="
    with pytest.raises(ConfigError, match=words):
        other.write_stream(sink, tmp_path / "chk")
    with pytest.raises(ConfigError, match="key_groups=64, and the checkpoints have 128, which the first start fixed"):
        fbs.stream(spark, From("a", 0, 400, 0), LONGS, tasks=1).write_stream(sink, tmp_path / "chk", key_groups=64)
    rate = fbs.stream_rate(spark, 10, rows=10, tasks=1)
    with pytest.raises(ConfigError, match="instead"):
        rate.write_stream(fbs.to_memory(), tmp_path / "chk")
    query = fbs.stream(spark, From("a", 0, 400, 0), LONGS, tasks=1).write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(60)
    query = other.write_stream(sink, tmp_path / "chk", every=0.1)
    assert query.await_termination(60)
    assert sorted(sink.table()["v"].to_pylist()) == [*range(400), *range(1000, 1050)]


def keyed(batches: Any) -> Iterator[pa.RecordBatch]:
    for each in batches:
        v = each.column("v")
        at = pc.multiply(v, 1_000_000).view(pa.timestamp("us", "UTC"))
        columns = [at, pc.bit_wise_and(v, 3), pc.bit_wise_and(v, 7), v, pc.multiply(v, 1000)]
        yield pa.RecordBatch.from_arrays(columns, names=["at", "k", "j", "v", "w"])


class Timed(Lists):
    """Rows with times, so that a watermark may stand directly behind them."""

    def read(self, split: str, offset: Any) -> Any:
        for rows, at in super().read(split, offset):
            yield next(keyed([rows])), at


class Count(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n = (self.count.get() or (0,))[0] + sum(each.num_rows for each in rows)
        self.count.update((n,))
        yield pa.record_batch({"n": [n]})

    def close(self) -> None:
        pass


def added(rows: pa.RecordBatch, numbers: np.ndarray, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    n = np.array(state.column(0).fill_null(0)) + np.bincount(numbers, minlength=state.num_rows)
    return pa.record_batch({"n": n}), pa.record_batch({"n": n})


def windows(size: str, pairs: Any, key: str = "k", **more: Any) -> Callable[[Any], Any]:
    return lambda rows: (
        rows.with_watermark("at").group_by(key, partitions=1).window(size, **more).agg_arrow(pairs, name="n")
    )


def running(pairs: Any) -> Callable[[Any], Any]:
    return lambda rows: rows.group_by("k", partitions=1).global_window().agg_arrow(pairs, name="n")


def in_batches(state: str, ttl: str | None = None, key: str = "k") -> Callable[[Any], Any]:
    return lambda rows: rows.group_by(key, partitions=1).transform_batches_with_state(
        added, "n long", state, name="n", ttl=ttl
    )


def processed(key: str, clock: str = "processing_time") -> Callable[[Any], Any]:
    return lambda rows: rows.group_by(key, partitions=1).transform_with_state(
        Count(), "n long", arrow=True, name="n", time_mode=clock
    )


class Others(Timed):
    def read(self, split: str, offset: Any) -> Any:
        for rows, at in super().read(split, offset):
            yield rows.select(["at", "k", "w"]), at


def joined(size: str, other: str = "w2", how: str = "inner") -> Callable[[Any], Any]:
    """With the rows of a second source."""

    def stream(rows: Any) -> Any:
        second = fbs.stream(rows._spark, Others(1, 400, 0.02), f"at2 timestamp, k long, {other} long", tasks=1)
        one, two = rows.with_watermark("at"), second.with_watermark("at2")
        return one.group_by("k", partitions=1).window_join(two.group_by("k"), size, how=how, name="n")

    return stream


SUM, MAX = [("v", "sum")], [("v", "max")]


@pytest.mark.parametrize(
    ("first", "others"),
    [
        (
            windows("1 hour", SUM),
            {
                "windows: .*size=3600000000.*, now .*size=7200000000": windows("2 hours", SUM),
                "slide=1800000000": windows("1 hour", SUM, slide="30 minutes"),
                "zone=None.*zone=Zone..Europe/Berlin": windows("1 hour", SUM, zone="Europe/Berlin"),
                r"aggregates: \['v sum'\], now \['v max'\]": windows("1 hour", MAX),
                r"now \['w sum'\]": windows("1 hour", [("w", "sum")]),
                "accumulate: True, now False": windows("1 hour", SUM, accumulate=False),
                r"keys: \['k int64'\], now \['j int64'\]": windows("1 hour", SUM, key="j"),
                "verb: windows, now running agg_arrow": running(SUM),
            },
        ),
        (
            windows("1 hour", SUM, slide="20 minutes", accumulate=False),
            {
                "rows: of panes, now of each window": windows(
                    "1 hour", SUM, slide="20 minutes", accumulate=False, lateness="1 minute"
                )
            },
        ),
        (
            running(SUM),
            {
                r"\['v sum'\], now \['v max'\]": running(MAX),
                "now transform_with_state": processed("k"),
                r"state: \['p0 int64'\], now \['p0 double'\]": lambda rows: running(SUM)(
                    rows.select("k", v=pc.field("v").cast(pa.float64()))
                ),
            },
        ),
        (
            in_batches("n long"),
            {
                r"state: \['n int64'\], now \['n double'\]": in_batches("n double"),
                r"'__touched_ms int64'": in_batches("n long", "1 hour"),
                "m int64": in_batches("m long"),
                "keys: ": in_batches("n long", key="j"),
            },
        ),
        (
            joined("1 hour"),
            {
                "size=3600000000.*size=7200000000": joined("2 hours"),
                "w2 int64.*now.*w3 int64": joined("1 hour", "w3"),
                "how: inner, now left": joined("1 hour", how="left"),
            },
        ),
        (
            processed("k"),
            {
                r"keys: \['k int64'\], now \['j int64'\]": processed("j"),
                "time_mode: processing_time, now None": processed("k", "none"),
            },
        ),
    ],
    ids=["windows", "panes", "running", "batches", "join", "processor"],
)
def test_state_that_would_be_misread_is_refused(
    spark: Any, tmp_path: Path, first: Any, others: dict[str, Callable[[Any], Any]]
) -> None:
    """Before anything starts; and the program that it was goes on."""

    def source(seconds: float) -> Any:
        return fbs.stream(spark, Timed(1, 400, seconds), KEYED, tasks=1)

    query = first(source(0.02)).write_stream(fbs.to_memory(), tmp_path / "chk", every=0.1, output_mode="update")
    until(lambda: seen(query) >= 2)
    query.stop()
    for words, other in others.items():
        with pytest.raises(ConfigError, match=f"(?s)the state of 'n' in the checkpoints.*{words}"):
            other(source(0)).write_stream(fbs.to_memory(), tmp_path / "chk", output_mode="update")
    sink = fbs.to_memory()
    query = first(source(0)).write_stream(sink, tmp_path / "chk", every=0.1, output_mode="update")
    assert query.await_termination(60)
    assert sink.table().num_rows


class Hours(Lists):
    """Times that are keys, too: of the last rows, one alone."""

    def read(self, split: str, offset: Any) -> Any:
        for rows, at in super().read(split, offset):
            hours = [0 if value >= 100 else value % 8 for value in rows.column("v").to_pylist()]
            times = pa.array([hour * 3_600_000_000 for hour in hours], pa.int64()).view(pa.timestamp("us", "UTC"))
            yield pa.RecordBatch.from_arrays([times, times], names=["hour", "at"]), at


@pytest.mark.parametrize("verb", ["windows", "running", "processor"])
def test_another_time_zone_of_the_session(spark: Any, tmp_path: Path, verb: str) -> None:
    """A zone says how a time is shown: keys and state are the same moments."""

    def start(source: Hours, sink: Any) -> Any:
        rows = fbs.stream(spark, source, "hour timestamp, at timestamp", tasks=1)
        if verb == "windows":
            groups = rows.with_watermark("at", "1 day").group_by("hour", partitions=1).window("1 day")
            stream = groups.agg_arrow([("at", "max"), ([], "count_all")], name="n")
        elif verb == "running":
            groups = rows.group_by("hour", partitions=1).global_window()
            stream = groups.agg_arrow([("at", "max"), ([], "count_all")], name="n")
        else:
            stream = rows.group_by("hour", partitions=1).transform_with_state(Count(), "n long", arrow=True, name="n")
        return stream.write_stream(sink, tmp_path / "chk", every=0.1, output_mode=mode)

    (tmp_path / "out").mkdir()

    def save(table: pa.Table, batch_id: int) -> None:
        pq.write_table(table, tmp_path / "out" / f"{batch_id}.parquet")

    mode = "update" if verb == "running" else "append"
    sink = fbs.to_function(save) if verb == "running" else fbs.to_parquet(tmp_path / "out")
    query = start(Hours(1, 300, 0.05, step=5), sink)
    until(lambda: query.progress()["stages"][1]["rows_in"] >= 40 and seen(query) >= 2)
    query.stop()
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        query = start(Hours(1, 300), sink)
        assert query.await_termination(60)
        assert fbs.read_state(str(tmp_path / "chk"), "n").num_rows == (0 if verb == "windows" else 8)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    files = [str(path) for path in (tmp_path / "out").glob("*.parquet")]
    results = ds.dataset(files).to_table()
    name = "n" if verb == "processor" else results.schema.names[-1]
    assert max(results[name].to_pylist()) == 213  # of the first hour: 13 of the first rows, and all of the others


def test_what_cannot_be_pickled_is_refused_at_once(spark: Any, tmp_path: Path) -> None:
    lock = threading.Lock()

    def take(table: pa.Table, number: int) -> None:
        with lock:
            pass

    with pytest.raises(Exception, match="annot pickle"):
        fbs.stream(spark, Lists(1, 10), LONGS, tasks=1).write_stream(fbs.to_function(take), tmp_path / "chk")
    unfit = Lists(1, 10)
    unfit.lock = lock  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="annot pickle"):
        fbs.stream(spark, unfit, LONGS, tasks=1).write_stream(fbs.to_memory(), tmp_path / "chk")


def test_a_row_that_kills_its_worker_again_and_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints in front of it are complete in each run, and nothing is read beyond: the stream gives up."""
    monkeypatch.setattr(queries, "MOST_LOSSES", 4)

    def deadly(batches: Any) -> Any:
        for each in batches:
            if 100 in each.column("v").to_pylist():
                os.kill(os.getpid(), signal.SIGKILL)
            yield each

    stream = fbs.stream(spark, Lists(1, 400, 0.02), LONGS, tasks=1).map_in_arrow(deadly, LONGS)
    query = stream.write_stream(fbs.to_memory(), tmp_path / "chk", every=0.05)
    with pytest.raises(StreamFailed):
        query.await_termination(60)
    assert query.status["restarts"] < 20


def test_rows_that_wait_for_a_sink_are_not_left_to_another(spark: Any, tmp_path: Path) -> None:
    """It is said at once, and a savepoint begins a stream with another sink."""

    def stream(seconds: float) -> Any:
        return fbs.stream(spark, Lists(1, 300, seconds), LONGS, tasks=1)

    sink = fbs.to_memory()
    query = stream(0.02).write_stream(sink, tmp_path / "chk", every=0.1)
    until(lambda: sink.table().num_rows > 0)
    query.savepoint(str(tmp_path / "saved"))
    query.stop()
    parquet = fbs.to_parquet(tmp_path / "out")

    def away(rows: Any, batch: int) -> None:
        raise ConnectionError("it is away")

    waits = stream(0.02).write_stream(fbs.to_function(away), tmp_path / "waits", every=0.1)
    until(lambda: seen(waits) >= 1 and waits.progress()["stages"][0]["rows_in"])
    waits.stop()
    with pytest.raises(ConfigError, match="wait to be committed by FunctionSink, and the sink is ParquetSink: "):
        stream(0).write_stream(parquet, tmp_path / "waits")
    query = stream(0).write_stream(parquet, tmp_path / "new", every=0.1, restore_from=str(tmp_path / "saved"))
    assert query.await_termination(60)
    files = [str(path) for path in (tmp_path / "out").glob("*.parquet")]
    behind = ds.dataset(files).to_table()["v"].to_pylist()
    query = stream(0).write_stream(sink, tmp_path / "chk", every=0.1)  # as it was
    assert query.await_termination(60)
    assert sorted(sink.table()["v"].to_pylist()) == list(range(300))
    assert sorted(behind) == list(range(300 - len(behind), 300))


def arrived(folder: Path, name: str, **columns: Any) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f".{name}")
    (folder / f".{name}").rename(folder / f"{name}.parquet")


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ((0, "append"), (3600, "append"), [(0, 3), (3, 8), (60, 9)]),
        ((0, "update"), (3600, "update"), [(0, 3), (3, 8), (60, 9)]),
        ((600, "append"), (600, "update"), [(0, 103), (3, 8), (60, 9)]),
        ((600, "append"), (0, "append"), [(0, 103), (3, 8), (60, 9)]),  # in time until the next watermark
    ],
    ids=["later", "later in updates", "updates", "earlier"],
)
def test_another_lateness_or_output_mode_shows_each_window(
    spark: Any, tmp_path: Path, before: Any, after: Any, wanted: Any
) -> None:
    """One that had had its result came again with a late row alone; one that waited for its lateness never came."""

    def started(lateness: int, mode: str) -> tuple[Any, Any]:
        files = fbs.stream_files(spark, str(tmp_path / "in"), "parquet", "at timestamp, k long, v long", tasks=1)
        windows = files.with_watermark("at").group_by("k", partitions=1).window("1 minute", lateness=lateness)
        sink = fbs.to_memory()
        stream = windows.agg_arrow([("v", "sum")], name="w")
        return stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05, output_mode=mode), sink

    def rows(name: str, seconds: list[int], values: list[int]) -> None:
        times = pa.array([each * 1_000_000 for each in seconds]).view(pa.timestamp("us", "UTC"))
        arrived(tmp_path / "in", name, at=times, k=[1] * len(values), v=values)

    shown: list[tuple[int, int]] = []

    def stopped(query: Any, sink: Any, count: int, **drain: bool) -> None:
        until(lambda: query.progress()["stages"][1]["rows_in"] == count)
        query.savepoint(str(tmp_path / f"saved {len(shown)} {count}"))
        query.stop(**drain)
        times = sink.table()["window_start"].cast(pa.int64()).to_pylist()
        shown.extend((at // 60_000_000, v) for at, v in zip(times, sink.table()["v_sum"].to_pylist(), strict=True))

    rows("1", [0, 30, 200], [1, 2, 8])
    stopped(*started(*before), 3)
    rows("2", [45], [100])
    query, sink = started(*after)
    until(lambda: query.progress()["stages"][1]["rows_in"] == 1)
    rows("3", [3600], [9])
    stopped(query, sink, 2, drain=True)
    last = dict(shown)
    assert sorted(last.items()) == wanted
    if "update" not in (before[1], after[1]):
        assert len(shown) == len(last), "each once"


def test_a_delta_table_into_which_rows_are_merged_from_now_on(spark: Any, tmp_path: Path) -> None:
    """What was appended are files of the table, of which the merge knew nothing: no run could begin."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    table = str(tmp_path / "table")

    def written(first: int, **keys: Any) -> None:
        pq.write_table(pa.table({"k": [1, 2], "v": [first, first + 1]}), tmp_path / ".draft")
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / ".draft").rename(tmp_path / "in" / f"{first}.parquet")
        stream = fbs.stream_files(spark, str(tmp_path / "in"), "parquet", "k long, v long", tasks=1, bounded=True)
        mode = "update" if keys else "append"
        query = stream.write_stream(fbs.to_delta(table, **keys), tmp_path / "chk", output_mode=mode)
        assert query.await_termination(60)

    written(10)
    written(20, keys=["k"])
    assert sorted(deltalake.DeltaTable(table).to_pyarrow_table()["v"].to_pylist()) == [20, 21]
    written(30)
    assert sorted(deltalake.DeltaTable(table).to_pyarrow_table()["v"].to_pylist()) == [20, 21, 30, 31]


def test_a_query_that_waits_for_slots_says_so(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is starting, however long that takes, and runs when others have let go of theirs."""
    monkeypatch.setattr(runs, "JOIN_S", 0.2)
    first = fbs.stream(spark, Lists(1, 10**6, 0.05), LONGS, tasks=1).shuffle("v", partitions=2)
    holds = first.write_stream(fbs.to_memory(), tmp_path / "first", every=0.2)
    until(lambda: seen(holds) >= 1)
    sink = fbs.to_memory()
    waits = fbs.stream(spark, Lists(1, 100), LONGS, tasks=1).rebalance(1).write_stream(sink, tmp_path / "second")
    until(lambda: "waits for 2 of 2 tasks" in waits.status["message"])
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1)
    assert waits.status["state"] == "starting"
    monkeypatch.undo()
    assert holds.status["state"] == "running"
    holds.stop()
    assert waits.await_termination(60)
    assert waits.status["restarts"] == 0
    assert sorted(sink.table()["v"].to_pylist()) == list(range(100))
