"""On a cluster: a consumer's worker, a producer's worker or an executor dies at a random moment of a shuffle.

What comes of it is the right sums or an error, soon; never other sums, and never silence.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from conftest import in_the_end, leftovers
from deadline import GivenUp, within
from killings import Marked, executors, of_role

import fastbuf_spark as fbs

LONG = os.environ.get("FASTBUF_LONG") == "1"
KILLS = int(os.environ.get("FASTBUF_KILLS", 100 if LONG else 1))  # of each kind in each mode
# Blocking is Spark's own shuffle, as far as kills go; own: what that makes of the same kills
MODES = ["pipelined", "blocking", "own"] if LONG else ["pipelined"]
ROWS = 100_000
RIGHT = (ROWS, ROWS * (ROWS - 1) // 2)
SECONDS = {"producer": 1.5, "consumer": 0.7}  # that each of two takes for its rows
SOON_S = 60.0
MASTER = "local-cluster[2,2,1024]"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(KILLS * 120 + 180)]


@dataclass
class Outcome:
    kind: str  #: right, error, wrong or hang
    seconds: float
    killed: bool
    words: str = ""


_found: dict[tuple[str, str], list[Outcome]] = {}
_undisturbed: dict[str, float] = {}
_applications: set[str] = set()


@pytest.fixture(scope="module")
def cluster(sessions: Any) -> Iterator[None]:
    """Takes away what a cluster's workers leave in Spark's own folder."""
    work = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)) / "work"
    yield
    sessions.stop()
    for application in _applications:
        shutil.rmtree(work / application, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints the table when all is done, captured or not."""
    yield
    lines = [f"{'':24}{'right':>7}{'error':>7}{'wrong':>7}{'hang':>7}  seconds lost: median, most"]
    for (mode, role), found in _found.items():
        kinds = Counter(each.kind for each in found)
        lost = [each.seconds - _undisturbed[mode] for each in found] or [0.0]
        lines.append(
            f"{mode + ', ' + role:24}"
            + "".join(f"{kinds[kind]:>7}" for kind in ("right", "error", "wrong", "hang"))
            + f"  {statistics.median(lost):.1f}, {max(lost):.1f}"
        )
        lines += [f"  {times} x {words}" for words, times in Counter(e.words for e in found if e.words).most_common(5)]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *lines, sep="\n")


def ready(sessions: Any) -> Any:
    """The cluster with both its executors, and no run of before."""
    spark = sessions.get(MASTER)
    if in_the_end(lambda: executors(spark), lambda count: count == 2) != 2:
        sessions.abandon()
        spark = sessions.get(MASTER)
    _applications.add(spark.sparkContext.applicationId)
    assert in_the_end(leftovers, lambda found: not found) == []
    return spark


def shuffled(spark: Any, mode: str, folder: Path) -> Any:
    df = spark.range(0, ROWS, 1, 2).selectExpr("id % 17 as k", "id")
    before, after = (Marked(role, folder, SECONDS[role] / (ROWS / 2)) for role in ("producer", "consumer"))
    if mode == "own":
        return df.mapInArrow(before, df.schema).repartition(2, "k").mapInArrow(after, df.schema)
    return fbs.map_in_arrow(
        df, after, df.schema, keys="k", num_partitions=2, before=before, before_schema=df.schema, mode=mode
    )


def kill_one(spark: Any, role: str, folder: Path, dice: random.Random, over: threading.Event) -> bool:
    """Kills one of a role at some moment after the first of them is at work; whether it did before all was over."""
    seen = "producer" if role == "executor" else role
    while not of_role(spark, seen, folder):
        if over.wait(0.02):
            return False
    if over.wait(dice.uniform(0, SECONDS["producer"] + (SECONDS["consumer"] if role == "executor" else 0))):
        return False
    found = of_role(spark, role, folder)
    for victim in dice.sample(found, min(len(found), 1)):
        victim.kill()
    return bool(found)


def once(sessions: Any, mode: str, role: str | None, folder: Path, dice: random.Random) -> Outcome:
    spark, over = ready(sessions), threading.Event()
    killed: list[bool] = []
    missed: Counter[str] = Counter()  # why nobody was killed
    folder.mkdir()

    def later() -> None:
        assert role is not None
        while not over.is_set():
            try:
                killed.append(kill_one(spark, role, folder, dice, over))
                return
            except psutil.Error as error:  # one that was looked at has gone by itself
                missed[repr(error)] += 1

    killer = threading.Thread(target=later)
    if role is not None:
        killer.start()
    begin = time.monotonic()
    try:
        frame = shuffled(spark, mode, folder).selectExpr("count(*)", "sum(id)")
        row = tuple(within(spark, SOON_S, frame.collect)[0])
        kind, words = ("right", "") if row == RIGHT else ("wrong", str(row))
    except GivenUp as error:
        kind, words = "hang", str(error)
        sessions.abandon()
    except Exception as error:  # Spark's own classes differ by version
        kind, words = "error", last_words(str(error))
    finally:
        over.set()
        if role is not None:
            killer.join()
    if kind == "right" and not any(killed) and missed:
        words = str(missed)
    return Outcome(kind, time.monotonic() - begin, any(killed), words)


def last_words(text: str) -> str:
    """The line of an error that says most: fastbuf's own, or Spark's first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if "fastbuf.errors." in line]
    return (own or lines or ["no words"])[0][:160]


@pytest.mark.parametrize("role", ["consumer", "producer", "executor"])
@pytest.mark.parametrize("mode", MODES)
def test_the_right_sums_or_an_error(sessions: Any, cluster: None, mode: str, role: str, tmp_path: Path) -> None:
    dice = random.Random(f"{mode} {role}")
    if mode not in _undisturbed:
        once(sessions, mode, None, tmp_path / "warm", dice)
        calm = once(sessions, mode, None, tmp_path / "calm", dice)
        assert calm.kind == "right", calm.words
        _undisturbed[mode] = calm.seconds
    found = _found.setdefault((mode, role), [])
    missed: list[str] = []
    for number in range(3 * KILLS):
        outcome = once(sessions, mode, role, tmp_path / str(number), dice)
        assert outcome.killed or outcome.kind == "right", f"nothing was killed: {outcome.words}"
        if outcome.killed:
            found.append(outcome)
        else:
            missed.append(outcome.words or "it was over before")
        if len(found) == KILLS:
            break
    assert len(found) == KILLS, f"too few kills; the others: {missed}"
    assert [each for each in found if each.kind not in ("right", "error") or each.seconds > SOON_S] == []
