"""A broadcast that drops the oldest of what a slow consumer has not come to: it goes on with the newest, and knows the gap."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
OBJECTS = fb.PickledSerializer()
SEGMENTS = 160
BOUND = 4
CONFIG = fb.ExchangeConfig(max_buffers_per_channel=BOUND, buffer_timeout_s=0.005, stall_timeout_s=20)
PATIENCE_S = 30.0


@pytest.fixture(params=["local", "memfd", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function that makes a broadcast to two gates, of which the second one is slow."""
    shared = request.param == "memfd"
    far = fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=shared)
    near = fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=shared)
    far.listen()

    def make(serializer: Any = ROWS, config: fb.ExchangeConfig = CONFIG, **settings: Any) -> Any:
        gates = [far.create_input_gate(serializer, channels=1, config=config, **settings) for _ in range(2)]
        env, targets = (far, gates) if request.param == "local" else (near, [gate.address for gate in gates])
        writer = env.create_result_partition(
            serializer, targets, selector=fb.broadcast(), config=config, on_slow_consumer="drop_oldest"
        )
        assert set(writer.stats()["transports"]) == {request.param}
        return writer, *gates

    yield make
    for env in (near, far):
        env.close()
        assert env.pool.available == SEGMENTS
        env.pool.audit()


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
    writer, fast, slow = ends(serializer)
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
    """Both rest and rush at random, to the end of partition; watermarks stand where they were sent, and none is lost."""
    config = fb.ExchangeConfig(max_buffers_per_channel=bound, buffer_timeout_s=0.002, stall_timeout_s=20)
    writer, fast, slow = ends(config=config)
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
