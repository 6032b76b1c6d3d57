"""What a thread keeps for itself of a pool's segments: who else gets it, when, and how it counts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastbuf.errors import FastbufError
from fastbuf.memory import LocalBufferPool, NetworkBufferPool
from fastbuf.memory._testing import MAGAZINES, park_wrongly, parked, unpark_wrongly

pytestmark = pytest.mark.skipif(not MAGAZINES, reason="membarrier(2) is refused here: pools have no magazines")


class Worker:
    """A thread that does what it is told, one call at a time, and keeps living in between."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] | None = None
        self.result: Any = None
        self.told, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while True:
            self.told.acquire()
            if self.call is None:
                return
            self.result = self.call()
            self.done.release()

    def __call__(self, call: Callable[[], Any]) -> Any:
        self.call = call
        self.told.release()
        assert self.done.acquire(timeout=30)
        return self.result

    def end(self) -> None:
        self.call = None
        self.told.release()
        tid = self.thread.native_id
        self.thread.join(30)
        # Python is done with the thread then, the system only when it is off this list.
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/self/task/{tid}") and time.monotonic() < deadline:
            os.sched_yield()


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker()
    yield one
    one.end()


def request_and_recycle(local: LocalBufferPool, n: int) -> Callable[[], None]:
    def call() -> None:
        for segment in [local.request(timeout=10) for _ in range(n)]:
            segment.recycle()

    return call


def test_what_is_parked_counts_as_home(worker: Worker) -> None:
    network = NetworkBufferPool(64, 64)
    local = network.create_local_pool(40)
    worker(request_and_recycle(local, 30))
    assert sum(parked(local).values()) > 0
    stats = local.stats()
    assert (stats.held, stats.in_use, stats.available, stats.peak) == (30, 0, 30, 30)
    assert (local.in_use, local.available, network.available, network.stats().in_use) == (0, 30, 34, 0)
    network.audit()


def test_another_thread_gets_it_without_waiting_and_before_the_global_list(worker: Worker) -> None:
    network = NetworkBufferPool(64, 64)
    local = network.create_local_pool(8)
    worker(request_and_recycle(local, 5))
    assert sum(parked(local).values()) == 5
    mine = [local.try_request() for _ in range(5)]
    assert None not in mine
    assert local.stats().held == 5
    for segment in mine:
        assert segment is not None
        segment.recycle()
    assert worker(local.try_request).recycle() is None
    network.audit()


@pytest.mark.parametrize(("n", "kept"), [(1, 1), (32, 32), (42, 42), (43, 0), (64, 0)])
def test_a_batch_is_parked_whole_where_it_has_room(worker: Worker, n: int, kept: int) -> None:
    network = NetworkBufferPool(128, 64)
    local = network.create_local_pool(100)
    mine = worker(lambda: local.request_many(n))
    which = {segment.index for segment in mine}
    worker(lambda: local.recycle_many(mine))
    assert sum(parked(local).values()) == kept
    assert (local.stats().held, local.in_use, local.stats().peak) == (n, 0, n)
    again = worker(lambda: local.request_many(n))
    assert len(again) == n
    assert {segment.index for segment in again} == which
    assert (sum(parked(local).values()), local.stats().held, local.in_use) == (0, n, n)
    worker(lambda: local.recycle_many(again))
    some = local.request_many(100)  # what another thread keeps is found before the global list
    assert (len(some), local.stats().held, sum(parked(local).values())) == (100, 100, 0)
    local.recycle_many(some)
    network.audit()


def test_a_batch_is_no_more_than_was_asked_for() -> None:
    network = NetworkBufferPool(64, 64)
    local = network.create_local_pool(40)
    local.recycle_many(local.request_many(20))
    local.request(timeout=0).recycle()
    some = [local.request_many(n) for n in (0, 1, 5)]
    assert ([len(s) for s in some], sum(parked(local).values())) == ([0, 1, 5], 14)
    for each in some:
        local.recycle_many(each)
    assert (sum(parked(local).values()), local.in_use) == (20, 0)
    network.audit()


@pytest.mark.parametrize("ask", ["request", "request_many", "overdraft"])
def test_the_last_segment_is_found_in_another_threads_magazine(worker: Worker, ask: str) -> None:
    network = NetworkBufferPool(1, 64)
    local = network.create_local_pool(1, overdraft=1)
    worker(request_and_recycle(local, 1))
    assert sum(parked(local).values()) == 1
    if ask == "request":
        local.request(timeout=0.0).recycle()
    elif ask == "request_many":
        local.recycle_many(local.request_many(1))
    else:
        segment = local.try_request_overdraft()
        assert segment is not None
        segment.recycle()
    assert local.stats().peak == 1


def test_nothing_is_parked_while_somebody_waits(worker: Worker) -> None:
    network = NetworkBufferPool(2, 64)
    local = network.create_local_pool(2)
    mine = local.request(), local.request()
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(local.request(timeout=20))) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join(0.05)  # no outcome depends on this: it makes the interesting order the likely one
    for segment in mine:
        segment.recycle()
    for thread in threads:
        thread.join(20)
    assert len(got) == 2
    for segment in got:
        segment.recycle()
    network.audit()


