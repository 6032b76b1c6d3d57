"""Tuples of plain values take a shorter way than all else; lists take the general one, and the bytes are the same."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import BlockError, RecordError, RecordTooLong
from fastbuf.serializers import RowSerializer, Schema
from fastbuf.serializers.block import HEADER_BYTES
from fastbuf.serializers.spanning import SpanningReader

SCHEMA = Schema.of(
    i="int64", small="int8?", word="int16", half="uint32?", f="float64?", b="bool?", s="string?", raw="binary?",
    v="list<float64>?", last="int64?",
)  # fmt: skip
ROWS = RowSerializer(SCHEMA)
RECORDS = st.tuples(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.integers(-128, 127),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.none() | st.integers(0, (1 << 32) - 1),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.booleans(),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.none() | st.binary(max_size=40) | st.just(b"long" * 500),
    st.none() | st.lists(st.floats(allow_nan=False), max_size=20),
    st.none() | st.integers(-5, 1 << 31),
)
GOOD = (1 << 40, -5, 300, 7, 0.5, True, "text", b"bytes", [1.0, -0.0], None)


@settings(max_examples=200, deadline=None)
@given(st.lists(RECORDS, max_size=70), st.sets(st.integers(0, 69)))
def test_both_ways_write_the_same(records: list[tuple[Any, ...]], others: set[int]) -> None:
    """Also where some records of a block take the one way and some the other."""
    general = ROWS.dumps([list(record) for record in records])
    assert ROWS.dumps(records) == general
    mixed = [list(record) if i in others else record for i, record in enumerate(records)]
    assert ROWS.dumps(mixed) == general
    assert ROWS.loads(general) == records


class Named(NamedTuple):
    """Its records are made by the general decoder."""

    i: int
    small: int | None
    word: int
    half: int | None
    f: float | None
    b: bool | None
    s: str | None
    raw: bytes | None
    v: list[float] | None
    last: int | None


def outcome(read: Callable[[bytes], Any], data: bytes) -> Any:
    """What comes of it: the records' text, in which 0.0 and -0.0 differ and a NaN is like another, or the error's."""
    try:
        return repr([tuple(record) for record in read(data)])
    except (BlockError, RecordTooLong) as error:
        return type(error), str(error)


def in_pieces(rows: RowSerializer, data: bytes, piece: int) -> list[Any]:
    """The elements of a block's body, as they come in buffers; what is not whole at the end is left."""
    reader, found = SpanningReader(1 << 20), []
    for at in range(HEADER_BYTES, len(data), piece):
        found += reader.collect_records(rows, data[at : at + piece])
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=8), st.sampled_from([1, 1, 3, 6]), st.data())
def test_both_ways_read_the_same(records: list[tuple[Any, ...]], times: int, draw: st.DataObject) -> None:
    """Also what is damaged: the same values, or the same error of the same record; sixteen are read together."""
    records = records * times
    data = bytearray(ROWS.dumps(records))
    named = RowSerializer(SCHEMA, record=Named)
    piece = draw.draw(st.sampled_from([99, 1000, 1 << 20]))
    assert named.loads(bytes(data)) == records
    assert in_pieces(ROWS, bytes(data), piece) == records
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(HEADER_BYTES, len(data) - 1))] = draw.draw(st.integers(0, 255))
    for length in (len(data), draw.draw(st.integers(0, len(data)))):
        damaged = bytes(data[:length])
        assert outcome(ROWS.loads, damaged) == outcome(named.loads, damaged)
        plain, general = (partial(in_pieces, rows, piece=piece) for rows in (ROWS, named))
        assert outcome(plain, damaged) == outcome(general, damaged)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 33, 39])
def test_an_odd_record_among_many_is_named(place: int) -> None:
    """Those before it are read together, and so are those behind it that are not read any more."""
    data = bytearray(ROWS.dumps([GOOD] * 40))
    size = (len(data) - HEADER_BYTES) // 40
    flag = data.index(b"text", HEADER_BYTES) - HEADER_BYTES
    data[HEADER_BYTES + place * size + flag] = 0xFF
    with pytest.raises(BlockError, match=rf"^record {place}: field 's'"):
        ROWS.loads(bytes(data))
    reader = SpanningReader(1 << 20)
    assert reader.collect_records(ROWS, data[HEADER_BYTES : HEADER_BYTES + place * size]) == [GOOD] * place


def test_a_block_that_outgrows_what_was_guessed_for_it() -> None:
    rows = RowSerializer(Schema.of(s="string", raw="binary", v="list<float64>"))
    records = [("x" * (i % 900), b"y" * (i * 7 % 1300), [i / 3] * (i % 100)) for i in range(3000)]
    assert rows.loads(rows.dumps(records)) == records


