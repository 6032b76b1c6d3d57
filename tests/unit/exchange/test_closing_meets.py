"""Whoever closes a gate or a partition meets those who are just about to use it."""

from __future__ import annotations

import contextlib
import select
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.errors import BlockCorrupt, ExchangeClosed, SequenceError
from fastbuf.memory import local_buffer_pool

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))


@pytest.fixture
def env() -> Iterator[fb.ShuffleEnvironment]:
    with fb.ShuffleEnvironment(segments=64, segment_size=1024) as env:
        yield env


def test_a_partition_that_a_gate_refused_does_not_point_to_it(env: fb.ShuffleEnvironment) -> None:
    """It is not among those that keep the gate: what it notifies later would be freed by then."""
    gate = env.create_input_gate(ROWS, channels=2)
    there = env.create_result_partition(ROWS, [gate], channel=3)
    late = env.create_result_partition(ROWS, [None], channel=3, partition_type="blocking")
    with pytest.raises(SequenceError, match="channel 3 is connected already"):
        late.attach(0, gate)
    descriptor, _ = gate.arm_wake()
    late.emit((1, "one"))
    late.close()
    assert select.select([descriptor], [], [], 0)[0] == []
    there.emit((2, "two"))
    there.flush()
    assert select.select([descriptor], [], [], 0)[0] == [descriptor]


