"""``apply_in_polars``: groups as polars frames, copied only where polars needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark.results import each, one
from fastbuf_spark.worker.groups import Group
from fastbuf_spark.worker.verbs import ArrowVerb, conform_table

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class PolarsVerb(ArrowVerb):
    """``apply_in_polars``."""

    def key(self, group: Group) -> tuple[Any, ...]:
        return tuple(value.as_py() for value in group.key())

    def given(self, rows: pa.Table | pa.RecordBatch) -> Any:
        import polars as pl
        import pyarrow as pa

        return pl.from_arrow(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))

    def several(self, made: Any) -> Iterator[Any]:
        import polars as pl

        return each(self.func, made, (pl.DataFrame, pl.LazyFrame))

    def table(self, made: Any) -> pa.Table:
        """A frame converted to the declared schema: polars has its own types for texts, lists and counts."""
        import polars as pl
        import pyarrow as pa

        if isinstance(made, pl.LazyFrame):
            made = made.collect()
        table = one(self.func, made, pl.DataFrame).to_arrow()
        columns = []
        for i, name in enumerate(table.schema.names):
            column, at = table.column(i), self.schema.get_field_index(name) if self.by_name else i
            if 0 <= at < len(self.schema) and _same_but_for_width(column.type, self.schema.field(at).type):
                with contextlib.suppress(pa.ArrowInvalid):  # a number is too large: the error names its type
                    column = column.cast(self.schema.field(at).type)
            columns.append(column)
        return conform_table(pa.table(columns, names=table.schema.names), self.schema, self.by_name, self.func)


def _same_but_for_width(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types have the same values, in another width or notation; of whole numbers the cast looks."""
    from pyarrow import types

    if types.is_dictionary(given):  # a Categorical, an Enum
        given = given.value_type
    if types.is_integer(given) and types.is_integer(wanted):
        return True
    if types.is_float32(given) and types.is_float64(wanted):
        return True
    if types.is_struct(given) and types.is_struct(wanted):
        names = [given.field(i).name for i in range(given.num_fields)]
        return names == [wanted.field(i).name for i in range(wanted.num_fields)] and all(
            _same_but_for_width(given.field(i).type, wanted.field(i).type) for i in range(given.num_fields)
        )
    if _is_list(given) and _is_list(wanted):
        return _same_but_for_width(given.value_type, wanted.value_type)
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return given.unit == wanted.unit and (given.tz is None) == (wanted.tz is None)
    if types.is_decimal(given) and types.is_decimal(wanted):
        return bool(given.scale == wanted.scale)
    for same in (_is_text, _is_bytes, types.is_null):
        if same(given):
            return bool(same(wanted)) or same is types.is_null
    return bool(given == wanted)


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))
