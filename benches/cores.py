"""Two threads, each on a core of its own.

A new thread begins on the core of the one that started it, and is moved some milliseconds later: half of the time that
these benches measure.  So both are put where they stay, ours and (in ``peers/pools.cpp``) the peers' alike.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_core(number: int) -> Iterator[None]:
    """The calling thread is on the first core that it may use (0), or on the second (1); on any, where there is one."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        yield
        return
    os.sched_setaffinity(0, {sorted(allowed)[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def side_by_side(here: Callable[[], Any], there: Callable[[], Any]) -> None:
    """Run ``here`` in this thread on the first core, and ``there`` in a new one on the second."""
    errors: list[BaseException] = []

    def other(allowed: set[int]) -> None:
        os.sched_setaffinity(0, allowed)  # not what it inherits
        try:
            with on_core(1):
                there()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=other, args=(os.sched_getaffinity(0),))
    with on_core(0):
        thread.start()
        here()
        thread.join()
    if errors:
        raise errors[0]
