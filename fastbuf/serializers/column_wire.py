"""Types that are encoded as other types: views as plain strings and binaries, dictionaries as their values.

Decoded columns have the schema's types again: a view is made from the plain column, a dictionary is encoded again.
pyarrow's casts do both, so these columns cost more than others.
"""

from __future__ import annotations

from typing import Any

from fastbuf.errors import RecordError, SchemaError, SchemaMismatch


def plain_type(kind: Any) -> Any:
    """The pyarrow type that a type is encoded as, at any depth."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_string_view(kind):
        return pa.string()
    if is_.is_binary_view(kind):
        return pa.binary()
    if is_.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if is_.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if is_.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if is_.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if is_.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    return kind


def _plain_field(field: Any) -> Any:
    return field.with_type(plain_type(field.type))


def plain_column(kind: Any) -> Any:
    """The pyarrow type that a column of a type is encoded as."""
    import pyarrow as pa

    return plain_type(kind.value_type if pa.types.is_dictionary(kind) else kind)


def plain_schema(schema: Any) -> Any:
    """The ``pyarrow.Schema`` that a schema is encoded as, without metadata.

    Raises
    ------
    SchemaError
        A dictionary within another type.
    """
    import pyarrow as pa

    for field in schema:
        if has_dictionary(field.type.value_type if pa.types.is_dictionary(field.type) else field.type):
            raise SchemaError(
                f"column {field.name!r} has a dictionary within {field.type}: only whole columns can be, cast it "
                "to its values' type"
            )
    return pa.schema([field.with_type(plain_column(field.type)) for field in schema])


def unordered(schema: Any) -> Any:
    """The schema without claims about the order of categories: a dictionary is encoded again as its values come."""
    import pyarrow as pa

    for at, field in enumerate(schema):
        kind = field.type
        if pa.types.is_dictionary(kind) and kind.ordered:
            schema = schema.set(at, field.with_type(pa.dictionary(kind.index_type, kind.value_type)))
    return schema


def decoded(column: Any, wanted: Any) -> Any:
    """An array as the type `wanted`, which is encoded as it is, and has the same values."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column.cast(wanted)
    # pyarrow cannot cast a dictionary of views.
    return column.dictionary.cast(wanted).take(column.indices)


def has_dictionary(kind: Any) -> bool:
    """Whether a type is a dictionary, or has one in it."""
    import pyarrow as pa

    return pa.types.is_dictionary(kind) or any(has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def to_wire(batch: Any, schema: Any) -> Any:
    """A batch converted to the encoded types.

    Parameters
    ----------
    batch : pyarrow.RecordBatch, or anything with ``__arrow_c_array__``
    schema : pyarrow.Schema
        The serializer's schema. A column may have the schema's type, or another with the same encoded type: a
        dictionary is decoded if the schema has the type of its values.

    Raises
    ------
    SchemaMismatch
        The columns differ.
    """
    import pyarrow as pa

    if not isinstance(batch, pa.RecordBatch):
        batch = pa.record_batch(batch)
    if batch.schema.names != schema.names:
        raise SchemaMismatch(f"the schema has the columns {schema.names}, the batch {batch.schema.names}")
    wire, columns = plain_schema(schema), []
    for column, field, plain in zip(batch.columns, schema, wire, strict=True):
        if plain_column(column.type) != plain.type:
            raise SchemaMismatch(
                f"column {field.name!r} is {field.type} in the schema and {column.type} in the batch: cast the batch "
                "to the schema"
            )
        columns.append(column if column.type == plain.type else decoded(column, plain.type))
    return pa.RecordBatch.from_arrays(columns, schema=wire)


def from_wire(batch: Any, schema: Any) -> Any:
    """A decoded batch, converted to the types of the schema.

    Raises
    ------
    RecordError
        A batch has more distinct values than the dictionary's index type can count.
    """
    import pyarrow as pa

    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            if pa.types.is_dictionary(field.type):
                column, kind = column.dictionary_encode(), field.type
                column = pa.DictionaryArray.from_arrays(
                    column.indices.cast(kind.index_type), column.dictionary.cast(kind.value_type)
                )
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise RecordError(
                f"column {field.name!r} cannot be {field.type} again ({error}): give its dictionary a wider index, or "
                "take smaller batches"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
