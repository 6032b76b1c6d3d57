"""How a user's function is called for a group, in each form that Spark has, and what becomes of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaMismatch
from fastbuf_spark.worker.groups import Group

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowVerb:
    """``apply_in_arrow``.

    Attributes
    ----------
    with_key
        The function takes the key as well.
    streams
        It takes and gives iterators of record batches, else tables.
    schema
        Of the result.
    by_name
        Its columns are found by their names, else by position.
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
            return (conform_table(made, schema, by_name),)

        return partial(self._streamed, func) if self.streams else whole

    def _streamed(self, func: Callable[..., Any], group: Group) -> Iterator[pa.Table]:
        import pyarrow as pa

        made = func(group.key(), group.batches()) if self.with_key else func(group.batches())
        if not isinstance(made, Iterator):
            raise SchemaMismatch(
                f"{FUNC} gave a {type(made).__name__}: it must give an iterator of pyarrow.RecordBatch"
            )
        for batch in made:
            if not isinstance(batch, pa.RecordBatch):
                raise SchemaMismatch(f"{FUNC} gave a {type(batch).__name__}: it must give pyarrow.RecordBatch objects")
            yield conform_table(pa.Table.from_batches([batch]), self.schema, self.by_name)


FUNC = "the function of the groups"


def guarded(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose StopIteration is an error and no end, as in Spark."""
    from pyspark.util import fail_on_stopiteration

    return fail_on_stopiteration(func)


def conform_table(made: Any, schema: pa.Schema, by_name: bool) -> pa.Table:
    """A function's table with the schema that was declared; as Spark's, nothing is cast.

    Raises
    ------
    SchemaMismatch
        No table, other columns, or other types; the message names all that differ.
    """
    import pyarrow as pa

    if not isinstance(made, pa.Table):
        raise SchemaMismatch(
            f"{FUNC} gave a {type(made).__module__}.{type(made).__name__}: it must give a pyarrow.Table"
        )
    if made.schema.equals(schema):
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
            raise SchemaMismatch(f"{FUNC} gave other columns than its schema has.{said}")
        columns = [made.column(name) for name in wanted]
    else:
        if made.num_columns != len(schema):
            raise SchemaMismatch(f"{FUNC} gave {made.num_columns} columns; its schema has {len(schema)}")
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
        raise SchemaMismatch(f"{FUNC} gave columns of other types than its schema has: {', '.join(wrong)}")
    return pa.Table.from_arrays(columns, schema=schema)


def _same_instants(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types of instants differ in the zone they are shown in alone."""
    return given.unit == wanted.unit and given.tz is not None and wanted.tz is not None
