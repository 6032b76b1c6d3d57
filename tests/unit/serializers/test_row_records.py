"""What records come out as: tuples, named tuples, dicts, Rows, objects of a class."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import sys
import threading
import weakref
from typing import Any, NamedTuple, TypedDict

import pytest

from fastbuf import ShuffleEnvironment, hash_by
from fastbuf.errors import BlockCorrupt, SchemaError
from fastbuf.serializers import RowSerializer, Schema

SCHEMA = Schema.of(id="int64", name="string?", at="struct<x: int8, y: int8>")
ATOMS = Schema.of(id="int64", name="string")
RECORDS = [(i << 20, None if i % 3 else f"n{i}", (i % 100, 1)) for i in range(2500)]


class Point(NamedTuple):
    id: int
    name: str | None
    at: tuple[int, int]

    def double(self) -> int:
        return self.id * 2


class Pair(NamedTuple):
    id: int
    name: str


class Loose(Pair):
    """A named tuple with attributes of its own."""


class Load(NamedTuple):
    id: int
    data: bytes | None


@dataclasses.dataclass
class Box:
    id: int
    data: bytes | None


@dataclasses.dataclass
class Item:
    id: int
    name: str | None
    at: tuple[int, int]


class Typed(TypedDict):
    id: int
    name: str | None
    at: tuple[int, int]


@dataclasses.dataclass(kw_only=True)
class Named:
    id: int
    name: str | None
    at: tuple[int, int]


def ways(rows: RowSerializer, records: list[Any]) -> list[list[Any]]:
    block = rows.dumps(records)
    return [rows.loads(block), list(rows.iter(block)), [rows.decode(rows.encode(record)) for record in records]]


@pytest.mark.parametrize("make", [Point, dict, Item, None, tuple, lambda *values: list(values)])
def test_each_way_gives_what_was_asked_for(make: Any) -> None:
    wanted: list[Any] = {
        Point: [Point(*record) for record in RECORDS],
        dict: [dict(zip(SCHEMA.names, record, strict=True)) for record in RECORDS],
        Item: [Item(*record) for record in RECORDS],
        None: RECORDS,
        tuple: RECORDS,
    }.get(make, [list(record) for record in RECORDS])
    rows = RowSerializer(SCHEMA, record=make)
    for found in ways(rows, RECORDS):
        assert found == wanted
        assert {type(record) for record in found} == {type(wanted[0])}
    for found in ways(rows, wanted):  # and what came out goes in
        assert found == wanted
    assert rows.loads(rows.dumps([])) == []


def test_a_typed_dict_and_a_class_that_takes_only_names() -> None:
    """The first record that came out failed, with an error of the class."""
    wanted = [dict(zip(SCHEMA.names, record, strict=True)) for record in RECORDS]
    for make, found in ((Typed, wanted), (Named, [Named(**record) for record in wanted])):
        rows = RowSerializer(SCHEMA, record=make)
        assert ways(rows, found) == [found] * 3
        assert pickle.loads(pickle.dumps(rows)).loads(rows.dumps(RECORDS)) == found


def test_named_tuples_are_whole() -> None:
    rows = RowSerializer(SCHEMA, record=Point)
    first, *_ = rows.loads(rows.dumps(RECORDS))
    assert (first.id, first.name, first.at, first.double()) == (0, "n0", (0, 1), 0)
    assert first._replace(id=5) == Point(5, "n0", (0, 1))
    assert pickle.loads(pickle.dumps(first)) == first
    assert hash(first) == hash(tuple(first))


def test_spark_rows() -> None:
    sql = pytest.importorskip("pyspark.sql", reason="its Rows need PySpark")
    rows = RowSerializer(SCHEMA, record=sql.Row(*SCHEMA.names))
    for found in ways(rows, RECORDS[:5]):
        assert found == [sql.Row(id=i, name=name, at=at) for i, name, at in RECORDS[:5]]
        assert found[3].asDict() == dict(zip(SCHEMA.names, RECORDS[3], strict=True))
    assert ways(rows, rows.loads(rows.dumps(RECORDS[:5])))[0] == rows.loads(rows.dumps(RECORDS[:5]))


def test_structs_of_msgspec() -> None:
    msgspec = pytest.importorskip("msgspec", reason="its Structs need msgspec")
    struct = msgspec.defstruct("Record", [("id", int), ("name", str)])
    rows = RowSerializer(Schema.from_class(struct), record=struct)
    wanted = [struct(i, f"n{i}") for i in range(100)]
    for found in ways(rows, wanted):
        assert found == wanted


def test_a_cycle_through_an_attribute_is_found() -> None:
    rows = RowSerializer(ATOMS, record=Loose)
    block, payload = rows.dumps([(1 << 40, "a")]), rows.encode((1 << 40, "a"))
    for read in (lambda: rows.loads(block)[0], lambda: next(rows.iter(block)), lambda: rows.decode(payload)):
        record = read()
        assert gc.is_tracked(record)
        record.itself, record.witness = record, Item(1, None, (0, 0))
        witness = weakref.ref(record.witness)
        del record
        gc.collect()
        assert witness() is None


def test_references_to_the_class_are_given_back() -> None:
    rows = RowSerializer(ATOMS, record=Pair)
    block = rows.dumps([(i, "x") for i in range(100)])
    before = sys.getrefcount(Pair)
    for _ in range(10):
        rows.loads(block)
        with pytest.raises(BlockCorrupt):
            rows.loads(block[:-1] + b"\xff")
    assert abs(sys.getrefcount(Pair) - before) < 10


@pytest.mark.parametrize("make", [None, Load, dict, Box])
def test_through_an_exchange(make: Any) -> None:
    # Short records, those that are cut by a segment's end, and those whose bytes go without the rest of them.
    schema = Schema.of(id="int64", data="binary?")
    sizes = enumerate([0, 20, 3000, 5000, 90_000] * 20)
    records = [(i, None if i % 7 == 0 else bytes([i % 256]) * size) for i, size in sizes]
    wanted = {
        None: records,
        dict: [{"id": i, "data": data} for i, data in records],
    }.get(make) or [make(i, data) for i, data in records]
    with ShuffleEnvironment(segments=256, segment_size=8192) as env:
        rows = RowSerializer(schema, record=make)
        writer, gates = env.exchange(serializer=rows, consumers=1, selector=hash_by("id"))
        reader = threading.Thread(target=lambda: got.extend(gates[0]))
        got: list[Any] = []
        reader.start()
        writer.emit_many(records[:50])
        for record in records[50:]:
            writer.emit(record)
        writer.close()
        reader.join(60)
    assert got == wanted
    assert {type(record) for record in got} == {type(wanted[0])}


def test_an_error_of_what_is_called_comes_through() -> None:
    def refuse(*values: Any) -> Any:
        raise LookupError(f"no {values[0]}")

    rows = RowSerializer(ATOMS, record=refuse)
    for read in (rows.loads, lambda block: next(rows.iter(block))):
        with pytest.raises(LookupError, match="no 7"):
            read(rows.dumps([(7, "x")]))


def test_stop_iteration_of_what_is_called_is_not_the_end() -> None:
    """A loop ended there, as if there were no more records."""

    def stops(*values: Any) -> Any:
        raise StopIteration("too soon")

    rows = RowSerializer(ATOMS, record=stops)
    with pytest.raises(RuntimeError, match=r"StopIteration: too soon"):
        list(rows.iter(rows.dumps([(7, "x")])))
    with ShuffleEnvironment(segments=16) as env:
        writer, (gate,) = env.exchange(rows)
        writer.emit((7, "x"))
        with pytest.raises(RuntimeError, match=r"StopIteration: too soon"), gate:
            list(gate)
        writer.abort()
        assert env.stats()["segments_in_use"] == 0


def test_it_travels_with_the_serializer() -> None:
    rows = pickle.loads(pickle.dumps(RowSerializer(SCHEMA, True, Point)))
    assert isinstance(rows.loads(rows.dumps(RECORDS[:1]))[0], Point)
    assert repr(rows).endswith("checksum=True, record=Point)")
    assert rows.fingerprint == RowSerializer(SCHEMA).fingerprint


def test_parameters_in_another_order_are_given_by_name() -> None:
    """They were given in order: a class whose fields had been sorted anew got each other's values."""
    schema = Schema.of(id="int64", count="int64")

    @dataclasses.dataclass
    class Sorted:
        count: int
        id: int

    rows = RowSerializer(schema, record=Sorted)
    assert rows.loads(rows.dumps([Sorted(count=7, id=1)])) == [Sorted(count=7, id=1)]
    assert RowSerializer(schema, record=lambda count, id: (count, id)).loads(rows.dumps([(1, 7)])) == [(7, 1)]
    assert RowSerializer(schema, record=lambda a, b: (a, b)).loads(rows.dumps([(1, 7)])) == [(1, 7)]
    with pytest.raises(SchemaError, match=r"fields id, count: in order its parameter 'id' would be given 'count'"):
        RowSerializer(schema, record=lambda a, id: (a, id))
    with pytest.raises(SchemaError, match="Crossed has the fields count, id, the schema the same in another order"):
        RowSerializer(schema, record=NamedTuple("Crossed", [("count", int), ("id", int)]))


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="Pair has 2 fields, the schema has 3"):
        RowSerializer(SCHEMA, record=Pair)
    with pytest.raises(SchemaError, match=r"record=Box cannot be called with .* fields id, name, at: too many"):
        RowSerializer(SCHEMA, record=Box)
    with pytest.raises(SchemaError, match="not as 'dict'"):
        RowSerializer(SCHEMA, record="dict")  # type: ignore[arg-type]
