"""Parser for the text of a type; the head of schema.py has the grammar."""

from __future__ import annotations

import json
import re

from fastbuf.errors import SchemaError
from fastbuf.serializers.schema import CHILD_NAMES, DECIMALS, KINDS, MAX_PRECISION, PLAIN, UNITS, DataType, Field

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
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

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
        found = []
        for number, name in enumerate(names):
            if not self.take("," if number else "<"):
                raise self.fail(f"{kind} needs <{', '.join(names)}>")
            found.append(Field(name, *self.nullable(depth + 1)))
        if not self.take(">"):
            raise self.fail("'>' is expected")
        return tuple(found)

    def struct_fields(self, depth: int) -> tuple[Field, ...]:
        found: list[Field] = []
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
            found.append(Field(name, *self.nullable(depth + 1)))
            if self.take(">"):
                return tuple(found)
            if not self.take(","):
                raise self.fail("',' or '>' is expected")


def parse(text: str) -> tuple[DataType, bool]:
    """Type and nullability of a text; SchemaError if it does not match the grammar."""
    parser = _Parser(text)
    found = parser.nullable(0)
    if text[parser.at :].strip():
        raise parser.fail(f"{text[parser.at :].strip()!r} is not expected")
    return found