def test_figures_are_asked_for_while_the_gate_is_closed(
    env: fb.ShuffleEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = env.create_input_gate(ROWS, channels=2)
    stats = local_buffer_pool.LocalPoolStats  # type: ignore[attr-defined]

    def meanwhile(**figures: Any) -> Any:
        """What another thread does that gets the GIL here."""
        monkeypatch.undo()
        gate.close()
        return stats(**figures)

    monkeypatch.setattr(local_buffer_pool, "LocalPoolStats", meanwhile)
    figures = gate.stats()
    assert gate.freed
    assert (figures["channels"], figures["records"]) == (0, 0)


def test_the_end_is_announced_while_the_gate_is_closed(env: fb.ShuffleEnvironment) -> None:
    gate = env.create_input_gate(ROWS)

    class Meanwhile:
        def __index__(self) -> int:
            gate.close()
            return 1

    gate.seal({0: Meanwhile()})  # type: ignore[dict-item]
    assert gate.closed


def test_a_closed_gate_has_no_descriptor_and_no_state(env: fb.ShuffleEnvironment) -> None:
    gate = env.create_input_gate(ROWS, channels=2)
    gate.close()
    with pytest.raises(ExchangeClosed, match="is closed"):
        gate.wake_descriptor()
    assert gate.describe_stall() == f"gate {gate.gate_id} is closed"


class Hook:
    """A record that runs Python code as it is decoded: its own, or a signal handler's."""

    now: Callable[[], Any] | None = None

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> int:
        return self.number

    def __setstate__(self, number: int) -> None:
        self.number = number
        if Hook.now is not None and number == 2:
            Hook.now()


@pytest.mark.parametrize("transport", ["local", "tcp", "memfd"])
@pytest.mark.parametrize("what", ["close", "poll", "__next__"])
def test_a_records_own_code_neither_closes_nor_reads_its_gate(
    transport: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is decoded from would be given back under it."""
    pickled = fb.PickledSerializer()
    with contextlib.ExitStack() as stack:
        near, far = (
            stack.enter_context(fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=transport == "memfd"))
            for _ in range(2)
        )
        gate = far.create_input_gate(pickled, channels=1)
        if transport == "local":
            writer = far.create_result_partition(pickled, [gate])
        else:
            far.listen()
            writer = near.create_result_partition(pickled, [gate.address])
            assert writer.stats()["transports"] == {transport: 1}
        monkeypatch.setattr(Hook, "now", getattr(gate, what))
        writer.emit_many([Hook(number) for number in range(4)])
        writer.flush()
        assert len(gate.poll()) == 2
        with pytest.raises(BlockCorrupt, match="RuntimeError: gate 1 is decoding a record in this thread"):
            gate.poll()
        assert not gate.closed
        gate.close()
        writer.abort("as it should be")
        assert far.pool.stats().in_use == 0


class Reentrant:
    """A record whose own code, as it is encoded, uses the writer that it is written by."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        self.call()
        return int, ()


@pytest.mark.parametrize("partition_type", ["pipelined", "blocking"])
@pytest.mark.parametrize("outer", ["emit", "emit_many"])
@pytest.mark.parametrize("inner", ["emit", "emit_many", "emit_event", "try_close", "close"])
def test_a_records_own_code_does_not_write(
    env: fb.ShuffleEnvironment, inner: str, outer: str, partition_type: str
) -> None:
    """It wrote to the open buffer behind the back of the record before, or closed it: bytes were lost, or another's."""
    writer, (gate,) = env.exchange(fb.PickledSerializer(), partition_type=partition_type)
    calls: dict[str, Callable[[], Any]] = {
        "emit": lambda: writer.emit("x" * 10),
        "emit_many": lambda: writer.emit_many(["x" * 10] * 3),
        "emit_event": lambda: writer.emit_event(fb.UserEvent(b"x")),
        "try_close": writer.try_close,
        "close": writer.close,
    }
    writer.emit("before")
    record = Reentrant(calls[inner])
    with pytest.raises(Exception, match="use it from one thread, and for one record at a time"):
        writer.emit(record) if outer == "emit" else writer.emit_many([record])
    writer.emit("after")
    writer.close()
    assert list(gate) == ["before", "after"]


BATCH = pa.record_batch({"n": list(range(1000))})


@pytest.mark.parametrize("inner", ["emit_batch", "try_emit_batch", "try_close", "close", "abort"])
def test_a_selectors_own_code_does_not_write(env: fb.ShuffleEnvironment, inner: str) -> None:
    """It freed the batch of the writer that asks it: the process ended."""
    writer: Any = None
    calls = 0

    def select(batch: Any, n: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            getattr(writer, inner)(*[BATCH] * ("emit" in inner))
        return np.zeros(len(batch), np.int32)

    columns = fb.ColumnarSerializer(BATCH.schema)
    writer, (gate,) = env.exchange(columns, selector=fb.custom(select))
    ends = inner in ("try_close", "close", "abort")
    with pytest.raises(Exception, match="closed|gave up|finished" if ends else "use it from one thread"):
        writer.emit_batch(BATCH)
    if not ends:
        writer.emit_batch(BATCH)
        writer.close()
        assert sum(batch.num_rows for batch in gate) == 1000
    gate.close()


@pytest.mark.parametrize("others", ["emit_batch", "try_emit_batch", "abort"])
def test_threads_that_share_a_writer_of_batches(env: fb.ShuffleEnvironment, others: str) -> None:
    """Get an error, or their batch is written whole; the process ended."""
    batch = pa.record_batch({"n": np.arange(30_000), "t": [f"v{i}" for i in range(30_000)]})
    columns = fb.ColumnarSerializer(batch.schema)
    config = fb.ExchangeConfig(stall_timeout_s=0.05)
    for _ in range(20):
        writer, (gate,) = env.exchange(
            columns, config=config, consumers=1, selector=fb.hash_by("n", partitions=64, only=[0])
        )
        start, stop = threading.Barrier(3), threading.Event()

        def writes(call: Callable[..., Any], *given: Any, start: Any = start, stop: Any = stop) -> None:
            start.wait()
            with contextlib.suppress(Exception):
                for _ in range(20):
                    call(*given)
            stop.set()

        threads = [
            threading.Thread(target=writes, args=(writer.emit_batch, batch)),
            threading.Thread(target=writes, args=(getattr(writer, others), *[batch] * ("emit" in others))),
        ]
        for thread in threads:
            thread.start()
        start.wait()
        with contextlib.suppress(fb.FastbufError):
            while not stop.is_set():
                gate.poll(0.001)
        gate.close()
        for thread in threads:
            thread.join(20)
        writer.abort()


def test_messages_are_asked_for_after_the_end(env: fb.ShuffleEnvironment) -> None:
    env.listen()
    transport: Any = env.transport("tcp")
    env.close()
    assert transport.messages() == []


def test_an_abort_frees_a_batch_only_after_whoever_encodes_it(
    env: fb.ShuffleEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from another thread, while the writer's reads the batch without the GIL: it was freed under it."""
    order: list[str] = []

    class Source:
        """A batch that only the writer holds."""

        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            values = np.arange(20_000)
            weakref.finalize(values, order.append, "freed")
            column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
            return pa.record_batch({"n": column}).__arrow_c_array__()

    def release(partition: Any) -> None:  # waits first until nobody encodes
        fb.ShuffleEnvironment.release_partition(env, partition)
        order.append("released")

    monkeypatch.setattr(env, "release_partition", release)
    schema = fb.Schema.of(n="int64")
    writer, gates = env.exchange(fb.ColumnarSerializer(schema), consumers=2, selector=fb.hash_by("n"))
    assert not writer.try_emit_batch(Source())
    writer.abort()
    assert order == ["released", "freed"]
    for gate in gates:
        gate.close()
