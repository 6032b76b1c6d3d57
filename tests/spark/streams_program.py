"""A driver of its own, which may be killed, with a stream of numbers: streams_program.py FOLDER POINT ROWS RATE."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    import numbered
    from pyspark.sql import SparkSession

    import fastbuf_spark as fbs
    from fastbuf_spark.streams import fail_points

    folder, point, rows, rate = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    spark = (
        SparkSession.builder.master("local[3]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.daemon.module", "warm_daemon")
        .getOrCreate()
    )
    fail_points.ask(f"{point};{folder}" if point else "")
    sink = fbs.to_parquet(folder / "out")
    query = numbered.numbered(spark, rows, rate).write_stream(sink, str(folder / "chk"), every=0.2)
    print("started", flush=True)
    query.await_termination()
    print("finished", flush=True)
