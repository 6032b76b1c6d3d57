"""Which pages of an array are there."""

from __future__ import annotations

import os
import resource

import numpy as np


def resident(array: np.ndarray) -> float:
    """How many of its pages are, of 1: page by page, since the process may give back others meanwhile."""
    page = resource.getpagesize()
    first, end = -(-array.ctypes.data // page), (array.ctypes.data + array.nbytes) // page
    with open("/proc/self/pagemap", "rb") as pagemap:
        entries = np.frombuffer(os.pread(pagemap.fileno(), 8 * (end - first), 8 * first), np.uint64)
    assert len(entries) == end - first > 0
    # Bit 63: it is there; bit 62: it was, and is swapped out.
    return float(np.mean(entries >> np.uint64(62) != 0))
