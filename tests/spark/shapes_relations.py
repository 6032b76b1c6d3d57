"""Shapes: unions, joins, sets, sorting and grouping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shapes_base import SIX, Run, Shuffle, Table, numbers, placed, rows

TABLE = Table()
shape = TABLE.shape
AQE = "spark.sql.adaptive.enabled"


@shape(cheap=True)
def union_plain_right(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).union(numbers(spark, 300, 2)))


@shape(cheap=True)
def union_plain_left(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(numbers(spark, 300, 2).union(made(numbers(spark))))


@shape(master=SIX, cheap=True, chooses=True)
def union_of_two(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).union(made(numbers(spark, 500), "u")))


@shape(parts=1, cheap=True)
def union_of_two_small(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return placed(made(numbers(spark)).union(made(numbers(spark, 500), "u")))


@shape(master=SIX, parts=1)
def union_of_four(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    one, two = made(numbers(spark)), made(numbers(spark, 500), "u")
    return placed(one.union(two).union(one).union(made(numbers(spark, 100))))


@shape(cheap=True)
def union_by_name(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    other = numbers(spark, 300, 2).select("u", "id")
    return placed(made(numbers(spark)).unionByName(other, allowMissingColumns=True))


@shape(cheap=True)
def coalesce_of_a_union(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return rows(made(numbers(spark)).union(numbers(spark, 300, 2)).coalesce(1))


@shape()
def cross_join_left(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    few = spark.range(0, 20, 1, 2).withColumnRenamed("id", "n")
    return rows(made(numbers(spark, 200)).crossJoin(few).groupBy("k").agg({"n": "sum", "id": "sum"}))


@shape()
def cross_join_right(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    few = spark.range(0, 20, 1, 2).withColumnRenamed("id", "n")
    return rows(few.crossJoin(made(numbers(spark, 200))).groupBy("k").agg({"n": "sum", "id": "sum"}))


@shape(master=SIX)
def cartesian_of_two(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """Not by broadcast: each task reads a partition of both, and two tasks read the same."""
    one, two = made(numbers(spark, 200)), made(numbers(spark, 50), "u").selectExpr("id as n")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        return rows(one.crossJoin(two).groupBy("k").agg({"n": "sum", "id": "sum"}))
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def join(how: str, hint: str = "", itself: bool = False) -> Run:
    def run(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
        left = made(numbers(spark)).selectExpr("id", "k as left_k")
        if itself:
            right = left.selectExpr("id + 7 as id", "left_k as right_k")
        else:
            right = made(numbers(spark, 3_000).where("id % 2 = 0"), "u").selectExpr("id", "k as right_k")
        return rows(left.join(right.hint(hint) if hint else right, "id", how))

    return run


JOINS: dict[str, Run] = {
    "two": join("inner", "shuffle_hash"),
    "itself": join("inner", "merge", itself=True),
    "broadcast": join("inner", "broadcast"),
    "merge": join("inner", "merge"),
}
for name, run in JOINS.items():
    for aqe in ("true", "false"):
        TABLE.add(run, f"join_{name}_{'with' if aqe == 'true' else 'without'}_aqe", master=SIX, conf={AQE: aqe})
for how in ("left_semi", "left_anti", "full_outer"):
    TABLE.add(join(how, "merge"), f"join_{how}", master=SIX)
TABLE.add(join("inner", "merge"), "join_small", parts=1)
TABLE.add(join("left_semi"), "join_semi_small", parts=1)


@shape()
def join_with_a_plain_frame(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return rows(made(numbers(spark)).hint("merge").join(numbers(spark, 500).selectExpr("id", "k as other"), "id"))


@shape(cheap=True)
def except_all(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """Its failure in planning once took the whole SparkContext down."""
    base = spark.range(0, 20000, 1, 4).selectExpr("id", "id % 97 as k", "concat('u', id % 13) as u")
    return made(base).exceptAll(own(base)).count()


def of_sets(call: Callable[[Any, Any], Any]) -> Run:
    def run(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
        return rows(call(made(numbers(spark)).select("k", "u"), own(numbers(spark, 900)).select("k", "u")))

    return run


for name, call in {
    "subtract": lambda one, two: one.subtract(two),
    "intersect": lambda one, two: one.intersect(two),
    "intersect_all": lambda one, two: one.intersectAll(two),
}.items():
    TABLE.add(of_sets(call), name, cheap=True)


@shape()
def except_all_of_two_cached(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    one, two = made(numbers(spark)).cache(), made(numbers(spark, 1_500)).cache()
    try:
        return one.count(), two.count(), rows(one.exceptAll(two))
    finally:
        one.unpersist(blocking=True)
        two.unpersist(blocking=True)


def above(call: Callable[[Any], Any]) -> Run:
    def run(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
        return rows(call(made(numbers(spark))))

    return run


def in_order(call: Callable[[Any], Any]) -> Run:
    def run(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
        return call(made(numbers(spark))).collect()

    return run


for name, call in {
    "distinct": lambda df: df.select("k", "u").distinct(),
    "drop_duplicates": lambda df: df.dropDuplicates(["k", "u"]).select("k", "u"),
    "window": lambda df: df.selectExpr("id", "row_number() over (partition by k order by id) as n"),
    "group_by": lambda df: df.groupBy("k").agg({"id": "sum", "x": "max"}),
    "pivot": lambda df: df.groupBy("k").pivot("u").count(),
    "rollup": lambda df: df.rollup("u", "k").agg({"id": "sum"}),
    "count_distinct": lambda df: df.selectExpr("count(distinct k)", "count(distinct u)", "count(distinct k, u)"),
    "collect_list": lambda df: (
        df.groupBy("u").agg({"id": "collect_list"}).selectExpr("u", "sort_array(`collect_list(id)`)")
    ),
}.items():
    TABLE.add(above(call), name, cheap=name not in ("pivot", "rollup"))

for name, call in {
    "sort": lambda df: df.orderBy("id", ascending=False),
    "sort_and_limit": lambda df: df.orderBy("id").limit(30),
    "sort_in_partitions": lambda df: df.sortWithinPartitions("id"),
}.items():
    TABLE.add(in_order(call), name, cheap=True)


@shape(cheap=True)
def describe(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    """A deviation's last digits depend on the order in which partitions are added up."""
    found = made(numbers(spark)).describe("id", "k").collect()
    return [(r.summary, round(float(r.id), 6), round(float(r.k), 6)) for r in found]


@shape(cheap=True)
def quantiles(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    return made(numbers(spark)).approxQuantile(["id", "x"], [0.1, 0.5, 0.9], 0.0)


@shape(master=SIX, parts=1)
def view_that_is_used_twice(spark: Any, made: Shuffle, own: Shuffle, tmp: Path) -> Any:
    made(numbers(spark)).createOrReplaceTempView("shuffled")
    try:
        return rows(
            spark.sql(
                "select a.id, a.u, b.n from shuffled a"
                " join (select k, max(id) m, count(*) n from shuffled group by k) b on a.id = b.m"
                " where a.id > (select avg(id) from shuffled) - 1000"
            )
        )
    finally:
        spark.catalog.dropTempView("shuffled")
