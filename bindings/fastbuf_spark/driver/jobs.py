"""The producers' job: an ordinary Spark job, submitted by a driver thread when all consumers of a run listen."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from fastbuf_spark.driver.checks import is_connect
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.driver.run import Run, StageTasks
from fastbuf_spark.worker.consumer import EPOCH

log = logging.getLogger("fastbuf_spark")

TAG = "fastbuf-"  #: of jobs that fastbuf may have to cancel
MOST_ENDED = 1000  #: most tasks of a stage to search


@contextlib.contextmanager
def cancelled_with(spark: Any) -> Iterator[None]:
    """The jobs of an action in this block are cancelled if the block is left by an error, such as Ctrl-C.

    PySpark tries that for Ctrl-C through the very connection that waits for the action, in vain: the jobs would go on
    and hold their slots.
    """
    if is_connect(spark):
        yield
        return
    sc, tag = spark.sparkContext, f"{TAG}{secrets.token_hex(8)}"
    sc.addJobTag(tag)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the session may have been stopped
            sc.cancelJobsWithTag(tag)
        raise
    finally:
        with contextlib.suppress(Exception):
            sc.removeJobTag(tag)


class ProducersJob:
    """Runs ``action`` in a thread of its own, with the local properties (pool, job group, ...) of the run's action.

    Parameters
    ----------
    sc
        The SparkContext.
    action
        Collects the producers' DataFrame or RDD.
    description
        Text for Spark's UI.
    """

    def __init__(
        self,
        sc: Any,
        server: Rendezvous,
        run: Run,
        action: Callable[[], Any],
        description: str,
    ) -> None:
        self._sc = sc
        self._server = server
        self._run = run
        self._action = action
        self._description = description
        self._tag = f"{TAG}{secrets.token_hex(8)}"
        self._signs = -1
        from pyspark import InheritableThread

        # Spark's own thread class: it releases the JVM thread when this one ends
        self._thread = InheritableThread(target=self._work, name=f"fastbuf-job-{run.plan.exchange[:8]}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        error = ""
        try:
            # Instead of those that this thread has inherited: this job is an action of its own
            self._sc._jsc.sc().setLocalProperties(self._sc._jvm.java.util.Properties())
            for name, value in self._run.properties.items():
                self._sc.setLocalProperty(name, value)
            self._sc.setLocalProperty("spark.job.description", self._description)
            self._sc.setLocalProperty(EPOCH, str(self._run.epoch))
            # The first task that fails would interrupt the others. Spark takes an interrupt, while it makes a Python
            # worker, for a lost daemon, and ends all workers of the executor: the consumers' error came first then.
            self._sc.setLocalProperty("spark.job.interruptOnCancel", "false")
            for tag in self._sc.getJobTags():
                if tag.startswith(TAG):  # of the producers' job that reads this run's result
                    self._sc.removeJobTag(tag)
            self._sc.addJobTag(self._tag)
            self._action()
        except BaseException as problem:
            error = str(problem) or type(problem).__name__
        finally:
            self._server.job_finished(self._run, error)

    def cancel(self) -> None:
        """Cancel all that was submitted so far; safe to call at any time."""
        with contextlib.suppress(Exception):
            self._sc.cancelJobsWithTag(self._tag)

    def _stages(self) -> list[Any]:
        tracker = self._sc._jsc.sc().statusTracker()
        found = []
        for job in tracker.getJobIdsForTag(self._tag):
            info = tracker.getJobInfo(job)
            for stage in info.get().stageIds() if info.isDefined() else ():
                about = tracker.getStageInfo(stage)
                if about.isDefined():
                    found.append(about.get())
        return found

    def active(self) -> bool:
        """Whether any of its tasks, including those of its input's stages, runs or has finished since the last call."""
        try:
            stages = self._stages()
            signs = sum(stage.numCompletedTasks() for stage in stages)
            running = sum(stage.numActiveTasks() for stage in stages)
        except Exception as error:  # a failed look-up must not end a working run
            log.debug("no status of the producers' job: %s", error)
            return True
        moved, self._signs = signs != self._signs and signs > 0, signs
        return moved or running > 0

    def tasks(self, stage: int) -> int | None:
        """Number of tasks of a stage, once Spark knows it.

        Only the first attempt of the stage has it: later ones count only the tasks that were left.
        """
        try:
            info = self._sc._jsc.sc().statusTracker().getStageInfo(stage)
            if info.isDefined() and info.get().currentAttemptId() == 0:
                return int(info.get().numTasks())
        except Exception as error:
            log.debug("no status of stage %d: %s", stage, error)
        return None

    def accumulates(self) -> bool:
        """Whether this driver has accumulators: who adds to them is known to the workers alone."""
        from pyspark import accumulators

        # Private: without it, as if there were some.  Those below 0 are PySpark's own, for profiles
        known = getattr(accumulators, "_accumulatorRegistry", {0: None})
        return any(number >= 0 for number in known)


