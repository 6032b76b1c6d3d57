"""What every test gets: after it, each pool that it made has all its segments home and its accounts in order."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest


def _live() -> list:
    module = sys.modules.get("fastbuf.memory.network_buffer_pool")
    return module.live_pools() if module else []


@pytest.fixture(autouse=True)
def pools_home() -> Iterator[None]:
    """Every segment came home: of each pool that was made during the test, and still exists after it."""
    before = {id(pool) for pool in _live()}
    yield
    if any(pool.stats().in_use for pool in _live() if id(pool) not in before):
        gc.collect()  # what a failed frame or a cycle still holds is not lost
    for pool in _live():
        if id(pool) not in before:
            assert pool.stats().in_use == 0, f"segments did not come home: {pool!r}"
            pool.audit()
