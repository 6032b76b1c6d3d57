"""On a cluster: a consumer's worker, a producer's, a file server or an executor dies at a random moment of a shuffle.

What comes of it is the right sums or an error, soon; never other sums, and never silence.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deadline import GivenUp, within
from killings import Cluster, Marked, Outcome, attempts, enough, kill_one, killer, last_words, table
from nights import nightly

import fastbuf_spark as fbs
from fastbuf_spark.driver.checks import APART

LONG = os.environ.get("FASTBUF_LONG") == "1"
KILLS = int(os.environ.get("FASTBUF_KILLS", 100 if LONG else 1))  # of each kind in each mode
# Apart: blocking between executors that read each other's rows from file servers; own: Spark's own shuffle
MODES = ["pipelined", "blocking", "apart", "own"] if LONG else ["pipelined"]
ROWS = 100_000
RIGHT = (ROWS, ROWS * (ROWS - 1) // 2)
SECONDS = {"producer": 1.5, "consumer": 0.7}  # that each of two takes for its rows
SOON_S = 60.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(KILLS * 120 + 180)]

_found: dict[tuple[str, str], list[Outcome]] = {}
_undisturbed: dict[str, Outcome] = {}


@pytest.fixture(scope="module", autouse=True)
def outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    table(request, _found, {mode: calm.seconds for mode, calm in _undisturbed.items()})


def shuffled(spark: Any, mode: str, folder: Path) -> Any:
    df = spark.range(0, ROWS, 1, 2).selectExpr("id % 17 as k", "id")
    before, after = (Marked(role, folder, SECONDS[role] / (ROWS / 2)) for role in ("producer", "consumer"))
    if mode == "own":
        return df.mapInArrow(before, df.schema).repartition(2, "k").mapInArrow(after, df.schema)
    with pytest.MonkeyPatch.context() as patched:
        if mode == "apart":
            patched.setenv(APART, "1")
            mode = "blocking"
        return fbs.map_in_arrow(
            df, after, df.schema, keys="k", num_partitions=2, before=before, before_schema=df.schema, mode=mode
        )


def once(cluster: Cluster, mode: str, role: str | None, folder: Path, dice: random.Random) -> Outcome:
    spark = cluster.ready()
    folder.mkdir()
    kill = None
    if role is not None:
        of_all = role in ("executor", "server")
        first = "producer" if of_all else role
        seconds = SECONDS["producer"] + (SECONDS["consumer"] if of_all else 0)
        kill = partial(kill_one, spark, role, first, folder, seconds, dice)
    words = ""
    begin = time.monotonic()
    with killer(kill) as killed:
        try:
            frame = shuffled(spark, mode, folder).selectExpr("count(*)", "sum(id)")
            row = tuple(within(spark, SOON_S, frame.collect)[0])
            kind, words = ("right", "") if row == RIGHT else ("wrong", str(row))
        except GivenUp as error:
            kind, words = "hang", str(error)
            cluster.abandon()
        except Exception as error:  # Spark's own classes differ by version
            kind, words = "error", last_words(str(error))
        seconds = time.monotonic() - begin
    calls = sum(attempts(each, folder) for each in SECONDS)
    calm = _undisturbed.get(mode)
    return Outcome(kind, seconds, any(killed), words, calls - calm.retries if calm else calls)


@nightly(role=["consumer", "executor"])
@pytest.mark.parametrize(
    ("mode", "role"),
    [*((mode, role) for mode in MODES for role in ("consumer", "producer", "executor")), *[("apart", "server")] * LONG],
)
def test_the_right_sums_or_an_error(cluster: Cluster, mode: str, role: str, tmp_path: Path) -> None:
    dice = random.Random(f"{mode} {role}")
    if mode not in _undisturbed:
        if LONG:  # the table is about seconds
            once(cluster, mode, None, tmp_path / "warm", dice)
        calm = once(cluster, mode, None, tmp_path / "calm", dice)
        assert calm.kind == "right", calm.words
        _undisturbed[mode] = calm
    found = enough(lambda number: once(cluster, mode, role, tmp_path / str(number), dice), KILLS)
    _found[mode, role] = found
    assert [each for each in found if each.kind not in ("right", "error") or each.seconds > SOON_S] == []
