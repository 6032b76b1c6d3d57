"""Calls a user's function for a group, in each form that Spark supports, and checks its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fastbuf_spark.errors import ResultError
from fastbuf_spark.pyspark_private import guarded
from fastbuf_spark.results import about, each, one
from fastbuf_spark.worker.cogroups import Place, Sides
from fastbuf_spark.worker.groups import Group

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowVerb:
    """``apply_in_arrow``.

    Verbs that differ in what a function takes and gives derive from it: ``key``, ``argument``, ``several``, ``table``.

    Attributes
    ----------
    method
        Its name, for errors.
    with_key
        Whether the function takes the key as well.
    streams
        Whether it takes and returns iterators of record batches; else tables.
    schema
        Schema of the result.
    by_name
        Whether result columns are matched by name; else by position.
    sides
        Of a cogroup, whose function takes two tables: see :class:`~fastbuf_spark.worker.cogroups.Sides`.
    """

    method: ClassVar[str] = "apply_in_arrow"
    func: Callable[..., Any]
    with_key: bool
    streams: bool
    schema: pa.Schema
    by_name: bool
    sides: tuple[int, tuple[Place, Place]] | None = None

    def caller(self) -> Callable[[Group], Iterable[pa.Table]]:
        func, sides = guarded(self.func), None if self.sides is None else Sides(*self.sides)

        def arguments(group: Group) -> Iterable[Any]:
            if sides is not None:
                return map(self.argument, sides.tables(group))
            return (map(self.argument, group.batches()) if self.streams else self.argument(group.table()),)

        def call(group: Group) -> Iterable[pa.Table]:
            result = func(self.key(group), *arguments(group)) if self.with_key else func(*arguments(group))
            return map(self.table, self.several(result) if self.streams else (result,))

        return call

    def key(self, group: Group) -> tuple[Any, ...]:
        """The key as the function takes it."""
        return group.key()

    def argument(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Rows as the function takes them."""
        return rows

    def several(self, result: Any) -> Iterator[Any]:
        """What a function of iterators gave, one after the other."""
        import pyarrow as pa

        batches = each(self.func, result, pa.RecordBatch, Iterator)
        return (pa.Table.from_batches([batch]) for batch in batches)

    def table(self, result: Any) -> pa.Table:
        """What the function gave, checked."""
        return conform_table(result, self.schema, self.by_name, self.func)


def conform_table(table: Any, schema: pa.Schema, by_name: bool, func: Callable[..., Any]) -> pa.Table:
    """The table that ``func`` gave, checked against the declared schema; as in Spark, nothing is cast.

    Raises
    ------
    SchemaMismatch
        The result is not a table, or has other columns or types; the message names all differences.
    """
    import pyarrow as pa

    if one(func, table, pa.Table).schema.equals(schema):
        return table
    if not table.num_columns and not table.num_rows:
        return schema.empty_table()
    if by_name:
        actual, wanted = table.schema.names, schema.names
        missing, extra = sorted(set(wanted) - set(actual)), sorted(set(actual) - set(wanted))
        if missing or extra:
            differences = (f" Missing: {', '.join(missing)}." if missing else "") + (
                f" Unexpected: {', '.join(extra)}." if extra else ""
            )
            names = {"missing": ", ".join(missing), "extra": ", ".join(extra)}
            words = f"{about(func)} gave other columns than its schema has.{differences}"
            raise ResultError(words, "RESULT_COLUMN_NAMES_MISMATCH", names)
        columns = [table.column(name) for name in wanted]
    else:
        if table.num_columns != len(schema):
            counts = {"expected": str(len(schema)), "actual": str(table.num_columns)}
            words = f"{about(func)} gave {table.num_columns} columns; its schema has {len(schema)}"
            raise ResultError(words, "RESULT_COLUMN_SCHEMA_MISMATCH", counts)
        columns = table.columns
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


def _same_instants(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two timestamp types differ only in the zone in which they are shown."""
    return actual.unit == wanted.unit and actual.tz is not None and wanted.tz is not None
