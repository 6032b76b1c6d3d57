"""Records with long bytes at their end, which are copied past encoder and decoder: the same records come out."""

from __future__ import annotations

import struct
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastbuf as fb
from fastbuf.errors import BlockError, RecordError, RecordTooLong
from fastbuf.serializers.spanning import SpanningReader

LEAST = 4096  # bytes at a record's end that go past the encoder
ONE = fb.RowSerializer(fb.Schema.of(data="binary"))
MIXED = fb.RowSerializer(fb.Schema.of(k="int64", name="string", data="binary?", x="float64", n="int32?"))
LENGTHS = [0, 1, LEAST - 1, LEAST, LEAST + 1, 3 * LEAST, 20 * LEAST + 7]


def mixed(i: int, length: int) -> tuple[Any, ...]:
    data = None if i % 7 == 3 else bytes([i % 251]) * length
    return i, f"name {i}" * (i % 3), data, i / 2, None if i % 2 else i


def elements(serializer: Any, records: list[Any]) -> bytes:
    payloads = [serializer.encode(record) for record in records]
    return b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)


def collected(buffers: list[bytes]) -> list[Any]:
    reader = SpanningReader(1 << 20)
    return [record for data in buffers for record in reader.collect_records(ONE, data)]


@given(st.lists(st.sampled_from(LENGTHS[:-1]), max_size=8), st.lists(st.integers(0, 60_000), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_cut_gives_the_same_records(lengths: list[int], ends: list[int]) -> None:
    records = [mixed(i, length) for i, length in enumerate(lengths)]
    data = elements(MIXED, records)
    reader = SpanningReader(1 << 20)
    at = sorted({0, len(data), *(end for end in ends if end < len(data))})
    found = []
    for a, b in pairwise(at):
        found += reader.collect_records(MIXED, data[a:b])
    assert found == records
    assert reader.is_clean()


@pytest.mark.parametrize("cut", [1, 5, 12, 16, 17, 30])
def test_every_piece_by_itself(cut: int) -> None:
    records = [mixed(i, LEAST) for i in range(1, 4)]
    data = elements(MIXED, records)
    reader = SpanningReader(1 << 20)
    found = [record for i in range(0, len(data), cut) for record in reader.collect_records(MIXED, data[i : i + cut])]
    assert found == records
    assert reader.is_clean()


def test_a_tail_that_has_not_come_whole_is_not_clean() -> None:
    data = elements(ONE, [(bytes(2 * LEAST),)])
    reader = SpanningReader(1 << 20)
    assert reader.collect_records(ONE, data[: LEAST + 100]) == []
    assert not reader.is_clean()
    assert reader.carry_bytes < LEAST  # what came is where it is to be
    assert reader.collect_records(ONE, data[LEAST + 100 :]) == [(bytes(2 * LEAST),)]
    assert reader.is_clean()


@pytest.mark.parametrize("end", [0, LEAST, 2 * LEAST + 1, 0xFFFFFFFF])
def test_a_forged_end_is_refused_wherever_the_cut_is(end: int) -> None:
    data = bytearray(elements(ONE, [(bytes(2 * LEAST),)]))
    struct.pack_into("<I", data, 4, end)
    for cut in (4, 8, 20, LEAST, len(data)):
        with pytest.raises(BlockError):
            collected([bytes(data[:cut]), bytes(data[cut:])])


def test_a_length_beyond_the_bound_is_refused_before_its_bytes_come() -> None:
    reader = SpanningReader(LEAST)
    with pytest.raises(RecordTooLong):
        reader.collect_records(ONE, struct.pack("<I", LEAST + 1) + bytes(8))


def emit_each(writer: Any, records: list[Any]) -> None:
    for record in records:
        writer.emit(record)


def emit_list(writer: Any, records: list[Any]) -> None:
    writer.emit_many(records)


def emit_iterable(writer: Any, records: list[Any]) -> None:
    writer.emit_many(record for record in records)


@pytest.mark.parametrize("emit", [emit_each, emit_list, emit_iterable])
@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("selector", [fb.round_robin, fb.broadcast, lambda: fb.hash_by("k")])
def test_through_an_exchange(emit: Any, consumers: int, selector: Any) -> None:
    records = [mixed(i, LENGTHS[i % len(LENGTHS)]) for i in range(30)]
    with fb.ShuffleEnvironment(segments=1024, segment_size=4096) as env:
        writer, gates = env.exchange(
            serializer=MIXED,
            consumers=consumers,
            selector=selector(),
            config=fb.ExchangeConfig(max_buffers_per_channel=600, floating=600),
        )
        emit(writer, records)
        assert writer.records == len(records)
        writer.close()
        found = [record for gate in gates for record in gate]
        times = consumers if selector is fb.broadcast else 1
        assert sorted(found, key=lambda r: r[0]) == sorted(records * times, key=lambda r: r[0])
        for gate in gates:
            gate.close()
        assert env.pool.available == 1024


def test_a_record_longer_than_all_segments_goes_piece_by_piece() -> None:
    records = [(i, "", bytes([i]) * (100 * 4096), 0.0, i) for i in range(4)]
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer=MIXED)
        found: list[Any] = []
        for record in records:
            done = writer.try_emit(record)
            while not done:
                found += gate.poll(timeout=0) or ()
                done = writer.resume()
        writer.finish()
        while (got := gate.poll()) is not None:
            found += got
        assert found == records
        writer.close()
        gate.close()
        assert env.pool.available == 64


@pytest.mark.parametrize("lists", [False, True])
def test_refusals_name_the_whole_length_and_leave_nothing(lists: bool) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer=ONE, config=fb.ExchangeConfig(max_record_bytes=9000))
        bad = [(b"a",), (bytes(8997),), (b"b",)]
        with pytest.raises(RecordTooLong, match="record 1: it takes 9001 bytes, more than max_record_bytes"):
            writer.emit_many(bad) if lists else emit_each(writer, bad)
        writer.emit((bytes(8996),))
        with pytest.raises(RecordError, match="record 2"):
            writer.emit_many([("text",)])
        writer.close()
        assert [len(data) for (data,) in gate] == [1, 8996]


def test_a_list_that_its_own_records_shorten() -> None:
    records: list[Any] = []

    class Clearing:
        @property
        def k(self) -> int:
            del records[2:]
            return 7

        x = 0.5

    records += [(1, 0.5), Clearing(), (2, 0.5), (3, 0.5)]
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(serializer=fb.RowSerializer(fb.Schema.of(k="int64", x="float64")))
        writer.emit_many(records)
        writer.close()
        assert list(gate) == [(1, 0.5), (7, 0.5)]


def test_a_list_ends_with_the_failure_that_comes_within_it() -> None:
    rows = fb.RowSerializer(fb.Schema.of(k="int64"))
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(serializer=rows)

        class Aborting:
            @property
            def k(self) -> int:
                gate.abort("had enough")
                gate.close()
                return 1

        with pytest.raises(fb.ExchangeAborted, match="had enough"):
            writer.emit_many([(0,), Aborting(), (2,), (3,)])
        assert writer.records == 2
        writer.abort()


def test_records_given_out_one_by_one_are_not_kept() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(serializer=fb.RowSerializer(fb.Schema.of(k="int64")))
        writer.emit_many([(i + 1000,) for i in range(10)])
        writer.close()
        first = next(iter(gate))
        assert first == (1000,)
        assert sys.getrefcount(first) == 2
        assert [k for (k,) in gate] == list(range(1001, 1010))
