"""Commits to Iceberg tables by processes that are killed on the way: what the table has then, on standard output.

Each is a fork of this one, which has no thread of pyiceberg's: step 0 is killed at the first file or transaction of the
commit, step 1 at the second, and so on, before it and behind it, until one comes to its end.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
from killed_steps import forked, killer, run_steps
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyspark.sql.types import LongType, StructType
from sqlalchemy.orm import Session

from fastbuf_spark.driver.iceberg_commit import IcebergCommit

ROWS = StructType().add("x", LongType())
SCHEMA = pa.schema([("x", pa.int64())])
MOST_STEPS = 30


def commit_of(properties: dict[str, str], name: str, values: list[int], mode: str) -> None:
    """Write values to a file as a task does, and commit it."""
    commit = IcebergCommit(properties, f"a.{name}", ROWS, SCHEMA, None)
    _, root, write = commit.write(SCHEMA, fs.LocalFileSystem(), None, 1 << 20)
    folder = f"fastbuf-{mode}-{values[0]}"
    fs.LocalFileSystem().create_dir(f"{root}/{folder}")
    (told,) = write(f"{root}/{folder}")([pa.record_batch([pa.array(values)], schema=SCHEMA)])
    rows = [SimpleNamespace(**row) for row in told.to_pylist()]
    commit.commit(folder, commit.files(folder, rows), "overwrite" if mode == "overwrite" else "append")


def kill_at(step: int) -> None:
    """Have this process killed at a step of what it does from now on."""
    counted = killer(step)
    PyArrowFile.create = counted(PyArrowFile.create)  # type: ignore[method-assign]
    Session.commit = counted(Session.commit)  # type: ignore[method-assign]


def main(folder: str, mode: str) -> None:
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}

    def killed(mode: str, step: int) -> None:
        if mode != "create":
            commit_of(properties, f"{mode}_{step}", [1, 2], "create")
        kill_at(step)
        commit_of(properties, f"{mode}_{step}", [3], mode)

    def look(steps: int) -> None:
        catalog = load_catalog("default", **properties)

        def seen(table: str) -> list[int]:
            there = catalog.table_exists(table)
            return sorted(catalog.load_table(table).scan().to_arrow()["x"].to_pylist()) if there else []

        for step in range(steps):
            table = f"{mode}_{step}"
            before = seen(f"a.{table}")
            commit_of(properties, table, [4], "append")
            print(json.dumps([before, seen(f"a.{table}")]))
        sys.stdout.flush()

    assert forked(lambda: load_catalog("default", **properties).create_namespace("a")) == 0
    run_steps(partial(killed, mode), look, MOST_STEPS)


main(*sys.argv[1:])
