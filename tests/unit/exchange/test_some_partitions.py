"""Selectors for some of the partitions: the others' rows are dropped, and counted in the digest all the same."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError

pa = pytest.importorskip("pyarrow")
ROWS, PARTITIONS = 10_000, 7
SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string()), ("v", pa.float64())])


def batches(seed: int = 0, rows: int = ROWS) -> list[pa.RecordBatch]:
    dice = np.random.default_rng(seed)
    keys = dice.integers(-(1 << 40), 1 << 40, rows)
    batch = pa.record_batch([keys, [f"user-{k}" for k in keys], dice.random(rows)], schema=SCHEMA)
    return [batch.slice(0, 17), batch.slice(17, rows - 40), batch.slice(rows - 23)]


def through(selector: object, consumers: int, items: list[pa.RecordBatch]) -> tuple[list[list[int]], int | None]:
    """The keys that each consumer got, and the writer's digest."""
    serializer = fb.ColumnarSerializer(fb.Schema.from_arrow(SCHEMA))
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        writer, gates = env.exchange(serializer, consumers=consumers, selector=selector)
        found: list[list[int]] = [[] for _ in gates]

        def read(gate: object, into: list[int]) -> None:
            for batch in gate:  # type: ignore[attr-defined]
                into.extend(batch["k"].to_pylist())

        readers = [threading.Thread(target=read, args=pair) for pair in zip(gates, found, strict=True)]
        for reader in readers:
            reader.start()
        for batch in items:
            writer.emit_batch(batch)
        digest = writer.digest()
        writer.close()
        for reader in readers:
            reader.join()
        return found, digest


@pytest.mark.parametrize("selector", [fb.hash_by("k", partitions=5), fb.round_robin(partitions=5)])
def test_partitions_without_only_are_the_consumers(selector: object) -> None:
    """Another number was passed over in silence."""
    with pytest.raises(ConfigError, match="partitions=5 without only=, for 2 consumers: each consumer is a partition"):
        through(selector, 2, [])
    assert sum(map(len, through(selector, 5, batches())[0])) == ROWS


@pytest.mark.parametrize("only", [[0], [6], [1, 4], [0, 1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("keys", [("k",), ("name", "k")])
def test_hashed_rows_of_some_partitions(only: list[int], keys: tuple[str, ...]) -> None:
    items = batches()
    want: list[list[int]] = [[] for _ in only]
    for batch in items:
        for key, to in zip(batch["k"].to_pylist(), fb.hash_partition(batch, keys, PARTITIONS), strict=True):
            if to in only:
                want[only.index(to)].append(key)
    got, _ = through(fb.hash_by(*keys, partitions=PARTITIONS, only=only), len(only), items)
    assert got == want


@pytest.mark.parametrize("only", [[2], [0, 1, 2]])
def test_rows_in_turn_of_some_partitions(only: list[int]) -> None:
    items = batches()
    whole, _ = through(fb.round_robin(start=5), 3, items)
    part, digest = through(fb.round_robin(3, only, start=5), len(only), items)
    assert part == [whole[p] for p in only]
    assert digest is None


def test_the_digest_is_of_the_keys_whatever_is_dropped_and_in_whatever_order() -> None:
    items = batches()
    turned = [b.take(np.random.default_rng(1).permutation(b.num_rows)) for b in reversed(items)]
    digests = {
        through(fb.hash_by("k", partitions=PARTITIONS, only=only), len(only), given)[1]
        for only in ([3], [0, 6])
        for given in (items, turned)
    } | {through(fb.hash_by("k"), PARTITIONS, items)[1]}
    assert len(digests) == 1
    assert digests != {0}


def test_the_digest_sees_one_key_that_is_another() -> None:
    items = batches()
    digest = through(fb.hash_by("k"), 2, items)[1]
    for row in (0, 16):
        keys = items[0]["k"].to_pylist()
        keys[row] += 1
        other = items[0].set_column(0, SCHEMA.field(0), pa.array(keys, pa.int64()))
        assert through(fb.hash_by("k"), 2, [other, *items[1:]])[1] != digest
    assert through(fb.hash_by("k"), 2, [items[0], *items])[1] != digest, "a batch twice"
    # Two that change by as much in opposite directions are two changes
    swapped = items[0]["k"].to_pylist()
    swapped[0], swapped[1] = swapped[0] + 1, swapped[1] - 1
    other = items[0].set_column(0, SCHEMA.field(0), pa.array(swapped, pa.int64()))
    assert through(fb.hash_by("k"), 2, [other, *items[1:]])[1] != digest


@pytest.mark.parametrize(
    ("partitions", "only", "consumers"),
    [(7, [1], 2), (7, [3, 1], 2), (7, [1, 1], 2), (7, [7], 1), (7, [-1], 1), (None, [1], 1)],
)
def test_what_cannot_be_is_refused(partitions: int | None, only: list[int], consumers: int) -> None:
    for selector in (fb.hash_by("k", partitions=partitions, only=only), fb.round_robin(partitions, only)):
        with pytest.raises(ConfigError, match="only="):
            through(selector, consumers, [])


def test_single_records_are_refused() -> None:
    schema = fb.Schema.of(k="int64")
    for selector in (fb.hash_by("k", partitions=3, only=[1]), fb.round_robin(3, [1])):
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            writer, (gate,) = env.exchange(fb.RowSerializer(schema), consumers=1, selector=selector)
            with pytest.raises(TypeError, match="batches only"):
                writer.emit((1,))
            writer.close()
            assert list(gate) == []


def test_they_travel() -> None:
    items = batches()
    for selector in (fb.hash_by("k", partitions=PARTITIONS, only=[2]), fb.round_robin(PARTITIONS, [2], start=3)):
        assert through(pickle.loads(pickle.dumps(selector)), 1, items) == through(selector, 1, items)
