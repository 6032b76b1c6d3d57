"""Records in groups by partition: where each goes, what it becomes, how long groups are, and the sum that proves it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import operator
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pytest

from fastbuf.errors import RecordError
from fastbuf.serializers import portable_hash
from fastbuf.serializers.record_groups import RecordGroups

Pair = collections.namedtuple("Pair", "k v")
ALL_BITS = 2**64 - 1


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Place:
    x: int
    name: str


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def keys(r: random.Random) -> Any:
    return r.choice(
        [None, r.randrange(-9, 9), r.getrandbits(200) - 2**199, r.random(), 0.0, -0.0, 1.0, True, float("inf"), "k",
         "ü", f"k{r.random()}", b"x", ("t", (1, None)), (), frozenset({1, "a"}), Decimal("1.50"), np.int64(-7),
         np.float32(2), Colour.RED, Place(3, "here"), np.str_("k"), -1, -2, 2**61 - 1]
    )  # fmt: skip


def gathered(groups: RecordGroups, source: Iterable[Any]) -> dict[int, list[Any]]:
    """All records by partition, in the order they came in."""
    found: dict[int, list[Any]] = collections.defaultdict(list)
    for partition, group in groups.items(source):
        assert type(group) is list
        assert group
        found[partition] += group
    return dict(found)


def as_spark(records: Iterable[Any], n: int, func: Callable[[Any], int] = portable_hash) -> dict[int, list[Any]]:
    """The loop of ``RDD.partitionBy``."""
    found: dict[int, list[Any]] = collections.defaultdict(list)
    for k, v in records:
        found[func(k) % n].append((k, v))
    return dict(found)


def mixed(h: int) -> int:
    """splitmix64's last steps."""
    x = h & ALL_BITS
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & ALL_BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & ALL_BITS
    return x ^ (x >> 31)


@pytest.mark.parametrize("n", [1, 2, 3, 200, 2**20])
def test_every_record_where_sparks_loop_puts_it(n: int) -> None:
    r = random.Random(n)
    records = [(keys(r), i) for i in range(5000)]
    groups = RecordGroups(n, group_bytes=500)
    assert gathered(groups, iter(records)) == as_spark(records, n)
    assert groups.rows == 5000
    assert groups.proof == sum(mixed(portable_hash(k)) for k, _ in records) & ALL_BITS


def test_pysparks_own_hash_gives_the_same() -> None:
    pyspark = pytest.importorskip("pyspark.rdd", reason="the original is pyspark's")
    r = random.Random(1)
    records = [(keys(r), i) for i in range(2000)]
    assert gathered(RecordGroups(7), records) == as_spark(records, 7, pyspark.portable_hash)


def test_the_proof_is_one_of_all_records_in_any_order() -> None:
    r = random.Random(3)
    records = [(keys(r), i) for i in range(1000)]
    groups = RecordGroups(5)
    gathered(groups, records)
    r.shuffle(records)
    other = RecordGroups(5)
    gathered(other, records)
    assert other.proof == groups.proof
    some = RecordGroups(5, wanted=[1])
    gathered(some, records)
    assert (some.proof, some.rows) == (groups.proof, 1000)
    lacking = RecordGroups(5)
    gathered(lacking, records[1:])
    assert lacking.proof != groups.proof
    halves = RecordGroups(5)
    gathered(halves, records[:500])
    gathered(halves, records[500:])
    assert (halves.proof, halves.rows) == (groups.proof, 1000)
    assert RecordGroups(5).proof == 0


def test_partitions_that_nobody_wants_are_left_out() -> None:
    r = random.Random(4)
    records = [(keys(r), i) for i in range(3000)]
    want = as_spark(records, 9)
    groups = RecordGroups(9, wanted=(0, 4, 8))
    assert gathered(groups, records) == {p: want[p] for p in (0, 4, 8)}
    assert groups.rows == 3000
    none = RecordGroups(9, wanted=[])
    assert gathered(none, records) == {}
    assert none.rows == 3000
    for wrong in ([9], [-1], [0, 12]):
        with pytest.raises(ValueError, match="wanted names partition"):
            RecordGroups(9, wanted=wrong)


