"""Threads whose names the kernel has too, so that ``top -H``, ``ps -L``, ``gdb`` and ``py-spy`` show them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

_KERNEL_BYTES = 15  # longest thread name in the kernel; only Python 3.14 and later set it


def start_thread(run: Callable[..., Any], name: str, *arguments: Any) -> threading.Thread:
    """Start a daemon thread with that name; the kernel gets the first 15 bytes of it."""
    thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
    thread.start()
    comm = f"/proc/self/task/{thread.native_id}/comm"
    # OSError: the thread has already ended, or there is no /proc
    with contextlib.suppress(OSError), open(comm, "wb", buffering=0) as file:
        file.write(name.encode()[:_KERNEL_BYTES])
    return thread
