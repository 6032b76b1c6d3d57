"""Lists of records, which a writer encodes in runs: what comes is what would have come of them one by one."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import RecordError, RecordTooLong

ROWS = fb.RowSerializer(fb.Schema.of(k="int64", s="string"))
TAILED = fb.RowSerializer(fb.Schema.of(k="int64", s="binary"))
Named = namedtuple("Named", "k s")
SELECTORS: list[tuple[Callable[[], Any], int]] = [
    (lambda: fb.hash_by("k"), 1),
    (lambda: fb.hash_by("k"), 4),
    (lambda: fb.forward(2), 3),
    (fb.round_robin, 3),
    (fb.broadcast, 3),
    (lambda: fb.custom(lambda record, n: len(record[1]) % n), 2),
]


def made(n: int, seed: int) -> list[Any]:
    """Records of all lengths, some of them longer than a segment of 4096 bytes, some that fill one to the last byte."""
    rng = random.Random(seed)
    lengths = [
        rng.choice((0, 3, 40, 700, 4096 - 24, 9000)) if rng.random() < 0.1 else rng.randrange(30) for _ in range(n)
    ]
    records: list[Any] = [(k * 31 - 500, "é" * (length % 7) + "x" * length) for k, length in enumerate(lengths)]
    for i in range(0, n, 11):
        records[i] = Named(*records[i])
    return records


def passed(records: list[Any], selector: Any, consumers: int, serializer: Any, lists: bool) -> tuple[list[Any], Any]:
    """-> (what each consumer got, what the writer counted)."""
    config = fb.ExchangeConfig(exclusive=120, max_buffers_per_channel=120)
    with fb.ShuffleEnvironment(segments=1000, segment_size=4096) as env:
        writer, gates = env.exchange(serializer=serializer, consumers=consumers, selector=selector, config=config)
        if lists:
            writer.emit_many(records)
        else:
            for record in records:
                writer.emit(record)
        writer.close()
        stats = writer.stats()
        return [list(gate) for gate in gates], (stats["records"], stats["bytes"], stats["buffers"])


@pytest.mark.parametrize(("make", "consumers"), SELECTORS)
def test_a_list_is_what_its_records_are_one_by_one(make: Any, consumers: int) -> None:
    records = made(1000, consumers)
    assert passed(records, make(), consumers, ROWS, True) == passed(records, make(), consumers, ROWS, False)


def test_a_schema_with_long_bytes_at_its_end() -> None:
    records = [(k, bytes(k % 50 if k % 9 else 5000)) for k in range(300)]
    assert passed(records, fb.hash_by("k"), 2, TAILED, True) == passed(records, fb.hash_by("k"), 2, TAILED, False)


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("at", [0, 63, 64, 150])
def test_what_came_before_a_wrong_record_is_written(consumers: int, at: int) -> None:
    records: list[Any] = [(k, "x" * 20) for k in range(200)]
    records[at] = (7, 7)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(serializer=ROWS, consumers=consumers, selector=fb.hash_by("k"))
        with pytest.raises(RecordError, match=f"record {at}: field 's'"):
            writer.emit_many(records)
        assert writer.records == at
        with pytest.raises(RecordError, match=f"record {at}: field 'k'"):
            writer.emit_many([("text", "x")])
        writer.emit_many(records[at + 1 :])
        writer.close()
        got = sorted(record for gate in gates for record in gate)
        assert got == records[:at] + records[at + 1 :]


@pytest.mark.parametrize("consumers", [1, 3])
def test_a_record_longer_than_may_be_sent_is_refused_in_a_run(consumers: int) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        config = fb.ExchangeConfig(max_record_bytes=100)
        writer, gates = env.exchange(serializer=ROWS, consumers=consumers, selector=fb.hash_by("k"), config=config)
        with pytest.raises(RecordTooLong, match="record 3: it takes 212 bytes, more than max_record_bytes"):
            writer.emit_many([(1, "a"), (2, "b"), (3, "c"), (4, "d" * 200), (5, "e")])
        writer.close()
        assert sorted(record for gate in gates for record in gate) == [(1, "a"), (2, "b"), (3, "c")]


def test_the_users_own_selector_is_asked_for_every_record() -> None:
    asked = []
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(
            serializer=ROWS, selector=fb.custom(lambda record, n: asked.append(record[0]) or 0)
        )
        writer.emit_many([(k, "") for k in range(200)])
        writer.close()
        assert asked == list(range(200))
        assert len(list(gate)) == 200


@pytest.mark.parametrize("consumers", [1, 2])
def test_consumers_hear_of_records_while_a_list_is_written(consumers: int) -> None:
    heard: list[int] = []

    class Listening:
        def __index__(self) -> int:
            writer.flush()
            heard.append(sum(len(gate.poll(0) or []) for gate in gates))
            return 1

    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(serializer=ROWS, consumers=consumers, selector=fb.hash_by("k"))
        writer.emit_many([(k, "x") for k in range(300)] + [(Listening(), "y")])
        assert heard[0] >= 300 - 64
        writer.close()
        assert heard[0] + sum(1 for gate in gates for _ in gate) == 301


def test_what_is_meant_for_one_who_cancelled_is_dropped_and_counted() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(serializer=ROWS, consumers=2, selector=fb.round_robin())
        writer.emit_many([(k, "x") for k in range(100)])
        gates[0].close()
        writer.emit_many([(k, "x") for k in range(100, 1000)])
        assert writer.records == 1000
        writer.close()
        assert [k for k, _ in gates[1]] in (list(range(0, 1000, 2)), list(range(1, 1000, 2)))
    assert env.pool.available == 64
