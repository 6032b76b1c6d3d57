"""Makes functions that Spark can send to the workers, with a check that the worker has the driver's version of fastbuf.

A worker with another version may lack classes that the pickle refers to, and one without fastbuf lacks all of them.  So
the first thing that a worker unpickles is a check that does not need fastbuf: its code is pickled by value.
"""

from __future__ import annotations

import contextlib
import operator
import pickle
import secrets
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from fastbuf import __version__
from fastbuf_spark import pyspark_private
from fastbuf_spark.tracebacks import Folded
from fastbuf_spark.wire import VERSION


def named(call: Callable[[Any], Iterable[Any]], name: str, flat: bool = False) -> Callable[[Any], Any]:
    """A plain function for ``mapInArrow`` or ``mapPartitions``, shown under this name in Spark's plans.

    ``flat``: ``call`` gives lists of records, for ``mapPartitions``.
    """
    shipped = Shipped(Folded(call, flat))

    def stage(batches: Iterable[Any]) -> Any:
        from fastbuf_spark.worker.logs import name_the_users_function
        from fastbuf_spark.worker.task_input import TaskInput

        TaskInput.of_task().hurry()  # before the first byte of the input is read
        name_the_users_function()
        return shipped(batches)

    stage.__name__ = stage.__qualname__ = name
    return stage


class Shipped:
    """A function that is pickled after a version check; unpickling gives the function itself.

    It is pickled only when Spark pickles the object that contains it, since Spark then records its broadcast variables.
    """

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def __call__(self, source: Any) -> Any:
        """Call the function in the driver's process."""
        return self.call(source)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled from left to right, so the check comes first
        return operator.getitem, ((_Check(), self.call), 1)


#: Most bytes of a pickle that is kept in the driver's memory: an exchange may live as long as Spark
IN_MEMORY = 64 << 10


class AsItIs:
    """An object as it is now, whatever its variables are later; unpickling gives the object itself.

    Spark's own verbs pickle their functions when they are called, but a pipeline's are shipped when it is built, and
    producers in each action.  ``sc``: None for Spark Connect, which has no broadcast variables.
    """

    def __init__(self, sc: Any, what: Any) -> None:
        self._pickled = pyspark_private.pickled(what)
        self._file: Path | None = None
        self._broadcasts: list[Any] = []
        if sc is not None:
            self._broadcasts = pyspark_private.take_broadcasts(sc)
            if len(self._pickled) > IN_MEMORY:
                self._move(Path(pyspark_private.own_directory(sc)))

    def _move(self, folder: Path) -> None:
        """Keep the pickle in a file, which Spark removes with its own."""
        path = folder / f"fastbuf-{sha256(self._pickled).hexdigest()}"
        with contextlib.suppress(OSError):  # the disk is full: in memory then
            if not path.exists():
                draft = path.with_suffix(f".{secrets.token_hex(4)}")
                draft.write_bytes(self._pickled)
                draft.rename(path)
            self._pickled, self._file = b"", path

    def __reduce__(self) -> tuple[Any, ...]:
        for broadcast in self._broadcasts:
            broadcast.__reduce__()  # Spark records it for the function that is pickled now
        return pickle.loads, (self._pickled if self._file is None else self._file.read_bytes(),)


class _Check:
    """Unpickling it runs the version check."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_value(), (__version__, VERSION)


def _by_value() -> Callable[[str, int], None]:
    """The check; as a local function it is pickled by value."""

    def check_version(version: str, control: int) -> None:
        import socket
        import sys

        where = f"{sys.executable} on {socket.gethostname()}"
        what = (
            f"set PYSPARK_PYTHON to a Python that has fastbuf {version}, install it for this one, or ship it with the "
            "application (spark.archives)"
        )
        try:
            import fastbuf
            from fastbuf_spark import wire
        except ImportError as error:
            raise ImportError(
                f"the driver has fastbuf {version}, this worker ({where}) cannot import it: {error}; {what}"
            ) from None
        versions = (fastbuf.__version__, wire.VERSION)
        if versions != (version, control):
            raise ImportError(
                f"the driver has fastbuf {version} (control version {control}), this worker ({where}) has "
                f"{versions[0]} (control version {versions[1]}) in {wire.__file__}: {what}"
            )
        from fastbuf_spark.worker import garbage

        garbage.leave_out_modules()

    return check_version
