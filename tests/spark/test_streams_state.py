"""``transform_with_state`` beside Spark's own ``transformWithStateInPandas``: the same processor, the same rows."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from nights import nightly
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor
from test_streams_ends import until

import fastbuf_spark as fbs

GIVEN = "k string, v long, at timestamp"
SCHEMA = "k string, what string, n long, t timestamp"
COLUMNS = ["k", "what", "n", "t"]


class All(StatefulProcessor):
    """Uses each kind of state, of several types."""

    def init(self, handle: Any) -> None:
        one = T.StructType([T.StructField("v", T.LongType())])
        self.total = handle.getValueState("total", T.StructType([*one.fields, T.StructField("at", T.TimestampType())]))
        self.items = handle.getListState("items", one)
        self.parity = handle.getMapState("parity", T.StructType([T.StructField("p", T.StringType())]), one)

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        frame = pd.concat(list(rows)).sort_values("v")
        for value, at in zip(frame["v"], frame["at"], strict=True):
            total, latest = self.total.get() if self.total.exists() else (0, None)
            at = at.to_pydatetime()
            latest = at if latest is None or at > latest else latest
            self.total.update((total + value, latest))
            self.items.appendValue((value,))
            if value % 5 == 4:
                self.items.put([(v,) for (v,) in self.items.get() if v % 2])
            name = ("odd" if value % 2 else "even",)
            n = self.parity.getValue(name)[0] if self.parity.containsKey(name) else 0
            self.parity.updateValue(name, (n + 1,))
            if n == 3:
                self.parity.removeKey(name)
        total, latest = self.total.get()
        out = [(key[0], "total", total, latest), (key[0], "items", sum(v for (v,) in self.items.get()), None)]
        out += [(key[0], p, n, None) for (p,), (n,) in self.parity.iterator()]
        out += [(key[0], "keys", len(list(self.parity.keys())) + 10 * len(list(self.parity.values())), None)]
        yield pd.DataFrame(out, columns=COLUMNS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield pd.DataFrame()

    def close(self) -> None:
        pass


def lines(number: int) -> str:
    return "".join(
        json.dumps({"k": f"k{v % 3}", "v": v, "at": f"2024-01-0{1 + v % 3}T00:00:{v % 60:02}"}) + "\n"
        for v in range(number * 20, number * 20 + 20)
    )


class Expiring(All):
    """Timers by the times of rows, some deleted again, some set by a timer; they say when they were due."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        frame = pd.concat(list(rows)).sort_values("v")
        for value, at in zip(frame["v"], frame["at"], strict=True):
            due = int(at.timestamp()) * 1000 + 86_400_000
            self.handle.registerTimer(due)
            if value % 4 == 0:
                self.handle.deleteTimer(due)
        self.total.update((int(frame["v"].sum()), frame["at"].max().to_pydatetime()))
        yield pd.DataFrame([(key[0], "timers", len(list(self.handle.listTimers())), None)], columns=COLUMNS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        due = expiredTimerInfo.getExpiryTimeInMs()
        if due // 1000 % 3 == 0:
            self.handle.registerTimer(due + 7_000)
        yield pd.DataFrame([(key[0], "due", due, None), (key[0], "total", *self.total.get())], columns=COLUMNS)


class Living(All):
    """Two kinds of state, of which one lives for a moment and one for an hour; a timer by the clock for each file."""

    def init(self, handle: Any) -> None:
        one = T.StructType([T.StructField("v", T.LongType())])
        self.handle = handle
        self.brief = handle.getValueState("brief", one, 100)
        self.briefs = handle.getListState("briefs", one, 100)
        self.lasting = handle.getMapState("lasting", one, one, 3_600_000)

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n = sum(len(each) for each in rows)
        before = [self.brief.exists(), len(list(self.briefs.get())), len(list(self.lasting.keys()))]
        self.brief.update((n,))
        self.briefs.put([(n,), (n,)])
        self.lasting.updateValue((sum(before[2:]),), (n,))
        after = [self.brief.exists(), len(list(self.briefs.get())), len(list(self.lasting.keys()))]
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 1)
        yield pd.DataFrame([(key[0], str([before, after]), n, None)], columns=COLUMNS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        assert timerValues.getCurrentProcessingTimeInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame([(key[0], "timer", len(list(self.lasting.keys())), None)], columns=COLUMNS)


@nightly
@pytest.mark.parametrize(
    ("processor", "time_mode"), [(All, "None"), (Expiring, "EventTime"), (Living, "ProcessingTime")]
)
def test_the_same_processor_in_spark(spark: Any, tmp_path: Path, processor: Any, time_mode: str) -> None:
    """Three files, one at a time: each a micro-batch there, and here at least one epoch."""
    ours, theirs, given = tmp_path / "ours", tmp_path / "theirs", tmp_path / "given"
    for folder in (ours, theirs, given):
        folder.mkdir()
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    by_event = time_mode == "EventTime"
    sink = fbs.to_memory()

    def start(partitions: int) -> Any:
        stream = fbs.stream_files(spark, str(ours), "json", GIVEN, tasks=1)
        stream = stream.with_watermark("at", "1 hour", watermark="spark") if by_event else stream
        keyed = stream.group_by("k", partitions=partitions)
        stream = keyed.transform_with_state(processor(), SCHEMA, "update", time_mode, name="all")
        return stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05)

    try:
        stream = spark.readStream.schema(GIVEN).option("maxFilesPerTrigger", 1).json(str(theirs))
        stream = stream.withWatermark("at", "1 hour") if by_event else stream
        keyed = stream.groupBy("k").transformWithStateInPandas(processor(), SCHEMA, "Update", time_mode)
        query = keyed.writeStream.foreachBatch(lambda frame, _: batches.extend(frame.toArrow().to_pylist()))
        batches: list[Any] = []
        running = query.outputMode("update").option("checkpointLocation", str(tmp_path / "c")).start()
        mine = start(2)
        for number in range(3):
            path = given / f"{number}.json"
            path.write_text(lines(number))
            shutil.copy(path, theirs / f".{number}.json")
            (theirs / f".{number}.json").rename(theirs / f"{number}.json")
            shutil.copy(path, ours / f".{number}.json")
            (ours / f".{number}.json").rename(ours / f"{number}.json")
            if time_mode == "ProcessingTime":  # there is always a batch to come
                until(lambda: sum(row["what"] == "timer" for row in batches) == 3 * (number + 1))  # noqa: B023
            else:
                running.processAllAvailable()
            until(lambda: sink.table().num_rows >= len(batches))
            if number == 0:  # it restarts with what it had
                mine.stop()
                mine = start(1)
        mine.stop()
        running.stop()
        wanted = sorted(batches, key=str)
        assert sorted(sink.table().to_pylist(), key=str) == wanted
        assert len(wanted) >= 18
    finally:
        for each in spark.streams.active:
            each.stop()
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


