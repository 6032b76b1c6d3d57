from __future__ import annotations

import dataclasses
import gc
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastbuf.errors import ConfigError, FastbufError, PoolTimeout, ResourceError, SegmentStateError
from fastbuf.memory import LocalBufferPool, NetworkBufferPool
from fastbuf.memory._testing import batch_loop, miscount, pair_loop, recycle_behind, recycle_many_behind


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    with NetworkBufferPool(8, 64) as pool:
        yield pool
    pool.audit()


def drain(local: LocalBufferPool) -> list:
    out = []
    while (segment := local.try_request()) is not None:
        out.append(segment)
    return out


def test_defaults() -> None:
    with NetworkBufferPool() as network:
        assert (network.total, network.segment_size, network.available) == (2048, 32768, 2048)
        assert network.arena.array.shape == (2048, 32768)


def test_local_stats(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(2, maximum=5, overdraft=1, name="gate 3")
    out = drain(local)
    out.pop().recycle()
    stats = local.stats()
    assert dataclasses.asdict(stats) == {
        "name": "gate 3",
        "required": 2,
        "maximum": 5,
        "overdraft": 1,
        "limit": 5,
        "held": 5,
        "in_use": 4,
        "available": 1,
        "peak": 5,
        "waits": 0,
        "wait_s": 0.0,
        "destroyed": False,
    }
    assert (stats.usage, local.usage, local.available) == (0.8, 0.8, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.held = 0  # type: ignore[misc]
    assert "gate 3" in repr(local)
    for segment in out:
        segment.recycle()


def test_network_stats(network: NetworkBufferPool) -> None:
    a = network.create_local_pool(2, maximum=3)
    b = network.create_local_pool(1, maximum=2)
    segment = a.request()
    stats = network.stats()
    assert (stats.total, stats.segment_size, stats.required, stats.limits) == (8, 64, 3, 5)
    assert (stats.pools, stats.in_use, stats.available) == (2, 1, 7)
    segment.recycle()
    b.destroy()
    assert (network.stats().pools, network.stats().required) == (1, 2)
    assert "1 local pools" in repr(network)


def test_waits_are_counted_and_timed(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(8)
    out = drain(local)
    for _ in range(2):
        with pytest.raises(PoolTimeout):
            local.request(timeout=0.02)
    stats = local.stats()
    assert stats.waits == 2
    assert 0.04 <= stats.wait_s < 60
    for segment in out:
        segment.recycle()


@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_no_time_is_no_wait(network: NetworkBufferPool, timeout: float) -> None:
    local = network.create_local_pool(8)
    out = drain(local)
    with pytest.raises(PoolTimeout):
        local.request(timeout=timeout)
    assert local.stats().waits == 0
    for segment in out:
        segment.recycle()


def test_a_timeout_that_is_no_number(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(8)
    out = drain(local)
    with pytest.raises(ConfigError, match="nan"):
        local.request(timeout=math.nan)
    for segment in out:
        segment.recycle()


def test_the_remedy_is_the_setting_that_holds_it_back(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(1, maximum=2, name="p")
    out = drain(local)
    with pytest.raises(PoolTimeout, match=r"maximum= \(now 2\)"):
        local.request(timeout=0)
    for segment in out:
        segment.recycle()


def test_a_dropped_pool_is_destroyed(network: NetworkBufferPool) -> None:
    kept = network.create_local_pool(1)
    dropped = network.create_local_pool(6)
    assert kept.limit < 8
    del dropped
    assert kept.limit == 8


def test_segments_keep_their_pool_until_recycled(network: NetworkBufferPool) -> None:
    segment = network.create_local_pool(1).request()
    gc.collect()
    assert network.stats().pools == 1
    segment.recycle()
    del segment
    assert network.stats().pools == 0
    assert network.available == 8


def test_accounts_of_ended_pools_are_used_again(network: NetworkBufferPool) -> None:
    for k in range(200):
        with network.create_local_pool(8, name=str(k)) as local:
            assert (local.stats().peak, local.stats().held) == (0, 0)
            for segment in drain(local):
                segment.recycle()
        network.audit()
    assert network.available == 8


def test_an_ended_pool_with_segments_out_is_not_used_again(network: NetworkBufferPool) -> None:
    old = network.create_local_pool(2)
    segment = old.request()
    old.destroy()
    new = network.create_local_pool(2)
    assert (old.in_use, new.in_use) == (1, 0)
    segment.recycle()
    assert (old.in_use, new.in_use, network.available) == (0, 0, 8)


def test_the_arena_is_closed_when_all_is_home() -> None:
    network = NetworkBufferPool(2, 64)
    segment = network.create_local_pool(1).request()
    network.destroy()
    assert not network.arena.closed
    segment.recycle()
    network.destroy()
    assert network.arena.closed
    assert network.destroyed


def test_a_waiting_thread_leaves_the_gil_to_others(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(8)
    out = drain(local)
    thread = threading.Thread(target=lambda: out.append(local.request(timeout=30)))
    thread.start()
    thread.join(0.05)  # no outcome depends on this
    out.pop().recycle()  # would never run if the waiter kept the GIL
    thread.join(30)
    assert len(out) == 8
    for segment in out:
        segment.recycle()


def test_a_signal_ends_the_wait(network: NetworkBufferPool) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    def wait() -> None:  # the signal may come before it has begun
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        local.request(timeout=60)

    local = network.create_local_pool(8)
    out = drain(local)
    previous = signal.signal(signal.SIGALRM, stop)
    try:
        begin = time.monotonic()
        with pytest.raises(Stop):
            wait()
        assert time.monotonic() - begin < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    for segment in out:
        segment.recycle()


@pytest.mark.parametrize("memfd", [False, True])
def test_a_forked_child_reads_but_may_not_request(memfd: bool) -> None:
    with NetworkBufferPool(4, 64, memfd=memfd) as network:
        local = network.create_local_pool(2)
        segment = local.request()
        segment.view()[0] = 42
        memory = network.arena.array  # of a view that is held at the fork the child has a copy
        child = os.fork()
        if child == 0:
            refused = 0
            for request in (
                local.request,
                local.try_request,
                local.try_request_overdraft,
                lambda: local.request_many(1),
            ):
                try:
                    request()
                except FastbufError as error:
                    refused += "fork" in str(error)
            try:
                network.create_local_pool(1)
            except FastbufError as error:
                refused += "fork" in str(error)
            os._exit(7 if refused == 5 and memory[segment.index, 0] == 42 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        del memory
        segment.recycle()
        local.request().recycle()


def test_a_forked_child_ends_the_pool_though_a_thread_was_making_one() -> None:
    """In the child nobody lets go of the lock that the thread has."""
    network = NetworkBufferPool(4, 64)
    within, go_on = threading.Event(), threading.Event()

    class Slow(str):
        __slots__ = ()

        def __repr__(self) -> str:  # for the refusal: with the pool's lock
            within.set()
            assert go_on.wait(60)
            return "slow"

    def make() -> None:
        with pytest.raises(ResourceError, match="slow"):
            network.create_local_pool(5, name=Slow())

    thread = threading.Thread(target=make)
    thread.start()
    assert within.wait(60)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends a child that waits for ever
        network.destroy()
        os._exit(7 if network.destroyed else 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    network.destroy()


def test_audit_finds_a_wrong_account(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(4)
    segment = local.request()
    network.audit()
    miscount(local, 1)
    with pytest.raises(FastbufError, match="local pool 0 counts 2 segments held, but has 0 free and 1 out"):
        network.audit()
    miscount(local, -1)
    segment.recycle()


def test_a_reference_that_native_code_stole_is_noticed(network: NetworkBufferPool) -> None:
    segment = network.create_local_pool(4).request()
    assert recycle_behind(segment) == 1
    assert recycle_behind(segment) == -1, "a double recycle was carried out"
    for use in (segment.view, segment.recycle, segment.retain):
        with pytest.raises(SegmentStateError, match="not his"):
            use()
    with pytest.warns(ResourceWarning):
        del segment, use


def test_native_batches_refuse_what_is_not_out(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(4)
    out = local.request_many(4)
    assert recycle_many_behind([out[0], out[1], out[0]]) == 1
    assert (local.in_use, recycle_many_behind(out[2:]), recycle_many_behind(out)) == (2, 0, 4)
    network.audit()
    for segment in out:
        with pytest.raises(SegmentStateError, match="not his"):
            local.recycle_many([segment])
    with pytest.warns(ResourceWarning):
        del segment, out


def test_handles_are_used_again(network: NetworkBufferPool) -> None:
    # More handles than are kept, dropped in every order, some with a second reference and some with a view.
    with NetworkBufferPool(1000, 64) as large:
        local = large.create_local_pool(1000)
        for _ in range(3):
            out = local.request_many(1000)
            views = [segment.retain().view() for segment in out[::7]]
            local.recycle_many(out[::7])
            assert sorted(segment.index for segment in out) == list(range(1000))
            del views
            local.recycle_many(out[500:] + out[:500])
            for segment in out:
                with pytest.raises(SegmentStateError):
                    segment.view()
            del out, segment
        assert local.stats().peak == 1000


def test_the_native_loop(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(1)
    assert pair_loop(local, 1000) > 0
    assert batch_loop(local, 1000, 8) > 0
    out = drain(local)
    with pytest.raises(FastbufError, match="empty"):
        pair_loop(local, 1)
    with pytest.raises(FastbufError, match="0 of 2"):
        batch_loop(local, 1, 2)
    for segment in out:
        segment.recycle()


def test_what_another_thread_recycled_is_taken_before_the_global_list() -> None:
    with NetworkBufferPool(64, 64) as network, ThreadPoolExecutor(1) as other:
        local = network.create_local_pool(40)
        other.submit(lambda: local.recycle_many(local.request_many(20))).result(30)
        stats = local.stats()
        assert (stats.held, stats.in_use, stats.available, network.available) == (20, 0, 20, 44)
        mine = [local.request(timeout=0) for _ in range(5)] + local.request_many(15)
        assert (local.stats().held, local.in_use, network.available) == (20, 20, 44)
        more = local.request_many(30)  # the rest of the pool's limit, from the global list
        assert (len(more), local.stats().held, network.available) == (30, 50, 14)
        other.submit(local.recycle_many, mine + more).result(30)
        assert (local.stats().held, local.in_use, local.stats().peak) == (50, 0, 50)
        network.audit()


def test_peak_is_exact_when_threads_take_turns() -> None:
    # Each has what the other left behind: no more than three were ever out at once, whoever had them in between.
    with NetworkBufferPool(64, 64) as network, ThreadPoolExecutor(1) as other:
        local = network.create_local_pool(60)

        def three() -> None:
            for segment in [local.request(timeout=0) for _ in range(3)]:
                segment.recycle()

        for _ in range(50):
            other.submit(three).result(30)
            three()
        assert (local.stats().peak, local.stats().held) == (3, 3)
        handed = other.submit(local.request_many, 40).result(30)
        local.recycle_many(handed)
        assert (local.stats().peak, local.stats().held) == (40, 40)
        three()
        assert (local.stats().peak, local.stats().held) == (40, 40)
        network.audit()