def test_what_spark_unpacks_comes_out_as_a_pair() -> None:
    def generated() -> Iterator[int]:
        yield from (5, 6)

    cases: list[tuple[Any, tuple[Any, Any]]] = [
        ((1, 2), (1, 2)),
        ([1, 2], (1, 2)),
        ("ab", ("a", "b")),
        (b"ab", (97, 98)),
        (Pair(1, "v"), (1, "v")),
        ({"k": 1, "w": 2}, ("k", "w")),
        (generated(), (5, 6)),
        (np.array([3, 4]), (3, 4)),
    ]
    found = gathered(RecordGroups(1), [given for given, _ in cases])[0]
    assert found == [wanted for _, wanted in cases]
    assert {type(record) for record in found} == {tuple}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ((1, 2, 3), "has more than two items"),
        ((1,), "has 1"),
        ((), "has 0"),
        ([1], "has 1"),
        ("abc", "has more than two items"),
        ("a", "has 1"),
        (7, "a int cannot be unpacked"),
        (None, "a NoneType cannot be unpacked"),
        ({"k": 1}, "has 1"),
    ],
)
def test_what_is_no_pair_is_refused_as_spark_does(record: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        as_spark([record], 2)
    with pytest.raises(RecordError, match=r"record 2 is not a \(key, value\) pair") as caught:
        gathered(RecordGroups(2), [(1, 1), (2, 2), record])
    assert words in str(caught.value)


def test_an_error_of_the_records_own_comes_through() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("of its own")

    with pytest.raises(OSError, match="of its own"):
        gathered(RecordGroups(2), [Broken()])
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        gathered(RecordGroups(2), [([1], 1)])

    def source() -> Iterator[Any]:
        yield 1, 1
        raise KeyError("input")

    with pytest.raises(KeyError, match="input"):
        gathered(RecordGroups(2), source())


def test_a_function_that_raises_stop_iteration_loses_no_records() -> None:
    """It ended the groups, as if the source had ended."""

    def place(key: int) -> int:
        if key == 2:
            raise StopIteration("too soon")
        return key

    with pytest.raises(RuntimeError, match="StopIteration"):
        gathered(RecordGroups(2, partition_func=place), [(1, 1), (2, 2), (3, 3)])


def test_with_a_key_of_the_callers_records_stay_as_they_are() -> None:
    records: list[Any] = [{"k": i % 5, "i": i} for i in range(100)]
    found = gathered(RecordGroups(3, key=operator.itemgetter("k")), records)
    assert found == {p: [r for r in records if r["k"] % 3 == p] for p in range(3)}
    longer = [(i, "x", i) for i in range(10)]
    found = gathered(RecordGroups(2, key=operator.itemgetter(0)), longer)
    assert sorted(chain.from_iterable(found.values())) == longer


def test_a_partition_function_of_the_callers() -> None:
    records = [(i, str(i)) for i in range(-50, 50)]

    def func(key: int) -> int:
        return key * 2**70 + key // 7 if key % 2 else key // 7

    groups = RecordGroups(4, partition_func=func)
    assert gathered(groups, records) == as_spark(records, 4, func)
    assert groups.proof == sum(mixed(func(k)) for k, _ in records) & ALL_BITS
    for number in (np.int64(-3), True, np.uint8(200), -(2**63), 2**63, 2**64 - 1):
        assert list(gathered(RecordGroups(7, partition_func=lambda _, x=number: x), [(1, 1)])) == [int(number) % 7]
    for wrong in (1.5, "a", None):
        with pytest.raises(RecordError, match=r"function gave .* for the key of record 0: it must be an int"):
            gathered(RecordGroups(7, partition_func=lambda _, x=wrong: x), [(1, 1)])


def test_what_python_hashes_by_its_address_goes_to_one_partition_in_every_process() -> None:
    # Where Spark puts these is where each of them happens to lie in memory; run again, they would go elsewhere
    nan = float("nan")
    records = [(key, i) for i, key in enumerate([nan, np.float64("nan"), Decimal("NaN"), object(), float("nan")])]
    records += [((nan, 1), 5), ((float("nan"), 1), 6)]
    groups = RecordGroups(1000)
    found = gathered(groups, records)
    by_value = {v: p for p, pairs in found.items() for _, v in pairs}
    assert {by_value[i] for i in range(5)} == {0}
    assert by_value[5] == by_value[6]
    again = RecordGroups(1000)
    gathered(again, [*pickle.loads(pickle.dumps([(k, i) for k, i in records if i != 3])), (object(), 3)])
    assert again.proof == groups.proof


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda i: (i, i), 1000),
        (lambda i: (f"user-{i}", i), 1000),
        (lambda i: (i, "x" * 900), 20),
        (lambda i: (i, bytes(100)), 200),
        (lambda i: (i, [float(i)] * 20), 50),
        (lambda i: (i, (None, True, i, "a" * 20)), 300),
        (lambda i: (i, np.arange(500)), 6),
        (lambda i: (i, Place(i, "here")), 300),
        (lambda i: (i, {"n": i}), 300),
        (lambda i: (2**600 + i, "ü" * 50), 100),
    ],
)
def test_groups_are_about_as_long_as_asked(make: Callable[[int], Any], least: int) -> None:
    groups = list(RecordGroups(2, group_bytes=32768).items(make(i) for i in range(20_000)))
    full = groups[:-2]
    assert full
    sizes = [len(pickle.dumps(group, 5)) for _, group in full]
    assert max(sizes) < 2 * 32768
    assert min(len(group) for _, group in full) >= least


