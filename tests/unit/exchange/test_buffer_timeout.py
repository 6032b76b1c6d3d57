"""One buffer timeout: the writer's, whatever the transport and whatever the gate's settings say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fastbuf as fb

SECRET = b"the secret of these tests"
SCHEMA = fb.Schema.of(n="int64")
LONG_S = 1e6  # no test runs for so long
SHORT_S = 0.002
PATIENCE_S = 30.0


@pytest.fixture(params=["local", "tcp", "memfd", "watermark"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def ends(kind: str, serializer: Any, writer_s: float, gate_s: float) -> Iterator[tuple[Any, fb.InputGate]]:
    """A writer and its gate, each with a buffer timeout of its own."""
    with contextlib.ExitStack() as stack:
        make = lambda: stack.enter_context(  # noqa: E731
            fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=kind == "memfd")
        )
        near = make()
        far = near if kind == "local" else make()
        transport = kind if kind in ("tcp", "memfd") else "auto"
        flow_control = "watermark" if kind == "watermark" else "credit"
        gate = far.create_input_gate(
            serializer,
            channels=1,
            secret=SECRET,
            config=fb.ExchangeConfig(buffer_timeout_s=gate_s, flow_control=flow_control),
        )
        target: Any = gate if kind == "local" else None
        writer = near.create_result_partition(
            serializer,
            [target or (*far.listen(), gate.gate_id)],
            secret=SECRET,
            config=fb.ExchangeConfig(buffer_timeout_s=writer_s, transport=transport, flow_control=flow_control),
        )
        yield writer, gate
        writer.abort("over")
        gate.close()
        assert near.pool.available == far.pool.available == 64


def put(writer: Any, n: int) -> None:
    if writer.serializer.kind == "columnar":
        writer.emit_batch(np.array([(n,)], dtype=[("n", "<i8")]))
    else:
        writer.emit((n,))


def number(got: Any) -> int:
    return int(got[0][0]) if isinstance(got, list) else int(got.column(0)[0].as_py())


SERIALIZERS = [
    pytest.param(fb.RowSerializer(SCHEMA), id="rows"),
    pytest.param(fb.ColumnarSerializer(SCHEMA), id="columns"),
]


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_short_timeout_of_the_writer_counts(kind: str, serializer: Any) -> None:
    """The gate's did where it reads in place, and for batches: a record then took as long as that said."""
    with ends(kind, serializer, SHORT_S, LONG_S) as (writer, gate):
        for n in range(3):
            put(writer, n)
            assert number(gate.poll(PATIENCE_S)) == n
            put(writer, n + 10)
            assert number(asyncio.run(gate.poll_async(PATIENCE_S))) == n + 10


@pytest.mark.parametrize("writer_s", [LONG_S, -1])
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_short_timeout_of_the_gate_does_not(kind: str, serializer: Any, writer_s: float) -> None:
    with ends(kind, serializer, writer_s, 0) as (writer, gate):
        put(writer, 1)
        assert gate.poll(0.2) is None
        assert asyncio.run(gate.poll_async(0.1)) is None
        writer.flush()
        if serializer.kind == "columnar" and writer_s > 0:
            assert gate.poll(0.2) is None, "the batch may grow for as long as the writer may wait"
        else:
            assert number(gate.poll(PATIENCE_S)) == 1


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_timeout_of_0_sends_each_record_at_once(kind: str, serializer: Any) -> None:
    with ends(kind, serializer, 0, LONG_S) as (writer, gate):
        for n in range(3):
            put(writer, n)
            assert number(gate.poll(PATIENCE_S)) == n


def test_the_shortest_timeout_of_those_whose_rows_wait_counts() -> None:
    """A batch with rows of two writers is given out when the first of them may not wait any longer."""
    serializer = fb.ColumnarSerializer(SCHEMA)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate = env.create_input_gate(serializer, channels=2)
        slow, quick = (
            env.create_result_partition(
                serializer, [gate], channel=i, config=fb.ExchangeConfig(buffer_timeout_s=(LONG_S, SHORT_S)[i])
            )
            for i in range(2)
        )
        put(slow, 1)
        slow.flush()
        assert gate.poll(0.1) is None
        put(quick, 2)
        assert gate.poll(PATIENCE_S).num_rows == 2
        slow.abort("over")
        quick.abort("over")


def test_one_spelling() -> None:
    """``buffer_timeout`` of ``exchange`` was ``buffer_timeout_s`` everywhere else."""
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(fb.RowSerializer(SCHEMA), buffer_timeout_s=LONG_S)
        assert writer.partition.config.buffer_timeout_s == LONG_S
        writer.emit((1,))
        assert gate.poll(0.05) is None
        writer.close()
        assert list(gate) == [(1,)]
        with pytest.raises(TypeError, match="buffer_timeout"):
            env.exchange(fb.RowSerializer(SCHEMA), buffer_timeout=1.0)  # type: ignore[call-arg]