class Clocks(All):
    """A timer for each key, by the clock, set at its first row; state that lives for a moment."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        one = T.StructType([T.StructField("v", T.LongType())])
        self.short = handle.getValueState("short", one, 2_000)

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        n = sum(len(each) for each in rows)
        if not list(self.handle.listTimers()):
            now = times.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + 200)
            self.handle.registerTimer(now + 900)
            self.handle.registerTimer(now + 950)
            self.handle.deleteTimer(now + 950)
        self.short.update((n,))
        yield pd.DataFrame([(key[0], "rows", n, None)], columns=COLUMNS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        assert late >= 0
        there = self.short.get()
        yield pd.DataFrame([(key[0], "timer", -1 if there is None else there[0], None)], columns=COLUMNS)


def test_timers_by_the_clock_and_a_time_to_live_over_a_restart(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.json").write_text(lines(0))
    sink = fbs.to_memory()
    stream = fbs.stream_files(spark, str(folder), "json", GIVEN, tasks=1)
    keyed = stream.group_by("k", partitions=1).transform_with_state(
        Clocks(), SCHEMA, time_mode="processing_time", name="clocks"
    )
    query = keyed.write_stream(sink, tmp_path / "chk", every=0.05)
    until(lambda: sink.table().num_rows >= 6)  # the first timer of each
    query.stop()
    time.sleep(2.0)  # the second one is overdue when it starts again, and the state has lived long enough
    query = keyed.write_stream(sink, tmp_path / "chk", every=0.05)
    until(lambda: sink.table().num_rows >= 9)
    query.stop()
    found = sorted((row["k"], row["what"], row["n"]) for row in sink.table().to_pylist())
    counts = {"k0": 7, "k1": 7, "k2": 6}
    wanted = [(k, "rows", n) for k, n in counts.items()] + [(k, "timer", n) for k, n in counts.items()]
    assert found == sorted([*wanted, *((k, "timer", -1) for k in counts)])


class Watermarks(All):
    """Gives the watermark for each row."""

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        for batch in rows:
            mark = times.getCurrentWatermarkInMs()
            yield batch.select([]).append_column("k", batch["k"]).append_column("mark", pa.array([mark] * len(batch)))


@nightly(but_one="rule")
@pytest.mark.parametrize("rule", ["split", "spark"])
def test_the_watermark_of_a_processor_that_starts_again(spark: Any, tmp_path: Path, rule: str) -> None:
    """It was 0 until the first row had moved it; by Spark's rule rows that are late by it are left out."""
    folder = tmp_path / "in"
    folder.mkdir()

    def file(number: int, *days: int) -> None:
        rows = [{"k": f"k{day}", "v": number, "at": f"2024-01-{day:02}T00:00:00"} for day in days]
        (tmp_path / "new").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "new").rename(folder / f"{number}.json")

    sink = fbs.to_memory()

    def start() -> Any:
        stream = fbs.stream_files(spark, str(folder), "json", GIVEN, tasks=1).with_watermark("at", 0, watermark=rule)
        keyed = stream.group_by("k", partitions=1).transform_with_state(
            Watermarks(), "k string, mark long", "update", "EventTime", name="marks", arrow=True
        )
        return keyed.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05)

    file(0, 10)
    query = start()
    until(lambda: query.progress()["stages"][1].get("watermark_ms"))
    until(lambda: sink.table().num_rows == 1)
    query.stop()
    file(1, 9, 11)
    query = start()
    until(lambda: sink.table().num_rows == (3 if rule == "split" else 2))
    mark = 1_704_844_800_000  # of the tenth
    rows = {row["k"]: row["mark"] for row in sink.table().to_pylist()}
    until(lambda: query.progress()["stages"][1].get("late_rows", 0) == (rule == "spark"))
    query.stop()
    if rule == "split":
        assert rows.keys() == {"k9", "k10", "k11"}
        assert rows["k9"] == rows["k11"]
        assert abs(rows["k9"] - mark) <= 1
    else:
        assert rows == {"k10": 0, "k11": mark}
