"""Schemas: the names of a record's fields, their types, and whether they may be null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from keyword import iskeyword
from typing import Any

from fastbuf.checks import instance
from fastbuf.errors import SchemaError
from fastbuf.serializers.schema_classes import fields_from_class
from fastbuf.serializers.schema_numpy import dtype_from_fields, fields_from_numpy
from fastbuf.serializers.schema_types import DataType, Field, check_names, is_word, parse_type


class Schema:
    """The fields of a record, in order.

    Parameters
    ----------
    fields : iterable of Field
        Their names must differ.

    Raises
    ------
    SchemaError
        Two fields have the same name.

    Examples
    --------
    >>> Schema.of(id="int64", name="string?", vec="list<float32>")
    Schema.of(id='int64', name='string?', vec='list<float32>')
    """

    def __init__(self, fields: Iterable[Field] = ()) -> None:
        self.fields = tuple(fields)
        check_names(self.fields, "a schema")

    @classmethod
    def of(cls, fields: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **named: Any) -> Schema:
        """Schema from names and types.

        Parameters
        ----------
        fields : mapping or iterable of pairs, optional
            For names that are not Python identifiers.
        **named : str, DataType, Field or pyarrow.DataType
            The text of the type, with ``?`` at the end if nullable.
        """
        try:
            pairs = [(name, spec) for name, spec in (fields.items() if isinstance(fields, Mapping) else fields)]
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"fields is {fields!r:.80}: it must be a mapping of names to types, or pairs of a name and a type"
            ) from error
        return cls(_field_of(name, spec) for name, spec in [*pairs, *named.items()])

    @classmethod
    def from_arrow(cls, schema: Any) -> Schema:
        """Schema of a ``pyarrow.Schema`` (metadata is dropped; an extension type raises an error that names it)."""
        import pyarrow as pa

        from fastbuf.serializers.schema_arrow import field_from_arrow

        instance("schema", schema, pa.Schema)
        return cls(field_from_arrow(field, field.name) for field in schema)

    @classmethod
    def from_numpy(cls, dtype: Any) -> Schema:
        """Schema of a structured NumPy dtype: numbers, bool, ``S``, ``U``, datetime64, timedelta64, and subarrays."""
        return cls(fields_from_numpy(dtype))

    @classmethod
    def from_class(cls, record: type) -> Schema:
        """Schema of a dataclass, a named tuple, a TypedDict or a msgspec Struct, from its annotations.

        Parameters
        ----------
        record : type
            ``int`` is int64, ``float`` float64, ``str``, ``bytes``, ``bool`` themselves, ``date`` date32, ``datetime``
            timestamp[us], ``time`` time64[us], ``timedelta`` duration[us]; ``T | None`` is nullable; ``list[T]``,
            ``tuple[T, ...]`` are lists, ``tuple[T, T]`` a fixed_size_list, ``dict[K, V]`` a map, another such class a
            struct. What else is wanted stands in the annotation: ``Annotated[Decimal, "decimal(10,2)"]``.

        Raises
        ------
        SchemaError
            An annotation is not a supported type; the message names the field.
        """
        return cls(fields_from_class(record))

    def to_arrow(self) -> Any:
        """The same schema as a ``pyarrow.Schema``."""
        import pyarrow as pa

        from fastbuf.serializers.schema_arrow import field_to_arrow

        return pa.schema([field_to_arrow(field) for field in self.fields])

    def to_numpy(self) -> Any:
        """As a structured ``numpy.dtype``; SchemaError names a field that is nullable or has no fixed width."""
        return dtype_from_fields(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields' names."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def text(self) -> str:
        """Canonical text: equal schemas, and only they, have equal texts."""
        return f"struct<{', '.join(str(field) for field in self.fields)}>"

    @cached_property
    def fingerprint(self) -> int:
        """64 bits of BLAKE2b over :attr:`text`: the same in every process and on every machine."""
        return int.from_bytes(blake2b(self.text.encode(), digest_size=8).digest(), "little")

    def index(self, name: str) -> int:
        """Position of a field; SchemaError if no field has that name."""
        for position, field in enumerate(self.fields):
            if field.name == name:
                return position
        raise SchemaError(f"no field {name!r} in {self!r}")

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __getitem__(self, key: int | str) -> Field:
        return self.fields[self.index(key) if isinstance(key, str) else key]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __eq__(self, other: object) -> bool:
        return self.fields == other.fields if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.fields,)

    def __repr__(self) -> str:
        if all(is_word(name) and not iskeyword(name) for name in self.names):
            return f"Schema.of({', '.join(f'{f.name}={f.type_text!r}' for f in self.fields)})"
        types = {f.name: f.type_text for f in self.fields}
        return f"Schema.of({types!r})"


def _field_of(name: str, spec: Any) -> Field:
    if isinstance(spec, Field):
        return Field(name, spec.type, spec.nullable)
    if isinstance(spec, str):
        try:
            return Field(name, *parse_type(spec))
        except SchemaError as error:
            raise SchemaError(f"field {name!r}: {error}") from None
    if isinstance(spec, DataType):
        return Field(name, spec)
    from fastbuf.serializers.schema_arrow import type_from_arrow

    return Field(name, type_from_arrow(spec, name))
