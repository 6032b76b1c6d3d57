"""Lists of plain values without pickle: what comes back is equal and of the same type; the rest is left to pickle."""

from __future__ import annotations

import collections
import enum
import math
import pickle
import random
import struct
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated
from fastbuf.serializers.plain_lists import pack_plain, plain_count, unpack_plain

Pair = collections.namedtuple("Pair", "k v")
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
LEAVES = [st.none() | st.booleans(), INTS, st.floats(), st.text(max_size=16), st.binary(max_size=64)]
KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda k: st.tuples(*k)),
    max_leaves=8,
)


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


def told_apart(value: Any) -> Any:
    """Equal for equal values of equal types: 1, 1.0 and True differ, so do 0.0 and -0.0; NaN is itself."""
    if type(value) is tuple:
        return tuple(map(told_apart, value))
    return type(value), struct.pack("<d", value) if type(value) is float else value


@given(st.data())
def test_lists_of_one_kind_come_back(data: st.DataObject) -> None:
    values = data.draw(st.lists(data.draw(KINDS), min_size=1, max_size=30))
    packed = pack_plain(values)
    assert packed is not None
    assert plain_count(packed) == len(values)
    found = unpack_plain(packed)
    assert type(found) is list
    assert list(map(told_apart, found)) == list(map(told_apart, values))
    assert unpack_plain(memoryview(packed)) == unpack_plain(bytearray(packed)) or "nan" in repr(found)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1, 1.0],
        [1, True],
        [1, None],
        [2**63],
        [-(2**63) - 1],
        ["x" * 65],
        ["ü" * 33],
        [b"x" * 65],
        ["\udc00"],
        [[1]],
        [{}],
        [(1, 2), (1,)],
        [(1, 2), [1, 2]],
        [Pair(1, 2)],
        [(1, 2), Pair(1, 2)],
        [Level.LOW],
        [1, Level.LOW],
        ["x", Text("x")],
        [np.int64(1)],
        [1.5, np.float64(1.5)],
        [np.str_("x")],
        [bytearray(b"x")],
        [2j],
        [(1,) * 300],
        [()],
        [(1, ())],
        [tuple(range(100))],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_plain_or_not_alike_is_left_to_pickle(values: list[Any]) -> None:
    assert pack_plain(values) is None


def test_ints_take_no_more_than_they_need() -> None:
    small, large = [(i, -i) for i in range(1000)], [(i, 2**40 + i) for i in range(1000)]
    assert len(pack_plain(small) or b"") < 1000 * 8 + 50
    assert len(pack_plain(large) or b"") < 1000 * 12 + 50
    edges = [(2**31 - 1, -(2**31)), (0, 0)]
    assert len(pack_plain(edges) or b"") == 24 + 6
    assert unpack_plain(pack_plain(edges)) == edges
    names = [(f"user-{i % 10}", i) for i in range(1000)]
    assert len(pack_plain(names) or b"") < 1000 * (7 + 4) + 1000 + 50


def test_nothing_is_left_behind() -> None:
    values = [("text", 2**40 + i, 1.5, b"bytes", None, True, (i,)) for i in range(1000)]
    for _ in range(3):
        unpack_plain(pack_plain(values))
    before = sys.getallocatedblocks()
    for _ in range(10):
        assert unpack_plain(pack_plain(values)) == values
        assert pack_plain([*values, 1]) is None
    assert abs(sys.getallocatedblocks() - before) < 200


def test_altered_and_cut_bytes_are_refused_or_read_as_something_else() -> None:
    r = random.Random(7)
    packed = pack_plain([(f"k{i}", i, b"ab", 1.5, None, True, ("é", i)) for i in range(50)])
    assert packed is not None
    for end in range(len(packed)):
        with pytest.raises(BlockError):
            unpack_plain(packed[:end])
    with pytest.raises(BlockCorrupt, match="1 bytes are left over"):
        unpack_plain(packed + b"x")
    for _ in range(20_000):
        altered = bytearray(packed)
        for _ in range(r.randrange(1, 4)):
            altered[r.randrange(len(altered) if r.random() < 0.5 else 40)] = r.randrange(256)
        try:
            unpack_plain(altered)
        except BlockError:
            continue


def test_what_is_refused_says_why() -> None:
    for wrong, words in ((b"", "0 bytes"), (b"P\x01", "2 bytes"), (b"X" * 40, "is not a list of plain values")):
        with pytest.raises(BlockError, match=words):
            unpack_plain(wrong)
        with pytest.raises(BlockError, match=words):
            plain_count(wrong)
    packed = pack_plain([("é", 1)])
    assert packed is not None
    with pytest.raises(BlockCorrupt, match="utf-8"):
        unpack_plain(packed.replace("é".encode(), b"\xff\xff"))
    with pytest.raises(BlockTruncated, match="4,294,967,295 values"):
        unpack_plain(packed[:4] + b"\xff" * 4 + packed[8:])
    flags = pack_plain([(None, True)])
    assert flags is not None
    with pytest.raises(BlockCorrupt, match="neither None nor a bool"):
        unpack_plain(flags[:-1] + b"\x07")


def test_no_pickle_begins_like_it() -> None:
    assert pack_plain([1, 2])[:1] not in (pickle.dumps(1, 5)[:1], b"B")  # type: ignore[index]
    assert math.isnan(unpack_plain(pack_plain([(math.nan, 1)]))[0][0])
