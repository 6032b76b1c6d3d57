"""Gates in an event loop: what a coroutine gets, that others run meanwhile, and that nothing is lost or left."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from left_behind import held, new_since

import fastbuf as fb
from fastbuf.errors import ConfigError

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


@pytest.fixture(params=["local", "tcp"])
def ends(request: pytest.FixtureRequest) -> Any:
    """A function that makes a writer and its gate."""
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=2048) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=2048) as near,
    ):

        def make(**settings: Any) -> tuple[fb.RecordWriter, fb.InputGate]:
            config = fb.ExchangeConfig(**settings)
            gate = far.create_input_gate(ROWS, channels=1, config=config)
            if request.param == "local":
                return far.create_result_partition(ROWS, [gate], config=config), gate
            far.listen()
            return near.create_result_partition(ROWS, [gate.address], config=config), gate

        yield make


def test_a_coroutine_reads_all_and_others_run_meanwhile(ends: Any) -> None:
    writer, gate = ends(batch_rows=200)
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> list[Any]:
        other = asyncio.create_task(beside())
        got = [item async for item in gate]
        other.cancel()
        return got

    def send() -> None:
        for k in range(20_000):
            writer.emit((k,))
            if k % 5000 == 0:
                writer.emit_event(fb.Watermark(k))
        writer.close()

    thread = threading.Thread(target=send)
    threads = threading.active_count()
    thread.start()
    got = asyncio.run(main())
    thread.join(10)
    assert [item[0] for item in got if not isinstance(item, fb.Event)] == list(range(20_000))
    assert [item.time_ms for item in got if isinstance(item, fb.Event)] == [0, 5000, 10_000, 15_000]
    assert turns >= 20  # of a hundred polls or more, each with something to give
    assert threading.active_count() <= threads


def test_it_waits_for_what_comes_later_and_no_longer_than_it_is_told(ends: Any) -> None:
    writer, gate = ends(buffer_timeout_s=0)

    async def main() -> None:
        assert await gate.poll_async(0) is None
        assert await gate.poll_async(0.01) is None
        asyncio.get_running_loop().call_later(0.02, writer.emit, (5,))
        assert await gate.poll_async(20) == [(5,)]

    asyncio.run(main())
    writer.abort()


def test_a_timeout_that_is_no_number_is_refused(ends: Any) -> None:
    """It waited for ever."""
    writer, gate = ends()
    with pytest.raises(ConfigError, match="timeout is nan"):
        asyncio.run(asyncio.wait_for(gate.poll_async(float("nan")), 5))
    writer.abort()


def test_a_wait_that_is_cancelled_has_taken_nothing(ends: Any) -> None:
    writer, gate = ends(buffer_timeout_s=0)

    async def main() -> None:
        for k in range(50):
            waiting = asyncio.create_task(gate.poll_async())
            await asyncio.sleep(0)
            writer.emit((k,))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await gate.poll_async(20) == [(k,)]

    asyncio.run(main())
    writer.abort()


def test_many_gates_in_one_loop_and_no_descriptor_is_left() -> None:
    gc.collect()  # what tests before left to the collector would hide what this one leaves
    before = held()
    with fb.ShuffleEnvironment(segments=512, segment_size=4096) as env:
        writer, gates = env.exchange(ROWS, consumers=40, selector=fb.round_robin())

        async def main(writer: Any, gates: list[Any]) -> list[list[Any]]:
            async def read(gate: Any) -> list[Any]:
                return [record async for record in gate]

            thread = threading.Thread(target=lambda: (writer.emit_many((k,) for k in range(4000)), writer.close()))
            thread.start()
            parts = await asyncio.gather(*map(read, gates))
            thread.join(10)
            return parts

        parts = asyncio.run(main(writer, gates))
        assert sorted(n for part in parts for (n,) in part) == list(range(4000))
    del gates, writer, env, main
    gc.collect()
    assert not new_since(before)


def test_failures_and_ends_are_heard(ends: Any) -> None:
    writer, gate = ends()

    async def read() -> None:
        await gate.poll_async()

    threading.Timer(0.05, writer.abort, ("on fire",)).start()
    with pytest.raises(fb.ExchangeAborted, match="on fire"):
        asyncio.run(asyncio.wait_for(gate.poll_async(10), 10))
    gate.close()
    with pytest.raises(fb.ExchangeClosed):
        asyncio.run(read())


def test_a_second_loop_goes_on_where_a_broken_one_stopped(ends: Any) -> None:
    writer, gate = ends()
    writer.emit_many((k,) for k in range(100))
    writer.close()

    async def main() -> list[Any]:
        got = []
        async for record in gate:
            got.append(record)
            if len(got) == 3:
                break
        got.append(await anext(aiter(gate)))
        got.append(next(gate))
        assert not gate.finished
        rest = await gate.poll_async(20)
        return got + rest + [record async for record in gate]

    assert asyncio.run(main()) == [(k,) for k in range(100)]
    assert gate.finished
