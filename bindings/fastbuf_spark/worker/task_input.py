"""Whether Spark gave a task all of its input.

Spark hangs up when it kills a task, or when nobody wants more of what the task gives.  Between two batches that reads
like the end: Arrow's streams and PySpark's pickles both take the end of a connection for the end of the data.  In
Spark's own stages this does no harm, for such a task's output is thrown away; what a producer has sent is in use by
then.  But after the end of the data Spark always writes one more mark, so an end without it is none.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from fastbuf.errors import FastbufError

LOOK_S = 0.5  #: between two looks whether anybody still waits for a task that waits itself


class InputLost(FastbufError, ConnectionError):
    """Spark hung up before the end of the task's input."""

    def __init__(self) -> None:
        super().__init__(
            "Spark closed the input of this task before its end: the task was killed, or what reads it needs no more"
        )


class TaskInput:
    """The stream that Spark feeds the running task by.

    Parameters
    ----------
    stream
        Buffered, with ``peek``; None, where it cannot be found: then every end is taken for one.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._looked = 0.0

    @classmethod
    def of_task(cls) -> TaskInput:
        """That of the task whose code calls this.

        PySpark shows it to nobody: it is an argument of the function that runs the worker.
        """
        frame: Any = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if code.co_name == "main" and "infile" in code.co_varnames[: code.co_argcount]:
                stream = frame.f_locals["infile"]
                return cls(stream if hasattr(stream, "peek") else None)
            frame = frame.f_back
        return cls(None)

    @property
    def found(self) -> bool:
        """Whether there is a stream to look at."""
        return self._stream is not None

    def hurry(self) -> None:
        """Have the kernel acknowledge at once what Spark has written: else Spark keeps back a few bytes for 40 ms.

        (Spark leaves Nagle's algorithm on: it sends no second small piece before the first is acknowledged.)
        """
        if self._stream is None:
            return
        with (
            contextlib.suppress(AttributeError, OSError),  # of no descriptor, or no TCP socket
            socket.socket(fileno=os.dup(self._stream.fileno())) as sock,
        ):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def whole(self, source: Iterable[Any]) -> Iterator[Any]:
        """The items of ``source``, which reads this stream; costs nothing for each of them.

        Raises
        ------
        InputLost
            After the last item, if that was not all.
        """
        return chain(source, self._end())

    def _end(self) -> Iterator[Any]:
        # The mark is written together with the end of the data, so this does not wait
        if not self._left():
            raise InputLost
        return
        yield

    def check(self) -> None:
        """To be called when the task wants no more of its input, for a function may have caught what ``whole`` raised.

        Raises
        ------
        InputLost
            The stream has been read to its end, and that was not the end of the data.
        """
        if self.hung_up and not self._left():
            raise InputLost

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Around what reads all that the task wants.

        Raises
        ------
        InputLost
            As :meth:`check`, and instead of whatever else went wrong after Spark had hung up.
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
        """Whether Spark has closed the stream; what it wrote before may still be there to read."""
        try:
            poll = select.poll()
            poll.register(self._stream.fileno(), select.POLLRDHUP)
            return bool(poll.poll(0))
        except (AttributeError, OSError):  # no stream, or none with a descriptor
            return False

    def wanted(self, made: Iterable[Any]) -> Iterator[Any]:
        """What is made, as long as Spark reads it.

        When nobody wants more of a task's rows (a limit is satisfied) Spark closes the connection of its worker, which
        ends with the traceback of a broken pipe: its user need not see that.
        """
        shown = traceback.print_exc

        def show(*arguments: Any, **more: Any) -> None:
            if not (isinstance(sys.exc_info()[1], ConnectionError) and self.hung_up):
                shown(*arguments, **more)

        traceback.print_exc = show
        for item in made:
            if self.hung_up:
                break
            yield item
        if not self.hung_up:
            traceback.print_exc = shown

    def look(self) -> None:
        """To be called now and then by a task that waits for others; it looks twice a second at most.

        Raises
        ------
        InputLost
            Spark has hung up: nobody waits for this task any more.
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


class Given:
    """What a user's function is given, which may catch what that raises; its task fails all the same."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def items(self, source: Iterable[Any]) -> Iterator[Any]:
        """Those of ``source``."""
        try:
            yield from source
        except Exception as error:
            self._error = error
            raise

    def check(self) -> None:
        """To be called when the function has ended: raises what ``items`` has raised, if anything."""
        if self._error is not None:
            raise self._error
