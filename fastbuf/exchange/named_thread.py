"""Threads whose names the kernel knows too: ``top -H``, ``ps -L``, ``gdb`` and ``py-spy`` show them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

_KERNEL_BYTES = 15  # of a thread's name; Python hands its own on from 3.14 only


def start_thread(run: Callable[..., Any], name: str, *arguments: Any) -> threading.Thread:
    """Start a daemon thread of that name; what the kernel has no room for is cut off."""
    thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
    thread.start()
    comm = f"/proc/self/task/{thread.native_id}/comm"
    # An error: it has ended already, or there is no /proc
    with contextlib.suppress(OSError), open(comm, "wb", buffering=0) as file:
        file.write(name.encode()[:_KERNEL_BYTES])
    return thread
