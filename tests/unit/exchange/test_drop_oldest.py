"""A broadcast that drops the oldest of what a slow consumer has not come to; the consumer knows how much that was."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broadcasts import OBJECTS, PATIENCE_S, ROWS, SEGMENTS, broadcasts

import fastbuf as fb
from fastbuf.errors import ConfigError

BOUND = 4
CONFIG = fb.ExchangeConfig(max_buffers_per_channel=BOUND, buffer_timeout_s=0.005, stall_timeout_s=20)


@pytest.fixture(params=["local", "memfd", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Any]:
    """See :func:`broadcasts`."""
    with broadcasts(request.param, CONFIG) as make:
        yield make


def record(n: int, kind: str) -> Any:
    length = {"small": n * 7 % 50, "spanning": n * 37 % 3000, "long": 5000 + n * 7 % 9000}[kind]
    return (n, f"{n}" + "x" * length)


def read(gate: fb.InputGate, until: int, got: list[Any]) -> None:
    """Reads until record number `until` has come."""
    end = time.monotonic() + PATIENCE_S
    while not got or got[-1][0] < until:
        assert time.monotonic() < end, (len(got), got[-1:], until)
        got.extend(gate.poll(0.05) or ())


@pytest.mark.parametrize("kind", ["small", "spanning"])
@pytest.mark.parametrize("serializer", [ROWS, OBJECTS], ids=["rows", "objects"])
def test_a_slow_one_goes_on_with_the_newest(ends: Any, kind: str, serializer: Any) -> None:
    writer, fast, slow = ends("drop_oldest", serializer)
    sent = 0
    got: list[Any] = []
    seen: list[Any] = []
    for _ in range(3):
        before, end = writer.stats()["buffers_dropped"], time.monotonic() + PATIENCE_S
        while writer.stats()["buffers_dropped"] < before + 30:
            assert time.monotonic() < end
            writer.emit(record(sent, kind))
            sent += 1
            writer.flush()
            read(fast, sent - 1, got)  # it keeps up
        writer.flush()
        read(slow, sent - 1, seen)  # the newest is there, whatever was dropped
    stats = writer.stats()
    assert writer.dropped()[0] == writer.records_dropped()[0] == 0
    assert stats["records_dropped"] == writer.records_dropped()[1] == slow.stats()["records_missed"]
    assert fast.stats()["records_missed"] == 0
    assert got == [record(n, kind) for n in range(sent)]
    numbers = [n for n, _ in seen]
    assert seen == [record(n, kind) for n in numbers]  # each is whole
    assert numbers == sorted(set(numbers))
    assert len(numbers) + stats["records_dropped"] == sent
    assert stats["records_dropped"] > 0
    writer.abort("enough")


@pytest.mark.parametrize("kind", ["spanning", "long"])
@pytest.mark.parametrize("bound", [1, 2, 20])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_speeds_are_nothing_is_torn_and_each_gap_is_counted(
    ends: Any, kind: str, bound: int, seed: int
) -> None:
    """Both rest and rush at random, to the end of partition; watermarks stand where they were sent."""
    config = fb.ExchangeConfig(max_buffers_per_channel=bound, buffer_timeout_s=0.002, stall_timeout_s=20)
    writer, fast, slow = ends("drop_oldest", writes=config, reads=config)
    parts: list[list[Any]] = [[], []]
    records = 300
    marks = 4  # fewer than wait in a queue whatever comes

    def follow(gate: fb.InputGate, part: list[Any], rests: random.Random | None) -> None:
        while (item := gate.poll(PATIENCE_S)) is not None:
            part += [item] if isinstance(item, fb.Event) else item
            if rests is not None and rests.random() < 0.5:
                time.sleep(rests.random() * 0.03)

    threads = [
        threading.Thread(target=follow, args=(fast, parts[0], None)),
        threading.Thread(target=follow, args=(slow, parts[1], random.Random(seed))),
    ]
    for thread in threads:
        thread.start()
    dice = random.Random(seed + 100)
    for n in range(records):
        writer.emit(record(n, kind))
        if n % (records // marks) == 50:
            writer.emit_event(fb.Watermark(n))
        if dice.random() < 0.1:
            writer.flush()
        if dice.random() < 0.05:
            time.sleep(dice.random() * 0.01)
    writer.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    dropped = writer.records_dropped()
    for gate, part, missed in zip((fast, slow), parts, dropped, strict=True):
        rows = [item for item in part if not isinstance(item, fb.Event)]
        numbers = [n for n, _ in rows]
        assert rows == [record(n, kind) for n in numbers]
        assert numbers == sorted(set(numbers))
        assert len(numbers) + missed == records
        assert gate.stats()["records_missed"] == missed
        if bound == 20:  # a record that is longer than the queue is for those alone who take it as it comes
            assert numbers[-1] == records - 1
        events = [item.time_ms for item in part if isinstance(item, fb.Event)]
        assert events == [n for n in range(records) if n % (records // marks) == 50]
        last = -1
        for item in part:  # a watermark stands between what was sent before and after it
            if isinstance(item, fb.Event):
                mark = item.time_ms
                assert last <= mark
                last = mark + 1
            else:
                assert item[0] >= last
                last = max(last, item[0])


def test_rows_of_columns_are_counted_too(ends: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = fb.ColumnarSerializer(pa.schema([("n", pa.int64()), ("text", pa.string())]))
    writer, fast, slow = ends("drop_oldest", columns)
    parts: list[list[int]] = [[], []]

    def take(gate: fb.InputGate, until: int, part: list[int]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not part or part[-1] < until:
            assert time.monotonic() < end
            batch = gate.poll(0.05)
            part.extend(batch.column(0).to_pylist() if batch is not None else [])

    for first in range(0, 6000, 60):
        texts = ["y" * (2500 if n % 97 == 0 else n % 9) for n in range(first, first + 60)]  # some rows span buffers
        writer.emit_batch(pa.record_batch({"n": list(range(first, first + 60)), "text": texts}))
        writer.flush()
        take(fast, first + 59, parts[0])
    take(slow, 5999, parts[1])
    assert parts[0] == list(range(6000))
    assert parts[1] == sorted(set(parts[1]))
    assert len(parts[1]) + slow.stats()["records_missed"] == 6000
    assert writer.records_dropped() == [0, slow.stats()["records_missed"]]
    assert writer.records_dropped()[1] > 4000
    writer.abort("enough")


def test_events_stay_where_data_is_dropped(ends: Any) -> None:
    writer, fast, slow = ends("drop_oldest")
    sent, got = 0, []
    for number in range(3):
        writer.emit_event(fb.Barrier(number, 0))
        for _ in range(40):
            writer.emit(record(sent, "spanning"))
            sent += 1
            while not got or got[-1] != sent - 1:
                item = fast.poll(0.05) or []
                got += [] if isinstance(item, fb.Event) else [n for n, _ in item]
    seen: list[Any] = []
    end = time.monotonic() + PATIENCE_S
    while not seen or seen[-1] != sent - 1:
        assert time.monotonic() < end
        item = slow.poll(0.05) or []
        seen += [item] if isinstance(item, fb.Event) else [n for n, _ in item]
    barriers = [item for item in seen if isinstance(item, fb.Event)]
    assert [barrier.checkpoint for barrier in barriers] == [0, 1, 2]
    for barrier in barriers:  # each stands between what was sent before it and after it
        at = seen.index(barrier)
        assert all(n < 40 * barrier.checkpoint for n in seen[:at] if isinstance(n, int))
        assert all(n >= 40 * barrier.checkpoint for n in seen[at:] if isinstance(n, int))
    assert writer.records_dropped()[1] == sent - len(seen) + 3 > 60
    writer.abort("enough")


def test_events_wait_for_no_slow_one(ends: Any) -> None:
    writer, fast, slow = ends("drop_oldest")
    for n in range(60):
        writer.emit_event(fb.Watermark(n))
        while not isinstance(fast.poll(0.2), fb.Event):
            pass
    assert writer.dropped()[0] == 0
    marks = []
    while (event := slow.poll(0.1)) is not None:
        marks.append(event.time_ms)
    assert marks[:8] == list(range(8))  # those that were queued
    assert len(marks) + writer.dropped()[1] == 60
    writer.emit((1, "one"))
    writer.flush()
    assert slow.poll(PATIENCE_S) == [(1, "one")]
    writer.abort("enough")


def test_what_is_kept_is_what_fits_the_queue(ends: Any) -> None:
    """Bounded, whatever is sent: at most the queue, and what the slow one has in hand or has given credit for."""
    wide = fb.ExchangeConfig(max_buffers_per_channel=16, buffer_timeout_s=0.005)
    writer, fast, slow = ends("drop_oldest", writes=wide, reads=wide)
    got: list[Any] = []
    for n in range(3000):
        writer.emit((n, "x" * 100))
        if n % 20 == 0:
            writer.flush()
            read(fast, n, got)
    writer.flush()
    seen: list[Any] = []
    read(slow, 2999, seen)
    numbers = [n for n, _ in seen]
    gaps = [n for n in numbers if n - 1 not in set(numbers)]
    assert len(gaps) <= 2  # it never looked: what it had given credit for, then the newest
    per_buffer = 1024 // 116
    assert 13 * per_buffer < 3000 - gaps[-1] <= 17 * (per_buffer + 1)
    writer.abort("enough")


@pytest.mark.parametrize("control", ["watermark", "on_off", "pid_rate"])
def test_without_credit_too(control: str) -> None:
    config = fb.ExchangeConfig(max_buffers_per_channel=4, buffer_timeout_s=0.002, flow_control=control)
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024) as far:
        with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024) as near:
            far.listen()
            gate = far.create_input_gate(ROWS, channels=1, config=config)
            writer = near.create_result_partition(
                ROWS, [gate.address], selector=fb.broadcast(), config=config, on_slow_consumer="drop_oldest"
            )
            sent, end = 0, time.monotonic() + PATIENCE_S
            while writer.records_dropped()[0] < 100:
                assert time.monotonic() < end
                writer.emit(record(sent, "small"))
                sent += 1
            writer.finish()
            seen = list(gate)
            writer.close()
            assert seen == [record(n, "small") for n, _ in seen]
            assert len(seen) + gate.stats()["records_missed"] == sent
            assert gate.stats()["records_missed"] == writer.records_dropped()[0]
            gate.close()
        assert near.pool.available == SEGMENTS
    assert far.pool.available == SEGMENTS


def test_a_writer_of_one_consumer_each_refuses_it_by_name(ends: Any) -> None:
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        with pytest.raises(ConfigError, match=r"'drop_oldest': that needs selector=fastbuf.broadcast\(\)"):
            env.create_result_partition(ROWS, [gate], on_slow_consumer="drop_oldest")
        gate.close()
