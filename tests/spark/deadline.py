"""Spark actions that may hang: given up at a deadline, so that they are a failure and not a suite that stands still."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any

GRACE_S = 10.0  # that an action may take to end once its jobs are cancelled


class GivenUp(AssertionError):
    """An action was not done at its deadline; its session is not to be used again."""


def within(spark: Any, seconds: float, call: Callable[[], Any]) -> Any:
    """What ``call`` gives, or raises; it runs in a thread of its own, and its jobs are cancelled after ``seconds``.

    A thread that waits for Spark cannot be ended from outside: it is left behind if the cancelling does not end it.
    """
    from pyspark import InheritableThread

    sc, group = spark.sparkContext, secrets.token_hex(8)
    given: list[Any] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            sc.setJobGroup(group, "an action with a deadline")
            given.append(call())
        except BaseException as error:
            raised.append(error)

    def cancel() -> None:
        with contextlib.suppress(Exception):  # a Spark that is down has nothing to cancel
            sc.cancelJobGroup(group)
            thread.join()

    # Spark's own thread class: the local properties of jobs, the group among them, are its own
    thread = InheritableThread(target=work, name="action with a deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        cancelling = threading.Thread(target=cancel, daemon=True)  # it asks Spark too, which may not answer
        cancelling.start()
        cancelling.join(GRACE_S)
        after = (
            "still not when its jobs had been cancelled" if thread.is_alive() else "only when its jobs were cancelled"
        )
        said = f": {raised[0]}" if raised else ""
        raise GivenUp(f"not done after {seconds:.0f} s, {after}{said}")
    if raised:
        raise raised[0]
    return given[0]
