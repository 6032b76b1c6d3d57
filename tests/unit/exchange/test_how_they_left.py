"""Who leaves its block by what is no error of its own, such as a cancelled task, says so to its peers in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ExchangeAborted, left_by

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))

KINDS: dict[str, tuple[BaseException, str]] = {
    "cancelled": (asyncio.CancelledError(), "{} was cancelled"),
    "interrupted": (KeyboardInterrupt(), "{} was interrupted (KeyboardInterrupt)"),
    "exits": (SystemExit("no input"), "{} exited (SystemExit: no input)"),
    "generator": (GeneratorExit(), "{} stood in a generator that was closed before its end"),
    "its own": (OSError("the disk is full"), "OSError: the disk is full"),
}


@pytest.fixture
def ends() -> Iterator[tuple[fb.ShuffleEnvironment, fb.RecordWriter, fb.InputGate]]:
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        yield env, env.create_result_partition(ROWS, [gate]), gate
    env.pool.audit()


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer(ends: Any, kind: str) -> None:
    _, writer, gate = ends
    error, words = KINDS[kind]
    with contextlib.suppress(BaseException), gate:
        raise error
    if kind == "generator":  # of a gate: it has enough
        writer.emit((1,))
        assert writer.cancelled
    else:
        with pytest.raises(ExchangeAborted) as told:
            writer.emit((1,))
        assert words.format("the consumer") in str(told.value)
    writer.abort()


@pytest.mark.parametrize("kind", KINDS)
def test_a_producer(ends: Any, kind: str) -> None:
    _, writer, gate = ends
    error, words = KINDS[kind]
    with contextlib.suppress(BaseException), writer:
        raise error
    with gate, pytest.raises(ExchangeAborted) as told:
        gate.poll(20)
    assert words.format("the producer") in str(told.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_an_environment(kind: str, side: str) -> None:
    error, words = KINDS[kind]
    with fb.ShuffleEnvironment(segments=64) as far, fb.ShuffleEnvironment(segments=64) as near:
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1)
        writer = near.create_result_partition(ROWS, [gate.address])
        with contextlib.suppress(BaseException), near if side == "producer" else far:
            raise error
        hear = (lambda: gate.poll(20)) if side == "producer" else lambda: writer.emit_many((n,) for n in range(1 << 30))
        with pytest.raises(ExchangeAborted) as told:
            hear()
        assert words.format(f"the {side}'s ShuffleEnvironment") in str(told.value)


def test_a_task_that_is_cancelled_in_an_async_block(ends: Any) -> None:
    """Its producers were told "CancelledError"."""
    _, writer, gate = ends

    async def read() -> None:
        async with gate:
            await gate.poll_async()

    async def main() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(ExchangeAborted, match="the consumer was cancelled"):
        writer.emit((1,))
    writer.abort()


def test_the_words() -> None:
    class Cancelled(BaseException):
        """As trio's."""

    assert left_by("the consumer", Cancelled, Cancelled()) == "the consumer was cancelled (Cancelled)"
    assert left_by("the consumer", SystemExit, SystemExit(2)) == "the consumer exited (SystemExit: 2)"
    assert left_by("the consumer", ValueError, None) == "ValueError: None"
