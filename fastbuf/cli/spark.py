"""A quiet Spark session for the commands, and Spark's own figures of a run."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fastbuf.cli import stop
from fastbuf.errors import ResourceError

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Processes started inside use ``path`` as standard error: Spark's log must not disturb the progress bar."""
    sys.stderr.flush()
    stderr = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(log)


def _is_news(record: logging.LogRecord) -> bool:
    """False for what py4j logs of a broken connection: Ctrl-C breaks it on purpose, and other errors are shown."""
    return not record.pathname.endswith(os.path.join("py4j", "java_gateway.py"))


def _show_no_broken_connections() -> None:
    """PySpark's server of accumulators prints a traceback when Ctrl-C ends its connection to the JVM."""
    from pyspark.accumulators import AccumulatorTCPServer

    shown = AccumulatorTCPServer.handle_error

    def handle_error(server: Any, request: Any, client_address: Any) -> None:
        if not stop.signalled():
            shown(server, request, client_address)

    AccumulatorTCPServer.handle_error = handle_error  # type: ignore[assignment, method-assign]


def _end(processes: list[psutil.Process]) -> None:
    """End a JVM that was starting: one that cannot tell PySpark its port any more would never end by itself."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=5)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _last_error(log: str) -> str:
    """What Java said last before it ended."""
    with open(log, errors="replace") as lines:
        errors = [line.strip() for line in lines if "Exception: " in line and not line.startswith(("Caused by", "{"))]
    return errors[-1].partition('Exception in thread "main" ')[2] or errors[-1] if errors else ""


@contextlib.contextmanager
def session(name: str, master: str, settings: dict[str, str] | None = None) -> Iterator[tuple[SparkSession, str]]:
    """Start Spark, and stop it at the end.

    Parameters
    ----------
    name
        The application's name in Spark's UI and log.
    master
        ``local[4]``, ``spark://...``
    settings
        Further Spark settings.

    Yields
    ------
    tuple
        The session, and the path of Spark's log; the log is removed unless there was an error.
    """
    # Spark starts workers by the name of their Python; it must be the one that has fastbuf.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    import psutil
    from pyspark.sql import SparkSession

    logging.getLogger().addFilter(_is_news)
    _show_no_broken_connections()
    before = psutil.Process().children()
    handle, log = tempfile.mkstemp(prefix="fastbuf-spark-", suffix=".log")
    os.close(handle)
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.driver.memory", "2g")
    )
    if master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log):
            spark = builder.getOrCreate()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or stop.signalled():
            _end([process for process in psutil.Process().children() if process not in before])
            os.unlink(log)
            raise KeyboardInterrupt from error
        why = _last_error(log) or str(error).partition("\n\tat ")[0]  # without Java's stack
        raise ResourceError(
            f"Spark did not start: {why}; its log is {log}; 'fastbuf doctor' says what is missing"
        ) from error
    try:
        yield spark, log
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or stop.signalled():
            os.unlink(log)
            # Spark's JVM may have got the signal too: that it has gone is no news then
            warnings.filterwarnings("ignore", message="Unable to cleanly shutdown", category=RuntimeWarning)
            raise
        print(f"Spark's log: {log}", file=sys.stderr)
        raise
    finally:
        spark.stop()
    os.unlink(log)


class Stage(NamedTuple):
    """Bytes and records that a stage wrote for a shuffle, and its start and end in seconds since 1970; 0: not yet."""

    size: int
    records: int
    begin: float
    end: float


def stages(spark: SparkSession) -> dict[int, Stage]:
    """The figures of each stage so far, by stage id, from Spark's status store (with or without UI)."""
    sc = spark.sparkContext
    sc._jsc.sc().listenerBus().waitUntilEmpty(10_000)  # the store learns of a job's last stage a little later
    store = sc._jsc.sc().statusStore()
    no_quantiles = sc._gateway.new_array(sc._jvm.double, 0)  # type: ignore[union-attr]
    listed = store.stageList(None, False, False, no_quantiles, None)

    def seconds(at: Any) -> float:
        return float(at.get().getTime() / 1000) if at.isDefined() else 0.0

    return {
        s.stageId(): Stage(
            s.shuffleWriteBytes(), s.shuffleWriteRecords(), seconds(s.submissionTime()), seconds(s.completionTime())
        )
        for s in (listed.apply(i) for i in range(listed.size()))
    }


class TaskCounter:
    """Counts tasks, finished and known ones, of all jobs since it was made."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._seen: dict[int, tuple[int, int]] = {}

    def look(self) -> tuple[int, int]:
        """Finished tasks, and all tasks; all tasks of a stage that is no longer active are finished."""
        active = set(self._tracker.getActiveStageIds())
        for stage in active:
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._seen[stage] = (info.numCompletedTasks, info.numTasks)
        for stage in self._seen.keys() - active:
            self._seen[stage] = (self._seen[stage][1],) * 2
        return sum(done for done, _ in self._seen.values()), sum(total for _, total in self._seen.values())
