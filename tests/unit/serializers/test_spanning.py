"""Records across buffers: any cut gives the same records, and a length alone allocates nothing."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import RecordTooLong
from fastbuf.serializers.spanning import SpanningReader


def stream(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)


def read(reader: SpanningReader, buffers: list[bytes]) -> list[tuple[bytes, bool]]:
    found = []
    for buffer in buffers:
        reader.feed_bytes(buffer)
        while (payload := reader.next_payload()) is not None:
            found.append(payload)
    return found


def cut(data: bytes, ends: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(end for end in ends if end < len(data))})
    return [data[a:b] for a, b in pairwise(at)]


class TestCuts:
    @given(st.lists(st.binary(max_size=70), max_size=12), st.lists(st.integers(0, 900), max_size=30))
    @settings(max_examples=300, deadline=None)
    def test_any_cut(self, payloads: list[bytes], ends: list[int]) -> None:
        reader = SpanningReader(70)
        found = read(reader, cut(stream(payloads), ends))
        assert [payload for payload, _ in found] == payloads
        assert reader.is_clean()

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 32])
    def test_buffers_of_one_size(self, size: int) -> None:
        payloads = [bytes([i]) * (i * 3 % 41) for i in range(60)]
        data = stream(payloads)
        reader = SpanningReader(1000)
        found = read(reader, [data[i : i + size] for i in range(0, len(data), size)])
        assert [payload for payload, _ in found] == payloads

    def test_whole_payloads_are_handed_out_in_place(self) -> None:
        found = read(SpanningReader(10), cut(stream([b"aaaa", b"bbbb", b"cccc"]), [12]))
        assert found == [(b"aaaa", True), (b"bbbb", False), (b"cccc", True)]

    def test_a_record_of_many_buffers(self) -> None:
        long = bytes(range(256)) * 40_000
        data = stream([b"x", long, b"y"])
        reader = SpanningReader(len(long))
        found = read(reader, [data[i : i + 32768] for i in range(0, len(data), 32768)])
        assert [payload for payload, _ in found] == [b"x", long, b"y"]
        assert len(long) <= reader.carry_bytes <= 2 * len(long) + 8

    def test_a_large_carry_is_let_go_of_when_records_are_small_again(self) -> None:
        long = bytes(9 << 20)
        data = stream([long, b"aa", b"bb"])
        reader = SpanningReader(len(long))
        found = read(reader, cut(data, [1000, len(data) - 8, len(data) - 1, len(data) - 13]))
        assert [payload for payload, _ in found] == [long, b"aa", b"bb"]
        reader.feed_bytes(b"")
        assert reader.next_payload() is None
        assert reader.carry_bytes < 1 << 20

    @pytest.mark.parametrize("left", [b"\x05", b"\x05\0\0\0", b"\x05\0\0\0abcd"])
    def test_an_unfinished_element_is_not_clean(self, left: bytes) -> None:
        reader = SpanningReader(10)
        assert read(reader, [left]) == []
        assert not reader.is_clean()

    def test_empty_payloads_and_buffers(self) -> None:
        found = read(SpanningReader(10), [b"", b"\0\0", b"", b"\0\0\0\0\0\0", b""])
        assert found == [(b"", False), (b"", True)]


class TestLengths:
    @pytest.mark.parametrize("ends", [[], [1], [2, 3], [4], [5]])
    def test_a_longer_record_is_refused_at_its_prefix_and_again(self, ends: list[int]) -> None:
        reader = SpanningReader(100)
        assert read(reader, [stream([b"a" * 100])])[0][0] == b"a" * 100
        with pytest.raises(RecordTooLong, match=r"101 bytes .*max_record_bytes=100"):
            read(reader, cut(stream([b"a" * 101]), ends))
        with pytest.raises(RecordTooLong):
            reader.next_payload()

    def test_a_forged_length_allocates_little(self) -> None:
        reader = SpanningReader((1 << 32) - 1)
        assert read(reader, [struct.pack("<I", (1 << 32) - 1) + b"x" * 10]) == []
        assert reader.carry_bytes <= 256

    def test_feeding_over_unread_bytes(self) -> None:
        reader = SpanningReader(10)
        reader.feed_bytes(stream([b"a", b"b"]))
        reader.next_payload()
        with pytest.raises(RuntimeError, match="5 bytes of the buffer before are unread"):
            reader.feed_bytes(b"more")

    @pytest.mark.parametrize("most", [0, -1, 1 << 32])
    def test_bounds_of_the_setting(self, most: int) -> None:
        with pytest.raises(ValueError, match="max_record_bytes"):
            SpanningReader(most)
