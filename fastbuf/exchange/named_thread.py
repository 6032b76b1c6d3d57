"""Threads whose names the kernel has too, so that ``top -H``, ``ps -L``, ``gdb`` and ``py-spy`` show them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from fastbuf.errors import ResourceError

_KERNEL_BYTES = 15  # longest thread name in the kernel; only Python 3.14 and later set it


def named_thread(run: Callable[..., Any], name: str, *arguments: Any) -> threading.Thread:
    """A daemon thread with that name, to be started; the kernel gets the first 15 bytes of it.

    Its owner has it before it starts, and can end it if an interrupt comes meanwhile.
    """
    return _Thread(target=_run, args=(run, name, *arguments), name=name, daemon=True)


def start_thread(run: Callable[..., Any], name: str, *arguments: Any) -> threading.Thread:
    """Start a daemon thread with that name."""
    thread = named_thread(run, name, *arguments)
    thread.start()
    return thread


class _Thread(threading.Thread):
    def start(self) -> None:
        try:
            super().start()
        except RuntimeError as error:
            raise ResourceError(
                f"thread {self.name!r} cannot be started: {error}; this process has {threading.active_count()} of "
                "Python's: raise ulimit -u, or the most processes that its container may have (pids.max)"
            ) from error


def _run(run: Callable[..., Any], name: str, *arguments: Any) -> None:
    # OSError: there is no /proc
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "wb", buffering=0) as file:
        file.write(name.encode()[:_KERNEL_BYTES])
    run(*arguments)
