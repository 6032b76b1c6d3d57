"""The files in which map tasks hold rows, removed when Spark needs the run's shuffle no more.

A folder has the files of one exchange and action, and is written by the map stage of a shuffle.  Spark's ContextCleaner
removes the files of a shuffle when its dependency is garbage; the same object decides here.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
from typing import Any

from fastbuf_spark import pyspark_private

log = logging.getLogger("fastbuf_spark")

SWEEP_S = 5.0  #: interval to ask whether runs are needed still: each is a call to the JVM


class HeldRuns:
    """The folders of files, with the shuffles that they are of.  Used by the rendezvous' thread, and at the exit."""

    def __init__(self) -> None:
        # By folder and stage: a weak reference of the JVM's; None: not known, kept until the application ends
        self._shuffles: dict[str, dict[int, Any]] = {}
        self._swept = 0.0

    def add(self, sc: Any, stage: int, folder: str) -> None:
        """A map task of this stage writes to ``folder``."""
        if not self._shuffles:
            atexit.register(self.clear)
        shuffles = self._shuffles.setdefault(folder, {})
        if stage not in shuffles:
            shuffles[stage] = pyspark_private.shuffle_of(sc, stage)

    def stages(self, folder: str) -> list[int]:
        """The stages whose map tasks have written to a folder, the last one first."""
        return sorted(self._shuffles.get(folder, ()), reverse=True)

    def sweep(self, now: float) -> None:
        """Remove the files that are needed no more; called when a task tells something, asks once in ``SWEEP_S``."""
        if now - self._swept < SWEEP_S:
            return
        self._swept = now
        for folder, shuffles in list(self._shuffles.items()):
            # Of a Spark that has stopped nothing is known, and its directories are gone
            if all(each is not None and pyspark_private.is_garbage(each) is not False for each in shuffles.values()):
                self._remove(folder)

    def clear(self) -> None:
        """Remove all: the application has ended."""
        for folder in list(self._shuffles):
            self._remove(folder)

    def _remove(self, folder: str) -> None:
        del self._shuffles[folder]
        shutil.rmtree(folder, ignore_errors=True)
        for parent in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
            with contextlib.suppress(OSError):  # there are other runs, or other exchanges
                os.rmdir(parent)


def replace_executor(sc: Any, stages: list[int], partition: int) -> None:
    """Have Spark make the rows of a map task anew, whose file is gone: end the executor that has made it.

    Then Spark forgets what the executor's tasks gave to the shuffle.  It does not where an external service serves
    shuffle files, nor in local mode, whose one executor is the driver: there the action fails.
    """
    executor = next(filter(None, (pyspark_private.executor_of(sc, stage, partition) for stage in stages)), "")
    if executor and executor != "driver":
        log.warning("executor %s is replaced: rows of its map task %d are lost", executor, partition)
        pyspark_private.replace_executor(sc, executor)
