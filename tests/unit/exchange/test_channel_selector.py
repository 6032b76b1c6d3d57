"""Selectors: where records go, and that records and batches agree."""

from __future__ import annotations

import datetime
import pickle

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


def test_an_impossible_forward_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 subpartitions"):
        spread(fb.forward(5), 2, [])


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="nope"):
        spread(fb.hash_by("nope"), 2, records(1))


def test_objects_have_no_key_to_hash() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(fb.PickledSerializer(), consumers=2, selector=fb.hash_by("id"))
        with pytest.raises(SchemaError, match="custom"):
            writer.emit({"id": 1})
        writer.close()
        assert [list(gate) for gate in gates] == [[], []]


@pytest.mark.parametrize("selector", [fb.hash_by("id"), fb.forward(0), fb.round_robin(), fb.broadcast(), fb.shuffle(3)])
def test_selectors_travel(selector: object) -> None:
    assert type(pickle.loads(pickle.dumps(selector))) is type(selector)