class Floating(float):
    pass


@pytest.mark.parametrize(
    ("place", "value", "same"),
    [
        (0, True, None), (0, 1 << 63, None), (0, 2.0, None), (0, None, None), (0, "1", None),
        (1, 128, None), (1, -129, None), (2, 1 << 15, None), (3, -1, None), (3, 1 << 32, None),
        (4, "x", None), (4, 3, 3.0), (4, Floating(2.5), 2.5), (5, 1, None), (6, b"x", None), (6, "\ud800", None),
        (7, "x", None), (7, bytearray(b"xy"), b"xy"), (8, [1.0, 2], [1.0, 2.0]), (8, [1.0, None], None),
        (8, (1.0, 2.0), [1.0, 2.0]), (8, "12", None), (9, 1 << 64, None),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_general_way(place: int, value: Any, same: Any) -> None:
    """`same`: as what it is carried; None: it is refused, with the words of the general way."""
    odd = (*GOOD[:place], value, *GOOD[place + 1 :])
    for before in (0, 1, 33):
        records = [GOOD] * before + [odd] + [GOOD] * 70
        if same is not None:
            assert ROWS.loads(ROWS.dumps(records))[before] == (*GOOD[:place], same, *GOOD[place + 1 :])
            continue
        with pytest.raises(RecordError) as plain:
            ROWS.dumps(records)
        with pytest.raises(RecordError) as general:
            ROWS.dumps([list(record) for record in records])
        assert str(plain.value) == str(general.value)
        assert str(plain.value).startswith(f"record {before}: ")


@pytest.mark.parametrize("record", [GOOD[:-1], (*GOOD, 1), (), None, 5])
def test_records_of_another_shape_are_refused(record: Any) -> None:
    with pytest.raises(RecordError, match=r"^record 2: "):
        ROWS.dumps([GOOD, GOOD, record, GOOD])


@pytest.fixture
def eager() -> Iterator[list[str]]:
    """A collector that runs at each chance, and what it did in this thread: others of the process set it off too."""
    seen: list[str] = []
    own = threading.get_ident()
    was, on = gc.get_threshold(), gc.isenabled()

    def note(phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() == own:
            seen.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    gc.enable()
    try:
        yield seen
    finally:
        gc.set_threshold(*was)
        gc.callbacks.remove(note)
        (gc.enable if on else gc.disable)()


@pytest.mark.parametrize("schema", [SCHEMA, Schema.of(x="int64", s="string")])
def test_no_collection_begins_while_records_are_made(eager: list[str], schema: Schema) -> None:
    """It would run Python code where memory is being laid out; and it could find nothing."""
    rows = RowSerializer(schema)
    records = [GOOD if schema is SCHEMA else (i, "text") for i in range(5000)]  # more tuples than lie ready
    block = rows.dumps(records)
    eager.clear()
    found = rows.loads(block)
    pieces = SpanningReader(1 << 20).collect_records(rows, block[HEADER_BYTES:])
    collections = eager.count("start")
    assert found == pieces == records
    assert collections < 20
    assert gc.isenabled()


def test_what_is_made_is_traced() -> None:
    """tracemalloc is an allocator in front of the interpreter's: it sees each object, and its end."""
    rows = RowSerializer(Schema.of(x="int64", f="float64", s="string", raw="binary"))
    block = rows.dumps([(i + 1000, i / 3, f"text {i}", b"12345678") for i in range(1000)])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = rows.loads(block)
        held = tracemalloc.get_traced_memory()[0] - before
        assert held >= sum(sys.getsizeof(value) for record in found for value in record)
        del found
        assert tracemalloc.get_traced_memory()[0] - before < held / 10
        found = rows.loads(block)
    finally:
        tracemalloc.stop()
    assert rows.loads(block) == found


def test_under_the_allocators_checks() -> None:
    """PYTHONMALLOC=debug: bytes around each object are looked at when it is freed."""
    code = (
        "from fastbuf.serializers import RowSerializer, Schema\n"
        "rows = RowSerializer(Schema.of(x='int64', f='float64', s='string', raw='binary', v='list<float64>'))\n"
        "records = [(i << i % 50, i / 3, 'x' * (i % 99), b'y' * (i % 99), [i / 7] * (i % 9)) for i in range(2000)]\n"
        "for _ in range(3):\n"
        "    assert rows.loads(rows.dumps(records)) == records\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONMALLOC": "debug"}, capture_output=True, timeout=120
    )
    assert found.returncode == 0, found.stderr.decode()
