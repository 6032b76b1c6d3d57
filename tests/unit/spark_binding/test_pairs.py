"""Pairs before and behind a shuffle, without Spark: what is merged, spilled and read back, and the memory it takes."""

from __future__ import annotations

import itertools
import operator
import os
import pickle
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastbuf.errors import RecordError, ResourceError
from fastbuf.serializers.plain_lists import pack_plain
from fastbuf.serializers.portable import portable_hash
from fastbuf_spark.codec import Reading, RecordCodec
from fastbuf_spark.worker import pairs
from fastbuf_spark.worker.pairs import Combine, Join, MergeStage

LONG = os.environ.get("FASTBUF_LONG") == "1"
MEMORY = 256 << 10


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.fixture(params=["as lists", "as they travel"])
def travelling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether groups come packed where they can be, as they do from an exchange: then no objects are made of them."""
    monkeypatch.setattr(sys.modules[__name__], "PACKED", request.param == "as they travel")
    return PACKED


PACKED = True


def lists(records: list[Any], size: int = 500) -> Iterator[Any]:
    for start in range(0, len(records), size):
        some = records[start : start + size]
        yield (pack_plain(some) if PACKED else None) or some


def stage(
    merge: Any = None, sides: int = 0, finish: Any = None, memory: int = MEMORY, directory: str = ""
) -> MergeStage:
    return MergeStage(merge, sides, finish, memory, directory)


def grouped(made: MergeStage, records: list[Any]) -> list[tuple[Any, list[Any]]]:
    return [(key, list(values)) for key, values in itertools.chain.from_iterable(made(lists(records)))]


def wanted(records: list[Any]) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for key, value in records:
        found[key].append(value)
    return dict(found)


SHAPES = {
    "many keys": lambda i: (i * 7919 % 10_007, i),
    "one key": lambda i: ("the one", f"value {i}"),
    "one has nine of ten": lambda i: ("the one" if i % 10 else i, i),
    "long ones and short ones": lambda i: (i % 3 if i % 2 else f"k{i % 4000}", [i]),
    "long ones that come late": lambda i: (i if i < 20_000 else i % 5, "x" * 10),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("memory", [16 << 10, MEMORY, 1 << 30])
@pytest.mark.usefixtures("travelling")
def test_groups_of_any_length_have_their_values_in_order(shape: str, memory: int) -> None:
    records = [SHAPES[shape](i) for i in range(30_000)]
    found = grouped(stage(memory=memory), records)
    assert len(found) == len(dict(found))
    assert dict(found) == wanted(records)


@pytest.mark.usefixtures("travelling")
def test_a_key_is_not_in_two_places_whenever_it_becomes_long() -> None:
    """Its first values are with those of others then, and the later ones by themselves."""
    rng = random.Random(5)
    records = []
    for era in range(40):
        favourite = f"k{era % 7}"
        records += [(favourite if rng.random() < 0.3 else f"k{rng.randrange(5000)}", (era, i)) for i in range(1500)]
    found = grouped(stage(memory=64 << 10), records)
    assert len(found) == len(dict(found))
    assert dict(found) == wanted(records)


class Alike:
    """Keys whose hashes are all the same: no hash parts them."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and other.name == self.name


def test_keys_that_no_hash_parts() -> None:
    records = [(Alike(i % 40 if i % 3 else 0), i) for i in range(12_000)]
    found = grouped(stage(memory=16 << 10), records)
    assert {key.name: values for key, values in found} == wanted([(key.name, value) for key, value in records])
    reduced = [*itertools.chain.from_iterable(stage(operator.add, memory=1 << 10)(lists(records)))]
    assert {key.name: value for key, value in reduced} == {
        name: sum(values) for name, values in wanted([(key.name, value) for key, value in records]).items()
    }


@pytest.mark.parametrize("memory", [16 << 10, MEMORY, 1 << 30])
@pytest.mark.usefixtures("travelling")
def test_what_is_merged_in_parts_is_merged_once(memory: int) -> None:
    records = [(f"k{i * 31 % 9_001}", i) for i in range(40_000)]
    found = [*itertools.chain.from_iterable(stage(operator.add, memory=memory)(lists(records)))]
    assert len(found) == len(dict(found))
    assert dict(found) == {key: sum(values) for key, values in wanted(records).items()}


