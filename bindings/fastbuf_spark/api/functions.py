"""What a group's function takes, and what it is given: its arguments, and the session's settings for them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark import pyspark_private
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.errors import ArgumentError
from fastbuf_spark.pyspark_private import no_converters
from fastbuf_spark.results import iterables, name_of
from fastbuf_spark.schema import large_types, session_zone, struct_type
from fastbuf_spark.worker.pandas_verbs import PandasRules, PandasVerb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.api.groups import Groups
    from fastbuf_spark.driver.staged import Staged


def pandas_rules(spark: Any, result: StructType, schema: pa.Schema, converts: bool = True) -> PandasRules:
    """A session's settings for conversions to and from pandas; ``schema``: the result's Arrow schema.

    Raises
    ------
    ConfigError
        This Spark has no such converters, and the function needs them (``converts``).
    """
    if converts:
        check_converters("give one of Arrow, or use a newer Spark")
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


def check_converters(instead: str) -> None:
    """ConfigError if this Spark has no converters to and from pandas; ``instead``: what to do."""
    if why := no_converters():
        raise ConfigError(f"functions of pandas cannot run: {why}; {instead}")


def by_name(spark: Any) -> bool:
    """Whether the columns that a function returns are matched by name."""
    return _is_set(spark, "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true")


def _is_set(spark: Any, name: str, default: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        value = spark.conf.get(name)  # without a default, so that Spark's own default is returned
    except PySparkException:  # this version of Spark does not have the setting
        value = default
    return str(value).strip().lower() == "true"


@dataclass(frozen=True)
class Applied:
    """A verb that calls a user's function with each group.

    Attributes
    ----------
    kind
        How the function is called: the class of the worker's verb.
    result
        Schema of what it gives.
    sparks
        The method of Spark's groups that does the same; empty: there is none.
    """

    kind: Any
    func: Callable[..., Any]
    result: StructType
    with_key: bool
    streams: bool
    sparks: str

    @classmethod
    def of(
        cls, kind: Any, func: Any, schema: StructType | str, sparks: str, streams: bool = False, sides: int = 1
    ) -> Applied:
        """The verb, with the function's arguments checked; ``sides``: two of a cogroup."""
        forms = "(data) or (key, data)" if sides == 1 else "(left, right) or (key, left, right)"
        with_key = argument_count(func, (sides, sides + 1), forms) > sides
        return cls(kind, func, struct_type(schema), with_key, streams, sparks)

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(self.func)

    def stage(self, groups: Any, sent: Any) -> Staged:
        """The stage that the verb makes of groups; ``sent``: the function as it is sent."""
        return groups.run(self, sent)

    def why_sparks(self) -> str:
        """Why Spark's own groups must serve, whatever the keys; empty: there is no reason."""
        return no_converters() if self.kind is PandasVerb else ""

    def check_sparks(self, why: str) -> None:
        """SchemaError if Spark's own groups are to serve, for the reason ``why``, and have no method for it."""
        if why and not self.sparks:
            raise SchemaError(f"{self.kind.method} cannot run: {why}; use apply_in_arrow, or another key")

    def by_spark(self, groups: Any) -> DataFrame:
        """What Spark's groups give."""
        return getattr(groups, self.sparks)(self.func, self.result)

    def worker(self, groups: Groups, sent: Any, sides: Any = None) -> Any:
        """The worker's verb; ``sides``: of a cogroup, where each is."""
        shape: tuple[Any, ...] = groups.arrow(self.result), by_name(groups.spark)
        if self.kind is PandasVerb:
            shape = (groups.pandas_rules(self.result),)
        return self.kind(sent, self.with_key, self.streams, *shape, sides)


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
