"""Plain pairs put by partition without objects, from lists and from pickles."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from fastbuf.errors import BlockError, RecordError
from fastbuf.serializers.plain_groups import PlainGroups
from fastbuf.serializers.plain_lists import pack_plain, unpack_plain
from fastbuf.serializers.plain_parts import PlainParts, PlainPickles
from fastbuf.serializers.plain_sums import PlainSums
from fastbuf.serializers.portable import portable_hash
from fastbuf.serializers.record_groups import RecordGroups

INTS = [0, 1, -1, 255, 256, 65_535, 65_536, -(2**31), 2**31, 2**61 - 1, 2**61, -(2**61), 2**63 - 1, -(2**63)]
TEXTS = ["", "a", "user-17", "äöü", "日本語", "\x00", "x" * 64, "😀"]
KEYS: dict[str, Callable[[random.Random], Any]] = {
    "ints": lambda rng: rng.choice(INTS),
    "short ints": lambda rng: rng.randrange(-500, 500),
    "strs": lambda rng: rng.choice(TEXTS),
}
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "ints": lambda rng: rng.choice(INTS),
    "floats": lambda rng: rng.choice([0.5, -0.0, 1e300, float("inf"), float("-inf")]),
    "strs": lambda rng: rng.choice(TEXTS),
    "flags": lambda rng: rng.choice([None, True, False]),
}
NESTED = (1, ("a", 2.5), None, b"bytes")


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def drawn(keys: str, values: str, count: int, seed: int = 1) -> list[tuple[Any, Any]]:
    rng = random.Random(seed)
    return [(KEYS[keys](rng), VALUES[values](rng)) for _ in range(count)]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keys", KEYS)
def test_a_pickle_is_packed_as_its_list(keys: str, values: str) -> None:
    reader = PlainPickles()
    for count in (1, 2, 3, 999, 1000, 1001, 5_003):
        records = drawn(keys, values, count, count)
        for protocol in (4, 5):
            assert reader.packed(pickle.dumps(records, protocol)) == pack_plain(records)
            assert reader.rows == count
        spread = pickle.loads(pickle.dumps(records))  # no object is there twice
        assert reader.packed(pickle.dumps(spread, 5)) == pack_plain(records)


def test_a_pickle_as_spark_writes_it() -> None:
    serializers = pytest.importorskip("pyspark.serializers")
    records = [(f"user-{i % 100}", i) for i in range(3_000)]
    assert PlainPickles().packed(serializers.CPickleSerializer().dumps(records)) == pack_plain(records)


TWICE = (1, 2)


@pytest.mark.parametrize(
    "other",
    [
        [],
        7,
        None,
        [7],
        [[1, 2]],
        [(1,)],
        [(1, 2, 3)],
        [(1, [2])],
        [(1, (2, 3))],
        [(1, 2), (1.0, 2)],
        [(1, 2), ("a", 2)],
        [(1, 2), (1, 2.0)],
        [(1, 2), (True, 2)],
        [(1, 2**63)],
        [(-(2**63) - 1, 1)],
        [("x" * 65, 1)],
        [("\ud800", 1)],
        [(b"k", 1)],
        [TWICE, TWICE],
        ((1, 2), (3, 4)),
        {1: 2},
        [(1, 2), [3, 4]],
        [(1, 2), None],
        [(1, complex(1, 2))],
    ],
    ids=repr,
)
def test_other_pickles_are_left_alone(other: Any) -> None:
    reader = PlainPickles()
    assert reader.packed(pickle.dumps(other, 5)) is None
    for protocol in range(4):
        assert reader.packed(pickle.dumps([(1, 2), (3, 4)], protocol)) is None
    assert reader.packed(pickle.dumps([(1, 2)], 5)) == pack_plain([(1, 2)])


def test_a_pickle_that_was_altered_is_never_read_beyond() -> None:
    """Nothing, or a list that is one; whatever the bytes are."""
    rng = random.Random(4)
    reader = PlainPickles()
    whole = pickle.dumps([(f"k{i % 5}", i * 1000) for i in range(12)], 5)
    for end in range(len(whole)):
        assert reader.packed(whole[:end]) is None
    for _ in range(20_000):
        bad = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        made = reader.packed(bytes(bad))
        if made is not None:
            with contextlib.suppress(BlockError):  # text that is none
                assert all(type(pair) is tuple and len(pair) == 2 for pair in unpack_plain(made))


@pytest.mark.parametrize("side", [None, 0, 1])
@pytest.mark.parametrize("value", [*VALUES, "nested"])
@pytest.mark.parametrize("keys", KEYS)
def test_pairs_are_placed_as_lists_of_objects_are(keys: str, value: str, side: int | None) -> None:
    records = drawn(keys, "ints" if value == "nested" else value, 6_000)
    if value == "nested":
        records = [(key, NESTED) for key, _ in records]
    for partitions, wanted in ((1, None), (3, None), (3, [2, 0]), (500, None)):
        parts = PlainParts(partitions, wanted, 2048, side)
        others = RecordGroups(partitions, wanted=wanted, side=side)
        found, expected = defaultdict(list), defaultdict(list)
        for start in range(0, len(records), 700):
            packed = pack_plain(records[start : start + 700])
            assert packed is not None
            assert parts.add(packed)
            if parts.full:
                for partition, some in parts.lists():
                    found[partition] += unpack_plain(some)
            assert not (parts.full and parts.rows)
        for partition, some in parts.lists():
            assert pack_plain(unpack_plain(some)) == some
            found[partition] += unpack_plain(some)
        for partition, group in others.items(records):
            expected[partition] += group
        assert found == expected
        assert (parts.read, parts.proof) == (others.rows, others.proof)
        assert list(parts.lists()) == []
        if side is None:
            assert all(portable_hash(key) % partitions == p for p, some in found.items() for key, _ in some)


def test_lists_are_about_as_long_as_they_are_to_be() -> None:
    parts = PlainParts(2, None, 32 << 10)
    sizes = []
    for start in range(0, 100_000, 1000):
        assert parts.add(pack_plain([(i, i) for i in range(start, start + 1000)]))
        if parts.full:
            sizes += [len(some) for _, some in parts.lists()]
    assert len(sizes) > 10
    assert all(4 << 10 < size < 64 << 10 for size in sizes)


def test_what_is_of_another_kind_is_not_taken() -> None:
    parts = PlainParts(2)
    assert parts.add(pack_plain([(1, 2.0)]))
    for other in [("a", 2.0), (1, 2), (1, None), (1.0, 2.0), (1, 2.0, 3), 7, (1, (2.0, 3))]:
        assert not parts.add(pack_plain([other]))
    assert parts.read == parts.rows == 1
    assert [unpack_plain(some) for _, some in parts.lists()] == [[(1, 2.0)]]
    assert not PlainParts(2).add(pack_plain([(None, 1)]))
    assert not PlainParts(2).add(pack_plain([(1, tuple(range(10)))]))


def test_a_list_that_was_altered_is_never_read_beyond() -> None:
    """By whatever takes it as it travels: it is refused, not known, or one of other values."""
    rng = random.Random(6)
    records = {
        "texts": [(f"k{i % 5}", (i, "äb" * (i % 5), None)) for i in range(40)],
        "sums": [(f"k{i % 5}", i * 1000) for i in range(40)],
        "sides": [(i, (i % 2, float(i))) for i in range(40)],
    }
    for some in records.values():
        whole = pack_plain(some)
        assert whole is not None
        for _ in range(6_000):
            bad = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                bad[rng.randrange(len(bad) if rng.random() < 0.5 else 24)] = rng.randrange(256)
            for taker in (PlainParts(3), PlainGroups(), PlainGroups(2), PlainSums("add")):
                with contextlib.suppress(BlockError, RecordError, UnicodeDecodeError):
                    taker.add(bytes(bad))
                    for made in taker.lists():
                        if not isinstance(taker, PlainParts):
                            pickle.dumps(made)
