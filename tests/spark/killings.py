"""Processes of a Spark that a test may kill: who they are, and which of them does what."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

EXECUTOR = "CoarseGrainedExecutorBackend"  # in the command line of a cluster's executor


class Marked:
    """Hands on what it gets, in so many seconds a row, and leaves a file named by its role and its process."""

    def __init__(self, role: str, folder: Path, seconds_a_row: float) -> None:
        self.role = role
        self.folder = str(folder)
        self.seconds_a_row = seconds_a_row

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(self.folder, f"{self.role}-{os.getpid()}").touch()
        for batch in batches:
            time.sleep(self.seconds_a_row * batch.num_rows)  # rows must be on their way when something is killed
            yield batch


def below(spark: Any) -> list[psutil.Process]:
    """All that this Spark's Java started."""
    return psutil.Process(spark.sparkContext._gateway.proc.pid).children(recursive=True)


def command(process: psutil.Process) -> list[str]:
    """Its command line; none of a process that has ended, which its parent may leave listed for as long as it lives."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def of_role(spark: Any, role: str, folder: Path) -> list[psutil.Process]:
    """Live processes in a role: ``executor``, or what has left a file of that name."""
    if role == "executor":
        return [process for process in below(spark) if any(EXECUTOR in word for word in command(process))]
    marked = {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{role}-*")}
    return [process for process in below(spark) if process.pid in marked]


def executors(spark: Any) -> int:
    """How many Spark counts, without the driver."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
