"""Which keys come most often, by looking at one row in 1,024."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.float64())])
ROWS = fb.RowSerializer(fb.Schema.of(k="int64", x="float64"))


def keys(n: int, hot: float) -> list[int]:
    chance = random.Random(5)
    return [7 if chance.random() < hot else chance.randrange(1000, 100_000) for _ in range(n)]


def through(writer: fb.RecordWriter, written: bool, gates: list[fb.InputGate]) -> None:
    while not written:
        for gate in gates:
            gate.poll(0.0)
        written = writer.resume()


def identity(key: int) -> int:
    return int(fb.hash_partition(pa.record_batch({"k": [key]}), "k", 1 << 30)[0])


@pytest.mark.parametrize("rows", [700, 5000])
def test_a_key_that_most_rows_have_is_found_in_batches(rows: int) -> None:
    with fb.ShuffleEnvironment(segments=256) as env:
        writer, gates = env.exchange(serializer=fb.ColumnarSerializer(SCHEMA), consumers=3, selector=fb.hash_by("k"))
        assert writer.hot_keys() == {}
        writer.watch_keys()
        for _ in range(200_000 // rows):
            made = keys(rows, 0.6)
            random.shuffle(made)
            batch = pa.record_batch({"k": made, "x": [0.0] * rows}, schema=SCHEMA)
            through(writer, writer.try_emit_batch(batch), gates)
        found = writer.hot_keys()
        share, part = next(iter(found.values()))
        assert next(iter(found)) == identity(7)
        assert 0.45 < share < 0.75
        expected = fb.hash_partition(pa.record_batch({"k": [7]}), "k", 3)[0]
        assert part == expected
        assert all(other < 0.05 for other, _ in list(found.values())[1:])
        writer.abort()


@pytest.mark.parametrize("rows", [700, 5000])
def test_and_its_share_where_equal_keys_stand_together(rows: int) -> None:
    """Sorted batches, and those whose hot key comes first: their first rows tell nothing of the others."""
    with fb.ShuffleEnvironment(segments=256) as env:
        writer, gates = env.exchange(serializer=fb.ColumnarSerializer(SCHEMA), consumers=3, selector=fb.hash_by("k"))
        writer.watch_keys(True)
        for number in range(400_000 // rows):
            hot = [7] * (rows // 5) if number % 2 else [8] * (rows * 2 // 5)
            made = hot + [1000 + i for i in range(rows - len(hot))]
            batch = pa.record_batch({"k": made, "x": [0.0] * rows}, schema=SCHEMA)
            through(writer, writer.try_emit_batch(batch), gates)
        found = writer.hot_keys()
        assert 0.04 < found.get(identity(7), (0.0, 0))[0] < 0.18
        assert 0.12 < found[identity(8)][0] < 0.30
        assert writer.key_values()[identity(8)] == "8"
        writer.abort()


def test_and_in_single_records() -> None:
    with fb.ShuffleEnvironment(segments=256) as env:
        writer, gates = env.exchange(serializer=ROWS, consumers=2, selector=fb.hash_by("k"))
        writer.watch_keys()
        for key in keys(100_000, 0.6):
            through(writer, writer.try_emit((key, 0.0)), gates)
        found = writer.hot_keys()
        assert next(iter(found)) == identity(7)
        assert 0.4 < found[identity(7)][0] < 0.8
        writer.abort()


def test_keys_that_come_alike_often_are_not_hot() -> None:
    with fb.ShuffleEnvironment(segments=256) as env:
        some = fb.hash_by("k", partitions=4, only=[2])
        writer, (gate,) = env.exchange(serializer=fb.ColumnarSerializer(SCHEMA), selector=some)
        writer.watch_keys()
        for k in range(200):
            batch = pa.record_batch({"k": range(k * 2000, k * 2000 + 2000), "x": [0.0] * 2000}, schema=SCHEMA)
            through(writer, writer.try_emit_batch(batch), [gate])
        assert all(share < 0.02 for share, _ in writer.hot_keys().values())
        writer.abort()


def test_who_hashes_no_keys_has_none() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, _ = env.exchange(serializer=ROWS, consumers=2)
        writer.watch_keys()
        writer.emit((1, 0.0))
        assert writer.hot_keys() == {}
        writer.abort()


def named(writer: fb.RecordWriter) -> str:
    """What the hottest key is."""
    return writer.key_values()[next(iter(writer.hot_keys()))]


TWO = pa.schema([("x", pa.float64()), ("city", pa.string()), ("n", pa.int64())])


def cities(rows: int, hot: str) -> pa.RecordBatch:
    """Nine rows of ten are of one city."""
    names = [hot if k % 10 else f"city {k}" for k in range(rows)]
    random.Random(rows).shuffle(names)
    return pa.record_batch({"x": [0.0] * rows, "city": names, "n": [3] * rows}, schema=TWO)


@pytest.mark.parametrize(
    ("keys", "expected"), [(("city",), "'LAX'"), ((1,), "'LAX'"), (("city", "n"), "('LAX', 3)")], ids=str
)
def test_what_a_hot_key_is_is_told_only_where_it_was_asked_for(keys: tuple[str | int, ...], expected: str) -> None:
    with fb.ShuffleEnvironment(segments=256) as env:
        for selector in (fb.hash_by(*keys), fb.hash_by(*keys, partitions=8, only=list(range(8)))):
            for values in (False, True):
                writer, gates = env.exchange(serializer=fb.ColumnarSerializer(TWO), consumers=8, selector=selector)
                writer.watch_keys(values)
                for rows in (20_000, 700, 20_000):
                    batch = cities(rows + 5, "LAX").slice(5)
                    through(writer, writer.try_emit_batch(batch), gates)
                assert writer.hot_keys()
                if values:
                    assert named(writer) == expected
                    assert set(writer.hot_keys()) <= set(writer.key_values())
                else:
                    assert writer.key_values() == {}
                writer.abort()


def test_of_records_and_of_arrays_too() -> None:
    with fb.ShuffleEnvironment(segments=256) as env:
        writer, gates = env.exchange(serializer=ROWS, consumers=2, selector=fb.hash_by("k"))
        writer.watch_keys(values=True)
        for key in keys(50_000, 0.6):
            through(writer, writer.try_emit({"k": key, "x": 0.0}), gates)
        assert named(writer) == "7"
        writer.abort()
        array = np.zeros(5000, np.dtype([("x", "f8"), ("k", "i8")]))
        array["k"] = [7 if k % 3 else k for k in range(5000)]
        schema = fb.Schema.from_numpy(array.dtype)
        writer, gates = env.exchange(serializer=fb.ColumnarSerializer(schema), consumers=2, selector=fb.hash_by("k"))
        writer.watch_keys(values=True)
        for _ in range(20):
            through(writer, writer.try_emit_batch(array), gates)
        assert named(writer) == "7"
        writer.abort()


def test_the_texts_of_keys_that_are_not_hot_do_not_pile_up() -> None:
    with fb.ShuffleEnvironment(segments=256) as env:
        serializer = fb.ColumnarSerializer(SCHEMA)
        writer, gates = env.exchange(serializer=serializer, consumers=2, selector=fb.hash_by("k"))
        writer.watch_keys(values=True)
        for k in range(400):
            made = [5 if k % 2 else 10_000 * k + i for i in range(4096)]
            through(writer, writer.try_emit_batch(pa.record_batch({"k": made, "x": [0.0] * 4096})), gates)
        assert len(writer.key_values()) <= 256
        assert named(writer) == "5"
        writer.abort()
