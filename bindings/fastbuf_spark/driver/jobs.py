"""The producers' job: an ordinary Spark job that a driver thread submits when all consumers of a run listen."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any

from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.driver.run import Run, StageTasks
from fastbuf_spark.worker.consumer import EPOCH, EXECUTION

log = logging.getLogger("fastbuf_spark")

MOST_ENDED = 1000  #: failed and killed tasks of a stage that are looked through


class ProducersJob:
    """Runs ``action`` in a thread of its own, with the local properties of whoever planned the exchange.

    Parameters
    ----------
    sc
        The SparkContext.
    properties
        Java Properties (pool, job group, ...) of the planning thread: cancelling its job group ends the producers too.
    action
        Collects the producers' DataFrame or RDD.
    description
        What Spark's UI shows.
    """

    def __init__(
        self,
        sc: Any,
        properties: Any,
        server: Rendezvous,
        run: Run,
        action: Callable[[], Any],
        description: str,
    ) -> None:
        self._sc = sc
        self._properties = properties
        self._server = server
        self._run = run
        self._action = action
        self._description = description
        self._tag = f"fastbuf-{secrets.token_hex(8)}"
        self._signs = -1
        from pyspark import InheritableThread

        # Spark's own thread class: it gives the JVM-side thread back when this one ends
        self._thread = InheritableThread(target=self._work, name=f"fastbuf-job-{run.plan.exchange[:8]}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        error = ""
        try:
            self._sc._jsc.sc().setLocalProperties(self._properties.clone())
            self._sc.setLocalProperty("spark.job.description", self._description)
            self._sc.setLocalProperty(EPOCH, str(self._run.epoch))
            # Of whoever planned it, if that was inside an action (foreachBatch); this job is an action of its own
            self._sc.setLocalProperty(EXECUTION, None)
            self._sc.addJobTag(self._tag)
            self._action()
        except BaseException as problem:
            error = str(problem) or type(problem).__name__
        finally:
            self._server.job_finished(self._run, error)

    def cancel(self) -> None:
        """Cancel whatever has been submitted so far; harmless when nothing is."""
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
        """Whether any of its tasks, of its input's stages too, runs or has finished since the last call."""
        try:
            stages = self._stages()
            signs = sum(stage.numCompletedTasks() for stage in stages)
            running = sum(stage.numActiveTasks() for stage in stages)
        except Exception as error:  # a status that cannot be had must not end a run that works
            log.debug("no status of the producers' job: %s", error)
            return True
        moved, self._signs = signs != self._signs and signs > 0, signs
        return moved or running > 0

    def tasks(self, stage: int) -> int | None:
        """Tasks of a stage, once Spark knows.

        Only its first attempt says so: a later one counts just the tasks that the first left.
        """
        try:
            info = self._sc._jsc.sc().statusTracker().getStageInfo(stage)
            if info.isDefined() and info.get().currentAttemptId() == 0:
                return int(info.get().numTasks())
        except Exception as error:
            log.debug("no status of stage %d: %s", stage, error)
        return None


def stage_tasks(sc: Any, stage: int) -> StageTasks | None:
    """The tasks of a stage as Spark counts them now; None while it does not know the stage."""
    try:
        info = sc._jsc.sc().statusTracker().getStageInfo(stage)
        if info.isDefined() and info.get().numTasks() > 0:
            found = info.get()
            return StageTasks(int(found.numTasks()), int(found.numActiveTasks()), int(found.numCompletedTasks()))
    except Exception as error:
        log.debug("no status of stage %d: %s", stage, error)
    return None


def caches_filled(sc: Any, stage: int) -> tuple[str, ...]:
    """Names of the cached RDDs and DataFrames that a stage computes blocks of."""
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
    """Why Spark ended the task ``attempt`` of ``stage``: its error, or that it was killed; None: not known (yet).

    All tasks of a barrier stage are killed when one fails: then it is that one's error.
    """
    try:
        jvm, store = sc._jvm, sc._jsc.sc().statusStore()
        ended = jvm.java.util.ArrayList()
        for status in ("FAILED", "KILLED"):
            ended.add(getattr(jvm.org.apache.spark.status.api.v1.TaskStatus, status))
        info = sc._jsc.sc().statusTracker().getStageInfo(stage)
        for number in range(info.get().currentAttemptId() if info.isDefined() else -1, -1, -1):
            found = store.taskList(stage, number, 0, MOST_ENDED, jvm.scala.Option.empty(), True, ended)
            tasks = [found.apply(i) for i in range(found.size())]
            mine = next((task for task in tasks if task.taskId() == attempt), None)
            if mine is not None:
                failed = [task for task in tasks if task.status() == "FAILED"]
                cause = mine if mine.status() == "FAILED" or not failed else failed[0]
                words = cause.errorMessage().get() if cause.errorMessage().isDefined() else ""
                return f"{cause.status().lower()}: {words}"
    except Exception as error:  # no answer is no reason to wait for less
        log.debug("no status of task %d in stage %d: %s", attempt, stage, error)
    return None
