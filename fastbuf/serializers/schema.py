"""Schemas: the names of a record's fields, their types, and whether they may be null.

The text of a type, which :func:`parse_type` reads and ``str`` of a :class:`DataType` writes::

    type     := name [ "(" numbers ")" ] [ "[" unit [ "," zone ] "]" ] [ "<" children ">" ]
    nullable := type [ "?" ]

    bool  int8 .. int64  uint8 .. uint64  float16 float32 float64  null
    string large_string string_view  binary large_binary binary_view  fixed_size_binary(16)
    decimal128(38,18)  decimal256(76,0)  date32 date64
    time32[s|ms]  time64[us|ns]  timestamp[s|ms|us|ns] timestamp[us,UTC]  duration[s|ms|us|ns]
    list<T>  large_list<T>  fixed_size_list(3)<T>  struct<a: T, "b c": T?>  map<K, V>  dictionary<int32, T>

Short names stand for the usual choice: ``decimal(p,s)``, ``date``, ``time``, ``timestamp`` and ``duration`` (both
microseconds), ``int`` (64 bits), ``float`` (64 bits, as in Python), ``str`` and ``bytes``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from keyword import iskeyword
from typing import Any

from fastbuf.checks import instance
from fastbuf.errors import SchemaError

INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = frozenset({"float16", "float32", "float64"})
STRINGS = frozenset({"string", "large_string", "string_view"})
BINARIES = frozenset({"binary", "large_binary", "binary_view"})
DECIMALS = frozenset({"decimal128", "decimal256"})
LISTS = frozenset({"list", "large_list", "fixed_size_list"})
UNITS = {
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "timestamp": ("s", "ms", "us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
}
#: Kinds without parameters.
PLAIN = INTEGERS | FLOATS | STRINGS | BINARIES | {"bool", "null", "date32", "date64"}
KINDS = PLAIN | DECIMALS | LISTS | UNITS.keys() | {"fixed_size_binary", "struct", "map", "dictionary"}
MAX_PRECISION = {"decimal128": 38, "decimal256": 76}
#: Names of children that the type prescribes.
CHILD_NAMES = {
    "list": ("item",),
    "large_list": ("item",),
    "fixed_size_list": ("item",),
    "map": ("key", "value"),
    "dictionary": ("index", "value"),
}


@dataclass(frozen=True, slots=True)
class DataType:
    """A type, possibly with child types.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    unit : str
        Unit of time32, time64, timestamp and duration: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``.
    zone : str
        Time zone of a timestamp; empty for none.
    precision, scale : int
        Digits of a decimal, and how many of them are after the point.
    width : int
        Bytes of a fixed_size_binary, items of a fixed_size_list.
    children : tuple of Field
        One for list kinds; two for map (key, value) and for dictionary (index, value); the fields of a struct.

    Raises
    ------
    SchemaError
        The combination does not exist.
    """

    kind: str
    unit: str = ""
    zone: str = ""
    precision: int = 0
    scale: int = 0
    width: int = 0
    children: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        kind = self.kind
        if kind not in KINDS:
            raise SchemaError(f"unknown type {kind!r}: the types are {', '.join(sorted(KINDS))}")
        if kind in UNITS and self.unit not in UNITS[kind]:
            raise SchemaError(f"{kind} needs a unit of {', '.join(UNITS[kind])}, not {self.unit!r}")
        if kind not in UNITS and self.unit:
            raise SchemaError(f"{kind} has no unit, and {self.unit!r} was given")
        if self.zone and kind != "timestamp":
            raise SchemaError(f"{kind} has no time zone, and {self.zone!r} was given")
        if kind in DECIMALS:
            most = MAX_PRECISION[kind]
            if not 1 <= self.precision <= most:
                raise SchemaError(f"the precision of {kind} is {self.precision}: it must be within 1 and {most}")
            if not -most <= self.scale <= most:
                raise SchemaError(f"the scale of {kind} is {self.scale}: it must be within {-most} and {most}")
        elif self.precision or self.scale:
            raise SchemaError(f"{kind} has neither precision nor scale")
        if kind in ("fixed_size_binary", "fixed_size_list"):
            if not 0 <= self.width < 1 << 31:
                raise SchemaError(f"the width of {kind} is {self.width}: it must be within 0 and {(1 << 31) - 1}")
        elif self.width:
            raise SchemaError(f"{kind} has no width")
        names = CHILD_NAMES.get(kind)
        if names is not None and tuple(c.name for c in self.children) != names:
            raise SchemaError(f"{kind} has the children {names}, not {tuple(c.name for c in self.children)}")
        if kind == "struct":
            _check_names(self.children, "a struct")
        elif names is None and self.children:
            raise SchemaError(f"{kind} has no children")
        if kind == "map" and (self.children[0].nullable or self.children[0].type.kind == "null"):
            raise SchemaError("the keys of a map cannot be nullable")
        if kind == "dictionary" and self.children[0].type.kind not in INTEGERS:
            raise SchemaError(f"the index of a dictionary is an integer, not {self.children[0].type}")

    def __str__(self) -> str:
        text = self.kind
        if self.kind in DECIMALS:
            text += f"({self.precision},{self.scale})"
        elif self.kind in ("fixed_size_binary", "fixed_size_list"):
            text += f"({self.width})"
        if self.unit:
            text += f"[{self.unit},{self.zone}]" if self.zone else f"[{self.unit}]"
        if self.kind == "struct":
            text += f"<{', '.join(str(c) for c in self.children)}>"
        elif self.children:
            text += f"<{', '.join(c.type_text for c in self.children)}>"
        return text

    def __repr__(self) -> str:
        return f"DataType({str(self)!r})"

    @property
    def nested(self) -> bool:
        """Whether it has child types."""
        return self.kind in LISTS or self.kind in ("struct", "map", "dictionary")


@dataclass(frozen=True, slots=True)
class Field:
    """A name, a type, and whether it may be None."""

    name: str
    type: DataType
    nullable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(f"a field's name is a str, not {self.name!r}")
        if isinstance(self.type, str):
            parsed, nullable = parse_type(self.type)
            object.__setattr__(self, "type", parsed)
            object.__setattr__(self, "nullable", self.nullable or nullable)
        if not isinstance(self.type, DataType):
            raise SchemaError(f"the type of field {self.name!r} is a DataType or its text, not {self.type!r}")
        if not isinstance(self.nullable, bool):
            raise SchemaError(f"nullable of field {self.name!r} is a bool, not {self.nullable!r}")

    @property
    def type_text(self) -> str:
        """The type's text, with ``?`` when nullable."""
        return f"{self.type}?" if self.nullable else str(self.type)

    def __str__(self) -> str:
        name = self.name if _is_word(self.name) else json.dumps(self.name)
        return f"{name}: {self.type_text}"

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.type_text!r})"


