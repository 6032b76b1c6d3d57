"""What is shipped to the workers: a function that Spark pickles, with the driver's version in front of it.

A worker of another version may not even have the classes that the pickle names, and one without fastbuf has none of
them.  So the first thing that a worker unpickles is a check that needs nothing of fastbuf: it is pickled by value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from fastbuf import __version__
from fastbuf_spark.wire import VERSION


def named(call: Callable[[Any], Iterable[Any]], name: str) -> Callable[[Any], Any]:
    """A plain function, as ``mapInArrow`` and ``mapPartitions`` want one, that Spark's plans call by this name."""
    shipped = Shipped(call)

    def stage(batches: Iterable[Any]) -> Any:
        return shipped(batches)

    stage.__name__ = stage.__qualname__ = name
    return stage


class Shipped:
    """A function that is pickled behind a check; a worker gets the function itself.

    It is pickled when Spark pickles what holds it, and not before: Spark notes then which broadcast variables it uses.
    """

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def __call__(self, source: Any) -> Any:
        """Call it, where nothing was shipped."""
        return self.call(source)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled from left to right, so the check comes first
        return operator.getitem, ((_Check(), self.call), 1)


class _Check:
    """Becomes what the check of the driver's version gives, where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_value(), (__version__, VERSION)


def _by_value() -> Callable[[str, int], None]:
    """The check; no name leads to it, so it is pickled as its code."""

    def check_version(version: str, control: int) -> None:
        import socket
        import sys

        where = f"{sys.executable} on {socket.gethostname()}"
        what = f"install fastbuf {version} for it, or ship it with the application (spark.archives)"
        try:
            import fastbuf
            from fastbuf_spark import wire
        except ImportError as error:
            raise ImportError(
                f"the driver has fastbuf {version}, this worker ({where}) cannot import it: {error}; {what}"
            ) from None
        found = (fastbuf.__version__, wire.VERSION)
        if found != (version, control):
            raise ImportError(
                f"the driver has fastbuf {version} (control version {control}), this worker ({where}) has {found[0]} "
                f"(control version {found[1]}) in {wire.__file__}: {what}"
            )

    return check_version
