"""One Spark for all tests here, and proof after each that nothing of fastbuf is left in the driver."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import javas
import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benches"))  # for what tests and benches share: Nexmark
STOP_S = 30.0  # that a Spark may take to stop
SETTLE_S = 40.0  # a run whose producers are all done gives their job ten seconds to end by itself


def pytest_configure(config: pytest.Config) -> None:
    # Spark's own warning about pandas 3, and pandas' about how Spark calls it
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:The copy keyword is deprecated")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What an older Spark has not, and the binding refuses by its name, is skipped (``make compat``)."""
    try:
        yield
    except Exception as error:
        from fastbuf_spark.pyspark_private import no_converters

        if (why := no_converters()) and why in str(error):
            pytest.skip(why)  # the refusal is the answer
        raise


class Sessions:
    """Keeps one session alive, and starts another when a test wants another master."""

    def __init__(self) -> None:
        self._session: Any = None

    def get(self, master: str) -> Any:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        context = SparkContext._active_spark_context
        if context is not None and not answers(context):
            self.abandon()
            context = None
        elif context is not None and context.master != master:
            self.stop()
            context = None
        if context is None or self._session is None:
            os.environ["PYSPARK_PYTHON"] = sys.executable
            # Workers import fastbuf and these tests' functions from the tree, installed or not
            path = [str(ROOT / folder) for folder in (".", "bindings", "tests/spark", "tests", "benches")]
            os.environ["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
            self._session = (
                SparkSession.builder.master(master)
                .appName("fastbuf tests")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "OFF")
                .config("spark.driver.memory", "1g")
                .config("spark.executor.extraJavaOptions", javas.OPTIONS)  # of a cluster
                .config("spark.python.daemon.module", "warm_daemon")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.sql.shuffle.partitions", "4")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.deploy.maxExecutorRetries", "-1")  # tests kill executors of a local-cluster
                .getOrCreate()
            )
        return self._session

    def stop(self) -> None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession() or self._session
        if session is not None:
            session.stop()
        self._session = None

    def abandon(self) -> None:
        """Stop a session that has died, or hangs, and end its Java process.

        A context that Spark's scheduler took down may never finish its own stop, and lets no other start beside it.
        """
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        def stop() -> None:
            with contextlib.suppress(Exception):  # what is dead already may say so
                self.stop()

        stopping = threading.Thread(target=stop, daemon=True)
        stopping.start()
        stopping.join(STOP_S)
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.proc.kill()
            gateway.proc.wait()
            with contextlib.suppress(Exception):  # nobody listens any more
                gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = self._session = None


def answers(context: Any) -> bool:
    """Whether a SparkContext is alive: a failure in Spark's scheduler ends it in Java, and Python is not told."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # the Java process is gone
        return False


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    made = Sessions()
    yield made
    made.stop()


@pytest.fixture
def spark(sessions: Sessions) -> Any:
    return sessions.get("local[4]")


@pytest.fixture(scope="session")
def cluster(sessions: Sessions) -> Iterator[Any]:
    """Two executors that may be killed, for all tests that do; whoever asks for another master stops it."""
    from killings import Cluster

    made = Cluster(sessions, "local-cluster[2,2,1024]")
    yield made
    made.close()


@pytest.fixture
def new_york(spark: Any) -> Iterator[Any]:
    """A session whose time zone is not UTC."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def leftovers() -> list[str]:
    """Threads of fastbuf but the rendezvous, which lives as long as the driver; runs that are not over."""
    from fastbuf_spark.driver import rendezvous

    found = [t.name for t in threading.enumerate() if t.name.startswith("fastbuf") and t.name != "fastbuf-rendezvous"]
    for server in rendezvous.servers():
        found += [f"run of '{run.plan.name}' is {run.state}" for run in server.live_runs()]
    return found


def in_the_end(find: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
    """What ``find`` gives, as soon as it fits; its last answer if it never does.

    Spark tells nobody when it has taken a job down, and what workers say to the driver last may come after their rows.
    """
    deadline = time.monotonic() + SETTLE_S
    while not fits(found := find()) and time.monotonic() < deadline:
        time.sleep(0.02)  # between two looks
    return found


def no_run_left() -> None:
    """Waits for the end of all runs."""
    assert in_the_end(leftovers, lambda found: not found) == []


def told(figures: Callable[[Any], Any], wanted: Any) -> Any:
    """The last run, once the driver has been told of it what is ``wanted``."""
    import fastbuf_spark as fbs

    def look() -> Any:
        run = fbs.last_run()
        # Copies: another thread writes them
        return run and dataclasses.replace(run, producers=dict(run.producers), consumers=dict(run.consumers))

    run = in_the_end(look, lambda run: run is not None and figures(run) == wanted)
    assert run is not None
    assert figures(run) == wanted
    return run


def driver() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def driver_since(before: tuple[int, int], files: int, threads: int) -> None:
    """The driver has at most so many more than ``before``, once the threads of the last jobs have ended."""
    after = in_the_end(driver, lambda now: now[0] <= before[0] + files and now[1] <= before[1] + threads)
    assert after[0] <= before[0] + files, f"descriptors of the driver: {before[0]}, then {after[0]}"
    assert after[1] <= before[1] + threads, f"threads of the driver: {before[1]}, then {after[1]}"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    for query in list(getattr(sys.modules.get("fastbuf_spark.streams.query"), "_active", ())):
        query.stop()  # of a test that failed: it would go on beside all others
    no_run_left()


@pytest.fixture
def fail_at(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Has the first process that comes to a point of the protocol killed; gives the file that says it was.

    A point is as in :mod:`fastbuf_spark.streams.fail_points`: ``"after prepare"``, ``"after prepare@sink"``; with
    ``how="stop"`` the process is stopped, and the file has its number.
    """
    from fastbuf_spark.streams import fail_points

    folder = tmp_path / "killed"
    folder.mkdir()

    def ask(point: str, how: str = "") -> Path:
        fail_points.ask(f"{point};{folder}{how and ';' + how}")
        return folder / point.partition("@")[0].replace(" ", "-")

    yield ask
    fail_points.ask("")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Any:
    """The server of a test's ``sink``, if that needs one."""
    needed = {"postgres": "postgres", "kafka": "broker"}.get(request.node.callspec.params["sink"])
    return request.getfixturevalue(needed) if needed else None


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


def frames_in_a_row(words: str) -> int:
    """The most frames of fastbuf's own that stand together in the tracebacks of an error's text."""
    most = run = 0
    for line in words.splitlines():
        if line.lstrip().startswith('File "'):
            run = run + 1 if "/fastbuf_spark/" in line or ("fastbuf/" in line and ".pyx" in line) else 0
            most = max(most, run)
        elif line.startswith("Traceback"):
            run = 0
    return most


def failure(action: Callable[[], Any]) -> str:
    """What an action fails with; empty if it does not."""
    try:
        action()
    except Exception as error:  # Spark's own classes differ by version
        return str(error) or type(error).__name__
    return ""
