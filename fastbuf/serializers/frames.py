"""Frames and tables of any library with Arrow's C stream interface, converted to pyarrow; none of them is imported."""

from __future__ import annotations

from typing import Any

from fastbuf.errors import SchemaMismatch
from fastbuf.serializers.column_wire import decoded, has_dictionary, plain_column


def is_stream(data: Any) -> bool:
    """Whether it exports record batches by ``__arrow_c_stream__``: pandas, polars, a pyarrow.Table, a reader."""
    return hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__")


def table_of(data: Any, schema: Any = None) -> Any:
    """A ``pyarrow.Table`` of the whole stream.

    Parameters
    ----------
    data
        Anything with ``__arrow_c_stream__``.
    schema : pyarrow.Schema, optional
        An index of pandas that it does not name is left out; without a schema, an index without a name is. Columns that
        have the same values in another layout (a string view or a large string for a string, a dictionary
        for its values) are cast to this schema's types; other types stay as they are, and are refused later.
    """
    import pyarrow

    _check_objects(data)
    try:
        table = data if isinstance(data, pyarrow.Table) else pyarrow.RecordBatchReader.from_stream(data).read_all()
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(_why_not(data, error)) from error
    if schema is None or table.schema.names != schema.names:
        table = table.drop_columns(_index_columns(table.schema, schema))
    if schema is None or table.schema.names != schema.names:
        return table
    for at, (own, wanted) in enumerate(zip(table.schema, schema, strict=True)):
        wire = plain_column(wanted.type)  # what both are encoded as
        nested = has_dictionary(own.type) and not pyarrow.types.is_dictionary(own.type)
        if own.type not in (wanted.type, wire) and values_of(own.type) == values_of(wire) and not nested:
            chunks = [decoded(chunk, wire) for chunk in table.column(at).chunks]
            table = table.set_column(at, wanted.with_type(wire), pyarrow.chunked_array(chunks, wire))
    return table


def _check_objects(data: Any) -> None:
    """SchemaMismatch for objects of polars, which gives their addresses as bytes."""
    if not type(data).__module__.startswith("polars."):
        return
    for column in getattr(data, "iter_columns", list)():
        if str(column.dtype) == "Object":
            raise SchemaMismatch(_refused(column.name, column.dtype, "polars gives the addresses of its objects"))


def _why_not(data: Any, error: Exception) -> str:
    """Why a frame is no table, by its first column that is none."""
    import pyarrow

    for name in getattr(data, "columns", ()):
        try:
            pyarrow.RecordBatchReader.from_stream(data[[name]]).read_all()
        except Exception as its:
            return _refused(name, data[name].dtype, ", ".join(map(str, its.args)))
    return f"{type(data).__name__} cannot be read as a table: {error}"


def _refused(name: Any, dtype: Any, why: str) -> str:
    return (
        f"column {name!r} has the dtype {dtype}, which cannot be read as one Arrow type ({why}): cast it to another, "
        "or leave it out"
    )


def _index_columns(own: Any, schema: Any) -> list[str]:
    """Columns that pandas made of a frame's index, and that nobody wants; pandas sorts and filters leave such ones."""
    index = (own.pandas_metadata or {}).get("index_columns", [])
    return [
        name
        for name in own.names
        if name in index and (name.startswith("__index_level_") if schema is None else name not in schema.names)
    ]


def batch_of(data: Any, schema: Any = None) -> Any:
    """As :func:`table_of`, in one ``pyarrow.RecordBatch``."""
    import pyarrow

    table = table_of(data, schema).combine_chunks()
    batches = table.to_batches()
    if len(batches) > 1:  # a column has more than 2 GiB of text
        raise SchemaMismatch(f"{type(data).__name__} of {table.nbytes:,} bytes is too long for one batch: slice it")
    return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


def values_of(of_type: Any) -> Any:
    """The plainest type with the same values."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(of_type):
        return values_of(of_type.value_type)
    if types.is_large_string(of_type) or types.is_string_view(of_type):
        return pyarrow.string()
    if types.is_large_binary(of_type) or types.is_binary_view(of_type):
        return pyarrow.binary()
    if types.is_list(of_type) or types.is_large_list(of_type):
        return pyarrow.list_(values_of(of_type.value_type))
    if types.is_fixed_size_list(of_type):
        return pyarrow.list_(values_of(of_type.value_type), of_type.list_size)
    if types.is_map(of_type):
        return pyarrow.map_(values_of(of_type.key_type), values_of(of_type.item_type))
    if types.is_struct(of_type):
        return pyarrow.struct([(field.name, values_of(field.type)) for field in of_type])
    return of_type
