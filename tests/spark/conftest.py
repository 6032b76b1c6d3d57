"""One Spark for all tests here, and proof after each that nothing of fastbuf is left in the driver."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTLE_S = 10.0


def pytest_configure(config: pytest.Config) -> None:
    # Spark's own warning about pandas 3; nothing here uses pandas
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


class Sessions:
    """Keeps one session alive, and starts another when a test wants another master."""

    def __init__(self) -> None:
        self._session: Any = None

    def get(self, master: str) -> Any:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        context = SparkContext._active_spark_context
        if context is not None and context.master != master:
            self.stop()
            context = None
        if context is None or self._session is None:
            os.environ["PYSPARK_PYTHON"] = sys.executable
            # Workers import fastbuf and these tests' functions from the tree, installed or not
            path = [str(ROOT), str(ROOT / "bindings"), str(ROOT / "tests" / "spark")]
            os.environ["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
            self._session = (
                SparkSession.builder.master(master)
                .appName("fastbuf tests")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "OFF")
                .config("spark.driver.memory", "1g")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.sql.shuffle.partitions", "4")
                .config("spark.sql.session.timeZone", "UTC")
                .getOrCreate()
            )
        return self._session

    def stop(self) -> None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession() or self._session
        if session is not None:
            session.stop()
        self._session = None


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    made = Sessions()
    yield made
    made.stop()


@pytest.fixture
def spark(sessions: Sessions) -> Any:
    return sessions.get("local[4]")


def leftovers() -> list[str]:
    """Threads of fastbuf but the rendezvous, which lives as long as the driver; runs that are not over."""
    from fastbuf_spark import rendezvous

    found = [t.name for t in threading.enumerate() if t.name.startswith("fastbuf") and t.name != "fastbuf-rendezvous"]
    for server in rendezvous.servers():
        found += [f"run of '{run.plan.name}' is {run.state}" for run in server.live_runs()]
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + SETTLE_S
    while leftovers() and time.monotonic() < deadline:
        time.sleep(0.05)  # Spark tells nobody when it has taken a cancelled job down
    assert leftovers() == []


@pytest.fixture
def placed() -> Callable[[Any], pa.Table]:
    """Rows of a DataFrame with the partition each is in, in an order of their own."""

    def collect(df: Any) -> pa.Table:
        from pyspark.sql import functions as F

        table = df.select(F.spark_partition_id().alias("__pid"), "*").toArrow()
        keys = [(f.name, "ascending") for f in table.schema if not pa.types.is_nested(f.type)]
        return table.sort_by(keys).combine_chunks()

    return collect


def in_time(seconds: float, call: Callable[[], Any]) -> Any:
    """What ``call`` gives, or raises, and it must do so within ``seconds``."""
    begin = time.monotonic()
    try:
        return call()
    finally:
        took = time.monotonic() - begin
        assert took < seconds, f"took {took:.1f} s"
