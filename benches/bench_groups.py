"""Groups: ``fastbuf_spark.group_by`` beside Spark's own ``groupBy``, in Arrow, in pandas, and of two inputs.

Shape: FASTBUF_BENCH_ROWS rows (10 M; 20 k in a smoke run) of (long, long, double), cached in M = 4 partitions;
``local[4]``, R = 2 partitions out.  In one run, in turn: Spark's own verb and fastbuf's modes, for few, some and very
many groups.  Each function gives a row for its group: *arrow* and *pandas* make one of Python's numbers, which is most
of the work where groups are very many; *first* takes the group's first row, which costs little.  Each way ends in the
sum of these rows' counts, or in their number.  *Functions alone* is the floor: R processes, without Spark, call the
same function with slices of a table that is sorted already.

*Of files*: the same rows in four files of Parquet, read by Spark, with ``maxBytesPerBatch`` as it is and lifted, and by
fastbuf's workers; and the floor.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROWS = int(os.environ.get("FASTBUF_BENCH_ROWS", "20_000" if SMOKE else "10_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "3"))
GROUPS = [group for group in (10, 10_000, 1_000_000) if 10 * group <= ROWS or group == 10]
PARTS_IN, PARTS_OUT = 4, 2
MODES = ("pipelined", "blocking")
RESULT = "k long, n long"
ROW = "k long, v long, x double"
MAX_BYTES, NO_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)


def in_arrow(key: Any, table: pa.Table) -> pa.Table:
    """One row for a group."""
    return pa.table([pa.array([key[0].as_py()]), pa.array([table.num_rows])], names=["k", "n"])


def first_row(table: pa.Table) -> pa.Table:
    """The first row of a group."""
    return table.slice(0, 1)


def in_pandas(key: Any, pdf: Any) -> Any:
    """One row for a group."""
    import pandas as pd

    return pd.DataFrame({"k": [key[0]], "n": [len(pdf)]})


def of_two(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    """One row for the groups of a key."""
    return pa.table([pa.array([key[0].as_py()]), pa.array([left.num_rows + right.num_rows])], names=["k", "n"])


def spark_arrow(df: Any) -> Any:
    return df.groupBy("k").applyInArrow(in_arrow, RESULT)


def spark_first(df: Any) -> Any:
    return df.groupBy("k").applyInArrow(first_row, ROW)


def spark_pandas(df: Any) -> Any:
    return df.groupBy("k").applyInPandas(in_pandas, RESULT)


def right_of(df: Any) -> Any:
    """The other input of a cogroup: Spark would shuffle the same one only once."""
    return df.selectExpr("k", "v + 1 as v", "x")


def spark_two(df: Any, right: Any = None) -> Any:
    right = right_of(df) if right is None else right
    return df.groupBy("k").cogroup(right.groupBy("k")).applyInArrow(of_two, RESULT)


def spark_sums(df: Any) -> Any:
    return df.groupBy("k").agg({"v": "count"}).toDF("k", "n")


def fastbuf_arrow(groups: Any) -> Any:
    return groups.apply_in_arrow(in_arrow, RESULT)


def fastbuf_first(groups: Any) -> Any:
    return groups.apply_in_arrow(first_row, ROW)


def fastbuf_pandas(groups: Any) -> Any:
    return groups.apply_in_pandas(in_pandas, RESULT)


def fastbuf_two(groups: Any, right: Any) -> Any:
    return groups.cogroup(right).apply_in_arrow(of_two, RESULT)


def fastbuf_sums(groups: Any) -> Any:
    return groups.agg_arrow([("v", "count")]).toDF("k", "n")


@functools.cache
def sorted_rows(groups: int) -> pa.Table:
    """The rows of one of R partitions, in order."""
    keys, count = groups // PARTS_OUT, ROWS // groups
    ids = np.arange(keys * count)
    return pa.table({"k": ids // count, "v": ids, "x": ids * 0.5})


def called(verb: str, groups: int) -> int:
    """Calls a verb's function with each group of one partition; the sum of the rows that it gave."""
    table, count, made = sorted_rows(groups), ROWS // groups, 0
    for start in range(0, table.num_rows, count):
        group = table.slice(start, count)
        key = (group.column(0)[0],)
        if verb == "pandas":
            made += int(in_pandas((key[0].as_py(),), group.to_pandas())["n"].iloc[0])
        elif verb == "first":
            made += first_row(group).num_rows
        elif verb == "cogroup":
            made += of_two(key, group, group)["n"][0].as_py()
        else:
            made += in_arrow(key, group)["n"][0].as_py()
    return made


