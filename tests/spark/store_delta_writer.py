"""A driver that appends rows to a Delta table in a store, one a commit; see test_object_stores.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pyarrow as pa
from object_store import delta_options, store_at
from pyspark.sql.types import LongType, StructType

from fastbuf_spark.driver.delta_commit import Added, DeltaCommit
from fastbuf_spark.worker.delta import DeltaWrite

SCHEMA = pa.schema([("x", pa.int64())])


def main(address: str, path: str, first: str, count: str) -> None:
    system = store_at(address, allow_delayed_open=True)
    commit = DeltaCommit(f"s3://{path}", delta_options(address), StructType().add("x", LongType()), [])
    print("ready", flush=True)
    sys.stdin.readline()
    for value in range(int(first), int(first) + int(count)):
        folder = f"fastbuf-{value}"
        with system.open_output_stream(f"{path}/_fastbuf/{folder}") as note:
            note.write(b"x")
        write = DeltaWrite(
            system, f"{path}/{folder}", SCHEMA, (0,), (), "snappy", 1 << 20, mark=f"{path}/_fastbuf/{folder}"
        )
        (report,) = write([pa.record_batch([pa.array([value])], schema=SCHEMA)])
        (row,) = (SimpleNamespace(**each) for each in report.to_pylist())
        commit.append([Added.of(folder, row.attempt, row.path, row.bytes, row.details)])
        print(value, flush=True)


main(*sys.argv[1:])
