"""What ends a command from outside: Ctrl-C, SIGTERM (``kill``, ``docker stop``), SIGHUP (the terminal is closed)."""

from __future__ import annotations

import os
import signal
from types import FrameType

_signals: list[int] = []


def listen() -> None:
    """SIGTERM and SIGHUP do what Ctrl-C does, so that Spark is stopped and temporary files are removed.

    One that is ignored (``nohup``) stays so.
    """
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process forked by this one ends as it would without the handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        _signals.append(number)
        asked = signal.getsignal(signal.SIGINT)
        if callable(asked):
            asked(number, frame)
        else:  # Ctrl-C is ignored: started with & by a script
            raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, stop)


def signalled() -> bool:
    """Whether SIGTERM or SIGHUP has come.  It explains later errors: Spark's JVM may have got the signal too."""
    return bool(_signals)


def behind(error: BaseException) -> bool:
    """Whether an error comes of being stopped: of SIGTERM or SIGHUP, or in cleaning up after Ctrl-C."""
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, KeyboardInterrupt):
        chain = chain.__context__
    return signalled() or chain is not None


def exit_code() -> int:
    """As a shell says it: 128 and the number of the signal, 130 for Ctrl-C."""
    return 128 + (_signals[0] if _signals else signal.SIGINT)
