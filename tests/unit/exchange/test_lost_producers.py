"""What becomes of a gate that outlives its producers: lost ones, late ones, and those that come again.

A producer here fails, or is dropped; tests/stress/test_producers_come_again.py kills processes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ExchangeAborted, SequenceError

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
CONFIG = fb.ExchangeConfig(buffer_timeout_s=0, connect_timeout_s=10)
PATIENCE_S = 30.0


class Ends:
    """Two environments, and the way from one to the other."""

    def __init__(self, way: str) -> None:
        self.way = way
        shared = way == "memfd"
        self.far = fb.ShuffleEnvironment(segments=128, segment_size=1024, shared=shared)
        self.near = (
            self.far if way == "local" else fb.ShuffleEnvironment(segments=128, segment_size=1024, shared=shared)
        )
        self.far.listen()

    def gate(self, on_peer_loss: str, channels: int | None = None, **settings: Any) -> fb.InputGate:
        return self.far.create_input_gate(ROWS, channels=channels, config=CONFIG, on_peer_loss=on_peer_loss, **settings)

    def writer(self, gate: fb.InputGate, channel: int = 0) -> fb.RecordWriter:
        target = gate if self.way == "local" else gate.address
        return self.near.create_result_partition(ROWS, [target], channel=channel, config=CONFIG)

    def close(self) -> None:
        for env in {self.near, self.far}:
            env.close()
            assert env.pool.available == 128
            env.pool.audit()


@pytest.fixture(params=["local", "memfd", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(request.param)
    yield made
    made.close()


def read(gate: fb.InputGate, most: int = 1 << 30, until_lost: int = 0) -> list[Any]:
    """Records until there are `most`, the gate has ended, or so many producers were lost."""
    got: list[Any] = []
    end = time.monotonic() + PATIENCE_S
    while len(got) < most and not gate.finished and not (until_lost and gate.stats()["producers_lost"] >= until_lost):
        assert time.monotonic() < end, got
        got += gate.poll(0.05) or ()
        gate.audit()
    return got


def test_by_default_the_gate_fails(ends: Ends) -> None:
    gate = ends.gate("error", channels=1)
    writer = ends.writer(gate)
    writer.abort("the disk is full")
    with pytest.raises(ExchangeAborted, match=r"the disk is full"):
        read(gate)
    assert gate.stats()["producers_lost"] == 0
    gate.close()


def test_one_that_is_forgotten_ends_its_channel(ends: Ends) -> None:
    gate = ends.gate("forget", channels=2)
    lost, other = ends.writer(gate, 0), ends.writer(gate, 1)
    lost.emit((1, "whole"))
    assert read(gate, 1) == [(1, "whole")]
    lost.abort("the disk is full")
    read(gate, until_lost=1)
    assert not gate.finished
    assert "the disk is full" in gate.lost[0]
    other.emit((2, "goes on"))
    closing = threading.Thread(target=other.close)
    closing.start()
    assert read(gate) == [(2, "goes on")]
    closing.join()
    assert gate.finished
    assert gate.stats()["producers_lost"] == 1
    gate.close()
    assert list(gate.lost) == [0]


def test_half_a_record_is_dropped_and_counted(ends: Ends) -> None:
    gate = ends.gate("forget", channels=2)
    lost, other = ends.writer(gate, 0), ends.writer(gate, 1)
    lost.emit((1, "whole"))
    lost.emit((2, "whole too"))
    text = "x" * 40_000  # longer than the queue, so that its end cannot have been written
    lost.try_emit((3, text))
    got = read(gate, 2)
    end = time.monotonic() + PATIENCE_S
    while gate.stats()["bytes"] < 3000 and time.monotonic() < end:
        got += gate.poll(0.01) or ()
    lost.abort("gone")
    got += read(gate, until_lost=1)
    assert got == [(1, "whole"), (2, "whole too")]
    assert gate.stats()["records_cut"] == 1
    again = ends.writer(gate, 0)  # what it sends is not taken for the rest of that record
    again.emit((4, "of another"))
    assert read(gate, 1) == [(4, "of another")]
    assert gate.lost == {}
    closing = [threading.Thread(target=writer.close) for writer in (again, other)]
    for thread in closing:
        thread.start()
    read(gate)
    for thread in closing:
        thread.join()
    assert gate.stats()["producers_lost"] == 1
    gate.close()


def test_another_is_awaited(ends: Ends) -> None:
    gate = ends.gate("wait", channels=1)
    ends.writer(gate).abort("first")
    read(gate, until_lost=1)
    assert gate.poll(0.05) is None
    assert not gate.finished
    second = ends.writer(gate)
    second.emit((5, "second"))
    assert read(gate, 1) == [(5, "second")]
    second.abort("second too")
    read(gate, until_lost=2)
    third = ends.writer(gate)
    third.emit((6, "third"))
    closing = threading.Thread(target=third.close)
    closing.start()
    assert read(gate) == [(6, "third")]
    closing.join()
    assert gate.finished
    gate.close()


def no_record() -> None:
    raise ValueError("no record")


class Broken:
    def __reduce__(self) -> Any:
        return no_record, ()


def test_records_of_each_producer_are_counted_from_0(ends: Ends) -> None:
    """An error tells of the producer that is there, not of the one before."""
    told: list[Exception] = []
    objects = fb.PickledSerializer()
    gate = ends.far.create_input_gate(objects, channels=1, config=CONFIG, on_peer_loss="wait", on_error=told.append)
    target = gate if ends.way == "local" else gate.address
    for turn in range(2):
        writer = ends.near.create_result_partition(objects, [target], config=CONFIG)
        for record in ("good", Broken(), "good too"):
            writer.emit(record)
        assert read(gate, 2) == ["good", "good too"]
        writer.abort("gone")
        read(gate, until_lost=turn + 1)
    words = [" ".join([str(error), *getattr(error, "__notes__", ())]) for error in told]
    assert len(words) == 2
    assert all("record 1 of channel 0" in word for word in words), words
    assert gate.stats()["skipped"] == 2
    gate.close()


def test_one_that_is_awaited_in_vain_is_an_error_in_time(ends: Ends) -> None:
    config = fb.ExchangeConfig(buffer_timeout_s=0, stall_timeout_s=0.2)
    gate = ends.far.create_input_gate(ROWS, channels=1, config=config, on_peer_loss="wait")
    ends.writer(gate).abort("on fire")
    with pytest.raises(fb.StallTimeout, match=r"on fire"):
        gate.poll(PATIENCE_S)
    with pytest.raises(fb.StallTimeout, match=r"on fire"):
        asyncio.run(gate.poll_async(PATIENCE_S))
    gate.close()


def test_the_totals_of_those_that_were_forgotten_are_not_asked_for(ends: Ends) -> None:
    gate = ends.gate("forget")
    lost, strange, whole = (ends.writer(gate, n) for n in (1, 2, 3))
    lost.abort("gone")
    strange.abort("gone")
    read(gate, until_lost=2)
    whole.emit((1, "all"))
    closing = threading.Thread(target=whole.close)
    closing.start()
    assert read(gate, 1) == [(1, "all")]
    assert gate.poll(0.2) is None
    gate.seal({1: 17, 3: 1})
    assert read(gate) == []
    closing.join()
    assert gate.finished
    with pytest.raises(SequenceError, match=r"too late|connected already"):
        ends.writer(gate, 1)
    gate.close()


def test_producers_join_late_end_and_come_again(ends: Ends) -> None:
    gate = ends.gate("forget")
    for life in range(3):
        for channel in (7, 8):
            writer = ends.writer(gate, channel)
            writer.emit((channel, f"life {life}"))
            closing = threading.Thread(target=writer.close)
            closing.start()
            assert read(gate, 1) == [(channel, f"life {life}")]
            while closing.is_alive():
                assert gate.poll(0.01) is None
    assert gate.stats()["channels"] == 2
    assert gate.stats()["records"] == 6
    gate.seal({7: 1, 8: 1})
    assert read(gate) == []
    gate.close()


def test_one_that_comes_while_the_one_before_is_there_waits_for_its_end(ends: Ends) -> None:
    """A service starts it again before its consumer has seen that it is dead."""
    if ends.way == "local":
        pytest.skip("a channel of the same process is refused at once: nothing there takes time")
    gate = ends.gate("wait", channels=1)
    first = ends.writer(gate)
    first.emit((1, "first"))
    made: list[fb.RecordWriter] = []
    coming = threading.Thread(target=lambda: made.append(ends.writer(gate)))
    coming.start()
    coming.join(0.2)
    assert coming.is_alive()
    first.abort("gone")
    got = read(gate, until_lost=1)
    coming.join(PATIENCE_S)
    made[0].emit((2, "second"))
    got += read(gate, 1)
    assert got[-1] == (2, "second")
    made[0].abort("enough")
    gate.close()


def test_in_the_same_process_a_second_one_is_refused(ends: Ends) -> None:
    gate = ends.gate("wait", channels=1)
    ends.writer(gate)
    config = fb.ExchangeConfig(connect_timeout_s=0.05)
    target = gate if ends.way == "local" else gate.address
    with pytest.raises((SequenceError, fb.PeerLost), match=r"connected already|the producer before"):
        ends.near.create_result_partition(ROWS, [target], config=config)
    gate.close()


def test_a_blocked_channel_is_lost_behind_what_it_sent(ends: Ends) -> None:
    gate = ends.gate("forget", channels=2)
    lost, other = ends.writer(gate, 0), ends.writer(gate, 1)
    lost.emit((1, "first"))
    assert read(gate, 1) == [(1, "first")]
    gate.block(0)
    lost.abort("gone")
    assert gate.poll(0.1) is None
    assert gate.stats()["producers_lost"] == 0
    gate.unblock(0)
    read(gate, until_lost=1)
    other.abort("gone too")
    read(gate)
    assert gate.finished
    gate.close()


def test_batches_of_columns_go_on_too(ends: Ends) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = fb.ColumnarSerializer(pa.schema([("n", pa.int64())]))
    gate = ends.far.create_input_gate(columns, channels=2, config=CONFIG, on_peer_loss="forget")
    target = gate if ends.way == "local" else gate.address
    lost, other = (ends.near.create_result_partition(columns, [target], channel=n, config=CONFIG) for n in range(2))
    lost.emit_batch(pa.record_batch({"n": [1, 2]}))
    other.emit_batch(pa.record_batch({"n": [3]}))
    seen: list[int] = []
    while len(seen) < 3:
        batch = gate.poll(PATIENCE_S)
        seen += batch.column(0).to_pylist()
    lost.abort("gone")
    closing = threading.Thread(target=other.close)
    closing.start()
    while not gate.finished:
        batch = gate.poll(PATIENCE_S)
        seen += batch.column(0).to_pylist() if batch is not None else []
    closing.join()
    assert sorted(seen) == [1, 2, 3]
    assert gate.stats()["producers_lost"] == 1
    gate.close()


def consumer(env: fb.ShuffleEnvironment) -> dict[str, Any]:
    found = env.monitor.snapshot()
    return found[0]["consumers"].get(0, {}) if found else {}


def test_the_monitor_sees_who_was_lost(ends: Ends) -> None:
    gate = ends.gate("forget", channels=2)
    lost, other = ends.writer(gate, 0), ends.writer(gate, 1)
    lost.abort("gone")
    read(gate, until_lost=1)
    end = time.monotonic() + PATIENCE_S
    while (seen := consumer(ends.far)).get("producers_lost") != 1:
        assert time.monotonic() < end, seen
        assert gate.poll(0.05) is None
    other.abort("gone too")
    gate.close()


def test_a_word_that_is_no_policy_is_refused(ends: Ends) -> None:
    with pytest.raises(fb.ConfigError, match=r"on_peer_loss"):
        ends.gate("ignore")