def stage_tasks(sc: Any, stage: int) -> StageTasks | None:
    """The tasks of a stage as Spark counts them now; None if Spark does not know the stage yet."""
    try:
        info = sc._jsc.sc().statusTracker().getStageInfo(stage)
        if info.isDefined() and info.get().numTasks() > 0:
            found = info.get()
            return StageTasks(int(found.numTasks()), int(found.numActiveTasks()), int(found.numCompletedTasks()))
    except Exception as error:
        log.debug("no status of stage %d: %s", stage, error)
    return None


def caches_filled(sc: Any, stage: int) -> tuple[str, ...]:
    """Names of the cached RDDs and DataFrames whose blocks a stage computes."""
    try:
        persistent = sc._jsc.sc().getPersistentRDDs()
        if persistent.isEmpty():
            return ()
        rdds = sc._jsc.sc().statusStore().lastStageAttempt(stage).rddIds()
        ids = [int(rdds.apply(i)) for i in range(rdds.size())]
        return tuple(f"cache {rdd}" for rdd in ids if persistent.contains(rdd))
    except Exception as error:
        log.debug("no RDDs of stage %d: %s", stage, error)
    return ()


def fate(sc: Any, stage: int, attempt: int) -> str | None:
    """How Spark's task ``attempt`` of ``stage`` ended: ``failed: `` and its error, ``killed: ``, ``success: ``.

    None: not known (yet).

    Tasks of a stage are killed when one fails for the last time: returns the error of the one that failed.
    """
    try:
        jvm, store = sc._jvm, sc._jsc.sc().statusStore()

        def tasks_of(number: int, *statuses: str) -> list[Any]:
            wanted = jvm.java.util.ArrayList()
            for status in statuses:
                wanted.add(getattr(jvm.org.apache.spark.status.api.v1.TaskStatus, status))
            found = store.taskList(stage, number, 0, MOST_ENDED, jvm.scala.Option.empty(), True, wanted)
            return [found.apply(i) for i in range(found.size())]

        info = sc._jsc.sc().statusTracker().getStageInfo(stage)
        for number in range(info.get().currentAttemptId() if info.isDefined() else -1, -1, -1):
            tasks = tasks_of(number, "FAILED", "KILLED")
            mine = next((task for task in tasks if task.taskId() == attempt), None)
            if mine is not None:
                failed = [task for task in tasks if task.status() == "FAILED"]
                cause = mine if mine.status() == "FAILED" or not failed else failed[0]
                words = cause.errorMessage().get() if cause.errorMessage().isDefined() else ""
                return f"{cause.status().lower()}: {words}"
            if any(task.taskId() == attempt for task in tasks_of(number, "SUCCESS")):
                return "success: "
    except Exception as error:  # without a status the run just waits longer
        log.debug("no status of task %d in stage %d: %s", attempt, stage, error)
    return None
