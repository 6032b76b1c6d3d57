"""Columns of 8 bytes side by side, with strings behind them: laid by partition four rows at once, the rest singly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from columnar_cases import assemble, drain

from fastbuf.serializers import partition as partition_module
from fastbuf.serializers import scatter as scatter_module
from fastbuf.serializers.partition import HashPartitioner, hash_partition
from fastbuf.serializers.scatter import BatchScatter

PARTITIONS = 5  # from here on batches are laid by partition


def band(numbers: int, longest: int | None, rows: int) -> pa.RecordBatch:
    """`numbers` columns of 8 bytes, then strings of up to `longest` bytes, no value twice; None: no strings."""
    r = np.random.default_rng(rows)
    made: dict[str, object] = {f"n{k}": np.arange(rows) * 1000 + k for k in range(numbers)}
    if longest is not None:
        lengths = r.integers(0, longest + 1, rows)
        lengths[: rows // 9] = longest
        made["s"] = pa.array([f"{n:x}".ljust(longest, "abcdefghijk"[n % 11])[:k] for n, k in enumerate(lengths)])
    return pa.record_batch(made)


def check(data: pa.RecordBatch, pids: np.ndarray, rooms: Iterable[int] = (96, 333, 1 << 16)) -> None:
    scatter = BatchScatter(data.schema, PARTITIONS)
    for room in rooms:
        scatter.start(data, pids)
        for part in range(PARTITIONS):
            found = assemble(data.schema, drain(scatter, part, room))
            assert found.equals(data.take(pa.array(np.flatnonzero(pids == part))))


@pytest.mark.parametrize("longest", [None, 15, 31])
@pytest.mark.parametrize("numbers", range(1, 10))
def test_every_band(numbers: int, longest: int | None) -> None:
    """Of one to four columns (more make several bands), without strings and with slots of 16 and 32 bytes for them."""
    whole = band(numbers, longest, 400)
    pids = np.random.default_rng(numbers).integers(0, PARTITIONS, 400).astype(np.int32)
    for start, rows in ((0, 400), (1, 399), (7, 202), (13, 61), (250, 150)):
        check(whole.slice(start, rows), pids[start : start + rows])


@pytest.mark.parametrize("rows", range(1, 24))
def test_few_rows(rows: int) -> None:
    """Fours and what is left of them, where nearly every string's slot would run over the end of the bytes."""
    for longest in (None, 3, 15, 31):
        data = band(3, longest, rows)
        check(data, (np.arange(rows) * 3 % PARTITIONS).astype(np.int32))
        check(data, (np.arange(rows) * 2 // (rows + 1)).astype(np.int32))


def test_chunks_of_every_number_of_rows() -> None:
    """`drain` sees to it that nothing is written behind the room."""
    data = band(3, 15, 60)
    check(data, (np.arange(60) % PARTITIONS).astype(np.int32), rooms=range(88, 700, 8))


PLAIN, AVX2, BEST = range(3)


@pytest.fixture
def way() -> Iterator[Callable[[int], None]]:
    """Sets the best way that kernels take; on a processor without AVX2, or AVX-512, some of them are the same."""

    def switch(best: int) -> None:
        scatter_module._best_way(best)
        partition_module._best_way(best)

    yield switch
    switch(BEST)


def elements(data: pa.RecordBatch, parts: int, pids: np.ndarray | None) -> list[bytes]:
    """All elements in segments of 700 bytes, of partitions that are given, or else hashed."""
    scatter, keys = BatchScatter(data.schema, parts), HashPartitioner("n0", parts)
    if pids is None:
        scatter.start_hashed(data, keys)
    else:
        scatter.start(data, pids)
    segments, filled = np.zeros((parts, 700), np.uint8), np.zeros(parts, np.int64)
    found, left = [], 1
    while left:
        filled[:] = 0
        left = scatter.encode_all(segments, filled)
        found += [segments[p, : filled[p]].tobytes() for p in range(parts)]
    return found


@pytest.mark.parametrize("longest", [None, 15, 31, 40])
@pytest.mark.parametrize("numbers", range(1, 6))
def test_all_ways_write_the_same(way: Callable[[int], None], numbers: int, longest: int | None) -> None:
    """The plain kernels and the others: identical segments, of ids that are given and of keys that are hashed."""
    whole = band(numbers, longest, 400)
    for parts in (3, 5, 64, 200):
        given = np.random.default_rng(parts).integers(0, parts, 400).astype(np.int32)
        for start, rows in ((0, 400), (3, 397), (250, 150), (391, 9)):
            data = whole.slice(start, rows)
            for pids in (None, given[start : start + rows]):
                way(PLAIN)
                wanted = elements(data, parts, pids)
                for other in (AVX2, BEST):
                    way(other)
                    assert elements(data, parts, pids) == wanted


def test_all_ways_hash_alike(way: Callable[[int], None]) -> None:
    """Of every width, with and without nulls, and of numbers of partitions that are a power of 2, and none."""
    r = np.random.default_rng(7)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()):
        numbers = r.integers(-128, 128, 1000)
        values = pa.array(numbers).cast(kind)
        for key in (values, pa.array(values.to_pylist(), kind, mask=numbers % 3 == 0)):
            data = pa.record_batch({"k": key})
            for parts in (2, 7, 64, 200, 1 << 30):
                way(PLAIN)
                wanted = hash_partition(data, "k", parts)
                for other in (AVX2, BEST):
                    way(other)
                    assert np.array_equal(hash_partition(data, "k", parts), wanted)


@pytest.mark.parametrize("parts", [5, 200])
def test_rows_of_one_band_are_found_again(parts: int) -> None:
    """Where no row's place was written down, the length of a single row, and of the rest, is that of the row itself."""
    data = band(3, 15, 600)
    scatter, keys = BatchScatter(data.schema, parts), HashPartitioner("n0", parts)
    pids, lengths = keys.partition(data), [len(text) for text in data["s"].to_pylist()]
    scatter.start_hashed(data, keys)
    buffer = np.zeros(1 << 16, np.uint8)
    for part in range(parts):
        rows = np.flatnonzero(pids == part)
        while scatter.left(part):
            row = rows[len(rows) - scatter.left(part)]
            size = scatter.next_bytes(part)
            assert size >= 8 + 8 + 3 * 8 + 8 + lengths[row]
            before = scatter.left(part)
            assert 0 < scatter.encode_into(part, buffer[:size]) <= size
            assert scatter.left(part) == before - 1
