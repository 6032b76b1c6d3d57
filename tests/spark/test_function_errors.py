"""What users read of their functions' faults: the function and its line, the column, and little of fastbuf's frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from conftest import failure, frames_in_a_row
from nights import nightly
from pyspark.sql import functions as F

import fastbuf_spark as fbs
from fastbuf_spark.results import ANY_ITERABLE

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
WHOLE = "id long, a long not null"
INNER = "id long, a struct<x: long not null>"
STRICT = pa.schema([pa.field("id", pa.int64()), pa.field("a", pa.int64(), nullable=False)])


def nulls(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"id": batch["id"], "a": pa.nulls(batch.num_rows, pa.int64())})


def sure_nulls(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nulls in batches that have the declared schema."""
    for batch in nulls(batches):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=STRICT)


def inner_nulls(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in nulls(batches):
        yield pa.record_batch({"id": batch["id"], "a": pa.StructArray.from_arrays([batch["a"]], ["x"])})


def frame_nulls(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(a=pd.array([None] * len(frame), "Int64"))


def table_nulls(*tables: pa.Table) -> pa.Table:
    return pa.table({"id": tables[0]["id"], "a": pa.nulls(len(tables[0]), pa.int64())})


def group_nulls(table: pa.Table) -> pa.Table:
    return table_nulls(table)


def group_frame_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(a=pd.array([None] * len(frame), "Int64"))[["id", "a"]]


def pair_nulls(left: pa.Table, right: pa.Table) -> pa.Table:
    return table_nulls(left, right)


def pair_frame_nulls(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return group_frame_nulls(left)


def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def groups(df: Any, mode: str, **more: Any) -> fbs.Grouped:
    return fbs.group_by(df, more.pop("keys", "id"), num_partitions=1, mode=mode, **more)


def pairs(df: Any, mode: str) -> Any:
    return groups(df, mode).cogroup(groups(df, mode))


def maps(df: Any, mode: str, func: Any, schema: str = WHOLE, **more: Any) -> Any:
    return fbs.map_in_arrow(df, func, schema, num_partitions=1, mode=mode, **{"keys": "id", **more})


def shuffled(line: fbs.Pipeline, mode: str) -> fbs.Pipeline:
    return line.shuffle("id", partitions=1, mode=mode)


def behind(df: Any, mode: str) -> fbs.Pipeline:
    return shuffled(fbs.pipeline(df), mode)


BEFORE = {"before": sure_nulls, "before_schema": WHOLE}
#: A function's name, where it stands, and the job
Place = tuple[str, str, Callable[[Any, str], Any]]
PLACES: list[Place] = [
    ("nulls", "func", lambda df, mode: maps(df, mode, nulls)),
    ("inner_nulls", "func", lambda df, mode: maps(df, mode, inner_nulls, INNER)),
    ("sure_nulls", "before", lambda df, mode: maps(df, mode, passed, **BEFORE)),
    ("sure_nulls", "before groups", lambda df, mode: groups(df, mode, **BEFORE).apply_in_arrow(group_nulls, WHOLE)),
    (
        "sure_nulls",
        "before groups of Spark's own",
        lambda df, mode: groups(df, mode, keys=F.expr("id * 2"), **BEFORE).apply_in_arrow(group_nulls, WHOLE),
    ),
    (
        "sure_nulls",
        "before Spark's own shuffle",
        lambda df, mode: maps(df, mode, passed, keys=F.expr("id * 2"), **BEFORE),
    ),
    ("sure_nulls", "ahead", lambda df, mode: shuffled(fbs.pipeline(df).map_in_arrow(sure_nulls, WHOLE), mode)),
    ("sure_nulls", "behind", lambda df, mode: behind(df, mode).map_in_arrow(sure_nulls, WHOLE)),
    ("frame_nulls", "ahead", lambda df, mode: shuffled(fbs.pipeline(df).map_in_pandas(frame_nulls, WHOLE), mode)),
    ("frame_nulls", "behind", lambda df, mode: behind(df, mode).map_in_pandas(frame_nulls, WHOLE)),
    ("group_nulls", "groups", lambda df, mode: groups(df, mode).apply_in_arrow(group_nulls, WHOLE)),
    ("group_frame_nulls", "groups", lambda df, mode: groups(df, mode).apply_in_pandas(group_frame_nulls, WHOLE)),
    ("pair_nulls", "cogroups", lambda df, mode: pairs(df, mode).apply_in_arrow(pair_nulls, WHOLE)),
    ("pair_frame_nulls", "cogroups", lambda df, mode: pairs(df, mode).apply_in_pandas(pair_frame_nulls, WHOLE)),
    (
        "group_nulls",
        "groups ahead",
        lambda df, mode: shuffled(
            fbs.pipeline(df).group_by("id", partitions=1, mode=mode).apply_in_arrow(group_nulls, WHOLE), mode
        ),
    ),
]
#: Spark's own shuffle has one mode
CASES = [(place, mode) for place in PLACES for mode in MODES if mode == "blocking" or "Spark's own" not in place[1]]


def words_of(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(value[:2])


@nightly(but_one="mode")
@pytest.mark.parametrize(("place", "mode"), CASES, ids=words_of)
def test_nulls_where_the_schema_has_none(spark: Any, place: Place, mode: str) -> None:
    """Where the values go to Spark next, its own error has neither the function nor its line."""
    name, _, make = place
    df = spark.range(0, 8, 1, 2)
    words = failure(make(df, mode).collect)
    path = "a.x" if name == "inner_nulls" else "a"
    last = words.rstrip().splitlines()[-1]
    assert f"SchemaMismatch: the function '{name}' (" in last
    assert "test_function_errors.py:" in last
    assert f") gave nulls in column '{path}', which its schema says has none" in last
    assert frames_in_a_row(words) == 1


def listed(batches: Iterator[Any]) -> Any:
    return list(batches)


class Old:
    """Iterated over by its ``__getitem__``, as by Python since its first days."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __getitem__(self, place: int) -> Any:
        return self._items[place]


def old(batches: Iterator[Any]) -> Any:
    return Old(list(batches))


def set_of(func: Any, mode: str) -> dict[str, Callable[[Any], Any]]:
    """Every verb that takes a function over batches."""
    before = {"before": func, "before_schema": "id long"}
    return {
        "func": lambda df: maps(df, mode, func, "id long"),
        "before": lambda df: maps(df, mode, passed, "id long", **before),
        "before groups": lambda df: groups(df, mode, **before).apply_in_arrow(lambda table: table, "id long"),
        "arrow": lambda df: shuffled(fbs.pipeline(df).map_in_arrow(func, "id long"), mode),
        "pandas": lambda df: behind(df, mode).map_in_pandas(func, "id long"),
    }


@pytest.mark.parametrize("verb", set_of(listed, ""))
def test_what_can_be_iterated_over_is_taken_as_by_spark(spark: Any, verb: str) -> None:
    """By default; if Spark's setting says so, an iterator must be given."""
    df = spark.range(0, 9, 1, 2)
    for func in (listed, old):
        assert sorted(row.id for row in set_of(func, "blocking")[verb](df).collect()) == list(range(9))
        spark.conf.set(ANY_ITERABLE, "false")
        try:
            words = failure(set_of(func, "blocking")[verb](df).collect)
        finally:
            spark.conf.unset(ANY_ITERABLE)
        kind = "pandas.DataFrame" if verb == "pandas" else "pyarrow.RecordBatch"
        assert f"it must give an iterator of {kind}: an Iterator, as {ANY_ITERABLE} is false" in words
        assert f"the function '{func.__name__}' (" in words
