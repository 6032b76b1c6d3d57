"""How full pools and queues are, by Flink's definitions, and what a writer was short of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(k="int64", text="string"))
SEGMENT = 1024
TEXT = "x" * 900  # a record fills a segment
SOON_S = 20.0


def until(look: Callable[[], Any]) -> bool:
    end = time.monotonic() + SOON_S
    while not look() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(look())


@pytest.fixture
def ends() -> Iterator[tuple[fb.ShuffleEnvironment, fb.ShuffleEnvironment]]:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as far,
    ):
        far.listen()
        yield near, far


def test_credit_that_is_announced_and_not_used_does_not_count(ends: Any) -> None:
    near, far = ends
    config = fb.ExchangeConfig(exclusive=2, floating=2, buffer_timeout_s=0.001, max_buffers_per_channel=4)
    gate = far.create_input_gate(ROWS, channels=1, config=config)
    writer = near.create_result_partition(ROWS, [gate.address], config=config)
    assert until(lambda: gate.credits["available"][0] == 2)  # its credit is with the sender
    assert gate.gauges() == {
        "exclusiveBuffersUsage": 0.0,
        "floatingBuffersUsage": 0.0,
        "inPoolUsage": 0.0,
        "inputQueueLength": 0,
    }
    assert writer.gauges() == {"outPoolUsage": 0.0, "outputQueueLength": 0, "short_s": 0.0}

    def stuffed() -> bool:
        while writer.resume() and writer.try_emit((1, TEXT)):
            pass
        return bool(gate.gauges()["inPoolUsage"] == 1.0 and writer.gauges()["outputQueueLength"] == 4)

    assert until(stuffed)
    full = gate.gauges()
    assert full["exclusiveBuffersUsage"] == 1.0
    assert full["floatingBuffersUsage"] == 1.0
    assert full["inputQueueLength"] == 4
    assert writer.gauges()["outPoolUsage"] > 0

    def drained() -> bool:
        while gate.poll(0.2):
            pass
        return writer.resume() and gate.gauges()["inputQueueLength"] == 0  # what resume sends may come later

    assert until(drained)
    assert until(lambda: gate.poll(0.2) is None and gate.gauges()["inPoolUsage"] == 0.0)
    assert gate.gauges()["inputQueueLength"] == 0
    writer.close()
    while gate.poll(SOON_S):
        pass
    gate.close()
    assert gate.gauges()["inPoolUsage"] == 0.0


def test_what_is_read_in_place_has_a_queue_and_no_pool() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as env:
        writer, (gate,) = env.exchange(serializer=ROWS)
        for k in range(3):
            writer.emit((k, TEXT))
        assert gate.gauges()["inputQueueLength"] == 3
        assert gate.gauges()["inPoolUsage"] == 0.0
        assert writer.gauges()["outputQueueLength"] == 3
        writer.close()
        assert len(list(gate)) == 3
        assert gate.gauges()["inputQueueLength"] == 0


def test_a_writer_that_is_short_of_segments_says_so() -> None:
    """Its queue for the other consumer has room: it is memory that is missing, whoever has it."""
    config = fb.ExchangeConfig(max_buffers_per_channel=64, overdraft=0)
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as env:
        gates = [env.create_input_gate(ROWS, channels=1, config=config) for _ in range(2)]
        writer = env.create_result_partition(ROWS, gates, config=config, maximum=3)

        def write() -> None:
            for k in range(20):
                writer.emit((k, TEXT))
            writer.close()

        thread = threading.Thread(target=write)
        thread.start()
        assert until(lambda: writer.activity()["seconds"]["credit"] > 0.1)
        readers = [threading.Thread(target=lambda gate=gate: list(gate)) for gate in gates]
        for reader in readers:
            reader.start()
        for each in (thread, *readers):
            each.join()
        assert writer.gauges()["short_s"] > 0.05
        assert writer.partition.written_by == thread.ident
        assert {gate.read_by for gate in gates} == {reader.ident for reader in readers}


def test_a_slow_queue_is_no_lack_of_segments() -> None:
    config = fb.ExchangeConfig(max_buffers_per_channel=2)
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as env:
        gate = env.create_input_gate(ROWS, channels=1, config=config)
        writer = env.create_result_partition(ROWS, [gate], config=config, maximum=32)
        thread = threading.Thread(target=lambda: writer.emit_many([(k, TEXT) for k in range(20)]))
        thread.start()
        assert until(lambda: writer.activity()["seconds"]["credit"] > 0.1)
        found = 0
        while found < 19:
            found += len(gate.poll(SOON_S) or [])
        thread.join()
        assert writer.gauges()["short_s"] < 0.05
        assert writer.blocked_s()[0] > 0.05
        assert writer.blocked_s(link=True) == [0.0]
        gate.close()
        writer.close()


def test_a_socket_that_takes_no_more_has_unsent_bytes(ends: Any) -> None:
    near, far = ends
    gate = far.create_input_gate(ROWS, channels=1)
    writer = near.create_result_partition(ROWS, [gate.address])
    host, port = far.address
    assert until(lambda: [(peer, unsent) for peer, (unsent, _) in near.links().items()] == [(f"{host}:{port}", 0)])
    assert far.links() == {}  # it has dialled nobody
    writer.close()
    assert list(gate) == []
