"""Writing in an event loop: one loop produces and consumes, waits are cancelled, and nothing is lost or left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ExchangeAborted, ExchangeClosed, StallTimeout

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
TEXT = "x" * 200
LONG = "y" * 20_000  # of ten segments


class _Ends:
    def __init__(self, kind: str) -> None:
        self.stack = contextlib.ExitStack()
        self.kind = kind
        self.far = self.stack.enter_context(self.environment())
        self.near = self.far if kind == "local" else self.stack.enter_context(self.environment())
        if kind != "local":
            self.far.listen()

    def environment(self) -> fb.ShuffleEnvironment:
        return fb.ShuffleEnvironment(segments=64, segment_size=2048, shared=self.kind == "memfd")

    def make(
        self, serializer: Any = ROWS, consumers: int = 1, selector: Any = None, **settings: Any
    ) -> tuple[fb.RecordWriter, list[fb.InputGate]]:
        config = fb.ExchangeConfig(transport="auto" if self.kind == "local" else self.kind, **settings)
        gates = [self.far.create_input_gate(serializer, channels=1, config=config) for _ in range(consumers)]
        targets = gates if self.kind == "local" else [gate.address for gate in gates]
        return self.near.create_result_partition(serializer, targets, config=config, selector=selector), gates


@pytest.fixture(params=["local", "tcp", "memfd"])
def ends(request: pytest.FixtureRequest) -> Iterator[_Ends]:
    made = _Ends(request.param)
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    yield made
    assert threading.active_count() <= threads + 1  # the I/O side of a transport
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 16
    made.stack.close()
    for env in {made.near, made.far}:
        env.pool.audit()
        assert env.pool.available == env.pool.total


async def _read(gate: fb.InputGate) -> list[Any]:
    async with gate:
        return [item async for item in gate]


def test_one_loop_produces_and_consumes(ends: _Ends) -> None:
    """A plain emit here waits for a coroutine that cannot run."""
    writer, gates = ends.make(consumers=2, selector=fb.custom(lambda record, n: record[0] % n))
    turns = 0

    async def write() -> None:
        async with writer:
            for k in range(3000):
                await writer.emit_async((k, TEXT))
                if k == 1500:
                    await writer.emit_event_async(fb.Watermark(k))

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> list[list[Any]]:
        other = asyncio.create_task(beside())
        *got, _ = await asyncio.gather(*map(_read, gates), write())
        other.cancel()
        return got

    got = asyncio.run(main())
    for part, items in enumerate(got):
        assert [item[0] for item in items if not isinstance(item, fb.Event)] == list(range(part, 3000, 2))
        assert sum(isinstance(item, fb.Event) for item in items) == 1
    assert turns > 40
    assert writer.closed
    assert writer.records == 3000


def test_batches_and_long_records_too(ends: _Ends) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    schema = pa.schema([("n", pa.int64())])
    columns, (gate,) = ends.make(fb.ColumnarSerializer(schema))
    rows, (other,) = ends.make()

    async def write() -> None:
        async with columns, rows:
            for k in range(10):
                await columns.emit_batch_async(pa.record_batch([pa.array(range(5000))], schema=schema))
                await rows.emit_async((k, LONG))
            await columns.flush_async()

    async def main() -> Any:
        return await asyncio.gather(_read(gate), _read(other), write())

    batches, records, _ = asyncio.run(main())
    assert sum(batch.num_rows for batch in batches) == 50_000
    assert records == [(k, LONG) for k in range(10)]


@pytest.mark.parametrize("text", [TEXT, LONG], ids=["short", "long"])
def test_an_emit_that_is_cancelled_leaves_no_half_record(ends: _Ends, text: str) -> None:
    writer, (gate,) = ends.make()

    async def main() -> tuple[list[int], list[Any]]:
        written = []
        cancelled = 0
        for k in range(1000):
            before = writer.records
            try:
                await asyncio.wait_for(writer.emit_async((k, text)), 0.01)
            except TimeoutError:
                cancelled += 1
            if writer.records > before:  # of those that were cancelled, the first
                written.append(k)
            if cancelled == 3:
                break
        assert cancelled == 3
        assert written == [*range(len(written))]
        assert k - 1 <= len(written) <= k  # more, where one was cancelled since the machine was busy
        assert writer.pending
        reader = asyncio.create_task(_read(gate))
        await writer.emit_async((1000, text))
        await writer.close_async()
        return [*written, 1000], await reader

    written, got = asyncio.run(main())
    assert [record[0] for record in got] == written
    assert {record[1] for record in got} == {text}


def test_a_batch_that_is_cancelled_is_written_on(ends: _Ends) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    schema = pa.schema([("n", pa.int64())])
    writer, (gate,) = ends.make(fb.ColumnarSerializer(schema))
    batch = pa.record_batch([pa.array(range(50_000))], schema=schema)

    async def main() -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.emit_batch_async(batch), 0.02)
        assert writer.pending
        reader = asyncio.create_task(_read(gate))
        await writer.flush_async()
        assert not writer.pending
        await writer.close_async()
        return sum(part.num_rows for part in await reader)

    assert asyncio.run(main()) == 50_000


def test_tasks_write_in_the_order_in_which_they_came(ends: _Ends) -> None:
    writer, (gate,) = ends.make()

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(writer.emit_async((k, TEXT))) for k in range(400)]
        await asyncio.sleep(0.02)
        tasks[350].cancel()  # it waits for its turn
        reader = asyncio.create_task(_read(gate))
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[350].cancelled()
        await writer.close_async()
        return await reader

    assert [record[0] for record in asyncio.run(main())] == [k for k in range(400) if k != 350]


def test_a_wait_ends_when_the_consumer_does(ends: _Ends) -> None:
    for how in ("close", "abort", "writer"):
        writer, (gate,) = ends.make()

        async def main(how: str = how, writer: Any = writer, gate: Any = gate) -> None:
            async def write() -> None:
                while not writer.cancelled:
                    await writer.emit_async((1, TEXT))

            task = asyncio.create_task(write())
            await asyncio.sleep(0.02)
            assert not task.done()
            if how == "close":
                gate.close()
                await asyncio.wait_for(task, 20)
                assert writer.cancelled
            elif how == "abort":
                gate.abort("the disk is full")
                with pytest.raises(ExchangeAborted, match="the disk is full"):
                    await asyncio.wait_for(task, 20)
            else:
                writer.abort("no more")
                with pytest.raises((ExchangeAborted, ExchangeClosed)):
                    await asyncio.wait_for(task, 20)

        asyncio.run(main())
        writer.abort()
        gate.close()


def test_nobody_reads(ends: _Ends) -> None:
    writer, (gate,) = ends.make(stall_timeout_s=0.2)

    async def main() -> None:
        while True:
            await writer.emit_async((1, TEXT))

    with pytest.raises(StallTimeout, match=r"made no progress for 0.2 s: .* of this process has never been read"):
        asyncio.run(main())
    writer.abort()
    gate.close()


def test_who_waits_for_room_in_a_coroutine(ends: _Ends) -> None:
    writer, gates = ends.make(consumers=2, selector=fb.first_free())

    async def write() -> None:
        async with writer:
            for k in range(500):
                await writer.emit_async((k, TEXT))

    async def main() -> list[Any]:
        *got, _ = await asyncio.gather(*map(_read, gates), write())
        return got

    first, second = asyncio.run(main())
    assert sorted(record[0] for record in first + second) == list(range(500))


def test_an_error_in_its_block_reaches_the_consumer(ends: _Ends) -> None:
    writer, (gate,) = ends.make()

    async def write() -> None:
        async with writer:
            await writer.emit_async((1, TEXT))
            raise ValueError("no more input")

    with pytest.raises(ValueError, match="no more input"):
        asyncio.run(write())
    with gate, pytest.raises(ExchangeAborted, match="ValueError: no more input"):
        list(gate)


def test_a_task_that_is_cancelled_in_its_block(ends: _Ends) -> None:
    writer, (gate,) = ends.make()

    async def write() -> None:
        async with writer:
            while True:
                await writer.emit_async((1, TEXT))

    async def main() -> None:
        task = asyncio.create_task(write())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with gate, pytest.raises(ExchangeAborted, match="the producer was cancelled"):
        list(gate)
