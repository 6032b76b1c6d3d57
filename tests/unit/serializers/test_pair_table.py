"""Pairs by key: what is merged and what is listed, in which order, and how much memory it is said to take."""

from __future__ import annotations

import collections
import operator
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastbuf.errors import RecordError
from fastbuf.serializers.pair_table import PairTable, Values
from fastbuf.serializers.record_groups import RecordGroups

NO_LIMIT = 1 << 60


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def test_values_are_merged_in_their_order() -> None:
    table = PairTable(None, operator.add)
    assert table.fill(iter([("a", "1"), ["b", "2"], ("a", "3")]), NO_LIMIT)
    table.add([("a", "4"), (None, "5")])
    assert table.table == {"a": "134", "b": "2", None: "5"}
    assert table.rows == 3


def test_the_first_value_becomes_a_combiner_before_it_is_sent_and_not_behind() -> None:
    table = PairTable(lambda value: [value], lambda had, value: [*had, value])
    table.fill(iter([(1, 2), (1, 3)]), NO_LIMIT)
    assert table.table == {1: [2, 3]}
    behind = PairTable(lambda value: [value], operator.add)
    behind.add([(1, [2]), (1, [3])])
    assert behind.table == {1: [2, 3]}


def test_values_are_listed_in_their_order() -> None:
    table = PairTable()
    table.add([("a", 1), ("b", None), ("a", 1.5)])
    assert [(key, list(values)) for key, values in table.groups()] == [("a", [1, 1.5]), ("b", [None])]
    sides = PairTable(sides=2)
    sides.add([("a", (1, "x")), ("a", (0, "y")), ("b", (0, "z"))])
    found = {key: tuple(map(list, both)) for key, both in sides.groups()}
    assert found == {"a": (["y"], ["x"]), "b": (["z"], [])}
    with pytest.raises(RecordError, match="side 2"):
        sides.add([("a", (2, "x"))])


def test_keys_are_one_where_a_dict_says_so() -> None:
    table = PairTable(None, operator.add)
    table.add([(1, 1), (1.0, 1), (True, 1), (0.0, 1), (-0.0, 1), ((1, "a"), 1), ((1, "a"), 1)])
    assert table.table == {1: 3, 0.0: 2, (1, "a"): 2}


def test_what_is_written_as_a_sum_is_one() -> None:
    """Such functions are not called, so what is taken for one must be."""

    def minus(a: int, b: int) -> int:
        return a - b

    def third(a: int, b: int, c: int = 5) -> int:
        return a + c

    for func in (lambda a, b: a + b, lambda x, y: x + y, lambda a, b: b + a, lambda a, b: a, minus, third, max):
        table = PairTable(None, func)
        table.add([("a", "1"), ("a", "2")] if func not in (minus, third) else [("a", 7), ("a", 2)])
        assert table.table == {"a": func("1", "2") if func not in (minus, third) else func(7, 2)}  # type: ignore[operator]
    with pytest.raises(TypeError, match="required keyword-only argument"):
        PairTable(None, eval("lambda a, b, *, c: a + b")).add([(1, 1), (1, 2)])
    with pytest.raises(TypeError, match="unsupported operand"):
        PairTable(None, lambda a, b: a + b).add([(1, 1), (1, "2")])


def test_it_is_full_by_bytes_and_by_records() -> None:
    source = iter([(i, "x" * 100) for i in range(100)])
    table = PairTable(None, max)
    assert not table.fill(source, NO_LIMIT, 7)
    assert len(table.table) == table.rows == 7
    assert not table.fill(source, table.nbytes + 1000)
    assert 10 < table.rows < 20
    full = table.rows
    assert not table.fill(source, table.nbytes)  # is full already, and reads nothing
    table.clear()
    assert (table.nbytes, table.table, table.rows) == (0, {}, full)
    assert table.fill(source, NO_LIMIT)
    assert min(table.table) == full  # nothing was lost between two
    assert table.rows == 100


def test_records_that_pass() -> None:
    source = iter([(1, 2), "ab", [3, 4]])
    table = PairTable(lambda value: (value,), operator.add)
    assert table.passing(source, 2) == [(1, (2,)), ("a", ("b",))]
    assert table.passing(source, 2) == [(3, (4,))]
    assert table.passing(source, 2) == []
    assert table.rows == 3
    assert table.table == {}


