"""What fastbuf gives is an ordinary frame: whatever people do with it gives what it gives with Spark's own shuffle.

Each shape of the table (shapes_*.py) runs with fastbuf's frames in each mode and with Spark's own, within a bound, and
Spark must be alive after it: a frame that Spark cannot plan once took the user's SparkContext down.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import stages
from conftest import answers, in_time
from deadline import GivenUp, within
from nights import nightly
from shapes import SHAPES
from shapes_base import Shape, Shuffle, settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
# Less is for looking at a build of which many shapes are known to hang
SOON_S = float(os.environ.get("FASTBUF_SHAPE_SECONDS", "60"))
FEW = {"spark.sql.shuffle.partitions": "2"}
LONG = os.environ.get("FASTBUF_LONG") == "1"


def in_short_runs(number: int, shape: Shape, mode: str) -> bool:
    """A ninth of each mode, auto where there is something to choose."""
    return shape.chooses if mode == "auto" else number % 9 == (0 if mode == "pipelined" else 4)


# By master: each change of it is another Spark
CASES = sorted(
    [(s, mode) for i, s in enumerate(SHAPES) for mode in s.modes if LONG or in_short_runs(i, s, mode)],
    key=lambda case: case[0].master,
)

_known: dict[str, Any] = {}  # Spark's own answers, computed once for all modes


def run(spark: Any, shape: Shape, mode: str | None, tmp: Path) -> Any:
    with settings(spark, FEW | shape.conf):
        return shape.run(spark, Shuffle(mode, shape.parts), Shuffle(None, shape.parts), tmp)


def right(spark: Any, shape: Shape, tmp: Path) -> Any:
    """Spark's own answer."""
    if shape.name not in _known:
        _known[shape.name] = within(spark, SOON_S, lambda: run(spark, shape, None, tmp))
    return _known[shape.name]


def test_the_table_is_one() -> None:
    assert len(SHAPES) >= 60
    assert [name for name, times in Counter(each.name for each in SHAPES).items() if times > 1] == []


@pytest.mark.parametrize(("shape", "mode"), CASES, ids=[f"{shape.name}-{mode}" for shape, mode in CASES])
def test_as_with_sparks_own(sessions: Any, shape: Shape, mode: str, tmp_path: Path) -> None:
    spark = sessions.get(shape.master)
    try:
        want = right(spark, shape, tmp_path)
        got = in_time(2 * SOON_S, lambda: within(spark, SOON_S, lambda: run(spark, shape, mode, tmp_path)))
        assert len(within(spark, SOON_S, spark.range(0, 1, 1, 1).collect)) == 1, "Spark is not alive"
    except GivenUp:
        sessions.abandon()
        raise
    assert answers(spark.sparkContext), "Spark is not alive"
    assert got == want


def test_an_action_that_hangs_is_given_up_and_the_next_session_works(sessions: Any) -> None:
    spark = sessions.get("local[4]")
    begin = time.monotonic()
    with pytest.raises(GivenUp, match="only when its jobs were cancelled"):
        within(spark, 2.0, lambda: spark.range(0, 4, 1, 4).mapInArrow(stages.never_ending, "id long").count())
    assert time.monotonic() - begin < SOON_S
    assert within(sessions.get("local[4]"), SOON_S, lambda: sessions.get("local[4]").range(7).count()) == 7


@nightly
def test_a_session_that_died_is_replaced(sessions: Any) -> None:
    died = sessions.get("local[4]")
    died.sparkContext._jsc.sc().stop()  # as Spark's scheduler does when it fails
    assert not answers(died.sparkContext)
    spark = sessions.get("local[4]")
    assert answers(spark.sparkContext)
    assert spark.range(7).count() == 7
