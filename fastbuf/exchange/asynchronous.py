"""Reading a gate from a coroutine, without a thread and without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastbuf.checks import timeout_or_none

if TYPE_CHECKING:
    from fastbuf.exchange.input_gate import InputGate

_SLICE_S = 0.05  # how often to check what no descriptor reports: the clock, a segment that becomes free
_NOTHING = object()


async def poll_async(gate: InputGate, timeout: float | None = None) -> Any:
    """Like ``gate.poll``; a coroutine that is cancelled while it waits loses no record.

    Raises
    ------
    StallTimeout
        As for ``gate.poll``.
    """
    timeout = timeout_or_none(timeout)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(0)  # with data always there, other coroutines would never run; nothing is taken yet
    while True:
        # The order of an eventcount: arm, check, sleep.  What arrives after the arming makes the descriptor readable.
        descriptor = gate.arm_wake()
        got = gate.poll(0)
        if got is not None or gate.finished:
            return got
        now = loop.time()
        waited = now - began
        if timeout is not None and waited >= timeout:
            return None
        woken: asyncio.Future[None] = loop.create_future()

        def wake(woken: asyncio.Future[None] = woken) -> None:
            if not woken.done():
                woken.set_result(None)

        timer = loop.call_later(gate.due_in(_SLICE_S if timeout is None else min(_SLICE_S, timeout - waited)), wake)
        loop.add_reader(descriptor, wake)
        try:
            await woken
        finally:
            timer.cancel()
            loop.remove_reader(descriptor)
            gate.waited(loop.time() - now)


class AsyncReader:
    """Iterator for ``async for``; gives the same records, record batches and events as iterating over the gate."""

    def __init__(self, gate: InputGate) -> None:
        self._gate = gate

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            item = self._gate.kept(_NOTHING)
            if item is not _NOTHING:
                return item
            got = await poll_async(self._gate)
            if got is None:
                raise StopAsyncIteration
            if not isinstance(got, list):  # an event, a batch, a view
                return got
            self._gate.keep(got)
