"""What a piece of code leaves in its process: descriptors and threads that were not there before.

Only what is new counts. A process that runs the tests has threads of others too (a Spark's gateway, an executor of an
event loop), and one of these may end at any time: counts that are to be equal would call that a fault of the code.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

import psutil

SETTLE_S = 20.0  # the kernel lists a thread for a moment after it was joined; a lingering connection ends by itself

Held = Counter[str]


def held() -> Held:
    """What each descriptor of this process refers to, and its threads."""
    found: Held = Counter(f"thread {tid}" for tid in os.listdir("/proc/self/task"))
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


def new_since(before: Held) -> Held:
    """What is held now and was not then, once what ends by itself has had the time to."""
    end = time.monotonic() + SETTLE_S
    while (new := held() - before) and (new := new - of_spark()) and time.monotonic() < end:
        time.sleep(0.005)  # another thread, or the kernel, is about to do it
    return new


def of_spark() -> Held:
    """Connections to the gateway of a Spark that other tests keep in this process: it opens some when it likes."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    gateway = getattr(context, "_gateway", None)
    sockets: Held = Counter()
    if gateway is not None:
        port = gateway.gateway_parameters.port
        for each in psutil.Process().net_connections("tcp"):
            if each.raddr and port in (each.raddr.port, each.laddr.port):
                with contextlib.suppress(OSError):  # it has ended
                    sockets[os.readlink(f"/proc/self/fd/{each.fd}")] += 1
    return sockets


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """What runs within leaves no descriptor open and no thread alive."""
    before = held()
    yield
    new = new_since(before)
    assert not new, f"left behind: {dict(new)}"
