"""``apply_in_polars``: groups as polars frames, copied only where polars needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark.results import each, one
from fastbuf_spark.schema import cast, is_text
from fastbuf_spark.worker.groups import Group
from fastbuf_spark.worker.verbs import ArrowVerb, conform_table

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class PolarsVerb(ArrowVerb):
    """``apply_in_polars``."""

    method = "apply_in_polars"

    def key(self, group: Group) -> tuple[Any, ...]:
        return tuple(value.as_py() for value in group.key())

    def argument(self, rows: pa.Table | pa.RecordBatch) -> Any:
        import polars as pl
        import pyarrow as pa

        return pl.from_arrow(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))

    def several(self, result: Any) -> Iterator[Any]:
        import polars as pl

        return each(self.func, result, (pl.DataFrame, pl.LazyFrame))

    def table(self, result: Any) -> pa.Table:
        """A frame converted to the declared schema: polars has its own types for texts, lists and counts."""
        import polars as pl
        import pyarrow as pa

        if isinstance(result, pl.LazyFrame):
            result = result.collect()
        table = one(self.func, result, pl.DataFrame).to_arrow()
        columns = []
        for i, name in enumerate(table.schema.names):
            column, at = table.column(i), self.schema.get_field_index(name) if self.by_name else i
            if 0 <= at < len(self.schema) and _same_but_for_width(column.type, self.schema.field(at).type):
                with contextlib.suppress(pa.ArrowInvalid):  # a number is too large: the error names its type
                    column = cast(column, self.schema.field(at).type)
            columns.append(column)
        return conform_table(pa.table(columns, names=table.schema.names), self.schema, self.by_name, self.func)


def _same_but_for_width(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types have the same values, in another width or notation; of whole numbers the cast looks."""
    from pyarrow import types

    if types.is_dictionary(actual):  # a Categorical, an Enum
        actual = actual.value_type
    if types.is_integer(actual) and types.is_integer(wanted):
        return True
    if types.is_float32(actual) and types.is_float64(wanted):
        return True
    if types.is_struct(actual) and types.is_struct(wanted):
        names = [actual.field(i).name for i in range(actual.num_fields)]
        return names == [wanted.field(i).name for i in range(wanted.num_fields)] and all(
            _same_but_for_width(actual.field(i).type, wanted.field(i).type) for i in range(actual.num_fields)
        )
    if _is_list(actual) and _is_list(wanted):
        return _same_but_for_width(actual.value_type, wanted.value_type)
    if types.is_timestamp(actual) and types.is_timestamp(wanted):
        return actual.unit == wanted.unit and (actual.tz is None) == (wanted.tz is None)
    if types.is_decimal(actual) and types.is_decimal(wanted):
        return bool(actual.scale == wanted.scale)
    for same in (is_text, _is_bytes, types.is_null):
        if same(actual):
            return bool(same(wanted)) or same is types.is_null
    return bool(actual == wanted)


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))
