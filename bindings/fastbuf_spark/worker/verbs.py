"""Calls a user's function for a group, in each form that Spark supports, and checks its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf_spark.errors import ResultError
from fastbuf_spark.pyspark_private import guarded
from fastbuf_spark.results import about, each, one
from fastbuf_spark.worker.groups import Group

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowVerb:
    """``apply_in_arrow``.

    Attributes
    ----------
    with_key
        Whether the function takes the key as well.
    streams
        Whether it takes and returns iterators of record batches; else tables.
    schema
        Schema of the result.
    by_name
        Whether result columns are matched by name; else by position.
    """

    func: Callable[..., Any]
    with_key: bool
    streams: bool
    schema: pa.Schema
    by_name: bool

    def caller(self) -> Callable[[Group], Iterable[pa.Table]]:
        func, with_key, schema, by_name = guarded(self.func), self.with_key, self.schema, self.by_name

        def whole(group: Group) -> Iterable[pa.Table]:
            made = func(group.key(), group.table()) if with_key else func(group.table())
            return (conform_table(made, schema, by_name, self.func),)

        return partial(self._streamed, func) if self.streams else whole

    def _streamed(self, func: Callable[..., Any], group: Group) -> Iterator[pa.Table]:
        import pyarrow as pa

        made = func(group.key(), group.batches()) if self.with_key else func(group.batches())
        for batch in each(self.func, made, pa.RecordBatch, Iterator):
            yield conform_table(pa.Table.from_batches([batch]), self.schema, self.by_name, self.func)


def conform_table(made: Any, schema: pa.Schema, by_name: bool, func: Callable[..., Any]) -> pa.Table:
    """The table that ``func`` gave, checked against the declared schema; as in Spark, nothing is cast.

    Raises
    ------
    SchemaMismatch
        The result is not a table, or has other columns or types; the message names all differences.
    """
    import pyarrow as pa

    if one(func, made, pa.Table).schema.equals(schema):
        return made
    if not made.num_columns and not made.num_rows:
        return schema.empty_table()
    if by_name:
        given, wanted = made.schema.names, schema.names
        missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
        if missing or extra:
            said = (f" Missing: {', '.join(missing)}." if missing else "") + (
                f" Unexpected: {', '.join(extra)}." if extra else ""
            )
            names = {"missing": ", ".join(missing), "extra": ", ".join(extra)}
            words = f"{about(func)} gave other columns than its schema has.{said}"
            raise ResultError(words, "RESULT_COLUMN_NAMES_MISMATCH", names)
        columns = [made.column(name) for name in wanted]
    else:
        if made.num_columns != len(schema):
            counts = {"expected": str(len(schema)), "actual": str(made.num_columns)}
            words = f"{about(func)} gave {made.num_columns} columns; its schema has {len(schema)}"
            raise ResultError(words, "RESULT_COLUMN_SCHEMA_MISMATCH", counts)
        columns = made.columns
    wrong = []
    for i, field in enumerate(schema):
        kind = columns[i].type
        if kind == field.type:
            continue
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(field.type) and _same_instants(kind, field.type):
            columns[i] = columns[i].cast(field.type)
        else:
            wrong.append(f"column '{field.name}' (expected {field.type}, actual {kind})")
    if wrong:
        mismatch = ", ".join(wrong)
        words = f"{about(func)} gave columns of other types than its schema has: {mismatch}"
        raise ResultError(words, "RESULT_COLUMN_TYPES_MISMATCH", {"mismatch": mismatch})
    return pa.Table.from_arrays(columns, schema=schema)


def _same_instants(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two timestamp types differ only in the zone in which they are shown."""
    return given.unit == wanted.unit and given.tz is not None and wanted.tz is not None
