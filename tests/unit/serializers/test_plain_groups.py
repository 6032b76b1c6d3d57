"""Plain pairs grouped without objects: the values of each key in the order in which they came."""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from fastbuf.errors import BlockCorrupt, BlockError, RecordError
from fastbuf.serializers.pair_table import PairTable, Values
from fastbuf.serializers.plain_groups import PlainGroups, PlainValues
from fastbuf.serializers.plain_lists import pack_plain

VALUES: dict[str, Callable[[int], Any]] = {
    "short ints": lambda i: i % 1000,
    "ints of all sizes": lambda i: (-1) ** i * 2 ** (i % 63),
    "floats": lambda i: i / 3,
    "flags": lambda i: (None, False, True)[i % 3],
    "strs": lambda i: "äb" * (i % 20),
    "bytes": lambda i: b"x" * (i % 64),
    "tuples": lambda i: (i, (f"v{i}", (i / 2,)), None, b"b"),
}
KEYS: dict[str, Callable[[int], Any]] = {
    "ints": lambda i: i * 7919 % 1009 - 500,
    "strs": lambda i: f"user-{i * 7919 % 1009}",
    "one": lambda i: "the one",
    "all": lambda i: i,
}


def packed(records: list[Any]) -> bytes:
    made = pack_plain(records)
    assert made is not None
    return made


def taken(groups: PlainGroups, records: list[Any], size: int = 600) -> PlainGroups:
    for start in range(0, len(records), size):
        assert groups.add(packed(records[start : start + size])) == 0
    return groups


def typed(values: Any) -> list[Any]:
    return [(type(value), value) for value in values]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keys", KEYS)
def test_values_are_grouped_as_in_a_dict(keys: str, values: str) -> None:
    records = [(KEYS[keys](i), VALUES[values](i)) for i in range(11_000)]
    wanted = defaultdict(list)
    for key, value in records:
        wanted[key].append(value)
    groups = taken(PlainGroups(), records)
    assert groups.rows == len(records)
    for _ in range(2):  # as often as one likes
        found = list(chain.from_iterable(groups.lists()))
        assert [key for key, _ in found] == list(wanted)
        assert {key: len(some) for key, some in found} == {key: len(some) for key, some in wanted.items()}
        for key, some in found:
            assert typed(some) == typed(some) == typed(wanted[key])
    key, some = found[-1]
    assert some[:3] == wanted[key][:3]
    assert some[2:5000:7] == wanted[key][2:5000:7]
    assert some[5:2] == []
    copied = pickle.loads(pickle.dumps(some))
    assert type(copied) is Values
    assert list(copied) == wanted[key]
    assert repr(some) == f"<{len(wanted[key])} values>" == repr(copied)


@pytest.mark.parametrize("values", VALUES)
def test_sides_are_apart_and_in_order(values: str) -> None:
    records = [(i * 31 % 700, (i % 3 % 2, VALUES[values](i))) for i in range(9_000)]
    table = PairTable(sides=2)
    table.add(records)
    groups = taken(PlainGroups(2), records)
    found = [(key, tuple(map(list, both))) for key, both in chain.from_iterable(groups.lists())]
    assert found == [(key, tuple(map(list, both))) for key, both in table.groups()]
    with pytest.raises(RuntimeError, match="no more pairs"):
        groups.add(packed([(1, (1, VALUES[values](1)))]))
    with pytest.raises(RecordError, match="of side 2, and there are 2"):
        PlainGroups(2).add(packed([(1, (2, VALUES[values](1)))]))


def test_what_is_of_another_kind_is_not_taken() -> None:
    records = [(i, (i, "a")) for i in range(100)]
    groups = taken(PlainGroups(), records)
    for other in [
        ("k", (1, "a")),
        (1, 1),
        (1, (1, "a", 1)),
        (1, (1.0, "a")),
        (1, (1, b"a")),
        (1, ((1,), "a")),
        (1.0, (1, "a")),
    ]:
        assert groups.add(packed([other, other])) == 2
    assert groups.add(packed([7, 8])) == 2
    assert groups.add(packed([(1, 2, 3)])) == 1
    assert groups.rows == 100
    assert [(key, *values) for key, values in chain.from_iterable(groups.lists())] == records
    assert PlainGroups().add(packed([(1, tuple(range(9)))])) == 1
    assert PlainGroups().add(packed([(None, 1), (True, 2)])) == 2
    assert PlainGroups().add(packed([(b"k", 1)])) == 1
    for other in [(1, 2), (1, (2.0, 3)), (1, (1, 2, 3)), (1, (2**40, 1))]:
        assert PlainGroups(2).add(packed([other])) == 1
    assert list(PlainGroups().lists()) == []


def test_values_outlive_the_loop_over_them() -> None:
    def groups() -> PlainGroups:
        return taken(PlainGroups(), [(f"k{i % 10}", f"value {i}") for i in range(60_000)])

    kept = dict(chain.from_iterable(groups().lists()))
    loop = iter(kept["k3"])
    assert next(loop) == "value 3"
    values = kept.pop("k3")
    del kept
    assert list(values) == ["value 3", *loop] == [f"value {i}" for i in range(3, 60_000, 10)]


def test_how_long_it_is() -> None:
    rng = random.Random(1)
    records = [(rng.randrange(1000), (i, f"text {i:08}")) for i in range(20_000)]
    groups = taken(PlainGroups(), records)
    assert 20_000 * 30 < groups.nbytes < 20_000 * 80
    by_key = dict(chain.from_iterable(groups.lists()))
    table = PairTable()
    table.add(records)
    assert sum(values.nbytes for values in by_key.values()) == pytest.approx(table.nbytes, rel=0.3)


def test_bytes_that_were_altered_are_found_out() -> None:
    flags, texts = packed([(1, None)]), packed([(1, "abcd")])
    with pytest.raises(BlockCorrupt, match="neither None nor a bool"):
        PlainGroups().add(flags[:-1] + b"\7")
    groups = PlainGroups()
    assert groups.add(texts.replace(b"abcd", b"ab\xffd")) == 0
    ((_, values),) = chain.from_iterable(groups.lists())
    assert type(values) is PlainValues
    with pytest.raises(BlockCorrupt, match="utf-8"):
        list(values)
    for end in range(len(texts)):
        with pytest.raises(BlockError):
            PlainGroups().add(texts[:end])
