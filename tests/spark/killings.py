"""Processes of a Spark that a test may kill: who they are, and which of them does what."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
import pytest
from conftest import in_the_end, leftovers

from fastbuf_spark.worker.file_server import NAME

EXECUTOR = "CoarseGrainedExecutorBackend"  # in the command line of a cluster's executor


class Marked:
    """Hands on what it gets, in so many seconds a row, and leaves a file named by its role and its process."""

    __name__ = "marked"

    def __init__(self, role: str, folder: Path, seconds_a_row: float) -> None:
        self.role = role
        self.folder = str(folder)
        self.seconds_a_row = seconds_a_row

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Path(self.folder, f"{self.role}-{os.getpid()}").open("a") as file:
            file.write("x")  # once for each attempt
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
    """Live processes in a role: ``executor``, ``server`` (of files), or what has left a file of that name."""
    if role == "executor":
        return [process for process in below(spark) if any(EXECUTOR in word for word in command(process))]
    if role == "server":  # no children of the executors, but made in their environment
        own = {directories(process) for process in of_role(spark, "executor", folder)} - {""}
        return [each for each in psutil.process_iter() if NAME in command(each) and directories(each) in own]
    marked = {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{role}-*")}
    return [process for process in below(spark) if process.pid in marked]


def directories(process: psutil.Process) -> str:
    """The local directories of an executor, in the environment of its processes."""
    try:
        return str(process.environ().get("SPARK_EXECUTOR_DIRS", ""))
    except psutil.Error:
        return ""


def workers(spark: Any) -> list[psutil.Process]:
    """Python's processes that Spark gives tasks to."""
    daemons = {each.pid for each in below(spark) if any("daemon" in word for word in command(each))}
    return [each for each in below(spark) if each.pid in daemons and each.ppid() in daemons]


def executors(spark: Any) -> int:
    """How many Spark counts, without the driver."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


def attempts(role: str, folder: Path) -> int:
    """How often a function of that role was called."""
    return sum(path.stat().st_size for path in folder.glob(f"{role}-*"))


@dataclass
class Outcome:
    """What came of one run in which something was killed."""

    kind: str  #: right, error, wrong or hang
    seconds: float
    killed: bool
    words: str = ""
    retries: int = 0


class Cluster:
    """Spark's own in one process, whose executors may die; takes away what its workers leave in Spark's own folder."""

    def __init__(self, sessions: Any, master: str) -> None:
        self._sessions = sessions
        self._master = master
        self._applications: set[str] = set()

    def ready(self, count: int = 2) -> Any:
        """The cluster with all its executors, and no run of before."""
        spark = self._sessions.get(self._master)
        if in_the_end(lambda: executors(spark), lambda found: found == count) != count:
            self._sessions.abandon()
            spark = self._sessions.get(self._master)
        self._applications.add(spark.sparkContext.applicationId)
        assert in_the_end(leftovers, lambda found: not found) == []
        return spark

    def abandon(self) -> None:
        """End a session that hangs."""
        self._sessions.abandon()

    def close(self) -> None:
        """Stop it."""
        self._sessions.stop()
        work = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)) / "work"
        for application in self._applications:
            shutil.rmtree(work / application, ignore_errors=True)


def kill_one(
    spark: Any, role: str, first: str, folder: Path, seconds: float, dice: random.Random, over: threading.Event
) -> bool:
    """Kills one of a role at some moment after ``first`` is at work; whether it did before all was over."""
    while not of_role(spark, first, folder):
        if over.wait(0.02):
            return False
    if over.wait(dice.uniform(0, seconds)):
        return False
    found = of_role(spark, role, folder)
    for victim in dice.sample(found, min(len(found), 1)):
        victim.kill()
    return bool(found)


@contextmanager
def killer(kill: Callable[[threading.Event], bool] | None) -> Iterator[list[bool]]:
    """Calls ``kill`` beside what runs within, again while it finds nobody; whether it killed is in the list then."""
    killed: list[bool] = []
    over = threading.Event()

    def later() -> None:
        assert kill is not None
        while not over.is_set():
            try:
                killed.append(kill(over))
                return
            except psutil.Error:  # one that was looked at has gone by itself
                pass

    thread = threading.Thread(target=later)
    if kill is not None:
        thread.start()
    try:
        yield killed
    finally:
        over.set()
        if kill is not None:
            thread.join()


def enough(run: Callable[[int], Outcome], kills: int) -> list[Outcome]:
    """Runs in which something was killed, so many of them; in the others all was over before."""
    found: list[Outcome] = []
    tries = 10 + 3 * kills  # a busy machine makes the calm run long, and most moments late
    for number in range(tries):
        outcome = run(number)
        assert outcome.killed or outcome.kind == "right", f"nothing was killed: {outcome.words}"
        if outcome.killed:
            found.append(outcome)
        if len(found) == kills:
            return found
    raise AssertionError(f"too few kills: {len(found)} of {tries} runs")


def last_words(text: str) -> str:
    """The line of an error that says most: fastbuf's own, or Spark's first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if "fastbuf.errors." in line]
    return (own or lines or ["no words"])[0][:160]


def table(request: pytest.FixtureRequest, found: dict[tuple[str, str], list[Outcome]], calm: dict[str, float]) -> None:
    """Prints what came of all runs, captured or not."""
    lines = [f"{'':24}{'right':>7}{'error':>7}{'wrong':>7}{'hang':>7}  seconds lost: median, most; tasks tried again"]
    for (mode, role), outcomes in found.items():
        kinds = Counter(each.kind for each in outcomes)
        lost = [each.seconds - calm[mode] for each in outcomes] or [0.0]
        retries = [each.retries for each in outcomes] or [0]
        lines.append(
            f"{mode + ', ' + role:24}"
            + "".join(f"{kinds[kind]:>7}" for kind in ("right", "error", "wrong", "hang"))
            + f"  {statistics.median(lost):.1f}, {max(lost):.1f}; {statistics.median(retries):g}, {max(retries)}"
        )
        words = Counter(each.words for each in outcomes if each.words)
        lines += [f"  {times} x {text}" for text, times in words.most_common(5)]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *lines, sep="\n")
