"""A gate's segments without a gate."""

from __future__ import annotations

from fastbuf.flow._testing import block_all_used
from fastbuf.memory import NetworkBufferPool


def test_a_blocked_channel_gives_back_no_segment_that_its_sender_has_used() -> None:
    """A sender without credit uses segments before it is told of them; they were given back a second time."""
    with NetworkBufferPool(8, 1024) as pool:
        local = pool.create_local_pool(1, 8)
        assert block_all_used(pool, local, 8) == (0, 0)
        assert pool.stats().in_use == 0
        local.destroy()
        pool.audit()
