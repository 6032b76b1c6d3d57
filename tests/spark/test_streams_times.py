"""Which column is the time: computed ones, those of several streams; and whose rows are awaited."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_streams_ends import seen, until
from test_streams_event_time import BASE, SCHEMA, Rows, found_in, windows_of

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError

UTC = pa.timestamp("ms", "UTC")
ROWS = [(n * 10_000, n % 5, n) for n in range(600)]


def ended(stream: Any, folder: Path, **more: Any) -> list[dict[str, Any]]:
    sink = fbs.to_memory()
    assert stream.write_stream(sink, folder, every=0.2, **more).await_termination(120)
    rows: list[dict[str, Any]] = sink.table().to_pylist()
    return rows


class Millis(Rows):
    """Times as numbers of milliseconds since 1970."""

    def read(self, split: str, offset: int) -> Any:
        for batch, at in super().read(split, offset):
            millis = pc.divide(batch.column(0).cast(pa.int64()), 1000)
            yield batch.set_column(0, "ms", millis), at


def test_times_that_are_numbers_of_milliseconds(spark: Any, tmp_path: Path) -> None:
    """select makes them times before with_watermark, and filter leaves rows out that would move the watermark."""
    rows = [*ROWS, (10_000_000_000, 0, -1), *[(n * 10_000, n % 5, n) for n in range(600, 700)]]
    stream = fbs.stream(spark, Millis(rows, size=50), "ms long, k long, v long", tasks=1)
    with pytest.raises(ConfigError, match=r"column 'ms' is bigint: it must be a timestamp; select makes one"):
        stream.with_watermark("ms")
    stream = stream.filter(pc.field("v") >= 0).select("k", "v", at=pc.field("ms").cast(UTC))
    windows = stream.with_watermark("at", "50 ms").group_by("k", partitions=2).window("1 second")
    sums = {
        (row["k"], row["window_start"].timestamp()): row["v_sum"]
        for row in ended(windows.agg_arrow([("v", "sum")]), tmp_path)
    }
    wanted: dict[tuple[int, float], int] = {}
    for at, k, v in rows:
        if v >= 0:
            place = k, (BASE + at) // 1_000_000
            wanted[place] = wanted.get(place, 0) + v
    assert sums == wanted
    with pytest.raises(ConfigError, match="stands behind functions or a shuffle"):
        stream.map_in_arrow(lambda batches: batches, "k long, v long, at timestamp").with_watermark("at")


def test_streams_whose_times_have_one_name_and_three_of_them(spark: Any, tmp_path: Path) -> None:
    def stream(name: str) -> Any:
        return fbs.stream(spark, Rows(ROWS), "at timestamp, k long, v long", tasks=1).select(
            "k", **{f"at{name}": pc.field("at"), f"v{name}": pc.field("v")}
        )

    a, b, c = (stream(name).with_watermark(f"at{name}").group_by("k", partitions=1) for name in ("", "2", "3"))
    plain = fbs.stream(spark, Rows(ROWS), "at timestamp, k long, v long", tasks=1).with_watermark("at").group_by("k")
    with pytest.raises(Exception, match=r"both sides of the join have 'at', 'v': .* in front of with_watermark"):
        plain.interval_join(plain, 0, 0)
    pairs = a.interval_join(b, 0, 0)
    with pytest.raises(ConfigError, match=r"with_watermark names \['at', 'at2'\].*say which, as time="):
        pairs.group_by("k").interval_join(c, 0, 0)
    with pytest.raises(ConfigError, match="name two columns"):
        pairs.group_by("k").interval_join(c, 0, 0, time="at")  # type: ignore[arg-type]
    threes = pairs.group_by("k", partitions=1).interval_join(c, 0, 0, time=("at2", None))
    assert [side.time for side in threes._drafts[-1].operator.sides] == ["at2", "at3"]
    assert sorted((row["v"], row["v2"]) for row in ended(pairs, tmp_path)) == [(v, v) for _, _, v in ROWS]


def test_running_results_are_for_sinks_that_can_take_them_back(spark: Any, tmp_path: Path) -> None:
    def running(size: int = 100) -> Any:
        rows = fbs.stream(
            spark, Rows([(0, n // 300, 1) for n in range(600)], size=size), "at timestamp, k long, v long", tasks=1
        )
        return rows.group_by("k", partitions=1).global_window().agg_arrow([("v", "sum")])

    with pytest.raises(ConfigError, match="set output_mode='update'"):
        running().write_stream(fbs.to_memory(), tmp_path / "append")
    updates = ended(running(), tmp_path / "update", output_mode="update")
    assert {row["k"]: row["v_sum"] for row in updates} == {0: 300, 1: 300}
    complete = ended(running(), tmp_path / "complete", output_mode="complete")
    assert [(row["k"], row["v_sum"]) for row in complete][-2:] == [(0, 300), (1, 300)]
    with pytest.raises(ConfigError, match="this stream has no windows"):
        fbs.stream_rate(spark, 10).write_stream(fbs.to_memory(), tmp_path / "none", output_mode="complete")


@pytest.mark.parametrize("idle", [None, "1 minute"])
def test_a_directory_without_files_is_awaited(spark: Any, tmp_path: Path, idle: Any) -> None:
    """Its first rows are older than those that the other stream has had for long: they are not late."""
    for name in "ab":
        (tmp_path / name).mkdir()

    def put(name: str, columns: dict[str, list[Any]]) -> None:
        whole = tmp_path / f"{name}.parquet"
        times = {
            key: pa.array(v, pa.int64()).cast(pa.timestamp("us", "UTC")) for key, v in columns.items() if "t" in key
        }
        pq.write_table(pa.table({**columns, **times}), whole)
        whole.rename(tmp_path / name / "1.parquet")

    put("a", {"at": [BASE + 1000, BASE + 2000], "k": [1, 2]})
    a = fbs.stream_files(spark, str(tmp_path / "a"), schema="at timestamp, k long", tasks=1)
    b = fbs.stream_files(spark, str(tmp_path / "b"), schema="bt timestamp, k long", tasks=1)
    sides = [each.with_watermark(name, idle=idle).group_by("k", partitions=1) for each, name in ((a, "at"), (b, "bt"))]
    sink = fbs.to_memory()
    query = (
        sides[0]
        .interval_join(sides[1], "-1 second", 0)
        .write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.1)
    )
    try:
        until(lambda: query.progress()["stages"][-1]["rows_in"] == 2)
        until(lambda: seen(query) >= 5)
        put("b", {"bt": [BASE - 100], "k": [1]})
        until(lambda: sink.table().num_rows == 1)
    finally:
        query.stop()
    assert query.progress()["stages"][-1]["late_rows"] == 0


def test_a_directory_without_files_is_idle_after_a_while(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    a = fbs.stream(spark, Rows(ROWS), "at timestamp, k long, v long", tasks=1).with_watermark("at")
    b = fbs.stream_files(spark, str(tmp_path / "b"), schema="at timestamp, k long, v long", tasks=1)
    both = a.union(b.with_watermark("at", idle="1 second")).group_by("k", partitions=1).window("1 second")
    sink, begin = fbs.to_memory(), time.monotonic()
    query = both.agg_arrow([([], "count_all")]).write_stream(sink, tmp_path / "chk", every=0.1)
    try:
        # The source of rows ends, and so does its time; then the directory alone holds all windows back
        until(lambda: sink.table().num_rows == 30)
    finally:
        query.stop()
    assert time.monotonic() - begin > 1


def mark_of(batch: pa.RecordBatch) -> Any:
    """Rows with -1 say that all up to their time has come."""
    return pc.max(batch.filter(pc.field("v") == -1)["at"])


def test_watermarks_that_rows_say(spark: Any, tmp_path: Path) -> None:
    """The rows of a second come in any order, and behind them one that says that these are all."""
    random, rows = np.random.default_rng(5), []
    for second in range(6):
        values = random.permutation(100) + 100 * second
        rows += [(int(v) * 10_000, int(v) % 5, int(v)) for v in values] + [(second * 1_000_000 + 999_999, 5, -1)]
    gate, sink = tmp_path / "gate", fbs.to_memory()
    stream = fbs.stream(spark, Rows(rows, size=50, gate=gate), SCHEMA, tasks=1)
    windows = stream.with_watermark("at", punctuated=mark_of).group_by("k", partitions=1).window("1 second")
    query = windows.agg_arrow([("v", "sum"), ([], "count_all")]).write_stream(sink, tmp_path / "chk", every=0.1)
    until(lambda: query.progress()["stages"][1:] and "watermark_ms" in query.progress()["stages"][1])
    until(lambda: sink.table().num_rows >= 30)
    assert max(sink.table()["window_start"].cast(pa.int64()).to_pylist()) == BASE + 4_000_000  # the sixth has no mark
    assert query.progress()["stages"][1]["watermark_ms"] == BASE // 1000 + 4999
    gate.touch()
    assert query.await_termination(120)
    assert found_in(sink.table()) == windows_of(rows, 1_000_000)
    assert query.progress()["stages"][1]["late_rows"] == 0


def test_functions_that_cannot_say_watermarks(spark: Any, tmp_path: Path) -> None:
    stream = fbs.stream(spark, Rows(ROWS), SCHEMA, tasks=1)
    with pytest.raises(ConfigError, match=r"punctuated= says the watermark, and so does delay='1 s': leave one out"):
        stream.with_watermark("at", "1 s", punctuated=mark_of)
    with pytest.raises(ConfigError, match=r"and so does watermark='spark'"):
        stream.with_watermark("at", watermark="spark", punctuated=mark_of)
    with pytest.raises(Exception, match="punctuated"):
        stream.with_watermark("at", punctuated=5)  # type: ignore[arg-type]
    wrong = stream.with_watermark("at", punctuated=lambda batch: batch.num_rows).shuffle("k", partitions=1)
    query = wrong.write_stream(fbs.to_memory(), tmp_path)
    with pytest.raises(Exception, match="must return a watermark, which is a datetime"):
        query.await_termination(120)


def test_windows_by_the_time_of_arrival(spark: Any, tmp_path: Path) -> None:
    """They end by the clock, also while no row comes; each row is in one, and none falls behind one of before."""
    rows, gate, sink = [(0, n % 2, n) for n in range(400)], tmp_path / "gate", fbs.to_memory()

    def stream() -> Any:
        source = fbs.stream(spark, Rows(rows, size=10, every=0.02, gate=gate), SCHEMA, tasks=1)
        source = source.filter(pc.field("v") != 7).with_ingestion_time("came")
        windows = source.group_by("k", partitions=1).window("100 ms")
        return windows.agg_arrow([("came", "min"), ("came", "max"), ("v", "sum"), ([], "count_all")], name="windows")

    assert stream()._drafts[0].schema.names == ["at", "k", "v", "came"]
    query = stream().write_stream(sink, tmp_path / "chk", every=0.05)
    until(lambda: sink.table().num_rows > 4)
    query.stop()
    query = stream().write_stream(sink, tmp_path / "chk", every=0.05)
    until(lambda: sum(sink.table()["count_all"].to_pylist()) == 389)
    gate.touch()
    assert query.await_termination(120)
    assert query.progress()["stages"][1]["late_rows"] == 0
    results = sink.table().to_pylist()
    assert sum(row["v_sum"] for row in results) == sum(range(400)) - 7
    for k in (0, 1):
        mine = [row for row in results if row["k"] == k]
        assert sum(row["count_all"] for row in mine) == 200 - k
        starts = [row["window_start"] for row in mine]
        assert starts == sorted(set(starts))
        assert all(start.microsecond % 100_000 == 0 for start in starts)
        assert all(row["window_start"] <= row["came_min"] <= row["came_max"] < row["window_end"] for row in mine)


def test_a_stream_has_one_time(spark: Any) -> None:
    stream = fbs.stream(spark, Rows(ROWS), SCHEMA, tasks=1)
    with pytest.raises(ConfigError, match="there is a column 'at' already: give another name"):
        stream.with_ingestion_time("at")
    with pytest.raises(ConfigError, match=r"with_watermark: the time of this stream is 'ingested' already"):
        stream.with_ingestion_time().with_watermark("at")
    with pytest.raises(ConfigError, match=r"with_ingestion_time: the time of this stream is 'at' already"):
        stream.with_watermark("at").with_ingestion_time()
    with pytest.raises(ConfigError, match="with_ingestion_time stands behind functions or a shuffle"):
        stream.shuffle("k").with_ingestion_time()
