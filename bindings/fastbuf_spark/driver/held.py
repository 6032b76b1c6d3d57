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

log = logging.getLogger("fastbuf_spark")

MOST_TASKS = 100_000  #: of a stage to search
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
            shuffles[stage] = _dependency(sc, stage)

    def stages(self, folder: str) -> list[int]:
        """The stages whose map tasks have written to a folder, the last one first."""
        return sorted(self._shuffles.get(folder, ()), reverse=True)

    def sweep(self, now: float) -> None:
        """Remove the files that are needed no more; called when a task tells something, asks once in ``SWEEP_S``."""
        if now - self._swept < SWEEP_S:
            return
        self._swept = now
        for folder, shuffles in list(self._shuffles.items()):
            if all(shuffle is not None and _is_garbage(shuffle) for shuffle in shuffles.values()):
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


def _dependency(sc: Any, stage: int) -> Any:
    """A weak reference to the shuffle of a running stage; private methods of Spark tell of it."""
    try:
        stages = sc._jsc.sc().dagScheduler().shuffleIdToMapStage().valuesIterator()
        while stages.hasNext():
            each = stages.next()
            if int(each.id()) == stage:
                return sc._jvm.java.lang.ref.WeakReference(each.shuffleDep())
    except Exception as error:
        log.debug("the shuffle of stage %d is not known: %s", stage, error)
    return None


def _is_garbage(reference: Any) -> bool:
    try:
        return bool(reference.refersTo(None))
    except Exception as error:  # Spark has stopped, and with it its directories are gone
        log.debug("whether a shuffle is needed still is not known: %s", error)
        return True


def is_indeterminate(sc: Any, stage: int) -> bool:
    """Whether Spark itself knows that a stage's rows may differ each time, and so runs it again as a whole."""
    try:
        found = sc._jsc.sc().dagScheduler().stageIdToStage().get(stage)
        return found.isDefined() and str(found.get().rdd().outputDeterministicLevel()) == "INDETERMINATE"
    except Exception as error:
        log.debug("whether stage %d is deterministic is not known: %s", stage, error)
        return False


def replace_executor(sc: Any, stages: list[int], partition: int) -> None:
    """Have Spark make the rows of a map task anew, whose file is gone: end the executor that has made it.

    Then Spark forgets what the executor's tasks gave to the shuffle.  It does not where an external service serves
    shuffle files, nor in local mode, whose one executor is the driver: there the action fails.
    """
    try:
        for stage in stages:
            executor = _executor_of(sc, stage, partition)
            if executor and executor != "driver":
                log.warning("executor %s is replaced: rows of its map task %d are lost", executor, partition)
                sc._jsc.sc().killAndReplaceExecutor(executor)
                return
    except Exception as error:
        log.warning("the executor whose rows are lost (map task %d of stages %s): %s", partition, stages, error)


def _executor_of(sc: Any, stage: int, partition: int) -> str:
    """Where a map task has ended well; empty: not in this stage."""
    done = sc._jvm.java.util.ArrayList()
    done.add(sc._jvm.org.apache.spark.status.api.v1.TaskStatus.SUCCESS)
    store, nothing = sc._jsc.sc().statusStore(), sc._jvm.scala.Option.empty()
    for attempt in range(int(store.lastStageAttempt(stage).attemptId()), -1, -1):
        tasks = store.taskList(stage, attempt, 0, MOST_TASKS, nothing, True, done)
        for task in (tasks.apply(i) for i in range(tasks.size())):
            if int(task.partitionId()) == partition:
                return str(task.executorId())
    return ""
