"""Every interleaving of small scenarios of claiming, waiting, waking, moving limits and destroying."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from explorer import Process, Violation, explore
from pool_model import Pool, PoolWorld

Scenario = Callable[[str], PoolWorld]


def one_pool_one_segment(without: str = "") -> PoolWorld:
    """Two wait for the one segment that a third recycles."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.processes = [w.recycle(0), w.user(0), w.user(0)]
    return w


def another_pool_recycles(without: str = "") -> PoolWorld:
    """Pool 0 is over its limit; pool 1 waits for what it gives back."""
    w = PoolWorld(2, [Pool(1, 1, out=2), Pool(1, 1)], without)
    w.processes = [w.recycle(0), w.user(1)]
    return w


def limit_falls_while_recycling(without: str = "") -> PoolWorld:
    """Redistribution takes from pool 0 what its user recycles just then; pool 1 waits for it."""
    w = PoolWorld(2, [Pool(0, 2, out=2), Pool(1, 0)], without)
    w.processes = [w.recycle(0), w.redistribution([1, 1]), w.user(1)]
    return w


def surplus_lies_free(without: str = "") -> PoolWorld:
    """Pool 0 has free what is beyond its limit, and nobody uses pool 0."""
    w = PoolWorld(2, [Pool(0, 1, free=2), Pool(1, 1)], without)
    w.processes = [w.user(1)]
    return w


def limit_rises(without: str = "") -> PoolWorld:
    """Pool 0 is at its limit; redistribution raises it."""
    w = PoolWorld(2, [Pool(0, 1, out=1), Pool(0, 1)], without)
    w.processes = [w.user(0, keep=True), w.redistribution([2, 0]), w.trier(1)]
    return w


def claim_in_the_way(without: str = "") -> PoolWorld:
    """One who only tries has claimed the pool's last place when the segment arrives; the other sees the claim."""
    w = PoolWorld(1, [Pool(1, 1)], without)
    w.free, w.spare = 0, -1
    w.processes = [w.arrive(), w.trier(0), w.user(0)]
    return w


def payment_in_the_way(without: str = "") -> PoolWorld:
    """Two of pool 0 pay for its last place; the one who came too late has what pool 1 saw missing."""
    w = PoolWorld(2, [Pool(0, 1), Pool(0, 1)], without)

    def taker() -> Process:
        yield from w.take(0)

    w.processes = [taker(), taker(), w.user(1, keep=True)]
    return w


def overdraft_against_guarantee(without: str = "") -> PoolWorld:
    """Two borrow beyond their limit; pool 1 must get its guarantee though they keep what they have."""
    w = PoolWorld(2, [Pool(0, 0, overdraft=2), Pool(1, 1)], without)

    def borrow() -> Process:
        yield from w.take(0, 2)

    w.processes = [borrow(), borrow(), w.user(1, keep=True)]
    return w


def putting_back(without: str = "") -> PoolWorld:
    """A surplus is being moved away just when the limit rises again, and somebody of the pool finds the list empty."""
    w = PoolWorld(2, [Pool(0, 1, out=1, free=1)], without)

    def look() -> Process:
        yield from w.reclaim()

    w.processes = [look(), w.redistribution([2]), w.user(0)]
    return w


def destroyed_while_waiting(without: str = "") -> PoolWorld:
    """The pool is destroyed while one waits in it."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.processes = [w.destroy(0), w.user(0)]
    return w


def destroyed_while_recycling(without: str = "") -> PoolWorld:
    """The pool is destroyed while one recycles and another tries."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.processes = [w.recycle(0), w.destroy(0), w.trier(0)]
    return w