def test_long_records_are_not_hoarded_among_short_ones() -> None:
    records = [(i, "x" * (100_000 if i % 7 == 0 else 3)) for i in range(700)]
    groups = list(RecordGroups(1, group_bytes=32768).items(records))
    assert [sum(len(v) > 3 for _, v in group) for _, group in groups[:-1]] == [1] * 100
    arrays = [(i, np.zeros(50_000 if i % 7 == 0 else 1)) for i in range(700)]
    for _, group in RecordGroups(1, group_bytes=32768).items(arrays):
        assert sum(v.nbytes > 100 for _, v in group) <= 1


def test_what_only_cloudpickle_can_pickle_goes_alone() -> None:
    records = [(i, lambda: None) for i in range(3)]
    assert [len(group) for _, group in RecordGroups(1).items(records)] == [1, 1, 1]


def test_what_a_given_pickler_can_pickle_shares_groups_and_its_class() -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="a class of a function needs cloudpickle")

    @dataclasses.dataclass(frozen=True)
    class Local:
        n: int
        text: str = ""

    def sizes(records: list[Any]) -> list[int]:
        return [len(group) for _, group in RecordGroups(1, dumps=cloudpickle.dumps).items(records)]

    assert min(sizes([(i, Local(i)) for i in range(5_000)])[:-1]) >= 256
    # Objects of two classes are measured apart, so that few of the longer ones are together
    assert max(sizes([(Local(i), {"text": "x" * 10_000}) for i in range(100)])) <= 4


def test_settings() -> None:
    for n in (0, -1, 2**31):
        with pytest.raises(ValueError, match="partitions is"):
            RecordGroups(n)
    with pytest.raises(ValueError, match="group_bytes is 0"):
        RecordGroups(1, group_bytes=0)
    groups = RecordGroups(3)
    assert (groups.partitions, groups.rows) == (3, 0)
    assert list(groups.items([])) == []
    with pytest.raises(TypeError):
        groups.items(None)