def _is_word(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _check_names(fields: Iterable[Field], where: str) -> None:
    seen: set[str] = set()
    for field in fields:
        if not isinstance(field, Field):
            raise SchemaError(f"{where} consists of Fields, not {field!r}")
        if field.name in seen:
            raise SchemaError(f"{where} has two fields named {field.name!r}: rename one")
        seen.add(field.name)


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
        _check_names(self.fields, "a schema")

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
        from fastbuf.serializers.schema_numpy import fields_from_numpy

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
        from fastbuf.serializers.schema_classes import fields_from_class

        return cls(fields_from_class(record))

    def to_arrow(self) -> Any:
        """The same schema as a ``pyarrow.Schema``."""
        import pyarrow as pa

        from fastbuf.serializers.schema_arrow import field_to_arrow

        return pa.schema([field_to_arrow(field) for field in self.fields])

    def to_numpy(self) -> Any:
        """As a structured ``numpy.dtype``; SchemaError names a field that is nullable or has no fixed width."""
        from fastbuf.serializers.schema_numpy import dtype_from_fields

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
        if all(_is_word(name) and not iskeyword(name) for name in self.names):
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


def parse_type(text: str) -> tuple[DataType, bool]:
    """Read the text of a type.

    Returns
    -------
    type : DataType
    nullable : bool
        Whether the text ends with ``?``.

    Raises
    ------
    SchemaError
        The text does not match the grammar at the head of this module.
    """
    from fastbuf.serializers.schema_text import parse

    return parse(text)
