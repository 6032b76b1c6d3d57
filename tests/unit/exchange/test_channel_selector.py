"""Selectors: where records go, and that records and batches agree."""

from __future__ import annotations

import datetime
import pickle
import threading

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, RecordError, SchemaError

pa = pytest.importorskip("pyarrow")
SCHEMA = fb.Schema.of(id="int64", name="string?", small="int32", score="float64", day="date32", at="timestamp[us]")


def records(n: int) -> list[tuple]:
    start = datetime.datetime(1969, 12, 31, 23, 59, 59)
    return [
        (
            i * 7919 - 3000,
            None if i % 5 == 0 else f"user-{i}é",
            i - 40,
            -0.0 if i % 7 == 0 else i * 0.25,
            datetime.date(1969, 12, 1) + datetime.timedelta(days=i),
            start + datetime.timedelta(seconds=i, microseconds=i),
        )
        for i in range(n)
    ]


def spread(selector: object, consumers: int, items: list[tuple]) -> list[list[tuple]]:
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        writer, gates = env.exchange(fb.RowSerializer(SCHEMA), consumers=consumers, selector=selector)
        writer.emit_many(items)
        writer.close()
        return [list(gate) for gate in gates]


@pytest.mark.parametrize("keys", [("id",), ("name",), ("small",), ("score",), ("day",), ("at",), ("name", "id")])
def test_records_and_batches_are_hashed_alike(keys: tuple[str, ...]) -> None:
    items = records(100)
    columns = list(zip(*items, strict=True))
    arrow = SCHEMA.to_arrow()
    batch = pa.record_batch([pa.array(c, type=f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow)
    expected: list[list[tuple]] = [[] for _ in range(5)]
    for item, to in zip(items, fb.hash_partition(batch, list(keys), 5), strict=True):
        expected[to].append(item)
    assert spread(fb.hash_by(*keys), 5, items) == expected


def test_round_robin_gives_each_its_turn() -> None:
    out = spread(fb.round_robin(), 3, records(9))
    assert [len(o) for o in out] == [3, 3, 3]


def test_forward_gives_all_to_one() -> None:
    assert [len(o) for o in spread(fb.forward(1), 3, records(4))] == [0, 4, 0]


def test_broadcast_gives_all_to_each() -> None:
    items = records(20)
    assert spread(fb.broadcast(), 3, items) == [items, items, items]


def test_broadcast_of_batches_and_of_what_spans_buffers() -> None:
    schema = pa.schema([("s", pa.string())])
    batches = [pa.record_batch([[f"{i}-{j}" * (j % 30) for j in range(200)] + ["g" * 9000]], schema) for i in range(4)]
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        writer, gates = env.exchange(fb.ColumnarSerializer(schema), consumers=3, selector=fb.broadcast())
        outs: list[list] = [[], [], []]
        readers = [
            threading.Thread(target=lambda g=g, out=out: out.extend(g)) for g, out in zip(gates, outs, strict=True)
        ]
        for reader in readers:
            reader.start()
        for batch in batches:
            writer.emit_batch(batch)
        writer.close()
        for reader in readers:
            reader.join(20)
        for out in outs:
            assert pa.Table.from_batches(out).equals(pa.Table.from_batches(batches).combine_chunks())


def test_broadcast_writes_a_buffer_once_for_all() -> None:
    """By reference count: eight consumers hold no more segments than one would."""
    items = records(200)
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        writer, gates = env.exchange(fb.RowSerializer(SCHEMA), consumers=8, selector=fb.broadcast())
        writer.emit_many(items)
        written = len(fb.RowSerializer(SCHEMA).dumps(items))
        assert 1 < writer.partition.pool.in_use <= written // 4096 + 1
        gates[3].close()  # one that has enough lets go of its references only
        writer.emit_many(items)
        writer.close()
        for i, gate in enumerate(gates):
            if i != 3:
                assert list(gate) == items * 2
            gate.close()
        assert env.pool.available == 128
        env.pool.audit()


def test_broadcast_to_consumers_that_have_all_cancelled() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(fb.RowSerializer(SCHEMA), consumers=2, selector=fb.broadcast())
        assert writer.try_emit(records(1)[0])
        for gate in gates:
            gate.close()
        writer.emit_many(records(500))
        assert writer.cancelled
        writer.close()
        assert env.pool.available == 64


@pytest.mark.parametrize(("producers", "consumers"), [(1, 3), (2, 4), (2, 5), (3, 3), (4, 2), (5, 2)])
def test_rescale_gives_each_producer_its_neighbours(producers: int, consumers: int) -> None:
    used = []
    for i in range(producers):
        parts = spread(fb.rescale(i, producers), consumers, records(30))
        used.append({k for k, part in enumerate(parts) if part})
        sizes = [len(part) for part in parts if part]
        assert max(sizes) - min(sizes) <= 1
    assert set().union(*used) == set(range(consumers))
    if producers <= consumers:
        assert sum(len(u) for u in used) == consumers  # nobody's neighbours are another's
    else:
        assert all(len(u) == 1 for u in used)


def test_an_impossible_rescale_is_refused() -> None:
    with pytest.raises(ConfigError, match="producer is 2: it must be an integer from 0 to 1"):
        fb.rescale(2, 2)


def test_random_keeps_every_record() -> None:
    items = records(50)
    parts = spread(fb.shuffle(seed=1), 4, items)
    assert sorted(record for part in parts for record in part) == sorted(items)


def test_the_users_own() -> None:
    out = spread(fb.custom(lambda record, n: record[2] % n), 4, records(40))
    assert all(record[2] % 4 == i for i, part in enumerate(out) for record in part)


def test_the_users_own_out_of_range() -> None:
    with pytest.raises(RecordError, match="subpartition 9 of 2"):
        spread(fb.custom(lambda record, n: 9), 2, records(1))


def test_a_bare_function_is_told_what_to_wrap_it_in() -> None:
    with fb.ShuffleEnvironment(segments=8) as env, pytest.raises(ConfigError, match=r"as fastbuf\.custom\(func\)"):
        env.create_result_partition(fb.PickledSerializer(), [None], selector=lambda record, n: 0)


def test_a_batch_selector_of_the_users_own() -> None:
    schema = pa.schema([("x", pa.int64())])
    batch = pa.record_batch([pa.array(range(10))], schema=schema)
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(
            fb.ColumnarSerializer(schema), consumers=2, selector=fb.custom(lambda b, n: np.arange(b.num_rows) % n)
        )
        writer.emit_batch(batch)
        writer.close()
        assert [[row for b in gate for row in b.column(0).to_pylist()] for gate in gates] == [
            [0, 2, 4, 6, 8],
            [1, 3, 5, 7, 9],
        ]


@pytest.mark.parametrize("place", [0.9, 1.0, None, 2**40])
def test_the_users_own_must_give_a_whole_number(place: object) -> None:
    """A float was cut off: the record went to another consumer."""
    with pytest.raises(
        RecordError, match=r"custom\(.*<lambda>\) gave .*must be a number from 0 to 1|subpartition 1099511627776 of 2"
    ):
        spread(fb.custom(lambda record, n: place), 2, records(1))


@pytest.mark.parametrize(
    ("places", "says"),
    [([0, 2**32], "row 1 4294967296 of 2"), ([0.9, 0.9], "float64"), ([0, None], "object"), ([0], r"\(1,\)")],
)
def test_the_users_own_must_give_whole_numbers_for_a_batch(places: list[object], says: str) -> None:
    """Numbers above 32 bits wrapped around, and floats were cut off: the rows went to other consumers."""
    batch = pa.record_batch({"x": [1, 2]})
    with fb.ShuffleEnvironment(segments=16) as env:
        writer, gates = env.exchange(
            fb.ColumnarSerializer(batch.schema), consumers=2, selector=fb.custom(lambda b, n: places)
        )
        with pytest.raises(RecordError, match=says):
            writer.emit_batch(batch)
        writer.close()
        assert [list(gate) for gate in gates] == [[], []]


def test_the_users_own_may_give_bools_and_nothing_for_no_rows() -> None:
    batch = pa.record_batch({"x": [1, 2]})
    with fb.ShuffleEnvironment(segments=16) as env:
        own = fb.custom(lambda b, n: [x > 1 for x in b["x"].to_pylist()])
        writer, gates = env.exchange(fb.ColumnarSerializer(batch.schema), consumers=2, selector=own)
        for part in (batch.slice(0, 0), batch):
            writer.emit_batch(part)
        writer.close()
        assert [[b["x"].to_pylist() for b in gate] for gate in gates] == [[[1]], [[2]]]


def test_an_impossible_forward_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 subpartitions"):
        spread(fb.forward(5), 2, [])


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="nope"):
        spread(fb.hash_by("nope"), 2, records(1))


@pytest.mark.parametrize("place", [-1, 7])
def test_a_key_position_that_is_not_there_is_refused(place: int) -> None:
    """Records took -1 for the last field, batches refused it; 7 was `tuple index out of range`."""
    with pytest.raises(SchemaError, match=f"key column {place} of a schema with"):
        spread(fb.hash_by(place), 2, records(1))


def test_objects_have_no_key_to_hash() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(fb.PickledSerializer(), consumers=2, selector=fb.hash_by("id"))
        with pytest.raises(SchemaError, match="custom"):
            writer.emit({"id": 1})
        writer.close()
        assert [list(gate) for gate in gates] == [[], []]


@pytest.mark.parametrize(
    "selector", [fb.hash_by("id"), fb.forward(0), fb.round_robin(), fb.broadcast(), fb.shuffle(3), fb.rescale(1, 2)]
)
def test_selectors_travel(selector: object) -> None:
    assert type(pickle.loads(pickle.dumps(selector))) is type(selector)
