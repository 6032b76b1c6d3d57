"""The driver's and the workers' limits of time under a clock that stands still, as tests' clocks do (freezegun)."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_rendezvous import WAIT_S, Driver, close, driver

import fastbuf_spark
from fastbuf_spark.protocol import Epoch

__all__ = ["driver"]  # a fixture
#: Where a limit of time decides; elsewhere a frozen clock makes figures wrong, and nothing else.
WAITS = ("driver/rendezvous.py", "driver/exchanges.py", "worker/control.py", "worker/consumer.py")


def test_a_run_of_some_partitions_forms_though_the_clock_stands_still(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose other partitions nobody asks for (a limit, cached ones) it is time that tells."""
    still = time.monotonic()
    driver.register(partitions=3)
    came: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: still)
        consumers = driver.consumers(2)
        reader = threading.Thread(target=lambda: came.append(consumers[0].expect(Epoch, timeout=WAIT_S)), daemon=True)
        reader.start()
        reader.join(WAIT_S)
    assert [type(message) for message in came] == [Epoch]
    for each in consumers:
        each.abort("enough")
    close(*consumers)


def test_a_worker_waits_for_its_driver_as_long_as_was_said(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    still = time.monotonic()
    driver.register(partitions=2)
    control = driver.control()
    came: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: still)
        reader = threading.Thread(target=lambda: came.append(control.verdict(0.2)), daemon=True)
        reader.start()
        reader.join(WAIT_S)
    assert came == [None]
    close(control)


def test_no_limit_looks_at_a_clock_that_tests_may_stop() -> None:
    root = Path(fastbuf_spark.__file__).parent
    clocks = re.compile(r"\btime\.(time|monotonic|perf_counter)(_ns)?\(")
    assert [name for name in WAITS if clocks.search((root / name).read_text())] == []
