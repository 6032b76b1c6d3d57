"""Tracebacks as users see them: of a run of fastbuf's own frames the last one is shown."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import Any

import pyspark

import fastbuf

_SPARK = os.path.dirname(pyspark.__file__) + os.sep
_OURS = tuple(os.path.dirname(path) + os.sep for path in (fastbuf.__file__, __file__))


class Folded:
    """A task's function, whose errors are raised with a folded traceback: Spark shows it to the user.

    Parameters
    ----------
    flat
        Whether ``call`` gives lists of records, of which Spark takes the records: they are flattened without Python
        code for each.
    """

    def __init__(self, call: Callable[[Any], Iterable[Any]], flat: bool = False) -> None:
        self._call = call
        self._flat = flat

    def __call__(self, source: Any) -> Iterator[Any]:
        items = self._items(source)
        return chain.from_iterable(items) if self._flat else items

    def _items(self, source: Any) -> Iterator[Any]:
        with _Folding():  # and not ``except``, which would add a line
            yield from self._call(source)


def error_of_worker(said: str) -> str | None:
    """Python's own words in what Spark says of a failed job: the error first, then its traceback; None: there are none.

    Spark gives a worker's traceback within its own sentence, and the JVM's frames behind it, as
    ``PythonException.getMessage`` and ``Throwable.printStackTrace`` write them.
    """
    _, word, rest = said.partition("PythonException: ")
    begin = rest.find("Traceback (most recent call last):")
    text = re.sub(r"\s*SQLSTATE: \w+\s*\Z", "", rest[begin:].partition("\n\tat org.apache.spark")[0])
    frames, file, after = text.rpartition('\n  File "')
    if not word or begin < 0 or not file:
        return None
    lines = after.splitlines()
    error = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith(" ")), len(lines))
    where = frames + file + "\n".join(lines[:error])
    return "\n".join(lines[error:]) + "\n\n" + where


class _Folding:
    """Folds the traceback of an error that passes, and of its causes; raises one whose text Spark can send."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        fold(error)
        if error is not None:
            _check_text(error)


def _check_text(error: BaseException) -> None:
    """Spark's worker cannot send half of a surrogate pair, and its task would never end."""
    text = "".join(traceback.format_exception(error))
    try:
        text.encode()
    except UnicodeEncodeError:
        sent = text.encode(errors="backslashreplace").decode()
        raise RuntimeError(f"an error whose text has characters that are not Unicode:\n{sent}") from None


def fold(error: BaseException | None) -> None:
    """Fold the tracebacks of an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = folded(error.__traceback__)
        error = error.__cause__ or error.__context__


def folded(frames: TracebackType | None) -> TracebackType | None:
    """The frames, of which each run of fastbuf's own (and of PySpark's that they call) is shortened to its last one."""
    shown: list[TracebackType] = []
    run: list[TracebackType] = []  # the last frame of fastbuf's, and those of PySpark's behind it
    for frame in walk(frames):
        path = frame.tb_frame.f_code.co_filename
        if path.startswith(_OURS) or (path.startswith("fastbuf/") and path.endswith(".pyx")):  # Cython's are relative
            run = [frame]
        elif run and path.startswith(_SPARK):
            run.append(frame)
        else:
            shown += [*run[:1], frame]
            run = []
    return joined([*shown, *run])


def walk(frames: TracebackType | None) -> Iterator[TracebackType]:
    """The frames of a traceback, outermost first."""
    while frames is not None:
        yield frames
        frames = frames.tb_next


def joined(frames: Iterable[TracebackType]) -> TracebackType | None:
    """A traceback of these frames."""
    traceback = None
    for frame in reversed(list(frames)):
        traceback = TracebackType(traceback, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return traceback
