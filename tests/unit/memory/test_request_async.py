from __future__ import annotations

import asyncio
import gc
import math
import os
import selectors
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from left_behind import nothing_left

from fastbuf.errors import ConfigError, FastbufError, PoolDestroyed, PoolTimeout
from fastbuf.memory import LocalBufferPool, MemorySegment, NetworkBufferPool
from fastbuf.memory._testing import pin_listener
from fastbuf.memory.task_queue import TaskQueue

Run = Callable[[Coroutine[Any, Any, Any]], Any]
PATIENCE = 60.0


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    with NetworkBufferPool(4, 64) as pool:
        yield pool
    pool.audit()


@pytest.fixture(params=[selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector])
def run(request: pytest.FixtureRequest) -> Run:
    def on_that_loop(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(request.param())) as runner:
            return runner.run(asyncio.wait_for(main, PATIENCE))

    return on_that_loop


async def settled(*tasks: asyncio.Task[Any]) -> None:
    """Everything that can run without outside help has run: the loop has turned often enough."""
    for _ in range(5 + len(tasks)):
        await asyncio.sleep(0)


def test_at_once(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(4)

    async def main() -> None:
        one = await local.request_async()
        two = await local.request_async(timeout=0)
        assert one.index != two.index
        local.recycle_many([one, two])

    run(main())
    assert local.stats().waits == 0


def test_tasks_are_served_in_the_order_they_came(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(4)
    order = []

    async def task(k: int) -> None:
        segment = await local.request_async()
        order.append(k)
        await asyncio.sleep(0)
        segment.recycle()

    async def main() -> None:
        out = local.request_many(4)
        tasks = [asyncio.create_task(task(k)) for k in range(20)]
        await settled(*tasks)
        assert order == []
        local.recycle_many(out[:1])
        await settled(*tasks)
        local.recycle_many(out[1:])
        await asyncio.gather(*tasks)

    run(main())
    assert order == list(range(20))
    stats = local.stats()
    assert (stats.waits, stats.in_use) == (20, 0)
    assert stats.wait_s > 0


def test_who_comes_later_does_not_overtake(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(4)

    async def main() -> None:
        out = local.request_many(4)
        first = asyncio.create_task(local.request_async())
        await settled(first)
        out.pop().recycle()  # it is free now, and the loop has not turned
        with pytest.raises(PoolTimeout):
            await local.request_async(timeout=0)
        out.append(await first)
        local.recycle_many(out)

    run(main())


def test_a_thread_recycles(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(4)
    out = local.request_many(4)

    async def main() -> None:
        for _ in range(50):
            segment = out.pop()
            task = asyncio.create_task(local.request_async())
            await settled(task)
            thread = threading.Thread(target=segment.recycle)
            thread.start()
            out.append(await task)
            thread.join()

    run(main())
    local.recycle_many(out)


def test_another_pools_recycle_and_a_rising_limit(network: NetworkBufferPool, run: Run) -> None:
    a = network.create_local_pool(1)
    out = a.request_many(4)
    b = network.create_local_pool(2)

    async def main() -> None:
        waits = asyncio.create_task(b.request_async())
        await settled(waits)
        out.pop().recycle()
        (await waits).recycle()
        here = asyncio.create_task(a.request_async())
        await settled(here)
        b.destroy()
        (await here).recycle()

    run(main())
    a.recycle_many(out)


def test_cancelled_while_waiting(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(4)

    async def main() -> None:
        out = local.request_many(4)
        tasks = [asyncio.create_task(local.request_async()) for _ in range(5)]
        await settled(*tasks)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        local.recycle_many(out[:3])
        got = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(g, asyncio.CancelledError) for g in got] == [True, False, True, False, False]
        local.recycle_many([*out[3:], *(g for g in got if isinstance(g, MemorySegment))])

    run(main())
    assert local.in_use == 0


def test_cancelled_when_the_segment_had_come(network: NetworkBufferPool, run: Run) -> None:
    # Every number of turns of the loop between the recycle and the cancellation: before the signal is seen, after it
    # and before the task runs, and after the task has it.
    local = network.create_local_pool(4)

    async def main() -> set[bool]:
        had = set()
        out = local.request_many(4)
        for turns in range(8):
            task = asyncio.create_task(local.request_async())
            behind = asyncio.create_task(local.request_async())
            await settled(task, behind)
            out.pop().recycle()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                segment = await task
            except asyncio.CancelledError:
                had.add(False)
                assert local.in_use <= 4
            else:
                had.add(True)
                segment.recycle()
            out.append(await behind)
            assert local.in_use == 4
        local.recycle_many(out)
        return had

    assert run(main()) == {True, False}
    assert local.in_use == 0


def test_a_timeout_has_the_figures(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(2, name="p")

    async def main() -> None:
        out = local.request_many(4)
        for timeout in (0.01, 0, -1):
            with pytest.raises(PoolTimeout, match="required 2, limit 4, available 0, in use 4"):
                await local.request_async(timeout)
        with pytest.raises(ConfigError, match="nan"):
            await local.request_async(math.nan)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await local.request_async()
        waits = asyncio.create_task(local.request_async(PATIENCE))  # they left nobody behind in the queue
        await settled(waits)
        out.pop().recycle()
        local.recycle_many([*out, await waits])

    run(main())


@pytest.mark.parametrize("which", ["local", "network"])
def test_destroyed_while_tasks_wait(run: Run, which: str) -> None:
    network = NetworkBufferPool(4, 64)
    local = network.create_local_pool(4, name="p")
    out = local.request_many(4)

    async def main() -> None:
        tasks = [asyncio.create_task(local.request_async()) for _ in range(3)]
        await settled(*tasks)
        threading.Thread(target=(local if which == "local" else network).destroy).start()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, PoolDestroyed)
            assert "'p'" in str(result)
        with pytest.raises(PoolDestroyed):
            await local.request_async()

    run(main())
    local.recycle_many(out)
    network.destroy()
    network.audit()


def test_loops_in_several_threads_share_a_pool(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(1, maximum=3)
    rounds, tasks = 100, 4

    async def one() -> None:
        for k in range(rounds):
            segment = await local.request_async()
            if k % 3:
                await asyncio.sleep(0)
            segment.recycle()

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(one() for _ in range(tasks))), PATIENCE)

    def blocking() -> None:
        for _ in range(rounds * 5):
            local.request(timeout=PATIENCE).recycle()

    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    works = [blocking, *[lambda: asyncio.run(main())] * 3]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert failed == []
    assert local.in_use == 0


def test_a_closed_loop_is_passed_over(network: NetworkBufferPool, run: Run) -> None:
    local = network.create_local_pool(4)
    out = local.request_many(4)
    gone = asyncio.SelectorEventLoop()
    left = gone.create_task(local.request_async())
    gone.run_until_complete(asyncio.sleep(0.01))
    gone.close()

    async def main() -> None:
        waits = asyncio.create_task(local.request_async())
        await settled(waits)
        out.pop().recycle()
        out.append(await waits)

    run(main())
    local.recycle_many(out)
    assert local.in_use == 0
    assert not left.done()
    left._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be left alone


def test_the_descriptor_goes_with_the_pool(network: NetworkBufferPool) -> None:
    async def use(local: LocalBufferPool) -> None:
        out = local.request_many(4)
        with pytest.raises(PoolTimeout):
            await local.request_async(0.001)
        local.recycle_many(out)

    with nothing_left():
        for _ in range(20):
            asyncio.run(use(network.create_local_pool(4)))
            gc.collect()


def test_in_a_forked_child(network: NetworkBufferPool) -> None:
    local = network.create_local_pool(4)
    child = os.fork()
    if child == 0:
        try:
            local.request_async()
        except FastbufError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_forked_child_lets_go_though_a_thread_was_just_waking() -> None:
    """In the child nobody takes that thread's pin off the listener: nobody may wait for it."""
    network = NetworkBufferPool(4, 64)
    local = network.create_local_pool(4)
    local.request_async().close()  # opens the eventfd, which the end of the pool takes off again
    pin_listener(local, True)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends a child that waits for ever
        del local
        os._exit(7)
    pin_listener(local, False)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    local.destroy()


def test_the_first_is_found_while_tasks_of_other_threads_come() -> None:
    class Restless(dict[str, None]):
        """Another task comes just after the iterator was made, twice."""

        coming = ["third", "second"]  # noqa: RUF012

        def __iter__(self) -> Iterator[str]:
            made = super().__iter__()
            if self.coming:
                self[self.coming.pop()] = None
            return made

    queue = TaskQueue(-1)
    queue._waiting = Restless(first=None)  # type: ignore[assignment]
    assert queue._first() == "first"
    assert list(dict.keys(queue._waiting)) == ["first", "second", "third"]
