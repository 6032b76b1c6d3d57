"""Errors of arguments and of results: clauses that catch Spark's own errors catch fastbuf's, with Spark's condition."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from conftest import failure
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkTypeError,
    PySparkValueError,
    PythonException,
)

import fastbuf_spark as fbs
from fastbuf.errors import FastbufError

pytestmark = pytest.mark.spark


def raised(call: Callable[[], Any]) -> Any:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("there is no error")


def no_group(a: Any, b: Any, c: Any) -> Any: ...


#: A call that is wrong, the class of Spark's that catches it, and Spark's own verb that is wrong in the same way
ARGUMENTS: dict[str, tuple[Callable[[Any], Any], type[Exception], Callable[[Any], Any] | None]] = {
    "function": (
        lambda df: fbs.map_in_arrow(df, 7, "id long", keys="id", num_partitions=2),
        TypeError,
        lambda df: df.mapInArrow(7, "id long"),
    ),
    "count": (lambda df: fbs.repartition(df, 1.5, "id"), PySparkTypeError, lambda df: df.repartition(1.5, "id")),
    "no count": (lambda df: fbs.repartition(df, 0, "id"), IllegalArgumentException, lambda df: df.repartition(0, "id")),
    "key": (lambda df: fbs.repartition(df, 2, "nope"), AnalysisException, lambda df: df.repartition(2, "nope")),
    "key's type": (lambda df: fbs.repartition(df, 2, 7.5), PySparkTypeError, lambda df: df.repartition(2, 7.5)),
    "keys": (lambda df: fbs.group_by(df, None, num_partitions=2), PySparkTypeError, lambda df: df.groupBy(None)),
    "arguments": (
        lambda df: fbs.group_by(df, "id", num_partitions=2).apply_in_pandas(no_group, "id long"),
        PySparkValueError,
        lambda df: df.groupBy("id").applyInPandas(no_group, "id long"),
    ),
    "aggregated column": (
        lambda df: fbs.group_by(df, "id", num_partitions=2).agg_arrow([("nope", "sum")]),
        AnalysisException,
        lambda df: df.groupBy("id").agg({"nope": "sum"}),
    ),
    "schema": (lambda df: fbs.map_in_arrow(df, iter, 7, keys="id", num_partitions=2), PySparkTypeError, None),
    "mode": (lambda df: fbs.repartition(df, 2, mode="fast"), PySparkValueError, None),
    "frame": (lambda df: fbs.repartition(df.rdd, 2), PySparkTypeError, None),
    "rdd": (lambda df: fbs.group_by_key([(1, 2)], 2), PySparkTypeError, None),
    "join": (lambda df: fbs.join(df.rdd, df.rdd, 2, how="cross"), PySparkValueError, None),
    "settings": (lambda df: fbs.repartition(df, 2, conf={}), PySparkTypeError, None),
    "cogroup": (lambda df: fbs.group_by(df, "id", num_partitions=2).cogroup(df), PySparkTypeError, None),
}


@pytest.mark.parametrize("of", ARGUMENTS)
def test_arguments(spark: Any, of: str) -> None:
    wrong, kind, sparks = ARGUMENTS[of]
    error = raised(lambda: wrong(spark.range(4)))
    assert isinstance(error, FastbufError)
    assert isinstance(error, kind)
    assert str(error).startswith(f"[{error.getCondition()}] ") or error.getCondition() is None
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.getCondition()) == (type(error), str(error), error.getCondition())
    if sparks is not None:
        own = raised(lambda: sparks(spark.range(4)))
        assert isinstance(own, kind)
        # Spark's own TypeError has none, and some of Spark 4.1 have other names
        assert of == "function" or error.getCondition() == own.getCondition() or pyspark.__version__ < "4.2"


def fewer(rows: Any) -> Any:
    return rows[["id"]] if isinstance(rows, pd.DataFrame) else rows.select(["id"])


def other_names(rows: Any) -> Any:
    return rows.rename(columns={"k": "x"}) if isinstance(rows, pd.DataFrame) else rows.rename_columns(["id", "x"])


def texts(rows: Any) -> Any:
    return rows.set_column(0, "id", rows["id"].cast(pa.string()))


def number(rows: Any) -> Any:
    return 7


RESULTS = [
    ("apply_in_pandas", "applyInPandas", number, "UDF_RETURN_TYPE"),
    ("apply_in_pandas", "applyInPandas", fewer, "RESULT_COLUMN_NAMES_MISMATCH"),
    ("apply_in_arrow", "applyInArrow", number, "UDF_RETURN_TYPE"),
    ("apply_in_arrow", "applyInArrow", other_names, "RESULT_COLUMN_NAMES_MISMATCH"),
    ("apply_in_arrow", "applyInArrow", texts, "RESULT_COLUMN_TYPES_MISMATCH"),
]


@pytest.mark.parametrize(("verb", "theirs", "func", "condition"), RESULTS)
def test_results_of_groups(spark: Any, verb: str, theirs: str, func: Callable[[Any], Any], condition: str) -> None:
    df = spark.range(0, 4, 1, 2).selectExpr("id", "id % 2 as k")
    made = getattr(fbs.group_by(df, "k", num_partitions=2, mode="pipelined"), verb)(func, df.schema)
    own = getattr(df.groupBy("k"), theirs)(func, df.schema)
    for result in (made, own):
        with pytest.raises(PythonException, match=rf"\[{condition}\]"):
            result.collect()


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_results_of_maps(spark: Any, mode: str) -> None:
    df = spark.range(0, 4, 1, 2).selectExpr("id", "id % 2 as k")

    def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        return map(number, batches)

    def mapped(func: Callable[[Any], Any]) -> str:
        return failure(fbs.map_in_arrow(df, func, df.schema, keys="k", num_partitions=2, mode=mode).collect)

    assert "[UDF_RETURN_TYPE]" in failure(df.mapInArrow(numbers, df.schema).collect)
    assert "[UDF_RETURN_TYPE]" in mapped(numbers)
    assert "[RESULT_COLUMN_SCHEMA_MISMATCH]" in mapped(lambda batches: map(fewer, batches))
    assert "[RESULT_COLUMN_TYPES_MISMATCH]" in mapped(lambda batches: map(texts, batches))
