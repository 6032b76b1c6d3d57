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
from fastbuf.exchange.asynchronous import poll_async

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


class Counted:
    """A gate whose polls are counted."""

    def __init__(self, gate: fb.InputGate) -> None:
        self.gate = gate
        self.polls = 0

    def poll(self, timeout: float) -> Any:
        self.polls += 1
        return self.gate.poll(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gate, name)


@pytest.mark.parametrize("buffer_timeout_s", [0.02, -1])
def test_an_idle_gate_is_not_polled(ends: Any, buffer_timeout_s: float) -> None:
    """It was polled each 50 ms: 200 idle gates took an eighth of a core."""
    writer, gate = ends(buffer_timeout_s=buffer_timeout_s)
    counted = Counted(gate)

    async def main() -> None:
        for n in range(2):  # a channel that has been used is as idle as one that has not
            before = counted.polls
            waiting = asyncio.create_task(poll_async(counted, 20))  # type: ignore[arg-type]
            await asyncio.sleep(0.5)
            assert counted.polls - before <= 2
            writer.emit((n,))
            if buffer_timeout_s < 0:
                writer.flush()
            assert await waiting == [(n,)]

    asyncio.run(main())
    writer.close()
    gate.close()


def test_one_that_awaits_producers_is_looked_at_once_a_second() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        counted = Counted(gate)

        async def main() -> Any:
            asyncio.get_running_loop().call_later(0.5, gate.seal, {})
            return await poll_async(counted, 20)  # type: ignore[arg-type]

        assert asyncio.run(main()) is None
        assert gate.finished
        assert counted.polls <= 3


@pytest.mark.parametrize("loops", [1, 2])
def test_all_who_wait_for_a_gate_hear_of_its_end(ends: Any, loops: int) -> None:
    """One descriptor wakes them all, in one loop or in several."""
    writer, gate = ends(buffer_timeout_s=0)
    got: list[Any] = []
    ended = 0

    async def read() -> None:
        nonlocal ended
        async for record in gate:
            got.append(record)
        ended += 1

    async def readers() -> None:
        await asyncio.wait_for(asyncio.gather(*(read() for _ in range(3))), 20)

    threads = [threading.Thread(target=asyncio.run, args=(readers(),)) for _ in range(loops)]
    for thread in threads:
        thread.start()
    for n in range(50):
        writer.emit((n,))
    threads.append(threading.Thread(target=writer.close))
    threads[-1].start()
    for thread in threads:
        thread.join(30)
    assert ended == 3 * loops
    assert sorted(got) == [(n,) for n in range(50)]
    gate.close()


def test_a_coroutine_hears_of_what_another_reader_leaves_or_ends(ends: Any) -> None:
    writer, gate = ends(buffer_timeout_s=0)

    async def main() -> None:
        waiting = asyncio.create_task(gate.poll_async())
        await asyncio.sleep(0.05)
        gate.keep([(7,)])
        assert await asyncio.wait_for(waiting, 10) == [(7,)]
        waiting = asyncio.create_task(gate.poll_async())
        await asyncio.sleep(0.05)
        closing = threading.Thread(target=writer.close)
        closing.start()
        await asyncio.to_thread(lambda: [gate.poll(0.05) for _ in range(100) if not gate.finished])
        assert await asyncio.wait_for(waiting, 10) is None
        closing.join()

    asyncio.run(main())
    gate.close()


def test_a_gate_in_a_loop_takes_segments_that_become_free() -> None:
    """A poll without a timeout gave none to channels that waited for them."""
    with (
        fb.ShuffleEnvironment(segments=10, segment_size=2048) as far,
        fb.ShuffleEnvironment(segments=16, segment_size=2048) as near,
    ):
        hoard = far.pool.create_local_pool(required=1)
        taken = [hoard.request(0) for _ in range(9)]
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1)
        writer = near.create_result_partition(ROWS, [gate.address])

        async def main() -> None:
            waiting = asyncio.create_task(gate.poll_async())
            await asyncio.sleep(0.05)
            assert gate.pool.in_use == 1
            for segment in taken:
                segment.recycle()
            for _ in range(200):
                await asyncio.sleep(0.02)
                if gate.pool.in_use > 1:
                    break
            assert gate.pool.in_use == 2
            waiting.cancel()

        asyncio.run(main())
        writer.abort()
        hoard.destroy()
    far.pool.audit()
