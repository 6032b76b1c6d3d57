"""The clock of limits of time: one that does not stand still where a test stops Python's (freezegun, time-machine)."""

from fastbuf._native.atomics cimport fb_now_ns


def monotonic():
    """As ``time.monotonic``, of the system's clock."""
    return fb_now_ns() * 1e-9
