"""Messages as dataclasses: each is defined once for both ends of a connection, and is read and checked here.

The messages of one end derive from a class of that end, made with ``speaker``.  Each is sent as a frame of JSON
(:mod:`fastbuf.json_frames`) with its ``op``, which is the class' name, and its fields.  :mod:`fastbuf_spark.protocol`
has those of Spark's workers and driver.
"""

from __future__ import annotations

import binascii
import re
import sys
import types
from array import array
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from fastbuf import json_frames
from fastbuf.errors import ProtocolError


class Message:
    """A frozen dataclass of fields that JSON can say.

    ``bool``, ``int``, ``float``, ``str``, ``Literal``, ``tuple``, ``dict`` with keys of ``str`` or ``int``; ``Any``;
    and each of these ``| None``.  ``tuple[int, ...]`` and ``dict[int, int]``, which may have an item for each of 10,000
    tasks, are sent as :func:`packed` texts.
    """

    speaker: ClassVar[str]
    kinds: ClassVar[dict[str, type[Message]]]  #: all messages of the speaker, by ``op``
    op: ClassVar[str]

    def __init_subclass__(cls, speaker: str = "") -> None:
        super().__init_subclass__()
        if speaker:
            cls.speaker, cls.kinds = speaker, {}
        else:
            cls.op = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.kinds[cls.op] = cls

    @classmethod
    def answers(cls) -> tuple[type[Message], ...]:
        """The messages that answer this one: the class names them in its base's brackets."""
        (kind,) = get_args(cls.__dict__["__orig_bases__"][0]) if "__orig_bases__" in cls.__dict__ else (None,)
        return tuple(each for each in get_args(kind) or (kind,) if each not in (None, types.NoneType))

    def encode(self) -> bytes:
        """The message as a frame; a field that has its default is left out."""
        usual = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}  # type: ignore[arg-type]
        values = {name: value for name, (value, default) in usual.items() if value != default}
        kind: Any = type(self)
        for name in _numbers(kind) & values.keys():
            value = values[name]
            parts = (value, value.values()) if isinstance(value, dict) else (value,)
            values[name] = " ".join(map(packed, parts))
        return json_frames.pack({"op": self.op} | values)

    @classmethod
    def decode(cls, data: Any) -> Self:
        """The message in `data`, an object of JSON; unknown fields are ignored.

        Raises
        ------
        ProtocolError
            It is no message of this end, or a field is missing or of another type.
        """
        op = data.get("op") if isinstance(data, dict) else None
        kind: Any = cls.kinds.get(op) if isinstance(op, str) else None
        if kind is None:
            raise ProtocolError(f"{cls.speaker} said {op!r}: it is one of {', '.join(cls.kinds)}")
        values = {}
        for name, (read, needed) in _readers(kind).items():
            try:
                if name in data:
                    values[name] = read(data[name])
                elif needed:
                    raise ValueError("it is missing")
            except (ValueError, OverflowError) as error:
                raise ProtocolError(f"{cls.speaker} said {op!r} with a wrong {name!r}: {error}") from None
        message: Self = kind(**values)
        return message


def compact(numbers: Iterable[int]) -> array[int]:
    """Whole numbers of at most 64 bits, each in as few bytes as the largest of them needs."""
    values = numbers if isinstance(numbers, tuple | array) else tuple(numbers)
    for code in "bhiq":
        try:
            return array(code, values)
        except OverflowError:
            continue
    return array("Q", values)


def packed(numbers: Iterable[int]) -> str:
    """The letter of their type, as Python's ``array`` has it, and their bytes, little-endian, in base64."""
    column = compact(numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.typecode + binascii.b2a_base64(column, newline=False).decode()


def _unpacked(text: str) -> array[int]:
    if not text or text[0] not in "bhiqQ":
        raise ValueError(f"{text!r:.80} are no packed numbers")
    column = array(text[0], binascii.a2b_base64(text[1:], strict_mode=True))
    if sys.byteorder == "big":
        column.byteswap()
    return column


@cache
def _numbers(kind: Any) -> frozenset[str]:
    """The fields of a message that are sent packed."""
    types_of = get_type_hints(kind)
    return frozenset(each.name for each in fields(kind) if types_of[each.name] in (tuple[int, ...], dict[int, int]))


M = TypeVar("M", bound=Message)


class Unpacker(json_frames.Unpacker, Generic[M]):
    """Bytes in, messages of one end out."""

    def __init__(self, end: type[M]) -> None:
        super().__init__()
        self._end = end

    def next(self) -> M | None:
        """The next whole message, or None.

        Raises
        ------
        ProtocolError
            A frame that is too long, or that is no message.
        """
        data = super().next()
        return None if data is None else self._end.decode(data)


@cache
def _readers(kind: Any) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """For each field of a message what checks it, and whether it must be there."""
    types_of, packed_ones = get_type_hints(kind), _numbers(kind)
    return {
        each.name: (
            (_packed_reader if each.name in packed_ones else _reader)(types_of[each.name]),
            each.default is MISSING and each.default_factory is MISSING,
        )
        for each in fields(kind)
    }


def _packed_reader(kind: Any) -> Callable[[Any], Any]:
    """The same of a type that is sent packed."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.80} are no packed numbers")
        if kind == tuple[int, ...]:
            return tuple(_unpacked(value))
        keys, _, values = value.partition(" ")
        return dict(zip(_unpacked(keys), _unpacked(values), strict=True))

    return read


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Makes a value of this type of a value of JSON, or raises ValueError."""
    origin, inner = get_origin(kind), get_args(kind)

    def refuse(value: Any) -> Any:
        name = getattr(kind, "__name__", "") if origin is None else ""
        raise ValueError(f"{value!r:.80} is no {name or kind}")

    if kind is Any or kind == dict[str, Any]:
        return lambda value: value if kind is Any or isinstance(value, dict) else refuse(value)
    if origin is Literal:
        return lambda value: value if value in inner else refuse(value)
    if origin in (Union, types.UnionType):
        (some,) = (_reader(each) for each in inner if each is not types.NoneType)
        return lambda value: None if value is None else some(value)
    if origin is dict:
        key, item = (int if inner[0] is int else str), _reader(inner[1])
        return lambda value: {key(k): item(v) for k, v in value.items()} if isinstance(value, dict) else refuse(value)
    if origin is tuple and inner[1:] == (...,):
        each = _reader(inner[0])
        return lambda value: tuple(map(each, value)) if isinstance(value, list) else refuse(value)
    if origin is tuple:
        readers = [_reader(each) for each in inner]

        def read(value: Any) -> Any:
            if not isinstance(value, list) or len(value) != len(readers):
                refuse(value)
            return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

        return read
    accepted = (int, float) if kind is float else (kind,)
    return lambda value: kind(value) if type(value) in accepted else refuse(value)
