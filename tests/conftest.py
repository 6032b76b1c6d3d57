"""What every test gets: after it, each pool that it made has all its segments home and its accounts in order.

And who may run beside whom when two processes share the tests (``make test``): a file's tests stay together, and what
has a Spark, or many processes and a clock, runs one after another.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest


def _live() -> list:
    module = sys.modules.get("fastbuf.memory.network_buffer_pool")
    return module.live_pools() if module else []


CROWDED = ("tests/spark/", "tests/stress/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByCrowd(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "crowded" if nodeid.startswith(CROWDED) else nodeid.partition("::")[0]

    return ByCrowd(config, log)


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