def test_it_comes_back_when_the_thread_ends() -> None:
    network = NetworkBufferPool(64, 64)
    one, two = network.create_local_pool(20), network.create_local_pool(20)
    worker = Worker()
    for local in (one, two):
        worker(request_and_recycle(local, 15))
        assert sum(parked(local).values()) == 15
    worker.end()
    for local in (one, two):
        assert sum(parked(local).values()) == 0
        assert local.stats().available == 15
    network.audit()


def test_threads_that_come_and_go_use_the_same_slots() -> None:
    network = NetworkBufferPool(4, 64)
    local = network.create_local_pool(4)
    for _ in range(100):
        worker = Worker()
        worker(request_and_recycle(local, 2))
        worker.end()
    assert len(parked(local)) <= 1
    assert local.stats().held == 2
    network.audit()


def test_more_threads_than_slots() -> None:
    network = NetworkBufferPool(160, 64)
    local = network.create_local_pool(160)
    workers = [Worker() for _ in range(40)]
    for worker in workers:
        worker(request_and_recycle(local, 3))
    stats = local.stats()
    assert (stats.in_use, stats.held) == (0, stats.available)
    network.audit()
    for worker in workers:
        worker.end()
    assert sum(parked(local).values()) == 0
    network.audit()


def test_destroy_takes_it_home(worker: Worker) -> None:
    network = NetworkBufferPool(64, 64)
    local = network.create_local_pool(40)
    worker(request_and_recycle(local, 30))
    local.destroy()
    assert network.available == 64
    assert sum(parked(local).values()) == 0
    network.audit()


def test_a_surplus_that_is_parked_is_found(worker: Worker) -> None:
    network = NetworkBufferPool(8, 64)
    one = network.create_local_pool(0)
    worker(request_and_recycle(one, 8))
    assert network.available == 0
    two = network.create_local_pool(6)  # its limit is what the other one's falls by
    assert one.limit == 1
    mine = two.request_many(7)
    assert len(mine) == two.limit
    assert one.stats().held <= 2
    two.recycle_many(mine)
    network.audit()


def test_nothing_is_parked_beyond_the_limit(worker: Worker) -> None:
    network = NetworkBufferPool(8, 64)
    local = network.create_local_pool(2, maximum=2, overdraft=2)
    worker(request_and_recycle(local, 1))
    assert sum(parked(local).values()) == 1  # its magazine is open
    mine = [local.request(), local.request(), local.try_request_overdraft()]
    assert None not in mine
    for segment, held in zip(mine, (2, 2, 2), strict=True):
        assert segment is not None
        worker(segment.recycle)
        assert local.stats().held == held
    assert network.available == 6
    network.audit()


def test_what_a_falling_limit_leaves_over_goes_with_the_next_recycle(worker: Worker) -> None:
    network = NetworkBufferPool(8, 64)
    one = network.create_local_pool(0)
    worker(request_and_recycle(one, 4))
    assert sum(parked(one).values()) == 4
    two = network.create_local_pool(6)
    assert (one.limit, one.stats().held, two.limit) == (1, 4, 7)  # only limits move
    worker(request_and_recycle(one, 1))
    assert one.stats().held == 1
    network.audit()


def test_peak_is_exact_when_threads_take_turns(worker: Worker) -> None:
    # Each has what the other left behind: no more than three were ever out at once, wherever they lay in between.
    network = NetworkBufferPool(64, 64)
    local = network.create_local_pool(60)
    for _ in range(50):
        worker(request_and_recycle(local, 3))
        request_and_recycle(local, 3)()
    assert (local.stats().peak, local.stats().held) == (3, 3)
    handed = [worker(local.request) for _ in range(40)]
    for segment in handed:
        segment.recycle()
    assert local.stats().peak == 40
    worker(request_and_recycle(local, 20))
    assert (local.stats().peak, local.stats().held) == (40, 40)
    network.audit()


def test_chunks_carry_segments_from_thread_to_thread(worker: Worker) -> None:
    network = NetworkBufferPool(128, 64)
    local = network.create_local_pool(128)
    for _ in range(5):
        for segment in [worker(local.request) for _ in range(100)]:
            segment.recycle()
        stats = local.stats()
        assert (stats.held, stats.available, stats.peak) == (100, 100, 100)
        network.audit()
    local.destroy()
    assert network.available == 128


def test_a_forked_child_ends_the_pool_though_its_threads_are_not_there(worker: Worker) -> None:
    network = NetworkBufferPool(64, 64)
    local = network.create_local_pool(40)
    worker(request_and_recycle(local, 30))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            local.destroy()
            with NetworkBufferPool(8, 64) as mine:
                pool = mine.create_local_pool(4)
                pool.request().recycle()
                code = 0 if network.available == 64 and pool.available == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert local.stats().available == 30
    network.audit()


def test_the_audit_finds_what_is_parked_wrongly() -> None:
    network = NetworkBufferPool(8, 64)
    local = network.create_local_pool(8)
    segment = local.request()
    park_wrongly(local, segment)
    with pytest.raises(FastbufError, match="magazine 31 of local pool 0 is nobody's, and not empty"):
        network.audit()
    unpark_wrongly(local)
    segment.recycle()
    network.audit()