def test_the_proof_is_that_of_the_records_read() -> None:
    """However they were merged: what another reading of the input in another order has, too."""
    records = [(f"k{i % 7}", i) for i in range(1000)]
    groups = RecordGroups(3)
    for _ in groups.items(iter(records)):
        pass
    table = PairTable(None, operator.add)
    backwards = iter(records[::-1])
    table.fill(backwards, NO_LIMIT, 400)
    table.clear()
    table.passing(backwards, 100)
    table.fill(backwards, NO_LIMIT)
    assert (table.rows, table.proof) == (groups.rows, groups.proof)


@pytest.mark.parametrize("record", [(1, 2, 3), (1,), "abc", 7, None], ids=repr)
def test_what_is_no_pair_has_its_number(record: Any) -> None:
    with pytest.raises(RecordError, match=r"record 1 is not a \(key, value\) pair"):
        PairTable(None, max).fill(iter([(1, 1), record]), NO_LIMIT)
    with pytest.raises(RecordError, match="record 0 is not a"):
        PairTable(None, max).passing(iter([record]), 5)
    with pytest.raises(RecordError, match="not a tuple of a key and a value"):
        PairTable().add([record])


def test_keys_without_a_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        PairTable(None, max).fill(iter([([1], 1)]), NO_LIMIT)
    with pytest.raises(TypeError, match="unhashable"):
        PairTable().add([([1], 1)])


def test_errors_of_functions_and_stop_iteration() -> None:
    def stops(*_: Any) -> Any:
        raise StopIteration("too soon")

    with pytest.raises(ZeroDivisionError):
        PairTable(None, operator.truediv).add([(1, 1), (1, 0)])
    for run in (
        lambda: PairTable(None, stops).add([(1, 1), (1, 0)]),
        lambda: PairTable(None, stops).fill(iter([(1, 1), (1, 0)]), NO_LIMIT),
        lambda: PairTable(stops, max).passing(iter([(1, 1)]), 5),
    ):
        with pytest.raises(RuntimeError, match=r"StopIteration.*too soon"):
            run()


Cls = collections.namedtuple("Cls", "a b")


class Plain:
    def __init__(self, i: int) -> None:
        self.number = i + 1000
        self.text = f"text {i}"


KINDS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i + 1000,
    "float": float,
    "text": lambda i: f"a text of some length {i}",
    "bytes": lambda i: b"%d" % i * 20,
    "tuple": lambda i: (i + 1000, f"v{i}", float(i)),
    "list": lambda i: [float(i + j) for j in range(20)],
    "dict": lambda i: {f"k{i}": float(i), "l": [i + 1000]},
    "set": lambda i: {i + 1000, i + 2000},
    "array": lambda i: np.arange(100) + i,
    "object": Plain,
    "named tuple": lambda i: Cls(f"a{i}", i + 1000),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("each", [1, 10], ids=["keys of their own", "ten of a key"])
def test_bytes_are_about_what_python_takes(kind: str, each: int) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = PairTable()
        for i in range(20_000):
            table.add([(i // each, KINDS[kind](i))])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < table.nbytes / (after - before) < 1.6


@pytest.mark.parametrize("kind", ["list", "text", "dict"])
def test_bytes_grow_with_what_is_merged(kind: str) -> None:
    def merged(had: Any, more: Any) -> Any:
        if kind == "dict":
            had.update(more)
            return had
        return had + more

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = PairTable(None, merged)
        for i in range(20_000):
            value = {i: float(i)} if kind == "dict" else [float(i)] if kind == "list" else f"{i:030}"
            table.add([(i % 50, value)])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.6 < table.nbytes / (after - before) < 1.7


def test_values() -> None:
    values = Values([1, 2, 3])
    assert len(values) == 3
    assert list(values) == list(values) == [1, 2, 3]
    again = pickle.loads(pickle.dumps(values))
    assert type(again) is Values
    assert list(again) == [1, 2, 3]
    assert isinstance(values, collections.abc.Sized)
    assert isinstance(values, collections.abc.Iterable)
    assert repr(values) == "<3 values>"
