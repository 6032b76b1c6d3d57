"""What a group's function takes, and what it is given: its arguments, and the session's settings for them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fastbuf_spark import pyspark_private
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.errors import ArgumentError
from fastbuf_spark.results import iterables
from fastbuf_spark.schema import large_types, session_zone
from fastbuf_spark.worker.pandas_verbs import PandasRules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def pandas_rules(spark: Any, result: StructType, schema: pa.Schema) -> PandasRules:
    """A session's settings for conversions to and from pandas; ``schema``: the result's Arrow schema."""
    return PandasRules(
        result,
        schema,
        by_name(spark),
        session_zone(spark),
        _is_set(spark, "spark.sql.execution.pandas.convertToArrowArraySafely", "false"),
        large_types(spark),
        _is_set(spark, "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled", "false"),
        _is_set(spark, "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype", "false"),
        iterables(spark),
    )


def by_name(spark: Any) -> bool:
    """Whether the columns that a function returns are matched by name."""
    return _is_set(spark, "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true")


def _is_set(spark: Any, name: str, default: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        found = spark.conf.get(name)  # without a default, so that Spark's own default is returned
    except PySparkException:  # this version of Spark does not have the setting
        found = default
    return str(found).strip().lower() == "true"


def nullable(shown: pa.Schema) -> pa.Schema:
    """The schema with null allowed in every column, and without columns' metadata, as Spark's groups have it."""
    import pyarrow as pa

    return pa.schema([field.remove_metadata().with_nullable(True) for field in shown])


def takes_iterators(func: Callable[..., Any], pandas: bool) -> bool:
    """Whether the function takes iterators, according to its type hints as Spark reads them."""
    check_function("func", func, "takes a group and returns its result")
    try:
        return pyspark_private.streams_groups(func, pandas)
    except Exception:  # unclear hints: Spark then assumes tables too, and warns
        return False


def takes_polars_iterators(func: Callable[..., Any]) -> bool:
    """Whether the type hint of its last argument is an iterator; Spark uses this rule for pandas functions."""
    check_function("func", func, "takes a group and returns its result")
    try:
        hints = typing.get_type_hints(func)
    except Exception:  # hints with unknown names are ignored
        return False
    last = [hints.get(name) for name in inspect.getfullargspec(func).args][-1:]
    return bool(last) and typing.get_origin(last[0]) is Iterator


def argument_count(func: Callable[..., Any], counts: tuple[int, ...], forms: str) -> int:
    """The number of a function's arguments, as Spark counts them.

    Raises
    ------
    ConfigError
        The function must take another number of arguments.
    """
    check_function("func", func, "takes a group and returns its result")
    count = len(inspect.getfullargspec(func).args)
    if count not in counts:
        words = f"func takes {count} arguments: it must take {forms}"
        raise ArgumentError(words, "INVALID_PANDAS_UDF", {"detail": words})
    return count
