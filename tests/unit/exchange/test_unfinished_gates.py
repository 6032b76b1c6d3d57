"""A consumer that ends before its gate was read to the end: what its producers hear, over every transport."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SECRET = b"the secret of these tests"
ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 20.0


class Ends:
    """A writer and the gate it writes to, in environments of their own (``local``: in one)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.near = fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=kind == "memfd")
        self.far = self.near
        if kind != "local":
            self.far = fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=kind == "memfd")
        config = fb.ExchangeConfig(max_buffers_per_channel=4, transport="auto" if kind == "local" else kind)
        self.gate = self.far.create_input_gate(ROWS, channels=1, secret=SECRET, config=config)
        target: Any = self.gate if kind == "local" else (*self.far.listen(), self.gate.gate_id)
        self.writer = self.near.create_result_partition(ROWS, [target], secret=SECRET, config=config)

    def write_on(self) -> None:
        """Writes till it is told of something; a cancel ends it as it would a program that looks for that."""
        deadline = time.monotonic() + PATIENCE_S
        k = 0
        while not self.writer.cancelled:
            assert time.monotonic() < deadline, "the producer was told of nothing"
            self.writer.emit((k, "x" * 100))
            k += 1


@pytest.fixture(params=["local", "tcp", "memfd"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    ends = Ends(request.param)
    yield ends
    for env in {ends.near, ends.far}:
        if not ends.writer.closed:
            ends.writer.abort("over")
        env.close()
        assert env.pool.available == 64


def in_background(ends: Ends) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            ends.write_on()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def died_with(ends: Ends, error: type[BaseException]) -> BaseException:
    """What the producer hears of a consumer that raises in ``with env: for record in gate``."""
    thread, errors = in_background(ends)
    with contextlib.suppress(error), ends.far:
        for _ in ends.gate:
            raise error("the model is not there")
    thread.join(PATIENCE_S)
    assert errors, "the producer ended as if all was well"
    return errors[0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_consumer_that_dies_by_an_exception_is_no_success_for_its_producers(
    ends: Ends, error: type[BaseException]
) -> None:
    """They were told of a cancel: a million records were dropped, and they exited with 0."""
    heard = died_with(ends, error)
    assert isinstance(heard, fb.ExchangeAborted)
    assert f"{error.__name__}: the model is not there" in str(heard)


def test_a_producer_that_dies_by_an_exception_tells_its_consumers_which(ends: Ends) -> None:
    """They heard that its environment was closed."""
    heard: list[BaseException] = []

    def read() -> None:
        try:
            list(ends.gate)
        except BaseException as error:
            heard.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    with contextlib.suppress(ValueError), ends.near:
        ends.writer.emit((1, "one"))
        raise ValueError("no such table")
    reader.join(PATIENCE_S)
    if ends.kind != "local":  # there the reader's environment ends as well, which may come first
        assert isinstance(heard[0], fb.ExchangeAborted)
        assert str(heard[0]) == "ValueError: no such table"


def test_an_environment_that_ends_before_its_gate_is_an_abort(ends: Ends) -> None:
    """``break`` out of ``for record in gate`` does not say whether it was enough."""
    thread, errors = in_background(ends)
    with ends.far:
        for _ in ends.gate:
            break
    thread.join(PATIENCE_S)
    assert isinstance(errors[0], fb.ExchangeAborted)
    if ends.kind != "local":  # there the writer's environment ends as well
        assert "before gate 1 was read to its end" in str(errors[0])
        assert "gate.close()" in str(errors[0])


@pytest.mark.parametrize("how", ["close", "with"])
def test_who_has_enough_says_so(ends: Ends, how: str) -> None:
    thread, errors = in_background(ends)
    if how == "close":
        for _ in ends.gate:
            break
        ends.gate.close()
    else:
        with ends.gate as gate:
            for _ in gate:
                break
    thread.join(PATIENCE_S)
    assert errors == []
    assert ends.writer.cancelled
    ends.far.close()


def test_a_with_gate_that_is_left_by_an_exception_aborts(ends: Ends) -> None:
    thread, errors = in_background(ends)
    with contextlib.suppress(KeyError), ends.gate as gate:
        for _ in gate:
            raise KeyError("no such model")
    thread.join(PATIENCE_S)
    assert str(errors[0]) == "KeyError: 'no such model'"


class Mute(Exception):
    """As those of Py4J are once the JVM has gone."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("who", ["gate", "env", "writer"])
def test_an_exception_without_a_text_ends_the_exchange_too(ends: Ends, who: str) -> None:
    """The error in its ``__str__`` left everything open: the other end waited for ever."""
    left = {"gate": ends.gate, "env": ends.far, "writer": ends.writer}[who]
    thread, errors = in_background(ends) if who != "writer" else (threading.Thread(), [])
    with pytest.raises(Mute), left:
        raise Mute
    if who == "writer":
        with pytest.raises(fb.ExchangeAborted, match="Mute"):
            ends.gate.poll(PATIENCE_S)
        return
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [fb.ExchangeAborted]
    assert "Mute" in str(errors[0])


def test_a_gate_that_was_read_to_its_end_harms_nobody(ends: Ends) -> None:
    ends.writer.emit((1, "one"))
    closing = threading.Thread(target=ends.writer.close)
    closing.start()
    assert list(ends.gate) == [(1, "one")]
    closing.join(PATIENCE_S)
    assert ends.gate.finished
    ends.far.close()
    assert ends.writer.closed


def test_an_abort_reaches_the_producer_at_once(ends: Ends) -> None:
    """It did when the gate was closed, which a consumer that has aborted may do much later."""
    thread, errors = in_background(ends)
    next(ends.gate)
    ends.gate.abort("the disk is full")
    thread.join(PATIENCE_S)
    assert isinstance(errors[0], fb.ExchangeAborted)
    assert str(errors[0]) == "the disk is full"
    with pytest.raises(fb.ExchangeAborted, match="the disk is full"):
        ends.gate.poll(0)
    ends.writer.abort("it is known")
    ends.gate.close()
    assert ends.far.pool.available == 64


def test_an_abort_while_another_thread_reads_reaches_both(ends: Ends) -> None:
    reader: list[BaseException] = []

    def read() -> None:
        try:
            for _ in ends.gate:
                pass
        except BaseException as error:
            reader.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    thread, errors = in_background(ends)
    while ends.gate.records_in == 0:
        time.sleep(0.001)  # the reader is to be at it, waiting or not
    ends.gate.abort("enough of this")
    for each in (thread, reading):
        each.join(PATIENCE_S)
    assert str(errors[0]) == str(reader[0]) == "enough of this"


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_an_abort_reaches_who_writes_under_any_flow_control(flow_control: str) -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as far,
    ):
        config = fb.ExchangeConfig(flow_control=flow_control)
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1, config=config)
        writer = near.create_result_partition(ROWS, [gate.address], config=config)
        gate.abort("the disk is full")
        deadline = time.monotonic() + PATIENCE_S

        def write_on() -> None:
            while time.monotonic() < deadline:
                writer.emit((1, "x" * 100))

        with pytest.raises(fb.ExchangeAborted, match="the disk is full"):
            write_on()
        writer.abort("it is known")


def test_an_abort_from_within_a_record_reaches_the_producer() -> None:
    """The gate is just being read by the very thread that gives up: segments may not go before it is done."""
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=True) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=True) as far,
    ):
        config = fb.ExchangeConfig(transport="memfd", max_buffers_per_channel=4)
        gate = far.create_input_gate(fb.PickledSerializer(), channels=1, secret=SECRET, config=config)
        target = (*far.listen(), gate.gate_id)
        writer = near.create_result_partition(fb.PickledSerializer(), [target], secret=SECRET, config=config)
        gates.append(gate)
        try:
            writer.emit(Poison())
            writer.flush()
            gate.poll(PATIENCE_S)
        finally:
            gates.clear()
        deadline = time.monotonic() + PATIENCE_S

        def write_on() -> None:
            while time.monotonic() < deadline:
                writer.emit("x" * 500)

        with pytest.raises(fb.ExchangeAborted, match="poisoned"):
            write_on()
        writer.abort("it is known")
        gate.close()


gates: list[Any] = []


def give_up() -> str:
    gates[0].abort("poisoned")
    return "harmless"


class Poison:
    """A record whose decoding ends the exchange."""

    def __reduce__(self) -> Any:
        return give_up, ()


def test_a_producer_that_connects_after_the_abort_hears_of_it() -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as far,
    ):
        gate = far.create_input_gate(ROWS, channels=1, secret=SECRET)
        address = far.listen()
        gate.abort("the disk is full")
        writer = near.create_result_partition(ROWS, [(*address, gate.gate_id)], secret=SECRET)
        deadline = time.monotonic() + PATIENCE_S

        def write_on() -> None:
            while time.monotonic() < deadline:
                writer.emit((1, "x" * 100))

        with pytest.raises(fb.ExchangeAborted, match="the disk is full"):
            write_on()
        writer.abort("it is known")


def test_a_generator_that_nobody_reads_on_needs_no_more(ends: Ends) -> None:
    """It ends by GeneratorExit, which is no failure of its."""

    def read() -> Iterator[Any]:
        with ends.gate:
            yield from ends.gate

    thread, errors = in_background(ends)
    rows = read()
    assert next(rows)[0] == 0
    rows.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert errors == []
    assert ends.writer.cancelled


CONSUMER = """
    import sys
    import fastbuf as fb

    rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))

    def read():
        with fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=SHARED) as env:
            gate = env.create_input_gate(rows, channels=1, secret=b"the secret of these tests")
            print(*env.listen(), gate.gate_id, flush=True)
            for record in gate:
                HOW

    read()
"""


@pytest.mark.parametrize("kind", ["tcp", "memfd"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise RuntimeError('no such table')", "RuntimeError: no such table"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("break", "before gate 1 was read to its end"),
    ],
)
def test_a_process_that_dies_is_no_success_for_its_producer(kind: str, how: str, says: str) -> None:
    """By an exception, ``sys.exit`` or ``break`` in the pattern of the how-tos, across processes."""
    code = textwrap.dedent(CONSUMER).replace("HOW", how).replace("SHARED", str(kind == "memfd"))
    consumer = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert consumer.stdout is not None
        host, port, gate_id = consumer.stdout.readline().split()
        with fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=kind == "memfd") as env:
            config = fb.ExchangeConfig(transport=kind)
            writer = env.create_result_partition(ROWS, [(host, int(port), int(gate_id))], secret=SECRET, config=config)
            with pytest.raises(fb.ExchangeAborted, match=says):
                writer.emit_many((k, "x" * 100) for k in range(100_000))
            assert not writer.cancelled or kind == "memfd"
            writer.abort("it is known")
            assert env.pool.available == 64
    finally:
        consumer.communicate(timeout=PATIENCE_S)
