"""The I/O thread, while guests do its work, looks now and then and sleeps in between."""

from __future__ import annotations

import pytest

from fastbuf.transports._testing import parks_for_ns

LOOKS_NS = 4_000_000  #: then it looks whether guests still do


@pytest.mark.parametrize(
    ("timeout_ms", "ns"),
    [
        (0, 0),
        (1, 1_000_000),
        (3, 3_000_000),
        (4, LOOKS_NS),
        (2_147, LOOKS_NS),
        (2_148, LOOKS_NS),  # more nanoseconds than 31 bits hold: negative, it never slept
        (4_295, LOOKS_NS),
        (10_000, LOOKS_NS),  # a PING's interval
        (3_600_000, LOOKS_NS),
        (-1, LOOKS_NS),
    ],
)
def test_it_sleeps_however_far_the_clocks_next_work_is(timeout_ms: int, ns: int) -> None:
    assert parks_for_ns(timeout_ms) == ns
