"""What every test gets: after it, each pool that it made has all its segments home and its accounts in order.

And who may run beside whom when processes share the tests (``make test``): a file's tests stay together, but for the
models', which need nobody; what kills, measures, or has many processes and a clock runs one after another, so that no
two of these meet.  What takes long comes first, and whoever is done takes the next file, so that all end at about the
same time.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import javas
import native
import pytest
from nights import LONG, left_for_the_night
from real_parts import broker, postgres  # noqa: F401 -- fixtures

os.environ.setdefault("SPARK_SUBMIT_OPTS", javas.OPTIONS)

# How long an example takes says more of what else the machine does than of the code.
# Fewer examples where each takes ten times as long (.ci/sanitize).
EXAMPLES = int(os.environ.get("FASTBUF_EXAMPLES", 100))
hypothesis.settings.register_profile("without a clock", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("without a clock")

SETTLE_S = 20.0  # a thread that has been told to end may be about to do it


def _live() -> list:
    module = sys.modules.get("fastbuf.memory.network_buffer_pool")
    return module.live_pools() if module else []


#: What kills, measures, or has many processes and a clock
CLOCKED = (
    "tests/stress/",
    "tests/faults/",
    *(
        f"tests/spark/test_{name}.py"
        for name in (
            *("chaos", "cluster_hosts", "clusters", "endurance", "failures", "groups_memory", "kills", "kills_files"),
            *("memory_bound", "pipelines", "progress", "retries", "session_growth", "spilled_files", "streams_chaos"),
            *("ui", "unreached"),
        )
    ),
)
LONG_FIRST = (
    CLOCKED,
    "tests/spark/",
    "tests/system/test_wheel.py",
    "tests/system/",
    "tests/models/",
    "tests/property/",
    "",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(CLOCKED):
                return "clocked"
            return nodeid if nodeid.startswith("tests/models/") else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # the order is that of the collection
    return ByFile(config, log)


def pytest_report_header() -> str:
    if LONG:
        return "with what is nightly"
    checked = "; without models and stress: native code is as it was when `make checked` passed" if native.LEFT else ""
    return f"without what is nightly (tests/nights.py): FASTBUF_LONG=1 runs it too{checked}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not LONG and (left := left_for_the_night(items)):
        config.hook.pytest_deselected(items=left)
        gone = {id(item) for item in left}
        items[:] = [item for item in items if id(item) not in gone]
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: next(k for k, begin in enumerate(LONG_FIRST) if item.nodeid.startswith(begin)))


@pytest.fixture(autouse=True)
def pools_home() -> Iterator[None]:
    """Every segment came home: of each pool that was made during the test, and still exists after it."""
    before = {id(pool) for pool in _live()}
    yield
    if any(pool.stats().in_use for pool in _live() if id(pool) not in before):
        gc.collect()  # what a failed frame or a cycle still holds is not lost
        end = time.monotonic() + SETTLE_S
        while any(pool.stats().in_use for pool in _live() if id(pool) not in before) and time.monotonic() < end:
            time.sleep(0.005)  # between two looks: who recycles the last of them tells nobody
    for pool in _live():
        if id(pool) not in before:
            assert pool.stats().in_use == 0, f"segments did not come home: {pool!r}"
            pool.audit()