@pytest.mark.parametrize("memory", [16 << 10, 1 << 30])
@pytest.mark.usefixtures("travelling")
def test_sides_stay_apart(memory: int) -> None:
    records = [(i % 3 if i % 2 else i % 5000, (i // 2 % 2, i)) for i in range(20_000)]
    found = list(itertools.chain.from_iterable(stage(sides=2, memory=memory)(lists(records))))
    assert len(found) == len(dict(found))
    for side in (0, 1):
        mine = wanted([(key, value[1]) for key, value in records if value[0] == side])
        assert {key: list(both[side]) for key, both in found if len(both[side])} == mine


@pytest.mark.parametrize("memory", [16 << 10, 1 << 30])
@pytest.mark.usefixtures("travelling")
def test_joins_of_long_keys(memory: int) -> None:
    records = [(i % 3 if i % 100 else i, (int(i % 1000 == 7), i)) for i in range(20_000)]
    left, right = (wanted([(k, v[1]) for k, v in records if v[0] == side]) for side in (0, 1))
    inner = stage(sides=2, finish=Join(False, False), memory=memory)
    found = Counter(itertools.chain.from_iterable(inner(lists(records))))
    assert found == Counter(
        (k, pair) for k in left.keys() & right.keys() for pair in itertools.product(left[k], right[k])
    )
    outer = stage(sides=2, finish=Join(True, True), memory=memory)
    found = Counter(itertools.chain.from_iterable(outer(lists(records))))
    nothing = [None]
    assert found == Counter(
        (k, pair)
        for k in left.keys() | right.keys()
        for pair in itertools.product(left.get(k, nothing), right.get(k, nothing))
    )


def test_values_in_a_file_are_sized_read_again_and_pickled() -> None:
    records = [("the one", i) for i in range(50_000)]
    ((key, values),) = itertools.chain.from_iterable(stage(memory=16 << 10)(lists(records)))
    assert key == "the one"
    assert isinstance(values.data, pairs.Stored)
    assert len(values) == 50_000
    assert list(values) == list(values) == list(range(50_000))
    # Two at a time, and when all else has gone
    first, second = iter(values), iter(values)
    assert [next(first), next(first), next(second)] == [0, 1, 0]
    assert list(pickle.loads(pickle.dumps(values))) == list(range(50_000))


def test_files_are_closed_when_nobody_has_the_values_any_more(tmp_path: Path) -> None:
    def files() -> int:
        return sum(1 for fd in os.listdir("/proc/self/fd") if str(tmp_path) in os.path.realpath(f"/proc/self/fd/{fd}"))

    records = [(i % 2, i) for i in range(50_000)]
    made = itertools.chain.from_iterable(stage(memory=16 << 10, directory=str(tmp_path))(lists(records)))
    _, values = next(made)
    assert files() > 0
    del made
    assert sum(values) > 0  # who has them may still read them
    del values
    assert files() == 0
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_to_is_named() -> None:
    records = [(i, i) for i in range(50_000)]
    with pytest.raises(ResourceError, match=r"spark\.fastbuf\.spillDirectory"):
        list(stage(memory=16 << 10, directory="/nowhere/at/all")(lists(records)))


def sent(combine: Combine, records: list[Any]) -> list[tuple[Any, Any]]:
    return [*itertools.chain.from_iterable(combine.lists(combine.table(), records))]


def test_few_keys_are_merged_before_they_are_sent() -> None:
    records = [(i % 100, 1) for i in range(300_000)]
    assert sorted(sent(Combine(None, operator.add, 1 << 30), records)) == [(k, 3000) for k in range(100)]


def test_a_full_table_is_sent() -> None:
    records = [(i // 10 % 20_000, 1) for i in range(300_000)]
    found = sent(Combine(None, operator.add, 1 << 20), records)
    assert 20_000 < len(found) < 300_000
    total: Counter[int] = Counter()
    for key, count in found:
        total[key] += count
    assert total == Counter(key for key, _ in records)


def test_many_keys_pass_and_some_are_tried_again() -> None:
    count = 200_000
    records = [(i, (i,)) for i in range(count)] + [(-1, (i,)) for i in range(count)]
    combine = Combine(None, operator.add, 1 << 20)
    table = combine.table()
    table.fill(iter(records), int(combine.memory_bytes * pairs.SLACK))
    tried = table.rows
    assert 10 * tried < count
    found = sent(combine, records)
    # Once a table is full of keys that all differ, eight times as many pass; soon after they are alike all is merged
    assert count < len(found) <= count + pairs.PASS * tried + count / tried
    assert Counter(itertools.chain.from_iterable(value for _, value in found)) == Counter(range(count)) + Counter(
        range(count)
    )
    created = sent(Combine(lambda value: [value], lambda had, value: [*had, value], 1 << 20), records[: count + 99])
    assert sum(len(value) for _, value in created) == count + 99
    assert {type(value) for _, value in created} == {list}


#: Records of a task: those of a kind that is merged without objects, and what comes among them
MIXED: dict[str, list[Any]] = {
    "ints": [(i * 7919 % 901, i) for i in range(9_000)],
    "strs": [(f"k{i * 7919 % 901}", i / 2) for i in range(9_000)],
    "equal keys of other types": [
        ((i % 2, i % 2 == 1, float(i % 2), f"{i % 2}", None)[i // 1_000 % 5], i) for i in range(9_000)
    ],
    "a sum of more than 64 bits": [(i % 3, 2**61) for i in range(2_000)],
    "other values": [(i % 9, i if i < 4_000 else i / 2) for i in range(8_000)],
    "flags": [(i % 9, i % 2 == 1 if i > 3_000 else i) for i in range(8_000)],
    "long texts": [("x" * (i % 80), 1) for i in range(8_000)],
    "lists as pairs": [[i % 9, 1] if i > 3_000 else (i % 9, 1) for i in range(8_000)],
    "none": [],
}


def read(codec: RecordCodec, records: list[Any], pickled: bool) -> tuple[Reading, list[Any]]:
    """What a task sends of records, or of pickled lists of them as Spark has cached them."""
    source: list[Any] = records
    if pickled:
        codec = replace(codec, pickled=True)
        source = [pickle.dumps(records[i : i + 512], 5) for i in range(0, len(records), 512)]
    reading = codec.reading(group_bytes=4096)
    return reading, list(reading.items(source))


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("memory", [32 << 10, 1 << 30])
@pytest.mark.parametrize("merge", [operator.add, max, min])
@pytest.mark.parametrize("kind", MIXED)
def test_what_two_tasks_send_is_merged_as_in_a_dict(kind: str, merge: Any, memory: int, pickled: bool) -> None:
    """Of any mix of types, whether the tables are ever full or not, and in the partitions of ``portable_hash``."""
    records = MIXED[kind]
    wanted: dict[Any, Any] = {}
    for key, value in records:
        wanted[key] = merge(wanted[key], value) if key in wanted else value
    codec = RecordCodec(3, combine=Combine(None, merge, memory), packed=True)
    plain = RecordCodec(3)
    sent: list[list[Any]] = [[], [], []]
    for start, stop in ((0, len(records) // 2), (len(records) // 2, len(records))):
        reading, made = read(codec, records[start:stop], pickled)
        for partition, group in made:
            sent[partition].append(group)
        reading_plain, made = read(plain, records[start:stop], pickled)
        assert sum(plain.count(item) for item in made) == stop - start
        assert (reading.rows, reading.proof) == (reading_plain.rows, reading_plain.proof)
    found = []
    for partition, groups in enumerate(sent):
        some = list(itertools.chain.from_iterable(stage(merge, memory=memory)(groups)))
        assert {portable_hash(key) % 3 for key, _ in some} <= {partition}
        found += some
    assert len(found) == len(wanted)
    assert dict(found) == wanted
    assert {type(value) for _, value in found} == {type(value) for value in wanted.values()}


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("memory", [64 << 10, 1 << 30])
@pytest.mark.parametrize("sides", [0, 2])
@pytest.mark.parametrize("kind", MIXED)
def test_groups_of_any_mix_of_types(kind: str, sides: int, memory: int, pickled: bool) -> None:
    records = MIXED[kind]
    sent = []
    for side in range(sides or 1):
        _, made = read(RecordCodec(1, side=side if sides else None), records, pickled)
        sent += [group for _, group in made]
    found = list(itertools.chain.from_iterable(stage(sides=sides, memory=memory)(sent)))
    listed = [(key, [list(values)] if not sides else [list(one) for one in values]) for key, values in found]
    expected = wanted([(key, value) for key, value in records])
    assert len(listed) == len(expected)
    for key, groups in listed:
        assert groups == [expected[key]] * (sides or 1)
        assert list(map(type, groups[0])) == list(map(type, expected[key]))


def test_nan_keys_among_ints_are_lost_by_nobody() -> None:
    """They are equal to no other, so how many keys they are is anybody's guess."""
    records = [(float("nan") if i % 3_000 == 2_999 else i % 5, 1) for i in range(8_000)]
    codec = RecordCodec(3, combine=Combine(None, operator.add, 1 << 20), packed=True)
    sent = list(codec.reading().items(records))
    found = list(itertools.chain.from_iterable(stage(operator.add)(group for _, group in sent)))
    counts = Counter(key for key, _ in records if key == key)
    assert {key: value for key, value in found if key == key} == counts
    assert sum(value for key, value in found if key != key) == 2
    groups = [group for _, group in RecordCodec(1).reading().items(records)]
    listed = list(itertools.chain.from_iterable(stage()(groups)))
    assert sum(len(values) for key, values in listed if key != key) == 2
    assert sum(len(values) for _, values in listed) == 8_000


def test_a_record_that_is_no_pair_has_its_number() -> None:
    """Whatever has read those before it."""
    for combine in (None, Combine(None, operator.add, 1 << 20), Combine(None, pow, 1 << 20)):
        for pickled in (False, True):
            for count in (0, 7, 700):
                with pytest.raises(RecordError, match=f"record {count} is not a "):
                    read(RecordCodec(2, combine=combine), [*((1, 1) for _ in range(count)), (1, 2, 3)], pickled)


def test_hardly_merged_pairs_pass() -> None:
    """A table of keys that all differ is sent, and eight times as many records behind it as they are."""
    records = [(i, 1) for i in range(60_000)]
    codec = RecordCodec(2, combine=Combine(None, operator.add, 64 << 10))
    for pickled in (False, True):
        reading, made = read(codec, records, pickled)
        assert sorted(itertools.chain.from_iterable(codec.opened(made))) == records
        assert reading.rows == len(records)
        _, made = read(codec, [(0, 1)] * 60_000, pickled)
        assert list(itertools.chain.from_iterable(codec.opened(made))) == [(0, 60_000)]


def test_a_function_that_fails_and_one_that_gives_another_type() -> None:
    def failing(a: int, b: int) -> int:
        raise LookupError("of the function")

    def as_text(a: Any, b: Any) -> str:
        return f"{a}+{b}"

    packed = [group for _, group in RecordCodec(1).reading().items([(1, 1), (2, 2), (1, 3)])]
    with pytest.raises(LookupError, match="of the function"):
        list(stage(failing)(packed))
    assert dict(itertools.chain.from_iterable(stage(as_text)(packed))) == {1: "1+3", 2: 2}
    with pytest.raises(TypeError, match="unhashable"):
        list(RecordCodec(1, combine=Combine(None, operator.add, 1 << 20)).reading().items([(1, 1), ([2], 1)]))


PEAK = """
import itertools, operator, resource, sys
from fastbuf_spark.worker.pairs import MergeStage
import fastbuf, fastbuf.serializers.pair_table, fastbuf.serializers.plain_groups
from fastbuf.serializers.plain_lists import pack_plain
kind, memory = sys.argv[1], 32 << 20

def lists():
    for start in range(0, 3_000_000, 2000):
        if kind == "packed":
            yield pack_plain([(i * 7919 % 1_000_003, f"value {i}") for i in range(start, start + 2000)])
        elif kind == "packed, one":
            yield pack_plain([("the one", f"value {i}") for i in range(start, start + 2000)])
        elif kind == "one":
            yield [("the one", f"value {i}") for i in range(start, start + 2000)]
        elif kind == "nine of ten":
            yield [("the one" if i % 10 else i, f"value {i}") for i in range(start, start + 2000)]
        else:
            yield [(i * 7919 % 1_000_003, f"value {i}") for i in range(start, start + 2000)]

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

for _ in zip(lists(), range(50)):
    pass
before, count = peak(), 0
merge = max if kind == "merged" else None
for key, values in itertools.chain.from_iterable(MergeStage(merge, 0, None, memory, "")(lists())):
    if merge is None:
        for value in values:
            count += 1
    else:
        count += 1
assert count == (1_000_003 if merge else 3_000_000), count
print((peak() - before) / memory)
"""


@pytest.mark.parametrize("kind", ["one", "nine of ten", "packed", "packed, one", *(["many", "merged"] if LONG else [])])
def test_the_most_memory_that_is_taken(kind: str) -> None:
    """Groups of ten times the memory: the process takes no more than that, and a tenth."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, kind],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.1
