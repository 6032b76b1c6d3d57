"""One session, many actions of all kinds: nothing of them stays in the driver."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import probes
import pytest
from conftest import driver, driver_since, in_the_end, no_run_left
from deadline import GivenUp, within
from nights import nightly
from shapes import CHEAP
from shapes_base import FOUR, Shape, Shuffle, settings

ACTIONS = 200 if os.environ.get("FASTBUF_LONG") == "1" else 24
MODES = ("pipelined", "blocking")
SOON_S = 60.0
MOST_KIB = 12 * 1024  # that the driver's Python may grow by: 1.5 MiB were measured in 50 actions after 50
FEW = {"spark.sql.shuffle.partitions": "2"}


def active_stages(spark: Any) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveStageIds())


def act(spark: Any, shape: Shape, mode: str, tmp: Path) -> Any:
    def run() -> Any:
        with settings(spark, FEW | shape.conf):
            return shape.run(spark, Shuffle(mode, shape.parts), Shuffle(None, shape.parts), tmp)

    return within(spark, SOON_S, run)


@nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_grows_with_the_actions_of_a_session(sessions: Any, mode: str, tmp_path: Path) -> None:
    spark = sessions.get(FOUR)
    count = ACTIONS // len(MODES)
    warm = count // 2  # the first of each kind load modules, start threads and grow heaps
    dice = random.Random(f"growth {mode}")
    order: list[Shape] = []
    while len(order) < count:
        order += dice.sample(CHEAP, len(CHEAP))
    seen: dict[str, Any] = {}
    before, memory = driver(), 0
    try:
        for number, shape in enumerate(order[:count]):
            got = act(spark, shape, mode, tmp_path)
            assert seen.setdefault(shape.name, got) == got, f"{shape.name} as action {number}"
            if number + 1 == warm:
                no_run_left()
                before, memory = driver(), probes.figures()["rss_kib"]
    except GivenUp:
        sessions.abandon()
        raise
    no_run_left()
    assert in_the_end(lambda: active_stages(spark), lambda found: not found) == []
    driver_since(before, files=4, threads=2)
    grown = probes.figures()["rss_kib"] - memory
    print(f"{mode}: {count - warm} actions after {warm}; memory {memory} KiB, then {grown:+} KiB; {before}, {driver()}")
    assert grown < MOST_KIB, f"the driver's Python grew by {grown} KiB in {count - warm} actions"
