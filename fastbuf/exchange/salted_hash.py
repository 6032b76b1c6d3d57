"""Python's ``hash`` in a selector of the user's: of text it is another number in each process, so that keys would part.

Processes that were forked share it.  Those that were spawned, or started on their own, do not, unless PYTHONHASHSEED is
set.  What a function hashes is seen in a twin of it whose name ``hash`` means another function.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import multiprocessing
import numbers
import os
import warnings
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any

from fastbuf.errors import ConfigError
from fastbuf.exchange.channel_selector import ChannelSelector, custom
from fastbuf.exchange.input_gate import InputGate

LOOKS = 256  #: hashes that are looked at, of the first records
_TEXTS = (str, bytes, datetime.date, datetime.time)  #: and what has one inside
_REMEDY = (
    "is another number in each process, since PYTHONHASHSEED is not set: equal keys of several producers would go to "
    "different consumers. Set PYTHONHASHSEED to one number for all processes, and use "
    "fastbuf.serializers.portable_hash; or hash_by() for rows, or zlib.crc32() of the key's bytes"
)


def watched(selector: ChannelSelector, targets: Sequence[Any]) -> ChannelSelector:
    """The selector; one whose function uses ``hash`` is looked at, if its records go to other processes."""
    func = getattr(selector, "func", None)
    if func is None or len(targets) < 2 or all(isinstance(target, InputGate) for target in targets):
        return selector
    if os.environ.get("PYTHONHASHSEED", "random") != "random" or _start() in ("fork", "forkserver"):
        return selector
    inner = func
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not isinstance(inner, FunctionType):
        inner = getattr(inner, "__func__", None) or getattr(type(inner).__call__, "__func__", type(inner).__call__)
    if not isinstance(inner, FunctionType) or not _names_hash(inner):
        return selector
    if inner is func and not _sets_globals(func.__code__):
        return custom(_Looking(func))
    _warn(f"{selector!r} uses hash(), which of text")
    return selector


class _Looking:
    """The function, whose first hashes are looked at."""

    def __init__(self, func: FunctionType) -> None:
        self._func = func
        self._left = LOOKS
        self.__qualname__ = func.__qualname__

    def __call__(self, record: Any, consumers: int) -> Any:
        func = self._func
        if self._left > 0:
            names = {**func.__globals__, "hash": self._hash}  # as they are now
            twin = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
            twin.__kwdefaults__ = func.__kwdefaults__
            func = twin
        return func(record, consumers)

    def _hash(self, value: Any) -> int:
        self._left -= 1
        what = f"custom({self.__qualname__}) hashes a {type(value).__name__} ({value!r:.80}), whose hash"
        steady = _is_steady(value)
        if steady is False and _start() == "spawn":
            raise ConfigError(f"{what} {_REMEDY}")
        if not steady:
            self._left = 0
            _warn(what)
        return hash(value)


def _is_steady(value: Any) -> bool | None:
    """Whether a value has the same hash in all processes; None: not known."""
    if isinstance(value, tuple | frozenset):
        parts = {_is_steady(part) for part in value}
        return False if False in parts else None if None in parts else True
    return False if isinstance(value, _TEXTS) else True if isinstance(value, numbers.Number) else None


def _start() -> str:
    """How ``multiprocessing`` started this process; empty if it did not."""
    if multiprocessing.parent_process() is None:
        return ""
    own = getattr(type(multiprocessing.current_process()), "_start_method", None)
    return own or multiprocessing.get_start_method(allow_none=True) or ""


def _names_hash(func: FunctionType) -> bool:
    named = func.__globals__.get("hash", builtins.hash) is builtins.hash
    return named and any("hash" in code.co_names for code in _codes(func.__code__))


def _sets_globals(code: CodeType) -> bool:
    import dis

    return any(
        at.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for each in _codes(code) for at in dis.get_instructions(each)
    )


def _codes(code: CodeType) -> list[CodeType]:
    """The function's code, and that of functions and comprehensions inside."""
    return [code, *(each for part in code.co_consts if isinstance(part, CodeType) for each in _codes(part))]


def _warn(what: str) -> None:
    warnings.warn(f"{what} {_REMEDY}", RuntimeWarning, stacklevel=4)
