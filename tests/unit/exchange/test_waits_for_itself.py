"""A writer whose consumer is read by the thread that writes: it is told so at once, and can go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import StallTimeout
from fastbuf.exchange.own_readers import refuse_to_wait_for_oneself

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
RECORD = (1, "x" * 300)
MANY = 500  # far more than the queues have room for
SOON_S = 20.0  # of a stall timeout of two minutes


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

    def make(self, consumers: int = 1, selector: Any = None) -> tuple[fb.RecordWriter, list[fb.InputGate]]:
        config = fb.ExchangeConfig(transport="auto" if self.kind == "local" else self.kind)
        gates = [self.far.create_input_gate(ROWS, channels=1, config=config) for _ in range(consumers)]
        targets = gates if self.kind == "local" else [gate.address for gate in gates]
        return self.near.create_result_partition(ROWS, targets, config=config, selector=selector), gates


@pytest.fixture(params=["local", "tcp", "memfd"])
def ends(request: pytest.FixtureRequest) -> Iterator[_Ends]:
    made = _Ends(request.param)
    yield made
    made.stack.close()
    for env in {made.near, made.far}:
        env.pool.audit()
        assert env.pool.available == env.pool.total


def _calls(writer: fb.RecordWriter) -> dict[str, Any]:
    return {
        "emit": lambda: [writer.emit(RECORD) for _ in range(MANY)],
        "emit_many": lambda: writer.emit_many([RECORD] * MANY),
        "emit_event": lambda: [writer.emit_event(fb.Watermark(k)) for k in range(MANY)],
    }


@pytest.mark.parametrize("has_own", [False, True], ids=["without a gate", "with one of the same number and secret"])
def test_a_forked_child_does_not_wait_for_its_parent_as_for_itself(has_own: bool) -> None:
    """It found its copy of the parent's gate, which no thread of the child could read; or its own one.

    Each task of a stream has a gate 1 with the stream's secret: a slow reader of the next stage ended the stream.
    """
    room: dict[str, Any] = {"segments": 64, "segment_size": 2048}
    secret = b"s" * 32
    with fb.ShuffleEnvironment(**room) as far:
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1, secret=secret)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                near = fb.ShuffleEnvironment(**room)
                if has_own:
                    near.listen()
                    own = near.create_input_gate(ROWS, channels=1, secret=secret)
                    assert own.gate_id == gate.gate_id
                writer = near.create_result_partition(ROWS, [gate.address])
                while writer.try_emit(RECORD):
                    pass
                refuse_to_wait_for_oneself(writer.partition, 5.0)
                writer.abort("enough")
                near.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        gate.close()
    far.pool.audit()


@pytest.mark.parametrize("call", ["emit", "emit_many", "emit_event"])
def test_the_thread_that_reads_is_the_one_that_writes(ends: _Ends, call: str) -> None:
    """It froze for the two minutes of the stall timeout, and blamed a slow consumer."""
    other = threading.Event()
    beside = threading.Thread(target=other.wait)  # or this would be the only thread
    beside.start()
    try:
        writer, (gate,) = ends.make()
        writer.emit(RECORD)
        writer.flush()
        assert gate.poll(20) == [RECORD]
        began = time.monotonic()
        with pytest.raises(StallTimeout, match=f"waits for ever: .*gate {gate.gate_id} .*this thread itself"):
            _calls(writer)[call]()
        assert time.monotonic() - began < SOON_S
        if call != "emit_event":  # its records are kept: what is read makes room
            sent, got = writer.records - 1, 0
            while not writer.resume() or got < sent:
                writer.flush()
                got += len(gate.poll(0.05) or [])
        writer.abort()
        gate.close()
    finally:
        other.set()
        beside.join()


def test_the_only_thread_is_told_before_anybody_has_read() -> None:
    code = """
        import time, fastbuf as fb
        rows = fb.RowSerializer(fb.Schema.of(n="int64"))
        with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
            writer, gates = env.exchange(rows, consumers=2)
            began = time.monotonic()
            try:
                for n in range(100_000):
                    writer.emit((n,))
            except fb.StallTimeout as error:
                print(error)
            writer.abort()
            writer, (gate,) = env.exchange(rows)
            writer.emit((1,))
            writer.flush()
            print(gate.poll())
            try:
                gate.poll()
            except fb.StallTimeout as error:
                print(error)
            print(time.monotonic() - began < 20)
            writer.abort()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert "waits for ever: the queues of gate" in done.stdout, done.stdout + done.stderr
    assert "there is no other thread that could read" in done.stdout
    assert "read in another thread, or write by try_emit" in done.stdout
    assert "waits for ever: its writers are in this process" in done.stdout
    assert done.stdout.rstrip().endswith("True")


def test_a_coroutine_that_emits_without_await_is_told(ends: _Ends) -> None:
    writer, (gate,) = ends.make()

    async def read() -> int:
        return sum([1 async for _ in gate])

    async def main() -> None:
        reader = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        with pytest.raises(StallTimeout, match=r"a coroutine of this thread reads them.*await writer.emit_async"):
            writer.emit_many([RECORD] * MANY)
        sent = writer.records
        await writer.close_async()
        assert await reader == sent

    other = threading.Event()
    beside = threading.Thread(target=other.wait)
    beside.start()
    began = time.monotonic()
    try:
        asyncio.run(main())
    finally:
        other.set()
        beside.join()
    assert time.monotonic() - began < SOON_S
    gate.close()


def test_who_reads_in_another_thread_is_waited_for(ends: _Ends) -> None:
    """Also after this thread has read from the gate, as a greeting, and when the other one comes late."""
    writer, (gate,) = ends.make()
    writer.emit(RECORD)
    writer.flush()
    assert gate.poll(20) == [RECORD]
    got: list[int] = []
    full = threading.Event()

    def read() -> None:
        full.wait(20)
        got.append(len(list(gate)))

    reader = threading.Thread(target=read)
    reader.start()
    while writer.try_emit(RECORD):
        pass
    threading.Timer(0.3, full.set).start()  # later than the first look, and before it is said
    writer.emit_many([RECORD] * MANY)
    sent = writer.records - 1
    writer.close()
    reader.join(20)
    assert got == [sent]
    gate.close()


def test_one_of_two_gates_that_another_thread_reads_is_no_reason() -> None:
    """It is slow, and it goes on: only if nothing but this thread's own gates has buffers left, that is all."""
    ends = _Ends("local")
    writer, (mine, other) = ends.make(consumers=2, selector=fb.custom(lambda record, n: record[0] % n))
    writer.emit((0, ""))
    writer.flush()
    assert mine.poll(20) == [(0, "")]
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(len(list(other))))
    reader.start()
    for _ in range(MANY):
        writer.emit((1, "x" * 300))
    writer.close()
    reader.join(20)
    assert got == [MANY]
    ends.stack.close()


def test_the_stall_of_a_gate_that_nobody_reads_says_so() -> None:
    config = fb.ExchangeConfig(stall_timeout_s=0.3)
    other = threading.Event()
    beside = threading.Thread(target=other.wait)
    beside.start()
    try:
        with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
            gate = env.create_input_gate(ROWS, channels=1, config=config)
            writer = env.create_result_partition(ROWS, [gate], config=config)
            with pytest.raises(StallTimeout, match=f"Gate {gate.gate_id} of this process has never been read"):
                writer.emit_many([RECORD] * MANY)
            writer.abort()
            gate.close()
    finally:
        other.set()
        beside.join()
