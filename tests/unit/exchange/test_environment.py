"""What an environment is made of."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest

import fastbuf as fb


@pytest.mark.parametrize("shared", [False, True])
def test_prefault_takes_every_page_of_its_segments(shared: bool) -> None:
    """Bit 63 of a page's entry: it is there; bit 62: it was, and is swapped out."""
    page = resource.getpagesize()

    def there(env: fb.ShuffleEnvironment) -> float:
        array = env.pool.arena.array
        first, count = -(-array.ctypes.data // page), 256 * 32768 // page - 1
        with open("/proc/self/pagemap", "rb") as pagemap:
            entries = np.frombuffer(os.pread(pagemap.fileno(), 8 * count, 8 * first), np.uint64)
        assert len(entries) == count
        return float(np.mean(entries >> np.uint64(62) != 0))

    with fb.ShuffleEnvironment(segments=256, shared=shared, prefault=True) as env:
        assert there(env) == 1
        writer, (gate,) = env.exchange(serializer=fb.PickledSerializer())
        writer.emit("it works")
        writer.close()
        assert list(gate) == ["it works"]
        assert env.pool.available == 256
    with fb.ShuffleEnvironment(segments=256, shared=shared) as env:
        assert there(env) < 1  # else the above would tell nothing
