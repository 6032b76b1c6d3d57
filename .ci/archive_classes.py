"""Writes the classes that Spark loads into an archive of Java's (class data sharing): it starts in half the time then.

    python .ci/archive_classes.py FILE

Tests start a Java some twenty times (tests/javas.py).  A Java or a Spark that the archive is not of goes without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={made}"
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF").getOrCreate()
    rows = spark.range(0, 100, 1, 2).selectExpr("id % 7 AS k", "concat('user-', id) AS name")
    rows.mapInArrow(lambda batches: batches, rows.schema).repartition(2, "k").groupBy("k").count().collect()
    spark.stop()
    java = SparkContext._gateway.proc
    java.stdin.close()  # it ends, and writes the archive
    java.wait(timeout=120)
    made.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
