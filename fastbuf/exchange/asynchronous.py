"""Reading a gate from a coroutine, without a thread and without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastbuf.checks import timeout_or_none

if TYPE_CHECKING:
    from fastbuf.exchange.input_gate import InputGate

_NOTHING = object()

#: Who waits for each gate, in whatever loop.  Who clears its descriptor, which may have been written for another, wakes
#: all of them.
_waiting: weakref.WeakKeyDictionary[InputGate, list[asyncio.Future[None]]] = weakref.WeakKeyDictionary()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _wake_all(waiters: list[asyncio.Future[None]], loop: asyncio.AbstractEventLoop) -> None:
    for woken in tuple(waiters):
        if woken.get_loop() is loop:
            _wake(woken)
        else:
            with contextlib.suppress(RuntimeError):  # that loop was closed
                woken.get_loop().call_soon_threadsafe(_wake, woken)


async def poll_async(gate: InputGate, timeout: float | None = None) -> Any:
    """Like ``gate.poll``; a coroutine that is cancelled while it waits loses no record.

    Raises
    ------
    StallTimeout
        As for ``gate.poll``.
    """
    timeout = timeout_or_none(timeout)
    loop = asyncio.get_running_loop()
    until = math.inf if timeout is None else loop.time() + timeout
    await asyncio.sleep(0)  # with data always there, other coroutines would never run; nothing is taken yet
    waiters = _waiting.setdefault(gate, [])
    while True:
        woken: asyncio.Future[None] = loop.create_future()
        waiters.append(woken)  # before it arms, so that others wake it from then on
        try:
            # The order of an eventcount: arm, check, sleep.  What arrives after the arming makes the descriptor
            # readable.
            descriptor, cleared = gate.arm_wake()
            if cleared and len(waiters) > 1:
                _wake_all([other for other in waiters if other is not woken], loop)
            got = gate.poll(0)
            now = loop.time()
            if got is not None or gate.finished or now >= until:
                return got
            try:
                await _sleep(gate, woken, waiters, descriptor, until)
            finally:
                gate.waited(loop.time() - now)
        finally:
            waiters.remove(woken)


async def _sleep(
    gate: InputGate,
    woken: asyncio.Future[None],
    waiters: list[asyncio.Future[None]],
    descriptor: int,
    until: float,
) -> None:
    """Sleep until the descriptor is readable, or something is due that it does not report, or until that time."""
    loop = woken.get_loop()
    timer: asyncio.TimerHandle | None = None

    def sleep() -> None:
        nonlocal timer
        due = min(loop.time() + gate.due_in(), until)
        if due < math.inf:
            timer = loop.call_at(due, look)

    def look() -> None:
        if gate.is_due() or loop.time() >= until:
            _wake(woken)
        else:
            sleep()

    loop.add_reader(descriptor, _wake_all, waiters, loop)
    try:
        sleep()
        await woken
    finally:
        if not any(other.get_loop() is loop for other in waiters if other is not woken):
            loop.remove_reader(descriptor)
        if timer is not None:
            timer.cancel()


class AsyncReader:
    """Iterator for ``async for``; gives the same records, record batches and events as iterating over the gate."""

    def __init__(self, gate: InputGate) -> None:
        self._gate = gate

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            item = self._gate.pending_or(_NOTHING)
            if item is not _NOTHING:
                return item
            got = await poll_async(self._gate)
            if got is None:
                raise StopAsyncIteration
            if not isinstance(got, list):  # an event, a batch, a view
                return got
            self._gate.keep(got)
