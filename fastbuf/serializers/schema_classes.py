"""Fields of dataclasses, named tuples, typed dicts and msgspec Structs, from their annotations."""

from __future__ import annotations

import array
import dataclasses
import datetime as dt
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from fastbuf.errors import SchemaError
from fastbuf.serializers.schema_types import DataType, Field, parse_type

#: Annotations that are types on their own; others need ``Annotated[T, "the type's text"]``.
_PLAIN = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "binary",
    bytearray: "binary",
    dt.date: "date32",
    dt.datetime: "timestamp[us]",
    dt.time: "time64[us]",
    dt.timedelta: "duration[us]",
    type(None): "null",
}
#: Classes whose values a type holds, with one such type
_LIKE: tuple[tuple[type, str], ...] = (
    (Decimal, "decimal128(10,2)"),
    (dt.datetime, _PLAIN[dt.datetime]),
    *((base, text) for base, text in _PLAIN.items() if base not in (bool, dt.datetime, type(None))),
    (numbers.Integral, "int64"),
    (numbers.Real, "float64"),
    (memoryview, "binary"),
    (array.array, "list<float64>"),
    (dict, "map<string, int64>"),
    (list, "list<int64>"),
    (tuple, "list<int64>"),
)
_NUMPYS = {"bool": "bool", "ndarray": "list<float64>"}


def fields_from_class(cls: Any) -> list[Field]:
    """Fields of a record class.

    Raises
    ------
    SchemaError
        The class is not supported, or a field's annotation is not a type; the message names the field.
    """
    names = _names(cls)
    if names is None:
        raise SchemaError(f"{cls!r} is not a dataclass, named tuple, TypedDict or msgspec Struct")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise SchemaError(f"the annotations of {cls.__name__} cannot be read: {error}") from error
    missing = [name for name in names if name not in hints]
    if missing:
        raise SchemaError(f"field {missing[0]!r} of {cls.__name__} has no annotation: give its type")
    return [_field(name, hints[name], name, (cls,)) for name in names]


def _names(cls: Any) -> list[str] | None:
    if not isinstance(cls, type):
        return None
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return list(cls._fields)
    if typing.is_typeddict(cls):
        return list(cls.__annotations__)
    if hasattr(cls, "__struct_fields__"):
        return list(cls.__struct_fields__)
    return None


def _field(name: str, hint: Any, path: str, outer: tuple[Any, ...]) -> Field:
    kind, nullable = _type(hint, path, outer)
    return Field(name, kind, nullable)


def _type(hint: Any, path: str, outer: tuple[Any, ...]) -> tuple[DataType, bool]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Required, typing.NotRequired):
        return _type(args[0], path, outer)
    if origin is typing.Annotated:
        return _annotated(args, path, outer)
    if origin in (typing.Union, types.UnionType):
        kinds = [arg for arg in args if arg is not type(None)]
        if len(kinds) == 1 and len(args) == 2:
            return _type(kinds[0], path, outer)[0], True
        raise SchemaError(f"field {path!r} is annotated as {hint}: a field must have one type, or one type or None")
    if hint in _PLAIN:
        return parse_type(_PLAIN[hint])
    if origin in (list, Sequence) and args:
        return DataType("list", children=(_field("item", args[0], f"{path}[]", outer),)), False
    if origin is tuple:
        return _tuple(hint, args, path, outer), False
    if origin in (dict, Mapping) and args:
        children = (_field("key", args[0], f"{path}.key", outer), _field("value", args[1], f"{path}.value", outer))
        return DataType("map", children=children), False
    names = _names(hint)
    if names is not None:
        if hint in outer:
            raise SchemaError(f"field {path!r} is a {hint.__name__} within itself: records cannot contain themselves")
        hints = typing.get_type_hints(hint, include_extras=True)
        inner = (_field(name, hints[name], f"{path}.{name}", (*outer, hint)) for name in names)
        return DataType("struct", children=tuple(inner)), False
    shown = hint.__name__ if isinstance(hint, type) and origin is None else hint
    raise SchemaError(
        f"field {path!r} is annotated as {shown}, which does not determine a type: {_advice(hint, shown)}"
    )


def _advice(hint: Any, shown: Any) -> str:
    """What to write instead of an annotation: a type that holds such values, if there is one."""
    kind = typing.get_origin(hint) or hint
    text: str | None = "int8"  # Any, object, a literal: only the user knows
    if isinstance(kind, type) and kind is not object:
        text = next((text for base, text in _LIKE if issubclass(kind, base)), _NUMPYS.get(kind.__name__))
    if text is not None:
        return f"use Annotated[{shown}, {text!r}] or the like"
    return (
        "fields hold no such values: annotate it as what you put there instead, as str or "
        "Annotated[bytes, 'fixed_size_binary(16)']; or send the records as they are, by a PickledSerializer"
    )


def _annotated(args: tuple[Any, ...], path: str, outer: tuple[Any, ...]) -> tuple[DataType, bool]:
    # The first text counts; other annotations belong to other libraries.
    inner = typing.get_args(args[0])
    optional = typing.get_origin(args[0]) in (typing.Union, types.UnionType) and type(None) in inner
    for annotation in args[1:]:
        if isinstance(annotation, DataType):
            return annotation, optional
        if isinstance(annotation, str):
            try:
                kind, nullable = parse_type(annotation)
            except SchemaError as error:
                raise SchemaError(f"field {path!r}: {error}") from None
            return kind, nullable or optional
    return _type(args[0], path, outer)


def _tuple(hint: Any, args: tuple[Any, ...], path: str, outer: tuple[Any, ...]) -> DataType:
    if len(args) == 2 and args[1] is Ellipsis:
        return DataType("list", children=(_field("item", args[0], f"{path}[]", outer),))
    if args and all(arg == args[0] for arg in args):
        item = _field("item", args[0], f"{path}[]", outer)
        return DataType("fixed_size_list", width=len(args), children=(item,))
    raise SchemaError(f"field {path!r} is annotated as {hint}: its items are not of one type; a struct is a NamedTuple")
