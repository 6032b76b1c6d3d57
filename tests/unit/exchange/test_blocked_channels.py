"""What a blocked channel does to the credit of its gate, to the segments of the others, and to whoever waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS
from fastbuf.errors import PeerLost
from fastbuf.exchange import _testing

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SECRET = b"of these tests"
SEGMENT = 1024
TEXT = "x" * (SEGMENT - 100)  # a record of about one buffer
PATIENCE_S = 30


class Rig:
    """A gate, and each producer in an environment of its own, so with a connection of its own."""

    def __init__(self, stack: contextlib.ExitStack, **config: Any) -> None:
        self.config = fb.ExchangeConfig(transport="tcp", buffer_timeout_s=0, **config)
        self.environment = lambda: stack.enter_context(fb.ShuffleEnvironment(segments=128, segment_size=SEGMENT))
        self.far = self.environment()
        self.far.listen()

    def gate(self, channels: int | None, maximum: int | None = None) -> fb.InputGate:
        return self.far.create_input_gate(ROWS, channels=channels, secret=SECRET, config=self.config, maximum=maximum)

    def writer(self, gate: fb.InputGate, channel: int) -> fb.RecordWriter:
        return self.environment().create_result_partition(ROWS, [gate.address], channel, config=self.config)


@contextlib.contextmanager
def rig(**config: Any) -> Iterator[Rig]:
    with contextlib.ExitStack() as stack:
        made = Rig(stack, **config)
        yield made
    assert made.far.pool.stats().in_use == 0


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)  # polling a state that has no event
    return condition()


def write_on(writer: fb.RecordWriter, n: int = 0) -> threading.Thread:
    """A thread that writes until its consumer has enough."""

    def run() -> None:
        while not writer.cancelled:
            writer.emit((n, TEXT))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_sender_uses_what_it_was_granted_and_nothing_more_is_granted() -> None:
    with rig(exclusive=3, floating=4) as r, r.gate(2) as gate:
        writers = [r.writer(gate, i) for i in range(2)]
        row = gate.credits[0]
        assert until(lambda: row["announced"] == 3)
        gate.block(0)
        thread = write_on(writers[0])
        assert until(lambda: row["used"] == 3), "exclusive credit is the sender's to use"
        assert gate.gauges()["inputQueueLength"] == 3
        for k in range(200):
            writers[1].emit((k, "other"))
            assert gate.poll(PATIENCE_S) == [(k, "other")]
            assert row["announced"] == row["used"] == 3
            assert row["floating"] == 0
            assert gate.audit()
        gate.unblock(0)
        while row["announced"] < 20:
            assert gate.poll(PATIENCE_S)[0] == (0, TEXT)
        gate.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_floating_segments_serve_the_channels_that_are_not_blocked() -> None:
    with rig(exclusive=1, floating=4, max_buffers_per_channel=8) as r, r.gate(2) as gate:
        rows = gate.credits
        writers = [r.writer(gate, i) for i in range(2)]
        assert until(lambda: min(rows["announced"][:2]) == 1)
        gate.block(0)
        threads = [write_on(writer, i) for i, writer in enumerate(writers)]
        assert until(lambda: rows["floating"][1] == 4), "all of them are for who can use them"
        assert rows["floating"][0] == 0
        for _ in range(300):
            assert {n for n, _ in gate.poll(PATIENCE_S)} == {1}
            assert gate.pool.in_use <= 6
        gate.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_one_that_had_floating_segments_gets_no_more() -> None:
    """What was on its way when it was blocked comes, and waits; what goes home is for the others."""
    with rig(exclusive=1, floating=4, max_buffers_per_channel=8) as r, r.gate(2) as gate:
        rows = gate.credits
        writers = [r.writer(gate, i) for i in range(2)]
        threads = [write_on(writer, i) for i, writer in enumerate(writers)]
        got = [0, 0]
        while min(got) < 50:
            for n, _ in gate.poll(PATIENCE_S):
                got[n] += 1
        gate.block(0)
        announced = rows["announced"][0]
        held = rows["floating"][0]
        for _ in range(300):
            assert {n for n, _ in gate.poll(PATIENCE_S)} == {1}
            assert rows["announced"][0] <= announced
            assert rows["floating"][0] <= held
            assert gate.pool.in_use <= 6
            assert gate.audit()
        assert rows["announced"][0] == rows["used"][0] + rows["available"][0]
        gate.unblock(0)
        got = [0, 0]
        while min(got) < 50:
            for n, _ in gate.poll(PATIENCE_S):
                got[n] += 1
        gate.close()
        for thread in threads:
            thread.join(PATIENCE_S)


def test_a_blocked_channel_keeps_the_only_segment_from_nobody() -> None:
    """More channels than segments: what a blocked one does not use is asked back, and it may ask again later."""
    with rig() as r, r.gate(None, maximum=1) as gate:
        first = r.writer(gate, 0)
        first.emit((0, "a"))
        assert gate.poll(PATIENCE_S) == [(0, "a")]
        gate.block(0)
        second = r.writer(gate, 1)
        for k in range(50):
            second.emit((k, "b"))
            assert gate.poll(PATIENCE_S) == [(k, "b")]
            assert gate.audit()
        thread = threading.Thread(target=first.emit, args=((1, "c"),))
        thread.start()
        gate.unblock(0)
        assert gate.poll(PATIENCE_S) == [(1, "c")]
        thread.join(PATIENCE_S)
        gate.close()


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_barriers_are_aligned_however_much_comes_behind_them(flow_control: str) -> None:
    """Each producer has a connection of its own, so without credit too only its own waits while it is blocked."""
    with rig(flow_control=flow_control, exclusive=2, floating=2, max_buffers_per_channel=4) as r, r.gate(5) as gate:
        writers = [r.writer(gate, i) for i in range(5)]
        late = threading.Event()  # the last barrier comes when the others have all that they can have

        def send(i: int) -> None:
            for _ in range(40):
                writers[i].emit((0, TEXT))
            if i == 4:
                assert late.wait(PATIENCE_S)
                for _ in range(40):
                    writers[i].emit((0, TEXT))
            writers[i].emit_event(fb.Barrier(1))
            for _ in range(60):
                writers[i].emit((1, TEXT))
            writers[i].close()

        threads = [threading.Thread(target=send, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        arrived: set[int] = set()
        records = [0, 0]
        for item in gate:
            if isinstance(item, fb.Barrier):
                gate.block(item.channel)
                arrived.add(item.channel)
                if len(arrived) == 4:
                    while came := gate.poll(0.3):
                        records[0] += len(came)
                    late.set()
                elif len(arrived) == 5:
                    assert records == [6 * 40, 0]
                    for channel in arrived:
                        gate.unblock(channel)
            else:
                records[item[0]] += 1
            assert gate.pool.in_use <= 5 * 2 + 2
        assert records == [6 * 40, 5 * 60]
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_what_waits_in_a_blocked_channel_slows_down_no_other(flow_control: str) -> None:
    """A gate that is full says stop; once what fills it is of a blocked channel alone, it says go on."""
    with rig(flow_control=flow_control, exclusive=1, floating=0, max_buffers_per_channel=2) as r, r.gate(2) as gate:
        rows = gate.credits
        writers = [r.writer(gate, i) for i in range(2)]
        writers[1].emit((1, TEXT))
        assert until(lambda: rows["used"][1] >= 1)
        writers[0].emit_event(fb.Barrier(1))
        writers[0].emit((0, "behind it"))
        assert until(lambda: rows["used"][0] >= 1)
        while gate.poll(PATIENCE_S) != fb.Barrier(1):
            pass
        gate.block(0)
        thread = write_on(writers[1], 1)
        for _ in range(10):
            assert {n for n, _ in gate.poll(PATIENCE_S)} == {1}
        gate.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS[1:])
def test_without_credit_a_blocked_channel_stops_the_others_of_its_connection(flow_control: str) -> None:
    """What credit was made for: there the barrier of the second could never come.  An unblock lets all go on."""
    with rig(flow_control=flow_control, exclusive=1, floating=0, max_buffers_per_channel=2) as r, r.gate(2) as gate:
        near = r.environment()
        writers = [near.create_result_partition(ROWS, [gate.address], i, config=r.config) for i in range(2)]
        for i, writer in enumerate(writers):
            writer.emit((i, "first"))
        got: list[Any] = []
        while len(got) < 2:
            got += gate.poll(PATIENCE_S)
        gate.block(0)
        before = r.far.stats()["connections_stopped"]
        thread = write_on(writers[0])
        assert until(lambda: r.far.stats()["connections_stopped"] > before)
        other = threading.Thread(target=lambda: [writers[1].emit((1, TEXT)) for _ in range(20)])
        other.start()
        assert gate.poll(0.3) is None, "it was not held up"
        gate.unblock(0)
        count = 0
        while count < 20:
            count += sum(n == 1 for n, _ in gate.poll(PATIENCE_S))
        other.join(PATIENCE_S)
        gate.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["local", "memfd"])
def test_a_reader_sleeps_while_all_that_there_is_is_blocked(kind: str) -> None:
    """It does not look again and again at what it may not read; and a flush that was asked for is not forgotten."""
    config = fb.ExchangeConfig(transport="auto" if kind == "local" else kind, buffer_timeout_s=0.001)
    with contextlib.ExitStack() as stack:
        shared = kind == "memfd"
        far = stack.enter_context(fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=shared))
        near = far
        if shared:
            near = stack.enter_context(fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True))
            far.listen()
        gate = far.create_input_gate(ROWS, channels=1, secret=SECRET, config=config)
        writer = near.create_result_partition(ROWS, [gate.address if shared else gate], 0, secret=SECRET, config=config)
        writer.emit((0, "first"))
        assert gate.poll(PATIENCE_S) == [(0, "first")]
        gate.block(0)
        for k in range(3):
            writer.emit((k, TEXT))
        writer.emit((3, "flushed"))
        writer.flush()
        began, used = time.monotonic(), time.thread_time()
        assert gate.poll(0.5) is None
        assert time.thread_time() - used < 0.2 * (time.monotonic() - began), "it looked all the time"
        gate.unblock(0)
        got: list[Any] = []
        while len(got) < 4:
            got += gate.poll(PATIENCE_S)
        assert [n for n, _ in got] == [0, 1, 2, 3]
        writer.abort()
        gate.close()


def test_a_coroutine_reads_on_after_an_unblock() -> None:
    with rig() as r, r.gate(1) as gate:
        writer = r.writer(gate, 0)

        async def read() -> list[Any]:
            writer.emit((0, "first"))
            assert await gate.poll_async(PATIENCE_S) == [(0, "first")]
            gate.block(0)
            writer.emit((1, "one"))
            assert await gate.poll_async(0.1) is None
            waiting = asyncio.create_task(gate.poll_async(PATIENCE_S))
            await asyncio.sleep(0)
            gate.unblock(0)
            return await waiting

        assert asyncio.run(read()) == [(1, "one")]
        gate.close()


def test_a_buffer_that_comes_for_a_blocked_channel_wakes_nobody() -> None:
    with rig(exclusive=4) as r, r.gate(1) as gate:
        writer = r.writer(gate, 0)
        assert until(lambda: gate.credits["announced"][0] == 4)
        gate.block(0)
        before = _testing.rung(gate)
        for k in range(3):
            writer.emit((k, TEXT))
        assert until(lambda: gate.credits["used"][0] >= 3)
        assert _testing.rung(gate) == before
        gate.unblock(0)
        assert _testing.rung(gate) > before
        gate.close()


ALONE = """
import fastbuf as fb
rows = fb.RowSerializer(fb.Schema.of(n="int64"))
with fb.ShuffleEnvironment(segments=64) as env:
    config = fb.ExchangeConfig(stall_timeout_s=0.1, buffer_timeout_s=0)
    writer, (gate,) = env.exchange(serializer=rows, consumers=1, config=config)
    writer.emit((1,))
    assert gate.poll(10) == [(1,)]
    gate.block(0)
    writer.emit((2,))
    writer.close()
    try:
        gate.poll()
    except TimeoutError as error:
        print(error)
    gate.unblock(0)
    assert list(gate) == [(2,)]
