"""A peer that lives and has nothing to say is no error; one that should move and does not is."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nights import nightly

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SECRET = b"the secret of these tests"
STALL_S = 0.2
QUIET_S = 0.9  # several stall timeouts, and more than the slices in which a reader that waits looks around
PATIENCE_S = 30.0
ROOT = Path(__file__).resolve().parents[3]


def by_iteration(gate: fb.InputGate) -> Any:
    return next(gate)


def by_poll(gate: fb.InputGate) -> Any:
    return gate.poll()[0]


def by_many_polls(gate: fb.InputGate) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        got = gate.poll(0.05)
        if got:
            return got[0]
    raise AssertionError("neither a record nor an error")


def in_a_coroutine(gate: fb.InputGate) -> Any:
    return asyncio.run(gate.poll_async())[0]


def by_many_polls_of_a_coroutine(gate: fb.InputGate) -> Any:
    async def read() -> Any:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            got = await gate.poll_async(0.05)
            if got:
                return got[0]
        raise AssertionError("neither a record nor an error")

    return asyncio.run(read())


WAYS = [by_iteration, by_poll, by_many_polls, in_a_coroutine, by_many_polls_of_a_coroutine]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@pytest.fixture(params=["local", "tcp", "memfd", "watermark"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def ends(kind: str, stall_s: float | None, **settings: Any) -> Iterator[tuple[fb.RecordWriter, fb.InputGate]]:
    transport = kind if kind in ("tcp", "memfd") else "auto"
    settings["flow_control"] = "watermark" if kind == "watermark" else "credit"
    config = fb.ExchangeConfig(stall_timeout_s=stall_s, buffer_timeout_s=0, transport=transport, **settings)
    with contextlib.ExitStack() as stack:

        def environment() -> fb.ShuffleEnvironment:
            return stack.enter_context(fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=kind == "memfd"))

        near = environment()
        far = near if kind == "local" else environment()
        gate = far.create_input_gate(ROWS, channels=1, secret=SECRET, config=config)
        target: Any = gate if kind == "local" else (*far.listen(), gate.gate_id)
        writer = near.create_result_partition(ROWS, [target], secret=SECRET, config=config)
        yield writer, gate
        writer.abort("over")
        gate.close()
        end = time.monotonic() + 20
        while near.pool.available + far.pool.available < 128 and time.monotonic() < end:
            time.sleep(0.002)  # what was lent to the other end comes home when that has said that it lets go
        assert near.pool.available == far.pool.available == 64


@nightly(but_one="kind")
@ways
def test_a_live_producer_that_is_quiet_is_no_error(kind: str, way: Callable[[fb.InputGate], Any]) -> None:
    """Iteration, ``poll`` and ``poll_async`` raised StallTimeout; polls with a timeout did not."""
    with ends(kind, STALL_S) as (writer, gate):
        timer = threading.Timer(QUIET_S, writer.emit, [(1, "after all")])
        timer.start()
        assert way(gate) == (1, "after all")
        timer.join()


@ways
def test_a_producer_that_is_awaited_and_does_not_connect_is_an_error(way: Callable[[fb.InputGate], Any]) -> None:
    config = fb.ExchangeConfig(stall_timeout_s=STALL_S)
    with fb.ShuffleEnvironment(segments=64, segment_size=1024) as env:
        gate = env.create_input_gate(ROWS, channels=2, config=config)
        writer = env.create_result_partition(ROWS, [gate], config=config)
        for _ in range(2):
            with pytest.raises(fb.StallTimeout, match=r"got nothing for 0.2 s: 1 of 2 channels have.*stall_timeout_s"):
                way(gate)
        writer.abort("over")
        gate.close()


def test_a_gate_that_awaits_nobody_in_particular_waits() -> None:
    config = fb.ExchangeConfig(stall_timeout_s=STALL_S)
    with fb.ShuffleEnvironment(segments=64, segment_size=1024) as env:
        gate = env.create_input_gate(ROWS, config=config)
        got: list[Any] = []
        reader = threading.Thread(target=lambda: got.extend(gate))
        reader.start()
        reader.join(QUIET_S)
        assert reader.is_alive()
        writer = env.create_result_partition(ROWS, [gate])
        writer.emit((1, "late"))
        writer.close()
        gate.seal({0: 1})
        reader.join(PATIENCE_S)
        assert got == [(1, "late")]


def test_none_switches_it_off(kind: str) -> None:
    with ends(kind, None, max_buffers_per_channel=2) as (writer, gate):
        assert gate.poll(0.05) is None

        def write() -> None:
            writer.emit_many([(k, "x" * 100) for k in range(500)])
            writer.close()

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(0.5)  # it is blocked, and no limit says for how long it may be
        assert thread.is_alive()
        assert [n for n, _ in gate] == list(range(500))
        thread.join(PATIENCE_S)
        assert writer.closed


def test_a_consumer_that_takes_nothing_is_an_error_for_its_writer(kind: str) -> None:
    with (
        ends(kind, STALL_S, max_buffers_per_channel=2) as (writer, _),
        pytest.raises(fb.StallTimeout, match=r"buffers queued and no credit|there is no other thread that could read"),
    ):
        writer.emit_many((k, "u" * 300) for k in range(100_000))


@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_there_cannot_be(value: float) -> None:
    with pytest.raises(fb.errors.ConfigError, match=r"stall_timeout_s is .* or None"):
        fb.ExchangeConfig(stall_timeout_s=value)


ALONE = """
    import fastbuf as fb

    config = fb.ExchangeConfig(stall_timeout_s=0.2)
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(fb.PickledSerializer(), config=config)
        writer.emit("one")
        for record in gate:     # the writer was not closed
            print(record)
"""


def test_the_only_thread_that_waits_for_itself_is_told() -> None:
    """Nobody is left who could write: that is no quiet peer, and would wait for ever."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ALONE)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout == "one\n"
    assert "StallTimeout: gate 1 waits for ever: its writers are in this process" in done.stderr


PATIENT = """
    import pyarrow as pa

    import fastbuf as fb

    schema = fb.Schema.of(n="int64")
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    with fb.ShuffleEnvironment(segments=64) as env:
        for _ in range(8):
            writer, (gate,) = env.exchange(fb.PickledSerializer())
            writer.emit("one")
            assert gate.poll() == ["one"]
            for _ in range(3):
                assert gate.poll(0.03) is None
            writer.emit("two")
            assert gate.poll() == ["two"]
            writer.abort()
            gate.close()
        for _ in range(4):
            writer, (gate,) = env.exchange(fb.ColumnarSerializer(schema))
            writer.emit_batch(batch)
            assert gate.poll().num_rows == 1
            writer.abort()
            gate.close()
    print("done")
"""


def test_the_only_thread_gets_what_a_buffer_timeout_will_bring() -> None:
    """It does not wait for itself: a partly filled buffer is read within 0.1 s, and columns wait for that once more."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PATIENT)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
