"""Types of a record's fields, and whether they may be null.

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
import re
from collections.abc import Iterable
from dataclasses import dataclass

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
            check_names(self.children, "a struct")
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
        name = self.name if is_word(self.name) else json.dumps(self.name)
        return f"{name}: {self.type_text}"

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.type_text!r})"


def is_word(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def check_names(fields: Iterable[Field], where: str) -> None:
    seen: set[str] = set()
    for field in fields:
        if not isinstance(field, Field):
            raise SchemaError(f"{where} consists of Fields, not {field!r}")
        if field.name in seen:
            raise SchemaError(f"{where} has two fields named {field.name!r}: rename one")
        seen.add(field.name)


_ALIASES = {"int": "int64", "float": "float64", "str": "string", "bytes": "binary", "date": "date32", "boolean": "bool"}
#: Kinds whose unit may be left out.
_DEFAULT_UNITS = {"timestamp": "us", "duration": "us"}
_NAME = re.compile(r"\s*([A-Za-z_]\w*)", re.ASCII)
_NUMBERS = re.compile(r"\s*\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?\)")
_UNIT = re.compile(r"\s*\[\s*(\w+)\s*(?:,\s*([^\]]+?)\s*)?\]")
_QUOTED = re.compile(r'\s*("(?:[^"\\]|\\.)*")')
_DEPTH = 64


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, what: str) -> SchemaError:
        return SchemaError(f"cannot read the type {self.text!r} at character {self.at}: {what}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def take(self, sign: str) -> bool:
        rest = self.text[self.at :]
        if rest.lstrip().startswith(sign):
            self.at += len(rest) - len(rest.lstrip()) + len(sign)
            return True
        return False

    def nullable(self, depth: int) -> tuple[DataType, bool]:
        return self.type(depth), self.take("?")

    def type(self, depth: int) -> DataType:
        if depth > _DEPTH:
            raise self.fail(f"nested deeper than {_DEPTH}")
        word = self.match(_NAME)
        if word is None:
            raise self.fail("a type's name is expected")
        kind = _ALIASES.get(word[1], word[1])
        if kind in PLAIN:
            return DataType(kind)
        if kind == "decimal" or kind in DECIMALS:
            numbers = self.match(_NUMBERS)
            if numbers is None:
                raise self.fail(f"{kind} needs (precision,scale)")
            precision = int(numbers[1])
            if kind == "decimal":
                kind = "decimal128" if precision <= MAX_PRECISION["decimal128"] else "decimal256"
            return DataType(kind, precision=precision, scale=int(numbers[2] or 0))
        if kind == "time":
            unit = self.match(_UNIT)
            short = unit[1] if unit else "us"
            return DataType("time32" if short in UNITS["time32"] else "time64", unit=short)
        if kind in UNITS:
            unit = self.match(_UNIT)
            if unit is None:
                return DataType(kind, unit=_DEFAULT_UNITS.get(kind, ""))
            return DataType(kind, unit=unit[1], zone=unit[2] or "")
        width = 0
        if kind in ("fixed_size_binary", "fixed_size_list"):
            numbers = self.match(_NUMBERS)
            if numbers is None or numbers[2]:
                raise self.fail(f"{kind} needs (width)")
            width = int(numbers[1])
        if kind == "fixed_size_binary":
            return DataType(kind, width=width)
        if kind == "struct":
            return DataType(kind, children=self.struct_fields(depth))
        if kind not in KINDS:
            raise self.fail(f"unknown type {word[1]!r}; the types are {', '.join(sorted(KINDS))}")
        return DataType(kind, width=width, children=self.children(kind, depth))

    def children(self, kind: str, depth: int) -> tuple[Field, ...]:
        names = CHILD_NAMES[kind]
        fields = []
        for number, name in enumerate(names):
            if not self.take("," if number else "<"):
                raise self.fail(f"{kind} needs <{', '.join(names)}>")
            fields.append(Field(name, *self.nullable(depth + 1)))
        if not self.take(">"):
            raise self.fail("'>' is expected")
        return tuple(fields)

    def struct_fields(self, depth: int) -> tuple[Field, ...]:
        fields: list[Field] = []
        if not self.take("<"):
            raise self.fail("struct needs <name: type, ...>")
        if self.take(">"):
            return ()
        while True:
            quoted = self.match(_QUOTED)
            plain = None if quoted else self.match(_NAME)
            if quoted is None and plain is None:
                raise self.fail("a field's name is expected")
            try:
                name = json.loads(quoted[1]) if quoted else plain[1] if plain else ""
            except ValueError as error:  # a control character, or an escape that JSON lacks
                raise self.fail(f"a field's name is no JSON string ({error})") from None
            if not self.take(":"):
                raise self.fail(f"':' is expected after {name!r}")
            fields.append(Field(name, *self.nullable(depth + 1)))
            if self.take(">"):
                return tuple(fields)
            if not self.take(","):
                raise self.fail("',' or '>' is expected")


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
    parser = _Parser(text)
    type_and_nullable = parser.nullable(0)
    if text[parser.at :].strip():
        raise parser.fail(f"{text[parser.at :].strip()!r} is not expected")
    return type_and_nullable
