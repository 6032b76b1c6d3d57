"""Many shuffles in a row under ``auto``: consumers of all of them hold slots at the same time, so some are blocking."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import in_the_end, in_time
from nights import nightly

import fastbuf_spark as fbs
from fastbuf_spark.driver.exchanges import last_run
from fastbuf_spark.driver.rendezvous import servers
from fastbuf_spark.driver.run import SETTLE_S

pytestmark = pytest.mark.spark

SLOTS = 4
SOON_S = 60.0
IN_A_ROW = 5  # of one partition each: with the producers of the first, two more than there are slots


def frames(df: Any, shuffle: Callable[[Any, str], Any]) -> Any:
    for number in range(IN_A_ROW):
        df = shuffle(df, "id" if number % 2 else "k")
    return df


def joins(first: Any, other: Any, join: Callable[[Any, Any], Any]) -> Any:
    for _ in range(IN_A_ROW):
        first = join(first, other).mapValues(sum)
    return first


def test_frames(spark: Any) -> None:
    df = spark.range(0, 5000, 1, 3).selectExpr("id", "id % 7 as k")
    made = frames(df, lambda each, key: fbs.repartition(each, 1, key))
    assert sorted(in_time(SOON_S, made.collect)) == sorted(
        frames(df, lambda each, key: each.repartition(1, key)).collect()
    )


def test_consumers_that_wait_for_a_slot_share_a_run(spark: Any, tmp_path: Path) -> None:
    """Another job has the slots when they begin: each had a run of its own, and both together twice the slots."""
    sc = spark.sparkContext
    begun, go_on = str(tmp_path / "begun"), tmp_path / "go on"

    def hold(number: int) -> None:
        Path(f"{begun} {number}").touch()
        while not os.path.exists(go_on):
            time.sleep(0.02)  # it has a slot until it is told to go on

    other = threading.Thread(target=lambda: sc.parallelize(range(3), 3).foreach(hold))
    other.start()
    in_the_end(lambda: list(tmp_path.iterdir()), lambda found: len(found) == 3)
    df = spark.range(0, 5000, 1, 3).selectExpr("id", "id % 7 as k")
    made = fbs.repartition(df, 2, "k", mode="pipelined")
    rows: list[Any] = []
    action = threading.Thread(target=lambda: rows.extend(made.collect()))
    action.start()
    in_the_end(lambda: [run for server in servers() for run in server.live_runs()], bool)
    time.sleep(2 * SETTLE_S)  # nothing may happen in this time; the fault was that one went on alone after half of it
    go_on.touch()
    other.join()
    action.join()
    assert sorted(rows) == sorted(df.collect())
    run = last_run()
    assert run is not None
    assert run.partitions == [0, 1]


def test_pairs(spark: Any) -> None:
    sc = spark.sparkContext
    first, other = sc.range(0, 300, 1, 2).map(lambda i: (i % 9, i)), sc.parallelize([(i, -i) for i in range(9)], 2)
    made = joins(first, other, lambda a, b: fbs.join(a, b, 1))
    assert sorted(in_time(SOON_S, made.collect)) == sorted(joins(first, other, lambda a, b: a.join(b, 1)).collect())


def test_pairs_made_of_a_frame_and_a_frame_of_them(spark: Any) -> None:
    df = spark.range(0, 900, 1, 3).selectExpr("id % 9 as k", "id as v")
    for _ in range(2):
        placed = fbs.repartition(df, 1, "k")
        pairs = fbs.reduce_by_key(placed.rdd.map(tuple), max, 1)
        df = pairs.toDF("k long, v long")
    assert sorted(map(tuple, in_time(SOON_S, df.collect))) == [(k, 891 + k) for k in range(9)]


def test_a_pipeline_on_top_of_them(spark: Any) -> None:
    df = spark.range(0, 900, 1, 3).selectExpr("id % 9 as k", "id as v")
    for _ in range(2):
        df = fbs.repartition(df, 1, "k")
    made = fbs.pipeline(df).shuffle("v", partitions=1).shuffle("k", partitions=1).to_df()
    assert sorted(map(tuple, in_time(SOON_S, made.collect))) == sorted((i % 9, i) for i in range(900))


def test_what_a_full_cache_holds_counts_no_more(spark: Any) -> None:
    df = spark.range(0, 900, 1, 3).selectExpr("id % 9 as k", "id as v")
    for _ in range(IN_A_ROW):
        df = fbs.repartition(df, 1, "k", mode="pipelined").cache()
        in_time(SOON_S, df.count)
        run = last_run()
        assert run is not None
        assert run.mode == "pipelined"
    assert sorted(map(tuple, df.collect())) == sorted((i % 9, i) for i in range(900))
    spark.catalog.clearCache()


@nightly(of="pairs")
@pytest.mark.parametrize("of", ["frames", "pairs"])
def test_those_that_are_asked_to_be_pipelined_end_soon_and_say_why(spark: Any, of: str) -> None:
    sc = spark.sparkContext
    if of == "frames":
        df = spark.range(0, 5000, 1, 3).selectExpr("id", "id % 7 as k")
        made = frames(df, lambda each, key: fbs.repartition(each, 1, key, mode="pipelined"))
    else:
        first, other = sc.range(0, 300, 1, 2).map(lambda i: (i % 9, i)), sc.parallelize([(i, -i) for i in range(9)], 2)
        made = joins(first, other, lambda a, b: fbs.join(a, b, 1, mode="pipelined"))
    begun = time.monotonic()
    with pytest.raises(Exception, match=rf"need one more: {SLOTS + 1} > {SLOTS} slots.*mode='blocking'"):
        in_time(SOON_S, made.collect)
    assert time.monotonic() - begun < 30, "a verdict takes ten seconds, and is not waited for once more by each of them"
