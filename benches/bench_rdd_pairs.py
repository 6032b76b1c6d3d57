"""Pairs of an RDD shuffled by key: ``fastbuf_spark.partition_by`` beside Spark's own ``rdd.partitionBy``.

Shape: FASTBUF_BENCH_PAIRS pairs (2 M; 20 k in a smoke run) of (int, int) and (str, int), a million keys, cached as
Python's pickles in M = 2 partitions; ``local[4]``, R = 2.  In one run, in turn: the floor (the cached pairs are
read into Python, no shuffle), Spark's own, and fastbuf's modes.  Each way ends in the sum of the pairs' values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
PAIRS = int(os.environ.get("FASTBUF_BENCH_PAIRS", "20_000" if SMOKE else "2_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "5"))
MASTER, PARTS_IN, PARTS_OUT = "local[4]", 2, 2
MODES = ("pipelined", "blocking")


def of_ints(i: int) -> tuple[int, int]:
    return i * 7919 % 1000003, i


def of_text(i: int) -> tuple[str, int]:
    return f"user-{i * 7919 % 1000003}", i


KINDS: dict[str, Callable[[int], tuple[Any, int]]] = {"(int, int)": of_ints, "(str, int)": of_text}


def summed(pairs: Iterator[tuple[Any, int]]) -> Iterator[int]:
    """The sum of the values, in C: what is measured is how the pairs come here."""
    yield sum(map(itemgetter(1), pairs))


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The workers import the functions above from this file
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(MASTER)
        .appName("fastbuf bench pairs")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield spark.sparkContext
    spark.stop()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_rdd_pairs(kind: str, context: Any, in_turn: Any, benchmark: Any) -> None:
    import fastbuf_spark as fbs

    pairs = context.range(0, PAIRS, 1, PARTS_IN).map(KINDS[kind]).cache()
    assert pairs.count() == PAIRS

    def checked(make: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            assert sum(make().mapPartitions(summed).collect()) == PAIRS * (PAIRS - 1) // 2

        return run

    def ours(mode: str) -> Callable[[], None]:
        return checked(lambda: fbs.partition_by(pairs, PARTS_OUT, mode=mode))

    benchmark.group = f"pairs of an RDD, {kind}, {PAIRS:,}"
    in_turn(
        {
            "floor": checked(lambda: pairs),
            "spark": checked(lambda: pairs.partitionBy(PARTS_OUT)),
            **{mode: ours(mode) for mode in MODES},
        },
        rounds=ROUNDS,
        baselines=("floor", "spark"),
        speed_up_over="spark",
        rows=PAIRS,
        master=MASTER,
        partitions_in=PARTS_IN,
        partitions_out=PARTS_OUT,
    )
    pairs.unpersist(blocking=True)
