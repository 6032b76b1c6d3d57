"""``select``: which columns stay, which are computed by expressions of pyarrow, and of what types they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.driver.file_types import REFUSED, of_arrow
from fastbuf_spark.expressions import type_given
from fastbuf_spark.schema import arrow_schema, large_types, session_zone, twice
from fastbuf_spark.worker.steps import Select

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclasses.dataclass(frozen=True)
class Selection:
    """What ``select`` was given: names of columns, then names and expressions of computed ones."""

    columns: tuple[str, ...]
    expressions: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, columns: tuple[Any, ...], expressions: Mapping[str, Any]) -> Selection:
        """With its arguments checked.

        Raises
        ------
        ConfigError
            Something is neither a name nor an expression, there is nothing, or a name stands twice.
        """
        import pyarrow.compute as pc

        way = "give names of columns, and what is computed as name=pc.field('amount') * 2, an expression of pyarrow"
        for column in columns:
            if not isinstance(column, str):
                raise ConfigError(f"select has {column!r:.100} ({type(column).__name__}): {way}")
        for name, expression in expressions.items():
            if not isinstance(expression, pc.Expression):
                raise ConfigError(f"select has {name}={expression!r:.100} ({type(expression).__name__}): {way}")
        names = [*columns, *expressions]
        if not names:
            raise ConfigError(f"select has no columns: {way}")
        if several := twice(names):
            raise ConfigError(f"select has {', '.join(map(repr, several))} twice: leave one out")
        return cls(columns, tuple(expressions.items()))

    def of_rows(self, spark: Any, schema: StructType) -> tuple[Select, StructType]:
        """The function over record batches of this schema, and the schema of what it gives.

        Raises
        ------
        ConfigError
            Arrow would compute with floats of 32 bits, and fail.
        SchemaError
            A column is not there, or an expression does not fit the columns, or has a type that Spark has not.
        """
        import pyarrow as pa
        from pyspark.sql.types import StructField, StructType

        if missing := [name for name in self.columns if schema.names.count(name) != 1]:
            count = schema.names.count(missing[0])
            raise SchemaError(f"select finds {count} columns {missing[0]!r}; there are {schema.names}")
        shape = arrow_schema(schema, session_zone(spark), large_types(spark))
        fields = [schema[name] for name in self.columns]
        for name, expression in self.expressions:
            kind = type_given(f"select {name}={expression}", expression, shape, SchemaError)
            field = of_arrow(pa.schema([(name, kind)]))[name]
            if REFUSED in field.metadata:
                raise SchemaError(f"select has {name}={expression} of Arrow's type {kind}: cast it")
            fields.append(StructField(name, field.dataType, True))
        result = StructType(fields)
        shown = arrow_schema(result, session_zone(spark), large_types(spark))
        return Select(self.columns, self.expressions, shown), result
