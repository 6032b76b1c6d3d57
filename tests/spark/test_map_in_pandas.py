"""``map_in_pandas`` beside Spark's own ``mapInPandas``: the same frames, results and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from conftest import failure
from test_groups_pandas import everything
from test_sources import same

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
LONGS = "if(id % 5 = 0, null, 9007199254740992 + id) as n"


def seen(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """All that a function can see of its frames."""
    for frame in frames:
        words = [repr(frame.index), frame.dtypes.to_string()]
        words += [repr([(type(value).__name__, value) for value in row]) for row in frame.to_numpy(object)]
        yield pd.DataFrame({"said": words, "n": [len(frame)] * len(words)})


@pytest.mark.parametrize("columns", ["*", "k n", "k n s", "k n b t y", "k n t m", "k n d a st"])
def test_frames_are_sparks(spark: Any, columns: str) -> None:
    """Types and values of each column depend on the types of the others."""
    df = everything(spark).selectExpr("*", LONGS.replace("id", "k")).select(*columns.split())
    made = fbs.pipeline(df).map_in_pandas(seen, "said string, n long").to_df()
    assert same(made, df.mapInPandas(seen, "said string, n long")) > 80


def test_whole_numbers_beside_null_stay_exact(spark: Any) -> None:
    df = spark.range(20).selectExpr("id", LONGS, "concat('user-', id) as s")
    assert same(fbs.pipeline(df).map_in_pandas(passed, df.schema).to_df(), df) == 20


def test_a_function_may_write_to_its_frames(spark: Any) -> None:
    def written(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            frame["x"] *= 2
            frame.loc[frame["x"] > 20, "x"] = -1.0
            yield frame

    df = everything(spark)
    for columns in ("k", "x"), ("k", "x", "s"):
        some = df.select(*columns)
        made = fbs.pipeline(some).map_in_pandas(written, some.schema).to_df()
        assert same(made, some.selectExpr("k", "if(x > 10, -1D, x * 2) as x", *columns[2:])) == 80


def passed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def longer(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(more=1, other=[[2]] * len(frame))


def in_turn(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[["x", "k"]]


def misnamed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.rename(columns={"x": "z"})


def more_first(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(more=1)[["more", "k", "x"]]


def numbered(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.set_axis(range(2), axis=1).assign(**{"2": 1}).set_axis(range(3), axis=1)


@pytest.mark.parametrize("by_name", ["true", "false"])
@pytest.mark.parametrize("func", [passed, longer, in_turn, misnamed, more_first, numbered], ids=lambda f: f.__name__)
def test_columns_are_matched_as_by_spark(spark: Any, func: Callable[..., Any], by_name: str) -> None:
    """Further columns are left out, and names are checked even where columns go by position."""
    df = everything(spark).selectExpr("double(k) as k", "x")
    spark.conf.set("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", by_name)
    try:
        want = df.mapInPandas(func, "k double, x double")
        made = fbs.pipeline(df).map_in_pandas(func, "k double, x double").to_df()
        if func in (misnamed, more_first):
            said = [failure(frame.collect) for frame in (want, made)]
            assert all("RESULT_COLUMN_NAMES_MISMATCH" in text for text in said)
        else:
            assert same(made, want) == 80
    finally:
        spark.conf.unset("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName")
