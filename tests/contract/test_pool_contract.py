"""What every pool must do.  The shipped pool and a locked reference pass the same suite."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from reference_pool import ReferencePool

from fastbuf.errors import ConfigError, PoolDestroyed, PoolTimeout, ResourceError, SegmentExported, SegmentStateError
from fastbuf.memory import NetworkBufferPool

Make = Callable[[int], Any]
SIZE = 1024


@pytest.fixture(params=[NetworkBufferPool, ReferencePool], ids=["shipped", "reference"])
def make(request: pytest.FixtureRequest) -> Any:
    made = []

    def one(segments: int) -> Any:
        made.append(request.param(segments, SIZE))
        return made[-1]

    yield one
    for pool in made:
        pool.destroy()
        pool.audit()
        assert pool.available == pool.total, "a segment did not come home"


def drain(local: Any) -> list[Any]:
    out = []
    while (segment := local.try_request()) is not None:
        out.append(segment)
    return out


def recycle(segments: list[Any]) -> None:
    while segments:
        segments.pop().recycle()


def test_smoke(make: Make) -> None:
    local = make(4).create_local_pool(2)
    segment = local.request()
    assert (segment.size, segment.refcount, local.in_use) == (SIZE, 1, 1)
    segment.recycle()
    assert local.in_use == 0


def test_no_segment_is_given_twice(make: Make) -> None:
    network = make(16)
    a, b = network.create_local_pool(4), network.create_local_pool(4)
    out = drain(a) + drain(b)
    assert len(out) == 16
    assert len({s.index for s in out}) == 16
    recycle(out)


def test_what_is_written_stays_until_recycled(make: Make) -> None:
    local = make(8).create_local_pool(8)
    out = drain(local)
    for k, segment in enumerate(out):
        view = segment.view()
        view[:] = bytes([k]) * SIZE
        view.release()
    for k, segment in enumerate(out):
        view = segment.view()
        assert bytes(view) == bytes([k]) * SIZE
        view.release()
    recycle(out)


def test_requests_stop_at_the_maximum(make: Make) -> None:
    local = make(16).create_local_pool(2, maximum=5)
    assert local.limit == 5
    out = drain(local)
    assert len(out) == 5
    recycle(out)


def test_limits_share_out_the_rest_in_proportion(make: Make) -> None:
    network = make(20)
    a = network.create_local_pool(2, maximum=6)
    b = network.create_local_pool(2, maximum=14)
    assert (a.limit, b.limit) == (6, 14)
    c = network.create_local_pool(4, maximum=8)  # 12 to share among rooms of 4, 12 and 4
    assert (a.limit, b.limit, c.limit) == (2 + 2, 2 + 7, 4 + 3)
    b.destroy()
    assert (a.limit, c.limit) == (6, 8)


def test_only_limits_move_at_redistribution(make: Make) -> None:
    network = make(8)
    a = network.create_local_pool(1)
    out = drain(a)
    assert len(out) == 8
    b = network.create_local_pool(4)
    assert a.limit == 1 + 8 - 5 - (b.limit - 4)
    assert (a.in_use, network.available) == (8, 0)
    assert b.try_request() is None
    recycle(out)


def test_recycle_beyond_the_limit_goes_to_the_network_pool(make: Make) -> None:
    network = make(8)
    a = network.create_local_pool(1)
    out = drain(a)
    b = network.create_local_pool(7)
    assert (a.limit, b.limit) == (1, 7)
    for _ in range(7):
        out.pop().recycle()
    assert network.available == 7
    mine = drain(b)
    assert len(mine) == 7
    recycle(out)
    assert network.available == 0  # the last one is within a's limit and stays there
    recycle(mine)


def test_a_surplus_that_lies_free_is_not_kept_from_others(make: Make) -> None:
    network = make(8)
    a = network.create_local_pool(1)
    recycle(drain(a))  # a now holds all eight, free
    b = network.create_local_pool(4)
    out = [b.request(timeout=0) for _ in range(b.limit)]
    recycle(out)


def test_required_beyond_the_total_is_refused_with_figures(make: Make) -> None:
    network = make(8)
    kept = network.create_local_pool(5)  # dropped, it would give its guarantee back
    with pytest.raises(ResourceError, match="segments=") as caught:
        network.create_local_pool(4)
    for figure in ("4", "3", "8"):
        assert figure in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert kept.limit == 8


@pytest.mark.parametrize("bad", [(-1, None, 0), (3, 2, 0), (0, 0, 0), (1, None, -1)])
def test_numbers_out_of_range(make: Make, bad: tuple[int, int | None, int]) -> None:
    with pytest.raises(ConfigError):
        make(8).create_local_pool(*bad)


def test_overdraft_goes_beyond_the_limit_and_no_further(make: Make) -> None:
    network = make(16)
    local = network.create_local_pool(2, maximum=4, overdraft=3)
    out = drain(local)
    assert len(out) == 4
    extra = [local.try_request_overdraft() for _ in range(4)]
    assert [s is not None for s in extra] == [True, True, True, False]
    assert local.in_use == 7
    recycle(out)
    recycle(extra[:3])
    assert local.in_use == 0
    assert network.available >= 16 - 4


def test_overdraft_never_takes_what_others_are_guaranteed(make: Make) -> None:
    network = make(8)
    a = network.create_local_pool(2, maximum=3, overdraft=10)
    b = network.create_local_pool(4, maximum=5)
    out = drain(a)
    while (segment := a.try_request_overdraft()) is not None:
        out.append(segment)
    assert len(out) == 4
    mine = drain(b)
    assert len(mine) == 4  # its guarantee; the fifth is lent
    recycle(out)
    mine += drain(b)
    assert len(mine) == 5
    recycle(mine)


def test_within_the_limit_others_guarantees_are_kept_from_borrowers(make: Make) -> None:
    network = make(10)
    a = network.create_local_pool(1, maximum=3, overdraft=10)
    b = network.create_local_pool(3, maximum=3)
    c = network.create_local_pool(0, maximum=4)
    out = drain(a)
    while (segment := a.try_request_overdraft()) is not None:
        out.append(segment)
    assert len(out) == 7
    assert c.try_request() is None  # within its limit, but what is left is b's
    mine = drain(b)
    assert len(mine) == 3
    recycle(out)
    recycle(mine)


def test_many_are_as_many_as_there_are(make: Make) -> None:
    network = make(200)
    local = network.create_local_pool(2, maximum=150)
    assert local.request_many(0) == []
    first = local.request_many(3)
    assert (len(first), local.in_use) == (3, 3)
    rest = local.request_many(1000)
    assert len(rest) == 147
    assert len({s.index for s in first + rest}) == 150
    assert local.request_many(5) == []
    local.recycle_many(first)
    again = local.request_many(2)
    assert (len(again), local.in_use) == (2, 149)
    local.recycle_many(tuple(rest))
    local.recycle_many(iter(again))
    local.recycle_many([])
    assert local.in_use == 0
    with pytest.raises(ConfigError):
        local.request_many(-1)
    local.destroy()
    for n in (0, 1):
        with pytest.raises(PoolDestroyed):
            local.request_many(n)


def test_many_of_several_pools_go_home_each_to_its_own(make: Make) -> None:
    network = make(8)
    a = network.create_local_pool(1)
    out = a.request_many(8)
    b = network.create_local_pool(4)
    assert b.request_many(4) == []
    a.recycle_many(out[:4])  # a is over its limit
    mine = b.request_many(4)
    assert len(mine) == 4
    b.recycle_many([mine[0], out[4], mine[1], out[5], mine[2], mine[3], out[6], out[7]])
    assert (a.in_use, b.in_use) == (0, 0)
    strange = make(2).create_local_pool(2)
    mixed = [*strange.request_many(2), *a.request_many(1)]
    a.recycle_many(mixed)
    assert (a.in_use, strange.in_use) == (0, 0)


def test_if_one_of_many_is_refused_none_is_recycled(make: Make) -> None:
    local = make(4).create_local_pool(4)
    out = local.request_many(4)
    view = out[2].view()
    with pytest.raises(SegmentExported):
        local.recycle_many(out)
    view.release()
    with pytest.raises(SegmentStateError):
        local.recycle_many([*out, out[1]])
    with pytest.raises(TypeError):
        local.recycle_many([out[0], 7])
    assert ([s.refcount for s in out], local.in_use) == ([1] * 4, 4)
    out[3].recycle()
    with pytest.raises(SegmentStateError):
        local.recycle_many(out)
    assert ([s.refcount for s in out], local.in_use) == ([1, 1, 1, 0], 3)
    out[0].retain()
    local.recycle_many([out[0], out[1], out[0], out[2]])
    assert local.in_use == 0


def test_references(make: Make) -> None:
    local = make(4).create_local_pool(4)
    segment = local.request()
    assert segment.retain() is segment
    assert segment.refcount == 2
    segment.recycle()
    assert (segment.refcount, local.in_use) == (1, 1)
    segment.recycle()
    assert local.in_use == 0


def test_recycled_segments_are_refused(make: Make) -> None:
    local = make(4).create_local_pool(4)
    segment = local.request()
    segment.recycle()
    other = local.request()
    for use in (segment.recycle, segment.retain, segment.view):
        with pytest.raises(SegmentStateError):
            use()
    assert (other.refcount, local.in_use) == (1, 1), "the new owner was touched"
    other.recycle()


def test_recycle_with_views_is_refused_before_anything_is_freed(make: Make) -> None:
    local = make(4).create_local_pool(4)
    segment = local.request()
    view = segment.view()
    part = view[10:20]
    with pytest.raises(SegmentExported):
        segment.recycle()
    assert (segment.refcount, local.in_use) == (1, 1)
    view.release()
    with pytest.raises(SegmentExported):
        segment.recycle()
    part.release()
    segment.recycle()
    assert local.in_use == 0


def test_timeout_has_the_figures(make: Make) -> None:
    local = make(4).create_local_pool(2)
    out = drain(local)
    with pytest.raises(PoolTimeout) as caught:
        local.request(timeout=0.01)
    assert isinstance(caught.value, TimeoutError)
    for part in ("required 2", "available 0", "in use 4", "total 4", "segments="):
        assert part in str(caught.value)
    recycle(out)


def waiting(local: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that is inside request(); what it got stands in the list."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(local.request(timeout=30))
        except Exception as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.05)  # no outcome depends on this: it makes the interesting order the likely one
    return thread, got


def test_a_waiter_is_woken_by_a_recycle(make: Make) -> None:
    local = make(2).create_local_pool(2)
    out = drain(local)
    thread, got = waiting(local)
    assert got == []
    out.pop().recycle()
    thread.join(10)
    recycle(out + got)


def test_all_waiters_are_woken_by_a_recycle_of_many(make: Make) -> None:
    local = make(3).create_local_pool(3)
    out = local.request_many(3)
    threads = [waiting(local) for _ in range(3)]
    local.recycle_many(out)
    for thread, got in threads:
        thread.join(10)
        assert len(got) == 1
    local.recycle_many([got[0] for _, got in threads])


def test_a_waiter_is_woken_by_another_pools_recycle(make: Make) -> None:
    network = make(4)
    a = network.create_local_pool(1)
    out = drain(a)
    b = network.create_local_pool(2)
    thread, got = waiting(b)
    assert got == []
    out.pop().recycle()
    thread.join(10)
    recycle(out + got)


def test_a_waiter_is_woken_by_a_rising_limit(make: Make) -> None:
    network = make(4)
    a, b = network.create_local_pool(1), network.create_local_pool(1)
    out = drain(a)
    thread, got = waiting(a)
    assert got == []
    b.destroy()
    thread.join(10)
    assert len(got) == 1
    recycle(out + got)


def test_waiters_are_woken_by_destroy(make: Make) -> None:
    network = make(2)
    local = network.create_local_pool(2)
    out = drain(local)
    threads = [waiting(local) for _ in range(3)]
    local.destroy()
    for thread, got in threads:
        thread.join(10)
        assert isinstance(got[0], PoolDestroyed)
    with pytest.raises(PoolDestroyed):
        local.request(timeout=1)
    with pytest.raises(PoolDestroyed):
        local.try_request()
    assert network.available == 0
    recycle(out)
    assert network.available == 2


def test_a_destroyed_pool_gives_its_guarantee_back(make: Make) -> None:
    network = make(4)
    a = network.create_local_pool(4)
    out = [a.request() for _ in range(2)]
    a.destroy()
    b = network.create_local_pool(4)
    mine = drain(b)
    assert len(mine) == 2
    recycle(out)
    mine += drain(b)
    assert len(mine) == 4
    recycle(mine)


def test_destroying_twice_and_using_what_is_destroyed(make: Make) -> None:
    network = make(4)
    local = network.create_local_pool(1)
    local.destroy()
    local.destroy()
    network.destroy()
    network.destroy()
    with pytest.raises(PoolDestroyed):
        network.create_local_pool(1)


def test_threads_hand_every_segment_to_one_at_a_time(make: Make) -> None:
    network = make(6)
    pools = [network.create_local_pool(2) for _ in range(2)]
    owners = [0] * 6
    errors = []

    def work(local: Any, mark: int) -> None:
        for _ in range(300):
            segment = local.request(timeout=30)
            if owners[segment.index]:
                errors.append(segment.index)
            owners[segment.index] = mark
            view = segment.view()
            view[:8] = mark.to_bytes(8, "little")
            same = int.from_bytes(view[:8], "little") == mark
            view.release()
            if owners[segment.index] != mark or not same:
                errors.append(segment.index)
            owners[segment.index] = 0
            segment.recycle()

    threads = [threading.Thread(target=work, args=(pools[k % 2], k + 1)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert errors == []
    assert [p.in_use for p in pools] == [0, 0]
