"""The producers' job: an ordinary Spark job, submitted by a driver thread when all consumers of a run listen."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from fastbuf_spark import pyspark_private
from fastbuf_spark.driver.checks import is_connect
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.driver.run import Run, StageTasks
from fastbuf_spark.worker.consumer import EPOCH

log = logging.getLogger("fastbuf_spark")

TAG = "fastbuf-"  #: of jobs that fastbuf may have to cancel


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
            pyspark_private.forget_properties(self._sc)
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

    def active(self) -> bool:
        """Whether any of its tasks, including those of its input's stages, runs or has finished since the last call."""
        counts = pyspark_private.tasks_with_tag(self._sc, self._tag)
        if counts is None:  # a failed look-up must not end a working run
            return True
        done, running = counts
        moved, self._signs = done != self._signs and done > 0, done
        return moved or running > 0

    def tasks(self, stage: int) -> int | None:
        """Number of tasks of a stage, once Spark knows it."""
        return pyspark_private.tasks_of_first_attempt(self._sc, stage)

    def accumulates(self) -> bool:
        """Whether this driver has accumulators."""
        return pyspark_private.has_accumulators()


def stage_tasks(sc: Any, stage: int) -> StageTasks | None:
    """The tasks of a stage as Spark counts them now; None if Spark does not know the stage yet."""
    counts = pyspark_private.stage_tasks(sc, stage)
    return None if counts is None else StageTasks(*counts)
