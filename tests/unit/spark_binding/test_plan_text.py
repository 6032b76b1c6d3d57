"""What ``explain`` says of stages, without a Spark."""

from __future__ import annotations

from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.pipeline import Plan, Stage


def test_a_new_chain_has_no_partitions_of_its_own() -> None:
    """It moves no rows between partitions: it said that there were none."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    plan = Plan(session(), ShuffleConf(), 1, False)
    plan.stages += [
        Stage(["read"], 2),
        Stage(["first"], None, "a new chain, through the JVM", "Spark's own", "as asked for"),
        Stage(["last"], 1, "shuffle by k", "blocking"),
    ]
    assert plan.text().splitlines()[:5] == [
        "stage 1  2 tasks: read",
        "    == a new chain, through the JVM: Spark's own (as asked for)",
        "stage 2  first",
        "    == shuffle by k -> 1 partition: blocking",
        "stage 3  1 task: last",
    ]
