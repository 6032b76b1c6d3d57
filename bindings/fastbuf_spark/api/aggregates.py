"""Plans ``agg_arrow``: which columns are sent, their types, and the stages before and after the shuffle."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf.event_time.aggregates import PARTS, Aggregates
from fastbuf_spark import pyspark_private
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.errors import ColumnError
from fastbuf_spark.worker.aggregates import Aggregation, FirstStage, LastStage
from fastbuf_spark.worker.chains import Called, Chain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.api.groups import Groups


@dataclasses.dataclass(frozen=True)
class Aggregated:
    """:meth:`Grouped.agg_arrow` as a verb of groups."""

    aggregates: tuple[tuple[Any, str], ...]
    func: None = None
    name: str = "agg_arrow"

    def stage(self, groups: Groups, sent: Any) -> Staged:
        """Two stages: before the shuffle and behind it."""
        return _aggregated(groups, self.aggregates)


def _aggregated(groups: Groups, aggregates: Iterable[tuple[Any, str]]) -> Staged:
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    pairs = Aggregates(aggregates).pairs
    summed = [pair for pair in pairs if pair[0]]  # of columns
    keys, at = groups.shuffle.keys, groups.shuffle.at
    if not keys:
        raise ConfigError("agg_arrow has no keys: use Spark's own df.agg(), or group by F.lit(1)")
    df, columns = at.frame, None
    if at.head is None:
        try:
            chosen = df.select(*keys, *(F.col(_quoted(column)) for column, _ in summed))
            types = chosen.schema.fields
        except PySparkException as error:
            text = str(error).split(";")[0].split("\n")[0]
            words = f"agg_arrow finds no such column: {text}; the input has {df.columns}"
            found_none = ColumnError.of(words, error) if isinstance(error, AnalysisException) else ConfigError(words)
            raise found_none from error
        df = chosen.toDF(*(f"c{i}" for i in range(len(types))))
    else:
        columns = tuple(_position(key, at.schema) for key in (*keys, *(column for column, _ in summed)))
        types = [at.schema.fields[i] for i in columns]
    _check_numbers(summed, types[len(keys) :])
    plan = Aggregation(len(keys), tuple(function for _, function in pairs))
    limits = groups.shuffle.limits
    names = [*(field.name for field in types[: plan.keys]), *("_".join(filter(None, pair)) for pair in pairs)]
    sent, output = _schemas(plan, groups.arrow(StructType(types)), names)
    shipped, result = _spark(sent, types[: plan.keys]), _spark(output, types[: plan.keys])
    first = Staged(df, shipped, Called(Chain((FirstStage(plan, at.before, columns, limits),))), in_order=at.in_order)
    shuffle = dataclasses.replace(groups.shuffle, at=first, keys=plan.names()[: plan.keys])
    shuffle_keys = shuffle.resolved()
    if shuffle_keys.by_spark:
        raise SchemaError(f"agg_arrow cannot run: {shuffle_keys.by_spark}; use Spark's own groupBy().agg()")
    return shuffle.into(LastStage(plan, output, limits), result, shuffle_keys)


_NO_NUMBERS = ("boolean", "string", "char", "varchar", "binary")


def _check_numbers(pairs: list[tuple[str, str]], fields: list[Any]) -> None:
    """SchemaError for a sum, product or mean of what pyarrow takes for numbers, or fails at only in a task."""
    for (column, function), field in zip(pairs, fields, strict=True):
        kind = field.dataType.simpleString()
        if function in ("sum", "product", "mean") and kind.startswith(_NO_NUMBERS):
            raise SchemaError(
                f"agg_arrow has no {function} of column {column!r}, which is a {kind}: cast it to a number before"
            )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _position(key: Any, schema: StructType) -> int:
    if not isinstance(key, str) or key not in schema.names:
        raise ConfigError(f"agg_arrow finds no column {key!r} in the output of before, which has {schema.names}")
    return schema.names.index(key)


def _schemas(plan: Aggregation, schema: pa.Schema, names: list[str]) -> tuple[pa.Schema, pa.Schema]:
    """Arrow's schemas of the rows that are sent and of the result, found by aggregating an empty batch."""
    import pyarrow as pa

    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    try:
        sent = plan.again(plan.first(empty))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
        text = str(error).splitlines()[0]
        raise SchemaError(f"pyarrow does not aggregate columns of these types so: {text}; they are {schema}") from error
    kinds, at = [field.type for field in sent.schema][: plan.keys], plan.keys
    for function in plan.functions:
        kinds.append(pa.float64() if function == "mean" else sent.schema.field(at).type)
        at += len(PARTS[function])
    return sent.schema, pa.schema(list(zip(names, kinds, strict=True)))


def _spark(schema: pa.Schema, keys: list[Any]) -> StructType:
    """Spark's schema; keys keep the types that they were given, as Arrow's types may be less specific."""
    from pyspark.sql.types import StructField, StructType

    first = [StructField(name, key.dataType, True, key.metadata) for name, key in zip(schema.names, keys, strict=False)]
    rest = [StructField(each.name, pyspark_private.from_arrow_type(each.type), each.nullable) for each in schema]
    return StructType([*first, *rest[len(first) :]])