"""


def test_an_only_thread_that_waits_for_blocked_channels_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "all its channels that have not ended are blocked, and no other thread could unblock one" in done.stdout


PRODUCER = """
import sys, fastbuf as fb
kind, host, port, gate, secret = sys.argv[1:]
rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
config = fb.ExchangeConfig(transport=kind, buffer_timeout_s=0)
with fb.ShuffleEnvironment(segments=64, segment_size=1024, shared=kind == "memfd") as env:
    writer = env.create_result_partition(rows, [(host, int(port), int(gate))], 0, secret=secret.encode(), config=config)
    writer.emit_event(fb.Barrier(1))
    while True:
        writer.emit((1, "behind the barrier"))
"""


@pytest.mark.parametrize("kind", ["tcp", "memfd"])
def test_a_producer_that_dies_while_its_channel_is_blocked_is_told_at_once(kind: str) -> None:
    """As in Flink: not when the channel's turn comes, which may be never."""
    config = fb.ExchangeConfig(transport=kind)
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=kind == "memfd") as env:
        host, port = env.listen()
        gate = env.create_input_gate(ROWS, channels=2, secret=SECRET, config=config)
        arguments = [kind, host, str(port), str(gate.gate_id), SECRET.decode()]
        child = subprocess.Popen([sys.executable, "-c", PRODUCER, *arguments])
        try:
            assert gate.poll(PATIENCE_S) == fb.Barrier(1)
            gate.block(0)
            assert gate.poll(0.2) is None
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(PeerLost, match="channel 0"):
                gate.poll(PATIENCE_S)
        finally:
            child.kill()
            child.wait()
        gate.close()
        assert env.pool.stats().in_use == 0
