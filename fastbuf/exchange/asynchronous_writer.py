"""Writing from a coroutine, without a thread and without blocking the event loop.

A task tries; if a consumer has no room, it arms the partition's pool, looks again, and sleeps until a segment comes
home (an eventfd) or a short time is over, as no segment tells of a consumer's end, of a failure, or of what a reader of
shared memory gave back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastbuf.errors import StallTimeout, left_by

if TYPE_CHECKING:
    from fastbuf.exchange.events import Event
    from fastbuf.exchange.record_writer import RecordWriter

_FIRST_S = 0.001  # how soon to look again; each time twice as long
_MOST_S = 0.05
_MOST_SHARED_S = 0.004  # a reader in shared memory writes to no eventfd
_EVERY = 64  # records between two turns of other coroutines


async def emit_async(writer: RecordWriter, record: Any) -> None:
    """See :meth:`RecordWriter.emit_async`."""
    async with _turns(writer):
        await _room(writer)
        if not writer.try_emit(record):
            await _until(writer, writer.resume)
    if writer.records % _EVERY == 0:  # with room always there, other coroutines would never run
        await asyncio.sleep(0)


async def emit_batch_async(writer: RecordWriter, batch: Any) -> None:
    """See :meth:`RecordWriter.emit_batch_async`."""
    async with _turns(writer):
        await _room(writer)
        if not writer.try_emit_batch(batch):
            await _until(writer, writer.resume)
    await asyncio.sleep(0)


async def emit_event_async(writer: RecordWriter, event: Event) -> None:
    """See :meth:`RecordWriter.emit_event_async`."""
    async with _turns(writer):
        await _finish(writer)
        await _until(writer, lambda: writer.try_emit_event(event))


async def flush_async(writer: RecordWriter) -> None:
    """See :meth:`RecordWriter.flush_async`."""
    async with _turns(writer):
        await _finish(writer)
        writer.flush()


async def close_async(writer: RecordWriter) -> None:
    """See :meth:`RecordWriter.close_async`."""
    async with _turns(writer):
        await _until(writer, writer.try_close)


async def leave(writer: RecordWriter, kind: type[BaseException] | None, value: BaseException | None) -> None:
    """The end of ``async with writer``."""
    if kind is not None:
        writer.abort(left_by("the producer", kind, value))
        return
    try:
        await close_async(writer)
    except BaseException as error:
        writer.abort(left_by("the producer", type(error), error))
        raise


def _turns(writer: RecordWriter) -> asyncio.Lock:
    """What gives the writer's tasks their turns; a lock is one event loop's, and loops may come one after the other."""
    loop = asyncio.get_running_loop()
    if writer.turns is None or writer.turns[0] is not loop:
        writer.turns = loop, asyncio.Lock()
    lock: asyncio.Lock = writer.turns[1]
    return lock


async def _finish(writer: RecordWriter) -> None:
    if writer.pending:  # of a call that was interrupted
        await _until(writer, writer.resume)


async def _room(writer: RecordWriter) -> None:
    await _finish(writer)
    if not writer.has_room():
        await _until(writer, writer.has_room)


async def _until(writer: RecordWriter, done: Callable[[], bool]) -> None:
    """Wait until `done()` is true.

    Raises
    ------
    StallTimeout
        No consumer took anything for ``stall_timeout_s``.
    """
    if done():
        return
    loop = asyncio.get_running_loop()
    partition = writer.partition
    most_s = _MOST_SHARED_S if "memfd" in partition.transports_used() else _MOST_S
    stall_s = partition.config.stall_timeout_s
    slice_s, quiet_s, moved = _FIRST_S, 0.0, partition.moved()
    woken = asyncio.Event()
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    loop.add_reader(fd, woken.set)
    try:
        while True:
            # The order of an eventcount: arm, look, sleep.
            woken.clear()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)
            partition.arm_wake(fd)
            if done():
                return
            if partition.moved() != moved:
                slice_s, quiet_s, moved = _FIRST_S, 0.0, partition.moved()
            elif stall_s is not None and quiet_s > stall_s:
                raise StallTimeout(partition.describe_stall())
            began = loop.time()
            timer = loop.call_later(slice_s, woken.set)
            try:
                await woken.wait()
            finally:
                timer.cancel()
            quiet_s += min(loop.time() - began, 2 * slice_s)  # a longer one: the loop itself was busy
            slice_s = min(2 * slice_s, most_s)
    finally:
        loop.remove_reader(fd)
        partition.arm_wake(-1)
        os.close(fd)