@contextlib.contextmanager
def alone(verb: str, groups: int) -> Iterator[Callable[[], None]]:
    """A verb's function called in R processes, without Spark."""
    with ProcessPoolExecutor(PARTS_OUT, get_context("spawn")) as pool:

        def run() -> None:
            assert sum(pool.map(called, [verb] * PARTS_OUT, [groups] * PARTS_OUT)) == sum_of(verb, groups)

        yield run


#: Spark's own and fastbuf's
VERBS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "arrow": (spark_arrow, fastbuf_arrow),
    "first": (spark_first, fastbuf_first),
    "pandas": (spark_pandas, fastbuf_pandas),
    "cogroup": (spark_two, fastbuf_two),
    "count": (spark_sums, fastbuf_sums),
}


def sum_of(verb: str, groups: int) -> int:
    """What the results' counts must add up to."""
    return {"first": groups, "cogroup": 2 * ROWS}.get(verb, ROWS)


def rows_of(spark: Any, groups: int) -> Any:
    return spark.range(0, ROWS, 1, PARTS_IN).selectExpr(f"id * 7919 % {groups} as k", "id as v", "id * 0.5D as x")


def checked(make: Callable[[], Any], wanted: int) -> Callable[[], None]:
    def run() -> None:
        made = make()
        assert made.agg({"n": "sum"} if "n" in made.columns else {"*": "count"}).first()[0] == wanted

    return run


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("groups", spark_sql_shuffle_partitions=str(PARTS_OUT)) as made:
        yield made


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("verb", VERBS)
def test_groups(verb: str, groups: int, spark: Any, in_turn: Any, benchmark: Any) -> None:
    import fastbuf_spark as fbs

    df = rows_of(spark, groups).cache()
    assert df.count() == ROWS
    theirs, ours = VERBS[verb]
    wanted = sum_of(verb, groups)

    def way(mode: str) -> Callable[[], None]:
        def groups_of(rows: Any) -> Any:
            return fbs.group_by(rows, "k", num_partitions=PARTS_OUT, mode=mode)

        if verb == "cogroup":
            return checked(lambda: fastbuf_two(groups_of(df), groups_of(right_of(df))), wanted)
        return checked(lambda: ours(groups_of(df)), wanted)

    ways = {"spark": checked(lambda: theirs(df), wanted), **{mode: way(mode) for mode in MODES}}
    benchmark.group = f"groups, {verb}, {ROWS:,} rows, {groups:,} groups"
    with alone(verb, groups) as floor:
        in_turn(
            ways if verb == "count" else {**ways, "functions alone": floor},
            rounds=ROUNDS,
            baselines=("spark",),
            speed_up_over="spark",
            rows=ROWS,
            groups=groups,
            partitions_in=PARTS_IN,
            partitions_out=PARTS_OUT,
        )
    df.unpersist(blocking=True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "count"])
def test_groups_of_files(
    verb: str, groups: int, spark: Any, in_turn: Any, benchmark: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import fastbuf_spark as fbs

    left, right = (str(tmp_path_factory.mktemp("groups") / side) for side in ("left", "right"))
    rows_of(spark, groups).write.parquet(left)
    right_of(rows_of(spark, groups)).write.parquet(right)
    theirs, ours = VERBS[verb]
    wanted = sum_of(verb, groups)

    def spark_own() -> Any:
        df = spark.read.parquet(left)
        return spark_two(df, spark.read.parquet(right)) if verb == "cogroup" else theirs(df)

    def read_by_workers() -> Any:
        made = fbs.read_parquet(spark, left).group_by("k", partitions=PARTS_OUT, mode="pipelined")
        if verb != "cogroup":
            return ours(made).to_df()
        return fastbuf_two(made, fbs.read_parquet(spark, right).group_by("k", mode="pipelined")).to_df()

    def lifted() -> None:
        spark.conf.set(MAX_BYTES, NO_LIMIT)
        try:
            checked(spark_own, wanted)()
        finally:
            spark.conf.unset(MAX_BYTES)

    benchmark.group = f"groups of files, {verb}, {ROWS:,} rows, {groups:,} groups"
    ways = {"spark": checked(spark_own, wanted), "spark, lifted": lifted, "fastbuf": checked(read_by_workers, wanted)}
    with alone(verb, groups) as floor:
        in_turn(
            {**ways, "functions alone": floor},
            rounds=ROUNDS,
            baselines=("spark", "spark, lifted"),
            speed_up_over="spark",
            rows=ROWS,
            groups=groups,
            partitions_out=PARTS_OUT,
        )
