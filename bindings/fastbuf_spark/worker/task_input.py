"""Checks whether Spark gave a task its whole input.

Spark closes the connection when it kills a task, or when it needs no more of the task's output.  Between two batches
that looks like the end of the input: Arrow's streams and PySpark's pickles both treat EOF as the end.  In Spark's own
stages this is harmless, since the output of such a task is discarded; but a producer's data is already in use.  After
the real end Spark always writes one more mark, so an end without the mark is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from fastbuf.errors import FastbufError
from fastbuf_spark import pyspark_private

SIOCOUTQNSD = 0x894B  #: of Linux (include/uapi/linux/sockios.h): bytes that TCP has not sent yet
LOOK_S = 0.5  #: interval to check whether Spark still needs a task that is waiting


def task_context() -> Any:
    """Of the task that calls this."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a Spark task"
    return context


class InputLost(FastbufError, ConnectionError):
    """Spark closed the connection before the end of the task's input."""

    def __init__(self) -> None:
        super().__init__(
            "Spark closed the input of this task before its end: the task was killed, or what reads it needs no more"
        )


class TaskInput:
    """The stream by which Spark feeds the running task.

    Parameters
    ----------
    stream
        Buffered, with ``peek``; None if it cannot be found: then every end counts as the real one.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._looked = 0.0

    @classmethod
    def of_task(cls) -> TaskInput:
        """The stream of the task that calls this."""
        return cls(pyspark_private.task_stream())

    @property
    def has_stream(self) -> bool:
        """Whether the stream was found."""
        return self._stream is not None

    def hurry(self) -> None:
        """Have the kernel acknowledge Spark's data at once: otherwise Spark holds back a few bytes for 40 ms.

        (Spark uses Nagle's algorithm: it sends no second small piece before the first is acknowledged.)
        """
        if self._stream is None:
            return
        with (
            contextlib.suppress(AttributeError, OSError),  # no descriptor, or no TCP socket
            socket.socket(fileno=os.dup(self._stream.fileno())) as sock,
        ):
            # If a user's function has set a default timeout, this socket does not block, and nor does Spark's stream,
            # whose descriptor shares that flag
            sock.setblocking(True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def whole(self, source: Iterable[Any]) -> Iterator[Any]:
        """The items of ``source``, which reads this stream; adds no cost per item.

        Raises
        ------
        InputLost
            Raised after the last item if the input is not complete.
        """
        return chain(source, self._end())

    def _end(self) -> Iterator[Any]:
        # Spark writes the mark together with the end of the data, so this does not wait
        if not self._left():
            raise InputLost
        return
        yield

    def check(self) -> None:
        """Call it when the task needs no more input, since a user function may have caught the error of ``whole``.

        Raises
        ------
        InputLost
            The stream ended before the end of the data.
        """
        if self.hung_up and not self._left():
            raise InputLost

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Context in which the task reads its whole input.

        Raises
        ------
        InputLost
            As for :meth:`check`; also raised instead of any other error that followed the closed connection.
        """
        try:
            yield
            self.check()
        except Exception as error:
            if self.hung_up and not isinstance(error, InputLost):
                raise InputLost from error
            raise

    @property
    def hung_up(self) -> bool:
        """Whether Spark has closed the stream; data written before may still be unread."""
        try:
            poll = select.poll()
            poll.register(self._stream.fileno(), select.POLLRDHUP)
            return bool(poll.poll(0))
        except (AttributeError, OSError):  # no stream, or one without descriptor
            return False

    @property
    def unread(self) -> bool:
        """Whether the kernel has output of this task for which Spark has no room; False where that is not known."""
        left = bytearray(4)
        try:
            fcntl.ioctl(self._stream.fileno(), SIOCOUTQNSD, left)
        except (AttributeError, OSError, ValueError):  # no stream, no TCP socket, or closed
            return False
        return any(left)

    def wanted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, as long as Spark reads them.

        When no more of a task's rows are needed (a limit is satisfied), Spark closes the worker's connection, and the
        worker would end with the traceback of a broken pipe: this hides it from the user.
        """
        restore = pyspark_private.hide_tracebacks(lambda error: isinstance(error, ConnectionError) and self.hung_up)
        for item in items:
            if self.hung_up:
                break
            yield item
        if not self.hung_up:
            restore()

    def look(self) -> None:
        """Call it repeatedly in a task that waits for others; it checks at most twice a second.

        Raises
        ------
        InputLost
            Spark has closed the connection: the task is no longer needed.
        """
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if self.hung_up:
                raise InputLost

    def _left(self) -> bool:
        try:
            return self._stream is None or bool(self._stream.peek(1))
        except OSError:
            return False


class InputGuard:
    """The input of a user's function, which may catch errors of its input; the task must fail all the same.

    Attributes
    ----------
    error
        The error of the input, if it had one.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def items(self, source: Iterable[Any]) -> Iterator[Any]:
        """The items of ``source``."""
        try:
            yield from source
        except GeneratorExit:  # the function has read enough
            raise
        except BaseException as error:  # SystemExit too
            self.error = error
            raise

    def check(self) -> None:
        """Call it when the function has ended: raises the error that ``items`` raised, if any."""
        if self.error is not None:
            raise self.error
