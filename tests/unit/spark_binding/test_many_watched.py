"""A thousand tasks tell Spark's driver what they do: what that uses of its CPU and memory, with the page open."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import monitored
import pytest
from nights import nightly
from test_rendezvous import Driver, close, driver, eventually

from fastbuf.monitor import Recorder
from fastbuf_spark.driver import page, rendezvous
from fastbuf_spark.protocol import Go, ProducerFailed, Watch

__all__ = ["driver"]  # a fixture
EACH = 500  #: producers, and as many consumers
SECONDS = 6
LONG_S = 300.0  #: for each of its waits, which end by an event: a busy machine takes minutes for a thousand handshakes
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def files() -> Iterator[None]:
    """Enough descriptors for both ends of a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"a process may have {hard} descriptors here: 4,096 are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cpu_s(name: str) -> float:
    """Of the thread of that name, as the kernel knows it."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().strip() == name]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def producer(number: int, second: int) -> dict[str, Any]:
    waited = {"7": 0.7 * second, **{str((number + k) % EACH): 0.02 * second for k in range(1, 8)}}
    figures = monitored.producer(0.0, 7)
    return {**figures, "seconds": {"credit": 0.8 * second, "user": 0.2 * second}, "blocked": waited, "state": "credit"}


def consumer(number: int, second: int) -> dict[str, Any]:
    busy = 0.95 if number == 7 else 0.1
    seconds = {"input": (1 - busy) * second, "user": busy * second}
    return {**monitored.consumer(0.0), "seconds": seconds, "records": 900 * second}


@nightly
@pytest.mark.usefixtures("files")
def test_a_thousand_tasks_are_heard_and_judged_by_the_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_rendezvous.WAIT_S", LONG_S)
    monkeypatch.setattr(rendezvous, "servers", lambda: [driver.server])
    driver.register(partitions=EACH)
    consumers, epoch = driver.running(EACH)
    producers = [driver.producer(epoch, number) for number in range(EACH)]
    for each in producers:
        each.expect(Go, timeout=LONG_S)
    memory, before = resident(), cpu_s("fastbuf-rendezv")
    sent = 0

    def tell() -> None:
        nonlocal sent
        begin = time.monotonic()
        for second in range(1, SECONDS + 1):
            for number in range(EACH):
                time.sleep(max(0.0, begin + second + number / EACH - time.monotonic()))
                for control, figures in ((producers[number], producer), (consumers[number], consumer)):
                    message = Watch(figures(number, second))
                    sent += len(message.encode())
                    control.tell(message)

    teller = threading.Thread(target=tell)
    teller.start()
    recorder, looks = Recorder(page.exchanges), []
    while teller.is_alive():
        begin = time.thread_time()
        recorder.look()
        looks.append(time.thread_time() - begin)
        teller.join(1.0)
    heard = (cpu_s("fastbuf-rendezv") - before) / SECONDS
    grown = (resident() - memory) / (1 << 20)
    run = driver.server.summaries[-1]
    eventually(lambda: len(run.producers) == len(run.consumers) == EACH)
    (root,) = run.diagnosis.roots
    print(
        f"{2 * EACH:,} tasks: {sent / SECONDS / EACH / 2:.0f} bytes a task and second; to hear them {heard:.1%} of a "
        f"CPU, a look with its verdict {1000 * max(looks):.0f} ms at the most; {grown:.0f} MiB more"
    )
    assert (root.stage, root.subtask, root.cause) == (run.name, 7, "user_function")
    assert heard < 0.5
    assert grown < 300
    for each in producers:
        with suppress(OSError):
            each.abort("enough", ProducerFailed)
    close(*producers, *consumers)
