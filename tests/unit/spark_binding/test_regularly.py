"""One thread of a worker makes the calls of all its tasks, and ends when there are none."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from fastbuf_spark.worker import regularly
from fastbuf_spark.worker.regularly import Regularly


def until(holds: Callable[[], bool]) -> None:
    """Wait for it, at most 10 s."""
    end = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)  # until the other thread has done so


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fastbuf-watch"]


def test_calls_go_on_until_the_block_ends() -> None:
    calls: list[float] = []
    begin = time.monotonic()
    with Regularly(calls.append, 0.01, 0.01):
        until(lambda: len(calls) >= 3)
    many = len(calls)
    assert calls == sorted(calls)
    assert calls[0] >= begin + 0.01
    time.sleep(0.05)  # five more would be due
    assert len(calls) == many


def test_tasks_one_after_the_other_and_beside_each_other_share_a_thread() -> None:
    idents = set()
    for _ in range(3):
        slow: list[float] = []
        fast: list[float] = []
        with Regularly(lambda due: (idents.add(threading.get_ident()), slow.append(due)), 0.05, 0.05):  # noqa: B023
            with Regularly(fast.append, 0.001, 0.001):  # due before the other, which the thread sleeps for
                until(lambda: len(fast) >= 5)  # noqa: B023
            assert len(watchers()) == 1
            until(lambda: bool(slow))  # noqa: B023
    assert len(idents) == 1


def test_the_thread_ends_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regularly, "IDLE_S", 0.05)
    calls: list[float] = []
    with Regularly(calls.append, 0.0, 0.001):
        until(lambda: bool(calls))
    until(lambda: not watchers())
    with Regularly(calls.append, 0.0, 0.001):  # and is started again
        before = len(calls)
        until(lambda: len(calls) > before)
    until(lambda: not watchers())


def test_a_failed_call_ends_nothing() -> None:
    calls: list[float] = []

    def call(due: float) -> None:
        calls.append(due)
        raise ValueError("of a report")

    with Regularly(call, 0.0, 0.001):
        until(lambda: len(calls) >= 3)


def test_the_end_of_a_block_waits_for_its_call() -> None:
    begun, ended = threading.Event(), threading.Event()

    def call(due: float) -> None:
        begun.set()
        time.sleep(0.05)  # the call takes so long
        ended.set()

    with Regularly(call, 0.0, 60.0):
        assert begun.wait(10.0)
    assert ended.is_set()


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    calls: list[float] = []
    with Regularly(calls.append, 0.0, 0.001):
        until(lambda: bool(calls))
    child = os.fork()
    if not child:
        mine: list[float] = []
        with Regularly(mine.append, 0.0, 0.001):
            until(lambda: len(mine) >= 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("blocks", [1, 50])
def test_many_blocks_from_many_threads(blocks: int) -> None:
    counts = [0] * blocks

    def work(at: int) -> None:
        def call(due: float) -> None:
            counts[at] += 1

        for _ in range(5):
            before = counts[at]
            with Regularly(call, 0.001, 0.001):
                until(lambda: counts[at] > before)  # noqa: B023

    threads = [threading.Thread(target=work, args=(at,)) for at in range(blocks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert all(count >= 5 for count in counts)
