"""Objects that rows decode to are the interpreter's own in all that can be asked of them, however they were made."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
import sys
from typing import Any

import pytest

from fastbuf.serializers import RowSerializer, Schema

BITS = (0, 1, 2, 3, 8, 15, 29, 30, 31, 32, 59, 60, 61, 62)  # an int's digit has 30
INTS = sorted(
    {sign * ((1 << bits) + by) for bits, by, sign in itertools.product(BITS, range(-2, 3), (1, -1))}
    | {*range(-7, 260), -(2**63), 2**63 - 1}
)
FLOATS = [0.0, -0.0, 0.5, -1e308, 5e-324, float("inf"), float("-inf")]
TEXT = ["x" * 40, "attribute_of_it", "a b", "~", "", "\x00", "\x7f\x00\x7f", "0123456", "01234567", "x" * (1 << 21)]


def through(kind: str, values: list[Any]) -> list[Any]:
    rows = RowSerializer(Schema.of(x=kind))
    return [x for (x,) in rows.loads(rows.dumps([(value,) for value in values]))]


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    assert repr(got) == repr(wanted)
    assert got == wanted
    assert hash(got) == hash(wanted)
    assert pickle.dumps(got) == pickle.dumps(wanted)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(f"{'u' * (low == 0)}int{bits}", low and -(1 << bits - 1), (1 << bits - (low != 0)) - 1)
     for bits in (8, 16, 32, 64) for low in (0, 1)],
)  # fmt: skip
def test_ints(kind: str, low: int, high: int) -> None:
    values = [x for x in INTS if low <= x <= high]
    for got, wanted in zip(through(kind, values), values, strict=True):
        same(got, wanted)
        assert sys.getsizeof(got) == sys.getsizeof(int(str(wanted)))
        # Digits that were laid out wrongly would show here.
        assert (got + 1, got - 1, -got, got * got, got // 7, got % 1000, got >> 13, got << 13, ~got, bool(got)) == (
            *(wanted + 1, wanted - 1, -wanted, wanted * wanted, wanted // 7, wanted % 1000),
            *(wanted >> 13, wanted << 13, ~wanted, bool(wanted)),
        )
        assert (str(got), float(got), got.bit_length()) == (str(wanted), float(wanted), wanted.bit_length())
        if -5 <= wanted <= 256:
            assert got is int(str(wanted))  # the interpreter's one of its kind


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_floats(kind: str) -> None:
    values = [x for x in FLOATS if kind == "float64" or (abs(x) != 1e308 and x != 5e-324)]
    for got, wanted in zip(through(kind, values), values, strict=True):
        same(got, wanted)
    (got,) = through(kind, [float("nan")])
    assert got != got


@pytest.mark.parametrize("values", [TEXT, ["x" * n for n in range(70)]])
def test_text(values: list[str]) -> None:
    for got, wanted in zip(through("string", values), values, strict=True):
        same(got, wanted)
        assert got.isascii()
        assert sys.getsizeof(got) == sys.getsizeof(wanted.encode().decode())
        assert got + "é" == wanted + "é"
        assert got.encode("utf-16") == wanted.encode("utf-16")
        assert "".join(reversed(got)) == wanted[::-1]
        assert got.upper() == wanted.upper()
    space = type("Space", (), {})()
    for name in through("string", ["attribute_of_it", "class"]):
        setattr(space, name, 7)  # which interns it
        assert getattr(space, sys.intern("".join(name))) == 7


@pytest.mark.parametrize("odd", ["é", "€", "𝄞"])
def test_text_that_is_not_ascii_is_found_wherever_it_stands(odd: str) -> None:
    values = ["x" * before + odd + "y" * after for before in range(20) for after in range(20)]
    for got, wanted in zip(through("string", values), values, strict=True):
        same(got, wanted)
        assert not got.isascii()


def test_bytes() -> None:
    values = [random.Random(n).randbytes(n) for n in range(70)] + [b"\x00" * (1 << 21)]
    for got, wanted in zip(through("binary", values), values, strict=True):
        same(got, wanted)
        assert sys.getsizeof(got) == sys.getsizeof(wanted)
        assert bytearray(got) == wanted
        assert got.hex() == wanted.hex()


def test_what_was_decoded_is_freed_and_untracked_where_it_cannot_be_in_a_cycle() -> None:
    rows = RowSerializer(Schema.of(i="int64", f="float64", s="string", b="binary"))
    block = rows.dumps([(i << 29, i / 3, f"user {i}", b"%d" % i) for i in range(5000)])
    rows.loads(block)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20):
        found = rows.loads(block)
        assert not any(gc.is_tracked(record) for record in found[::100])
    del found
    # Free lists of the interpreter keep a few thousand; 20 blocks are 500,000.
    assert sys.getallocatedblocks() - before < 10_000


@pytest.mark.parametrize("order", ["as made", "shuffled"])
def test_records_that_lie_about_in_memory_are_encoded_alike(order: str) -> None:
    rows = RowSerializer(Schema.of(i="int64", s="string?", v="list<float64>"))
    records = [(i << 20, None if i % 3 else f"user {i}", [i / 7, i / 3]) for i in range(20_000)]
    if order == "shuffled":
        random.Random(4).shuffle(records)
    for n in (0, 1, 2, 5, 31, 32, 33, 64, len(records)):
        assert rows.loads(rows.dumps(records[:n])) == records[:n]
    mixed = [list(record) if i % 3 == 0 else record for i, record in enumerate(records[:100])]
    assert rows.loads(rows.dumps(mixed)) == records[:100]
