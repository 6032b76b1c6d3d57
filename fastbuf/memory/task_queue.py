"""Tasks that wait for a segment: first come, first served, on any number of event loops.

A failed try arms the pool (see the head of ``pool_waking.pyx``).  A thread that then makes a segment available writes
to the pool's eventfd, which every loop with a waiting task watches.  The first loop that sees it serves the whole
queue, so it does not matter which loop reads the signal.  The order of steps is the same as for a waiting thread: a
task enters the queue and its loop watches the eventfd before the pool is tried and armed; the eventfd is read before
the pool is tried.

Forbidden: a task waits while its pool has a free segment and no signal is on its way; a segment handed to a task that
was cancelled stays in use for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from fastbuf.checks import timeout_or_none
from fastbuf.errors import PoolDestroyed

if TYPE_CHECKING:
    from fastbuf.memory.local_buffer_pool import LocalBufferPool
    from fastbuf.memory.memory_segment import MemorySegment

    Waiter = asyncio.Future[MemorySegment]


class TaskQueue:
    """The tasks that wait for one pool.  The tasks keep the pool alive; the queue does not.

    Parameters
    ----------
    eventfd
        The pool's non-blocking eventfd; the pool closes it.
    """

    def __init__(self, eventfd: int) -> None:
        self._eventfd = eventfd
        self._waiting: dict[Waiter, asyncio.AbstractEventLoop] = {}  # in order of arrival
        # number of tasks by loop; only the loop's own thread writes its entry
        self._watching: dict[asyncio.AbstractEventLoop, int] = {}
        self._serving = threading.Lock()  # held while signals are read and segments handed out, never while waiting

    async def request(self, pool: LocalBufferPool, timeout: float | None) -> MemorySegment:
        """See ``LocalBufferPool.request_async``."""
        timeout = timeout_or_none(timeout)
        if not self._waiting:  # a later task must not overtake
            segment = pool.try_request()
            if segment is not None:
                return segment
        if timeout is not None and timeout <= 0:
            raise pool._refusal(timeout)
        loop = asyncio.get_running_loop()
        begin = time.monotonic_ns()
        waiter: Waiter = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, self._refuse, pool, waiter, timeout)
        self._enter(pool, loop, waiter)
        try:
            self._serve(pool)
            return await waiter
        except BaseException:
            # The task was cancelled, perhaps after its segment had come but before it ran; or its loop was closed.
            if not waiter.done():
                if not loop.is_closed():
                    waiter.cancel()
            elif not waiter.cancelled() and waiter.exception() is None:
                waiter.result().recycle()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(loop, waiter)
            pool._count_wait(time.monotonic_ns() - begin)

    def _enter(self, pool: LocalBufferPool, loop: asyncio.AbstractEventLoop, waiter: Waiter) -> None:
        if loop not in self._watching:
            loop.add_reader(self._eventfd, self._serve, pool)
        self._watching[loop] = self._watching.get(loop, 0) + 1
        self._waiting[waiter] = loop

    def _leave(self, loop: asyncio.AbstractEventLoop, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
        self._watching[loop] -= 1
        if not self._watching[loop]:
            del self._watching[loop]
            if not loop.is_closed():
                loop.remove_reader(self._eventfd)

    def _refuse(self, pool: LocalBufferPool, waiter: Waiter, timeout: float) -> None:
        if not waiter.done():
            waiter.set_exception(pool._refusal(timeout))

    def _serve(self, pool: LocalBufferPool) -> None:
        """Hand out the free segments; leave the pool armed if a task still has to wait."""
        segment: MemorySegment | None = None
        with self._serving:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._eventfd)
            while (waiter := self._first()) is not None:
                try:
                    segment = segment or pool._try_or_arm()
                except PoolDestroyed as error:
                    self._settle(waiter, error)
                    continue
                if segment is None:
                    return
                if self._settle(waiter, segment):
                    segment = None
        if segment is not None:  # its task's loop has been closed
            segment.recycle()

    def _first(self) -> Waiter | None:
        while True:
            try:
                return next(iter(self._waiting), None)
            except RuntimeError:  # another thread added or removed a task during the iteration
                continue

    def _settle(self, waiter: Waiter, outcome: MemorySegment | PoolDestroyed) -> bool:
        """Take a waiter from the queue and give it its outcome; False if it was cancelled."""
        loop = self._waiting.pop(waiter, None)
        if loop is None or waiter.done():
            return False
        try:
            if asyncio._get_running_loop() is loop:
                _deliver(waiter, outcome)
            else:
                loop.call_soon_threadsafe(_deliver, waiter, outcome)
        except RuntimeError:  # the loop is closed
            return False
        return True


def _deliver(waiter: Waiter, outcome: MemorySegment | PoolDestroyed) -> None:
    if isinstance(outcome, PoolDestroyed):
        if not waiter.done():
            waiter.set_exception(outcome)
    elif waiter.done():
        outcome.recycle()
    else:
        waiter.set_result(outcome)
