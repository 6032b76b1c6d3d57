"""Plain pairs merged without objects: what the same operator gives in a dict, or nothing."""

from __future__ import annotations

import math
import operator
import random
import struct
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import pytest

from fastbuf.errors import BlockCorrupt, BlockError
from fastbuf.serializers.pair_table import PairTable
from fastbuf.serializers.plain_lists import pack_plain, unpack_plain
from fastbuf.serializers.plain_sums import PlainSums, merge_name, own_merge
from fastbuf.serializers.portable import portable_hash

MERGES: dict[str, Callable[[Any, Any], Any]] = {"add": operator.add, "max": max, "min": min}
NAN = float("nan")
FLOATS = [0.5, -0.0, 0.0, NAN, 1e300, -1e300, float("inf"), float("-inf"), 2.0**53, 1.0]
SIZES = [0, 1, 2, 2**31, 2**61 - 1, 2**61, 2**63 - 1]
KEYS: dict[str, Callable[[random.Random], Any]] = {
    "few ints": lambda rng: rng.randrange(50),
    "many ints": lambda rng: rng.randrange(5_000),
    "ints of all sizes": lambda rng: (
        (-1) ** rng.randrange(2) * rng.choice([0, 1, 2, 2**31, 2**61 - 1, 2**61, 2**63 - 1])
    ),
    "strs": lambda rng: rng.choice(["", "ä", "日本", "x" * 63, "y" * 62]) + str(rng.randrange(10))[: rng.randrange(2)],
    "many strs": lambda rng: f"user-{rng.randrange(5_000)}",
}
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "short ints": lambda rng: rng.randrange(-9, 9),
    "long ints": lambda rng: rng.randrange(-(2**50), 2**50),
    "floats": lambda rng: rng.choice(FLOATS),
}


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def bits(value: Any) -> Any:
    """What tells a value from all others: NaN is no other's equal, and -0.0 is 0.0's."""
    return (
        ("NaN" if math.isnan(value) else struct.pack("d", value)) if isinstance(value, float) else (type(value), value)
    )


def exact(pairs: Any) -> list[tuple[Any, Any]]:
    return [(bits(key), bits(value)) for key, value in pairs]


def packs(records: list[Any], size: int = 700) -> Iterator[bytes]:
    for start in range(0, len(records), size):
        packed = pack_plain(records[start : start + size])
        assert packed is not None
        yield packed


def merged(merge: str, records: list[Any]) -> list[tuple[Any, Any]]:
    table: dict[Any, Any] = {}
    for key, value in records:
        table[key] = MERGES[merge](table[key], value) if key in table else value
    return list(table.items())


def drained(sums: PlainSums) -> list[tuple[Any, Any]]:
    return list(chain.from_iterable(sums.lists()))


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keys", KEYS)
def test_what_comes_out_is_what_a_dict_gives(keys: str, values: str, merge: str) -> None:
    rng = random.Random(7)
    records = [(KEYS[keys](rng), VALUES[values](rng)) for _ in range(20_000)]
    records = [pair for pair in records if not isinstance(pair[0], int) or -(2**63) <= pair[0] < 2**63]
    packed, read = PlainSums(merge), PlainSums(merge)
    assert [packed.add(some) for some in packs(records)] == [0] * len(list(packs(records)))
    assert read.fill(iter(records), 1 << 60)
    assert exact(drained(packed)) == exact(drained(read)) == exact(merged(merge, records))
    assert len(packed) == len(read) == len({key for key, _ in records})
    assert read.rows == 20_000
    assert read.left == []
    table = PairTable(None, max)
    table.fill(iter(records), 1 << 60)
    assert (read.rows, read.proof) == (table.rows, table.proof)
    packed.clear()
    assert drained(packed) == []
    assert packed.add(pack_plain([("k", 1.5)])) == 0
    assert drained(packed) == [("k", 1.5)]


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_pairs_go_to_the_partitions_of_their_keys(keys: str, partitions: int) -> None:
    rng = random.Random(3)
    records = [(KEYS[keys](rng), rng.random()) for _ in range(9_000)]
    sums = PlainSums("max")
    sums.fill(iter(records), 1 << 60)
    wanted = dict(merged("max", records))
    found: dict[Any, Any] = {}
    for partition, packed in sums.packed(partitions, None, 4096):
        some = unpack_plain(packed)
        assert pack_plain(some) == packed
        assert len(packed) < 4096 + 200
        assert {portable_hash(key) % partitions for key, _ in some} == {partition}
        assert not found.keys() & dict(some).keys()
        found.update(some)
    assert found == wanted
    some_only = [partition for partition, _ in sums.packed(partitions, [partitions - 1], 1 << 20)]
    assert set(some_only) <= {partitions - 1}


