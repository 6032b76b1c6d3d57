"""Frames and tables of any library with Arrow's C stream interface, converted to pyarrow; none of them is imported."""

from __future__ import annotations

from typing import Any

from fastbuf.errors import SchemaMismatch
from fastbuf.serializers.column_wire import decoded


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

    try:
        table = data if isinstance(data, pyarrow.Table) else pyarrow.RecordBatchReader.from_stream(data).read_all()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise SchemaMismatch(f"{type(data).__name__} cannot be read as a table: {error}") from error
    if schema is None or table.schema.names != schema.names:
        table = table.drop_columns(_index_columns(table.schema, schema))
    if schema is None or table.schema.names != schema.names:
        return table
    for at, (own, wanted) in enumerate(zip(table.schema, schema, strict=True)):
        if own.type != wanted.type and values_of(own.type) == values_of(wanted.type):
            chunks = [decoded(chunk, wanted.type) for chunk in table.column(at).chunks]
            table = table.set_column(at, wanted, pyarrow.chunked_array(chunks, wanted.type))
    return table


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
    found = table.to_batches()
    if len(found) > 1:  # a column has more than 2 GiB of text
        raise SchemaMismatch(f"{type(data).__name__} of {table.nbytes:,} bytes is too long for one batch: slice it")
    return found[0] if found else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


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
    if types.is_struct(of_type):
        return pyarrow.struct([(field.name, values_of(field.type)) for field in of_type])
    return of_type
