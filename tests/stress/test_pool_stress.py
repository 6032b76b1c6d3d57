"""The shipped pool under threads that run without the GIL.  FASTBUF_LONG=1 runs each case twenty times as long."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastbuf.errors import PoolDestroyed, PoolTimeout, ResourceError
from fastbuf.memory import LocalBufferPool, NetworkBufferPool
from fastbuf.memory._testing import Handover, churn, churn_many, listen

pytestmark = pytest.mark.stress
LONG = 20 if os.environ.get("FASTBUF_LONG") == "1" else 1


def network_of(segments: int) -> NetworkBufferPool:
    network = NetworkBufferPool(segments, 64)
    network.arena.array[:] = 0  # churn marks what it holds, and 0 means home
    return network


def at_once(*calls: Callable[[], object]) -> list:
    """All calls in threads of their own, begun together; their results."""
    gate = threading.Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        gate.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(timeout=240) for future in [threads.submit(one, call) for call in calls]]


def check(results: list[tuple[int, int, int]]) -> None:
    assert [faults for faults, _, _ in results] == [0] * len(results), "a segment had two users"
    assert [timeouts for _, timeouts, _ in results] == [0] * len(results), "a request slept for ever"
    assert all(got > 0 for _, _, got in results)


@pytest.mark.parametrize("threads", [2, 4, 16])
def test_one_pool(threads: int) -> None:
    network = network_of(threads)
    local = network.create_local_pool(threads)
    steps = 8_000_000 * LONG // threads
    check(at_once(*(lambda k=k: churn(local, steps, 3, k + 1) for k in range(threads))))
    assert local.stats().peak <= threads
    network.audit()


@pytest.mark.parametrize("threads", [2, 6])
def test_batches(threads: int) -> None:
    network = network_of(9)
    one, two = network.create_local_pool(1), network.create_local_pool(1)
    steps = 1_000_000 * LONG // threads
    calls = [lambda k=k: churn_many((one, two)[k % 2], steps, 5, 2 * k + 1) for k in range(threads)]
    results = at_once(*calls, lambda: churn(one, steps, 3, 100))
    check(results[-1:])
    assert [(faults, refused) for faults, refused, _ in results[:-1]] == [(0, 0)] * threads
    network.audit()


@pytest.mark.parametrize("pools", [2, 5])
def test_pools_that_want_more_than_there_is(pools: int) -> None:
    network = network_of(2 * pools)
    locals_ = [network.create_local_pool(1, overdraft=2) for _ in range(pools)]
    steps = 1_000_000 * LONG
    calls = [
        lambda p=p, k=k: churn(p, steps, 6, 2 * k + 1, wait=k % 2 == 0, overdraft=k % 3 == 0)
        for p in locals_
        for k in range(2)
    ]
    check([(faults, timeouts, max(got, 1)) for faults, timeouts, got in at_once(*calls)])
    network.audit()


def test_one_thread_requests_and_another_recycles() -> None:
    network = network_of(8)
    local = network.create_local_pool(8)
    ring = Handover()
    n = 300_000 * LONG
    took, _ = at_once(lambda: ring.give(local, n), lambda: ring.take(local, n))
    assert took > 0, "a request slept for ever"
    network.audit()


def test_a_listener_misses_nothing() -> None:
    network = network_of(3)
    one, two = network.create_local_pool(1, maximum=2), network.create_local_pool(1, maximum=2)
    n = 2_000_000 * LONG
    results = at_once(
        lambda: listen(one, n), lambda: listen(two, n), lambda: churn(one, n, 2, 1), lambda: churn(two, n, 2, 2)
    )
    assert results[:2] == [0, 0], "a listener slept though a segment was free"
    check(results[2:])
    network.audit()


def test_limits_move_under_way() -> None:
    # Pools come and go while two others run: limits fall and rise, segments change pools, accounts are used again.
    network = network_of(12)
    steady = [network.create_local_pool(2) for _ in range(2)]
    stop = threading.Event()

    def come_and_go(seed: int) -> tuple[int, int, int]:
        rng = random.Random(seed)
        got = 0
        while not got or not stop.is_set():  # once at least, however late it is run
            try:
                local = network.create_local_pool(rng.randint(0, 3), rng.randint(3, 8), overdraft=2)
            except ResourceError:
                continue  # the other one has taken what was left
            out = []
            for _ in range(rng.randint(0, 8)):
                segment = rng.choice([local.try_request, local.try_request_overdraft])()
                if segment is not None:
                    out.append(segment)
            got += len(out)
            if rng.random() < 0.5:
                local.destroy()
            while out:
                out.pop(rng.randrange(len(out))).recycle()
            local.destroy()
        return 0, 0, got

    def run(local: LocalBufferPool, mark: int) -> tuple[int, int, int]:
        return churn(local, 4_000_000 * LONG, 5, mark)

    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(come_and_go, seed) for seed in range(2)]
        try:
            check(at_once(*(lambda p=p, k=k: run(p, 2 * k + 1) for p in steady for k in range(2))))
        finally:
            stop.set()
        check([other.result(timeout=240) for other in others])
    network.audit()
    for local in steady:
        local.destroy()
    assert network.available == 12


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_end_under_way(threads: int) -> None:
    # Others wait for what they recycle, and figures are asked for meanwhile.
    network = network_of(threads + 1)
    local = network.create_local_pool(threads + 1)
    stop = threading.Event()

    def short_lives(seed: int) -> tuple[int, int, int]:
        total = (0, 0, 0)
        for _ in range(150 * LONG):
            (one,) = at_once(lambda: churn(local, 2_000, 3, seed))
            total = total[0] + one[0], total[1] + one[1], total[2] + one[2]
        return total

    def look() -> int:
        looks = 0
        while not looks or not stop.is_set():
            s = local.stats()
            assert s.held == s.in_use + s.available <= threads + 1
            assert s.in_use <= s.peak <= threads + 1
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as observer:
        looks = observer.submit(look)
        try:
            steady = lambda: churn(local, 400_000 * LONG, 2, 100)  # noqa: E731
            check(at_once(*(lambda k=k: short_lives(k + 1) for k in range(threads)), steady))
        finally:
            stop.set()
        assert looks.result(timeout=240) > 0
    assert local.in_use == 0
    network.audit()


def test_destroy_under_way() -> None:
    for _ in range(200 * LONG):
        network = network_of(3)
        local = network.create_local_pool(2)
        users = [lambda p=local, k=k: churn(p, 10_000_000, 2, k + 1) for k in range(3)]
        faults = at_once(*users, local.destroy)[:3]
        assert [f for f, _, _ in faults] == [0, 0, 0]
        assert [t for _, t, _ in faults] == [0, 0, 0]
        assert network.available == 3
        network.audit()


def test_tasks_that_are_cancelled_at_random() -> None:
    network = network_of(3)
    pools = [network.create_local_pool(1, maximum=2) for _ in range(2)]

    async def one(local: LocalBufferPool, rng: random.Random) -> int:
        got = 0
        for _ in range(300 * LONG):
            task = asyncio.create_task(local.request_async(timeout=30))
            for _ in range(rng.randint(0, 6)):
                await asyncio.sleep(0)
            if rng.random() < 0.4:
                task.cancel()
            try:
                segment = await task
            except asyncio.CancelledError:
                continue
            got += 1
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            segment.recycle()
        return got

    async def main(seed: int) -> int:
        rng = random.Random(seed)
        return sum(await asyncio.gather(*(one(pools[k % 2], rng) for k in range(6))))

    got = at_once(
        lambda: asyncio.run(main(1)),
        lambda: asyncio.run(main(2)),
        lambda: churn(pools[0], 300_000 * LONG, 2, 1)[1],
        lambda: churn(pools[1], 300_000 * LONG, 2, 2)[1],
    )
    assert min(got[:2]) > 500
    assert got[2:] == [0, 0], "a thread slept for ever"
    assert [p.in_use for p in pools] == [0, 0]
    network.audit()


def test_waiters_in_python() -> None:
    network = network_of(4)
    pools = [network.create_local_pool(1) for _ in range(2)]

    def work(local: LocalBufferPool, seed: int) -> int:
        rng = random.Random(seed)
        timeouts = 0
        for _ in range(3000 * LONG):
            try:
                segment = local.request(timeout=rng.choice([0.0001, 30]))
            except PoolTimeout:
                timeouts += 1
                continue
            view = segment.view()
            view[0] = 1
            view.release()
            segment.recycle()
        return timeouts

    at_once(*(lambda p=p, k=k: work(p, k) for p in pools for k in range(4)))
    network.audit()
    pools[0].destroy()
    with pytest.raises(PoolDestroyed):
        pools[0].request()
