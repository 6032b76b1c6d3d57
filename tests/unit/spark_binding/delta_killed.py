"""Writes of Delta tables by drivers that are killed on the way: what the table has then, on standard output.

Each is a fork of this process, which has no thread of deltalake's: step 0 is killed in front of the first thing that a
driver does to the table's directory or its log, step 1 behind it, and so on, until one comes to its end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import deltalake.transaction
import pyarrow as pa
from killed_steps import killer, run_steps
from pyarrow import fs
from pyspark.sql.types import LongType, StructType

from fastbuf_spark.api import tables
from fastbuf_spark.driver.delta_commit import Added, DeltaCommit
from fastbuf_spark.worker.delta import DeltaWrite

ROWS = StructType().add("x", LongType())
SCHEMA = pa.schema([("x", pa.int64())])
MOST_STEPS = 40


class Tasks:
    """A stage whose only task runs here, and writes these values."""

    def __init__(self, values: list[int]) -> None:
        self._values = values

    def then(self, write: Callable[..., Any], schema: Any) -> Tasks:
        self._write = write
        return self

    def to_df(self) -> Tasks:
        return self

    def collect(self) -> list[Any]:
        (report,) = self._write([pa.record_batch([pa.array(self._values)], schema=SCHEMA)])
        return [SimpleNamespace(**row) for row in report.to_pylist()]


class Counted(fs.LocalFileSystem):  # type: ignore[misc]
    """The local file system, with calls that :func:`kill_at` counts."""


def write_to(path: str, values: list[int], mode: str, system: Any) -> None:
    """What write_delta does behind its checks."""
    commit = DeltaCommit(path, None, ROWS, [])

    def write(folder: str) -> DeltaWrite:
        return DeltaWrite(fs.LocalFileSystem(), folder, SCHEMA, (0,), (), "snappy", 1 << 20)

    def add(folder: str, rows: Any) -> None:
        added = [Added.of(folder, row.attempt, row.path, row.bytes, row.details) for row in rows]
        if mode == "create":
            commit.create(added)
        elif mode == "overwrite":
            commit.replace(added, None)
        else:
            commit.append(added)

    context = SimpleNamespace(addJobTag=lambda tag: None, removeJobTag=lambda tag: None)
    spark = SimpleNamespace(sparkContext=context)
    tables.committed(spark, Tasks(values), system, path, write, add, commit.has)


def kill_at(step: int) -> None:
    """Have this process killed at a step of what it does from now on."""
    counted = killer(step)
    for name in ("create_dir", "open_output_stream", "delete_file", "delete_dir"):
        setattr(Counted, name, counted(getattr(Counted, name)))
    tables.check_sizes = counted(tables.check_sizes)
    table: Any = deltalake.DeltaTable
    table.create_write_transaction = counted(table.create_write_transaction)
    deltalake.transaction.create_table_with_add_actions = counted(deltalake.transaction.create_table_with_add_actions)


def main(folder: str, mode: str) -> None:
    def killed(step: int) -> None:
        path = f"{folder}/{step}"
        os.mkdir(path)
        if mode != "create":
            write_to(path, [1, 2], "create", fs.LocalFileSystem())
        kill_at(step)
        write_to(path, [3], mode, Counted())

    def look(steps: int) -> None:
        for step in range(steps):
            path = Path(folder, str(step))

            def seen(path: Path = path) -> list[int]:
                there = deltalake.DeltaTable.is_deltatable(str(path))
                return sorted(deltalake.DeltaTable(path).to_pyarrow_table()["x"].to_pylist()) if there else []

            before = seen()
            write_to(str(path), [4], "append", fs.LocalFileSystem())
            versions = range(deltalake.DeltaTable(path).version() + 1)
            known = {uri for v in versions for uri in deltalake.DeltaTable(path, v).file_uris()}
            lost = [str(file) for file in path.glob("fastbuf-*/**/*.parquet") if str(file) not in known]
            print(json.dumps([before, seen(), lost + [str(note) for note in path.glob("_fastbuf/*")]]))
        sys.stdout.flush()

    run_steps(killed, look, MOST_STEPS)


tables.struct_type = lambda text: text  # type: ignore[assignment]  # which asks a session
main(*sys.argv[1:])