def destroyed_while_all(without: str = "") -> PoolWorld:
    """The pool is destroyed while one recycles and another waits."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.processes = [w.recycle(0), w.destroy(0), w.user(0)]
    return w


def destroyed_pools_segment(without: str = "") -> PoolWorld:
    """Pool 1 waits for what a destroyed pool has out."""
    w = PoolWorld(1, [Pool(1, 1, out=1), Pool(0, 1)], without)
    w.processes = [w.recycle(0), w.destroy(0), w.user(1)]
    return w


def destroyed_with_guarantee(without: str = "") -> PoolWorld:
    """What a destroyed pool was guaranteed is there for one who waits in another."""
    w = PoolWorld(1, [Pool(1, 1), Pool(0, 1)], without)
    w.processes = [w.destroy(0), w.user(1)]
    return w


def destroyed_with_claim(without: str = "") -> PoolWorld:
    """A claim in flight on the guarantee of a pool that is being destroyed."""
    w = PoolWorld(1, [Pool(1, 1), Pool(0, 1)], without)
    w.processes = [w.destroy(0), w.trier(0), w.trier(1)]
    return w


def destroyed_with_both(without: str = "") -> PoolWorld:
    """The same, and one waits for what the claim lets go."""
    w = PoolWorld(1, [Pool(1, 1), Pool(0, 1)], without)
    w.processes = [w.destroy(0), w.trier(0), w.user(1)]
    return w


def listening(without: str = "") -> PoolWorld:
    """An event loop and a blocked thread wait for the same segment."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.pools[0].listening = True
    w.processes = [w.recycle(0), w.listener(0), w.user(0)]
    return w


def tasks_and_a_thread(without: str = "") -> PoolWorld:
    """A task and a blocked thread wait for the same segment."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.pools[0].tasks = True
    w.processes = [w.recycle(0), w.task(0, 1), w.user(0)]
    return w


def tasks_on_two_loops(without: str = "") -> PoolWorld:
    """Two loops watch the signal; what one of them takes must reach the other's task too."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.pools[0].tasks = True
    w.processes = [w.recycle(0), w.task(0, 1), w.task(0, 2)]
    return w


def a_task_is_cancelled(without: str = "") -> PoolWorld:
    """The first of two tasks is cancelled at any moment, also when its segment has come."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.pools[0].tasks = True
    w.processes = [w.recycle(0), w.task(0, 1, cancelled=True), w.task(0, 2)]
    return w


def destroyed_while_a_task_waits(without: str = "") -> PoolWorld:
    """The pool is destroyed while a task waits in it."""
    w = PoolWorld(1, [Pool(1, 1, out=1)], without)
    w.pools[0].tasks = True
    w.processes = [w.destroy(0), w.task(0, 1)]
    return w


def two_come_home(without: str = "") -> PoolWorld:
    """Two wait, one arming while the other looks, and two segments arrive."""
    w = PoolWorld(2, [Pool(2, 2)], without)
    w.free, w.spare = 0, -2

    def both() -> Process:
        yield from w.arrive()
        yield from w.arrive()

    w.processes = [w.user(0, keep=True), w.user(0, keep=True), both()]
    return w


SCENARIOS: list[Scenario] = [
    one_pool_one_segment,
    another_pool_recycles,
    limit_falls_while_recycling,
    surplus_lies_free,
    limit_rises,
    claim_in_the_way,
    payment_in_the_way,
    overdraft_against_guarantee,
    putting_back,
    destroyed_while_waiting,
    destroyed_while_recycling,
    destroyed_pools_segment,
    destroyed_with_guarantee,
    destroyed_with_claim,
    listening,
    tasks_and_a_thread,
    tasks_on_two_loops,
    a_task_is_cancelled,
    destroyed_while_a_task_waits,
]
if os.environ.get("FASTBUF_LONG") == "1":  # minutes each; the ones above have their parts
    SCENARIOS += [destroyed_while_all, destroyed_with_both, two_come_home]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_nothing_forbidden_can_happen(scenario: Scenario) -> None:
    assert explore(lambda: scenario("")) > 20


@pytest.mark.parametrize(
    ("without", "scenario"),
    [
        ("look again after arming", one_pool_one_segment),
        ("wake after recycle", one_pool_one_segment),
        ("wake after trim", another_pool_recycles),
        ("push before limit", limit_falls_while_recycling),
        ("reclaim", surplus_lies_free),
        ("look again after undo", claim_in_the_way),
        ("wake after refund", payment_in_the_way),
        ("pay for what is beyond", overdraft_against_guarantee),
        ("wake after putting back", putting_back),
        ("count before flag", two_come_home),
        ("arm for the tasks", tasks_and_a_thread),
        ("take the signal first", tasks_on_two_loops),
        ("serve after entering", tasks_on_two_loops),
        ("recycle when cancelled", a_task_is_cancelled),
    ],
)
def test_the_model_finds_what_is_left_out(without: str, scenario: Scenario) -> None:
    with pytest.raises(Violation):
        explore(lambda: scenario(without))
