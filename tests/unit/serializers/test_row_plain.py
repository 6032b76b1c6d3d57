"""Tuples of plain values take a shorter way than all else; lists take the general one, and the bytes are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import RecordError
from fastbuf.serializers import RowSerializer, Schema

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
