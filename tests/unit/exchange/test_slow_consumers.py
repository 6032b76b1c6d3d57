"""A broadcast goes on without consumers that are slow, where it is told to: who misses what is counted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broadcasts import OBJECTS, PATIENCE_S, ROWS, SEGMENTS, broadcasts

import fastbuf as fb
from fastbuf.errors import ConfigError, ExchangeAborted, ResourceError

CONFIG = fb.ExchangeConfig(max_buffers_per_channel=4, buffer_timeout_s=0.005, stall_timeout_s=20)


@pytest.fixture(params=["local", "memfd", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Any]:
    """See :func:`broadcasts`."""
    with broadcasts(request.param, CONFIG) as make:
        yield make


def record(n: int, kind: str) -> Any:
    length = {"small": n * 7 % 50, "spanning": n * 37 % 3000, "long": 2000 + n * 7 % 4000}[kind]
    return (n, f"{n}" + "x" * length)


@pytest.mark.parametrize("kind", ["small", "spanning", "long"])
@pytest.mark.parametrize("serializer", [ROWS, OBJECTS], ids=["rows", "objects"])
def test_a_slow_one_misses_whole_records_and_the_other_none(ends: Any, kind: str, serializer: Any) -> None:
    writer, fast, slow = ends("drop", serializer)
    sent = 0
    got: list[Any] = []
    seen: list[Any] = []

    def write(records: int) -> None:
        nonlocal sent
        end = time.monotonic() + PATIENCE_S
        for _ in range(records):
            writer.emit(record(sent, kind))
            sent += 1
            writer.flush()
            while len(got) < sent:  # it keeps up
                assert time.monotonic() < end
                got.extend(fast.poll(0.05) or ())

    for _ in range(3):
        before = sum(writer.dropped())
        end = time.monotonic() + PATIENCE_S
        while sum(writer.dropped()) <= before + 3:
            assert time.monotonic() < end
            write(20)
        while more := slow.poll(0.1):
            seen += more
        write(2000 if kind == "small" else 3)  # with what it has read, it gets buffers again
    assert writer.dropped()[0] == 0
    assert writer.stats()["buffers_dropped"] == writer.dropped()[1]
    writer.abort("enough")
    assert got == [record(n, kind) for n in range(sent)]
    assert seen == [record(n, kind) for n, _ in seen]  # each is whole
    numbers = [n for n, _ in seen]
    assert numbers == sorted(set(numbers))
    assert numbers != list(range(len(numbers)))  # it missed some in between
    assert len(numbers) < sent


def read_on(gate: fb.InputGate) -> None:
    while True:
        gate.poll(PATIENCE_S)


@pytest.mark.parametrize("kind", ["small", "spanning"])
def test_a_slow_one_is_cut_off_and_told(ends: Any, kind: str) -> None:
    writer, fast, slow = ends("disconnect")
    sent = 0
    got: list[Any] = []
    end = time.monotonic() + PATIENCE_S
    while writer.stats()["consumers_cut"] == 0 or sent % 50:
        writer.emit(record(sent, kind))
        sent += 1
        writer.flush()
        while len(got) < sent:
            assert time.monotonic() < end
            got += fast.poll(0.05) or ()
    with pytest.raises(ExchangeAborted, match="too slow"):
        read_on(slow)
    assert not writer.cancelled
    assert got == [record(n, kind) for n in range(sent)]
    assert writer.stats()["buffers_dropped"] == 0
    slow.close()
    writer.abort("enough")


@pytest.mark.parametrize("way", ["emit", "emit_async"])
@pytest.mark.parametrize("policy", ["drop", "drop_oldest", "disconnect"])
def test_whoever_waits_for_no_reader_does_not_wait_for_itself(ends: Any, policy: str, way: str) -> None:
    """A coroutine fills queues that only its own thread could read: the policy comes first."""
    writer, first, second = ends(policy, writes=fb.ExchangeConfig(max_buffers_per_channel=2, stall_timeout_s=5))

    for gate in (first, second):
        assert gate.poll(0) is None  # now this thread is the one that reads them

    async def write() -> None:
        for n in range(150):
            done = getattr(writer, way)((n, "x" * 900))
            if way == "emit_async":
                await done

    asyncio.run(write())
    stats = writer.stats()
    assert stats["consumers_cut"] == 2 if policy == "disconnect" else stats["buffers_dropped"] > 100
    writer.abort("enough")
    for gate in (first, second):
        gate.close()


def test_a_burst_makes_nobody_slow(ends: Any) -> None:
    """A queue that is full for a moment is not a consumer that does not read."""
    config = fb.ExchangeConfig(max_buffers_per_channel=2, buffer_timeout_s=1)
    writer, fast, slow = ends("disconnect", writes=config)
    parts: list[list[Any]] = [[], []]

    def read(gate: fb.InputGate, part: list[Any]) -> None:
        for item in gate:
            part.append(item)

    threads = [threading.Thread(target=read, args=pair) for pair in zip((fast, slow), parts, strict=True)]
    for thread in threads:
        thread.start()
    writer.emit_many([record(n, "spanning") for n in range(300)])
    writer.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert parts == [[record(n, "spanning") for n in range(300)]] * 2
    assert writer.stats()["consumers_cut"] == 0


def test_one_that_outlives_its_producers_goes_on_when_it_was_cut_off(ends: Any) -> None:
    writer, fast, slow = ends("disconnect", on_peer_loss="wait")
    sent = got = 0
    end = time.monotonic() + PATIENCE_S
    while writer.stats()["consumers_cut"] == 0:
        writer.emit(record(sent, "spanning"))
        sent += 1
        writer.flush()
        while got < sent:
            assert time.monotonic() < end
            got += len(fast.poll(0.05) or ())
    while not slow.lost:
        assert time.monotonic() < end
        slow.poll(0.05)
    assert "too slow" in slow.lost[0]
    writer.abort("enough")


def test_columns_go_on_too(ends: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = fb.ColumnarSerializer(pa.schema([("n", pa.int64())]))
    writer, fast, slow = ends("drop", columns)
    sent = 0
    got: list[int] = []
    end = time.monotonic() + PATIENCE_S
    while sum(writer.dropped()) < 5:
        assert time.monotonic() < end
        writer.emit_batch(pa.record_batch({"n": list(range(sent, sent + 300))}))
        sent += 300
        writer.flush()
        while len(got) < sent:
            assert time.monotonic() < end
            batch = fast.poll(0.05)
            got += batch.column(0).to_pylist() if batch is not None else []
    seen = []
    while (batch := slow.poll(0.1)) is not None:
        seen += batch.column(0).to_pylist()
    assert got == list(range(sent))
    assert seen
    assert seen == sorted(set(seen))
    assert len(seen) < sent
    writer.abort("enough")


def test_events_wait_for_no_slow_one(ends: Any) -> None:
    writer, fast, _ = ends("drop")
    for n in range(60):
        writer.emit_event(fb.Watermark(n))
        while not isinstance(fast.poll(0.2), fb.Event):
            pass
    assert writer.dropped()[0] == 0
    assert writer.dropped()[1] > 0
    writer.abort("enough")


def test_where_it_would_miss_what_nobody_else_gets_it_is_refused(ends: Any) -> None:
    with fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        for settings in (
            {"selector": fb.round_robin()},
            {},
            {"partition_type": "blocking", "selector": fb.broadcast()},
        ):
            for policy in ("drop", "drop_oldest", "disconnect"):
                with pytest.raises(ConfigError, match=rf"on_slow_consumer is '{policy}'"):
                    env.create_result_partition(ROWS, [gate], on_slow_consumer=policy, **settings)
        with pytest.raises(ConfigError, match="on_slow_consumer"):
            env.create_result_partition(ROWS, [gate], selector=fb.broadcast(), on_slow_consumer="drop_newest")
        config = fb.ExchangeConfig(max_buffers_per_channel=200)
        with pytest.raises(ResourceError, match="requires 210 segments"):
            env.create_result_partition(
                ROWS, [gate], selector=fb.broadcast(), config=config, on_slow_consumer="disconnect"
            )
        gate.close()