@pytest.mark.parametrize(
    "other",
    [
        ("k", 1),  # among keys that are ints
        (1, 1.0),
        (True, 1),
        (1, True),
        (1.0, 1),
        (None, 1),
        (1, None),
        (2**63, 1),
        (1, 2**63),
        ((1, 2), 1),
        (1, 2, 3),
        [1, 2],
        "ab",
        None,
        7,
        ("\ud800", 1),
        ("x" * 65, 1),
    ],
    ids=repr,
)
def test_a_record_of_another_kind_is_left(other: Any) -> None:
    records = [(i, 1) for i in range(300)]
    sums = PlainSums("add")
    source = iter([*records, other, *records])
    assert not sums.fill(source, 1 << 60)
    assert sums.left == [other]
    assert drained(sums) == records
    assert sums.rows == 300
    assert list(source) == records
    if isinstance(other, tuple) and len(other) == 2:
        packed = pack_plain([other, other])
        assert packed is None or sums.add(packed) == 2
    assert drained(sums) == records


@pytest.mark.parametrize("value", [2**62, -(2**62) - 1])
@pytest.mark.parametrize("name", [int, str])
def test_a_sum_that_leaves_64_bits_is_left_with_all_behind_it(value: int, name: Callable[[int], Any]) -> None:
    records = [(name(i % 90), value if i % 90 == 40 else 1) for i in range(200)] + [
        (name(i), 1) for i in range(500, 600)
    ]
    sums = PlainSums("add")
    packed = pack_plain(records)
    left = sums.add(packed)
    assert left == len(records) - 130  # (40, value) the second time
    assert drained(sums) == merged("add", records[:130])
    sums = PlainSums("add")
    source = iter(records)
    assert not sums.fill(source, 1 << 60)
    assert [*sums.left, *source] == records[130:]
    assert drained(sums) == merged("add", records[:130])
    assert sums.rows == 130
    greatest = PlainSums("max")
    assert greatest.add(packed) == 0
    assert drained(greatest) == merged("max", records)


def test_a_table_that_is_full_reads_no_more() -> None:
    sums, source = PlainSums("add"), ((i, i) for i in range(100_000))
    assert not sums.fill(source, 200_000)
    assert 0 < sums.rows < 20_000
    assert 200_000 <= sums.nbytes < 300_000
    assert len(list(source)) == 100_000 - sums.rows
    sums.clear()
    assert sums.nbytes < 100
    assert sums.fill(islice(((i, i) for i in range(10)), 5), 1 << 20)
    assert sums.rows > 5


def test_an_error_of_the_source_comes_out() -> None:
    def failing() -> Iterator[tuple[int, int]]:
        yield 1, 1
        raise LookupError("of the source")

    with pytest.raises(LookupError, match="of the source"):
        PlainSums("add").fill(failing(), 1 << 20)


def test_which_functions_are_known() -> None:
    def added(x: int, y: int) -> int:
        return x + y

    def other_way(x: int, y: int) -> int:
        return y + x

    def more(x: int, y: int, z: int = 0) -> int:
        return x + y

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, a: int, b: int) -> int:
            return a

    assert [merge_name(f) for f in (operator.add, max, min, added, lambda a, b: a + b)] == [
        "add",
        "max",
        "min",
        "add",
        "add",
    ]
    assert [merge_name(f) for f in (other_way, more, operator.mul, Unhashable(), "add", None)] == [None] * 6
    assert own_merge(added) is operator.add
    assert own_merge(max) is max


def test_text_that_is_none_is_found_out() -> None:
    packed = pack_plain([("abcd", 1)])
    assert packed is not None
    sums = PlainSums("add")
    assert sums.add(packed.replace(b"abcd", b"ab\xffd")) == 0
    with pytest.raises(BlockCorrupt, match="utf-8"):
        drained(sums)
    for end in range(len(packed)):
        with pytest.raises(BlockError):
            PlainSums("add").add(packed[:end])
