"""A program of a user of Spark Connect, which test_connect.py runs; prints what it found, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import fastbuf_spark as fbs
    from fastbuf.errors import PreflightError

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def placed(df: Any) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in df.select(F.spark_partition_id().alias("p"), "*").collect())

    spark = SparkSession.builder.remote("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    df = spark.range(0, 1_000, 1, 3).selectExpr("id % 17 as k", "id")
    found: dict[str, Any] = {}
    for mode in ("auto", "blocking"):
        made = fbs.repartition(df, 3, "k", mode=mode)
        found[mode] = placed(made) == placed(df.repartition(3, "k"))
    made = fbs.map_in_arrow(
        df, passing, df.schema, keys=["k"], num_partitions=3, before=passing, before_schema=df.schema
    )
    found["count"] = made.count()
    found["take"] = len(made.take(5))
    found["union"] = made.union(df).count()
    found["expression"] = placed(fbs.repartition(df, 3, F.expr("k % 2"))) == placed(df.repartition(3, F.expr("k % 2")))
    found["in turn"] = fbs.repartition(df, 3).count()
    groups = fbs.group_by(df, F.col("k") % 5, num_partitions=3, sort_by="id")
    made = groups.apply_in_arrow(lambda table: table.slice(0, 1), df.schema)
    found["groups"] = sorted(row.id for row in made.collect())
    down = fbs.group_by(df, F.col("k") % 5, num_partitions=3, sort_by=[F.col("k").desc(), F.desc("id")])
    made = down.apply_in_arrow(lambda table: table.slice(0, 1), df.schema)
    found["groups, descending"] = sorted(row.id for row in made.collect())
    by_k = fbs.group_by(df, "k", num_partitions=3, sort_by=F.desc("id"))
    made = by_k.cogroup(by_k).apply_in_arrow(lambda left, right: right.slice(0, 1), df.schema)
    found["pairs, descending"] = sorted(row.id for row in made.collect())
    made = groups.apply_in_pandas(lambda frame: frame.tail(1), df.schema)
    found["groups of pandas"] = made.count()
    found["aggregates"] = sorted(row.id_max for row in groups.agg_arrow([("id", "max")]).collect())
    pairs = groups.cogroup(fbs.group_by(df.where("k < 2"), "k", num_partitions=3))
    made = pairs.apply_in_arrow(lambda key, left, right: right.slice(0, 1), df.schema)
    found["pairs"] = made.count()
    with TemporaryDirectory() as folder:
        pq.write_table(pa.table({"k": [i % 17 for i in range(1_000)], "id": range(1_000)}), f"{folder}/a.parquet")
        files = fbs.read_parquet(spark, folder).map_in_arrow(passing, df.schema).group_by("k", partitions=3)
        made = files.cogroup(files).apply_in_arrow(lambda left, right: right.slice(0, 1), df.schema)
        found["pairs of files"] = sorted(row.k for row in made.collect())
    found["preflight"] = str(fbs.preflight(spark, 3))
    try:
        fbs.repartition(df, 3, "k", mode="pipelined")
    except PreflightError as error:
        found["pipelined"] = str(error)
    print("FOUND", json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
