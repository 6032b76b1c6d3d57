"""Hash-partitioning Arrow batches, one thread, ns per row.

Shapes.  Rows A: (int64 key, int64, float64, string "user-N"), about 35 bytes, batches of 10,000.  Rows L: (int64 key,
list<float32> of 256, fixed_size_list<float32> of 256), 2,056 bytes, batches of 1,000.  20 batches a round (4 in a
smoke run), P = 2, 16, 200, 1,000.  Ours goes all the way into 32 KiB segments, Murmur3 as Spark's; a full segment
is used again.  Beside it: pyarrow (the same Murmur3 from us, then ``take``), NumPy masks, polars where installed, two
loops in C++ for rows A alone (``peers/partition.cpp``: columns gathered, and rows appended; left out where there is no
C++ compiler), and a memcpy of the batches' bytes that partitions nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from native_peers import compiled

from fastbuf.memory import Arena
from fastbuf.serializers.assemble import BatchAssembler
from fastbuf.serializers.partition import HashPartitioner
from fastbuf.serializers.scatter import BatchScatter

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
BATCHES = 4 if SMOKE else 20
ROUNDS = 21
SEGMENT = 32 * 1024
PARTS = (2, 16, 200, 1000)


def rows_a(batches: int = BATCHES, rows: int = 10_000) -> list[pa.RecordBatch]:
    """Batches of rows A with keys from 0 to 1,000,003."""
    r = np.random.default_rng(1)
    made = []
    for b in range(batches):
        k = r.integers(0, 1_000_003, rows)
        n = np.arange(b * rows, (b + 1) * rows)
        made.append(pa.record_batch({"k": k, "v": n, "d": n * 0.5, "s": pa.array([f"user-{i}" for i in k])}))
    return made


def rows_l(batches: int = BATCHES, rows: int = 1_000, length: int = 256) -> list[pa.RecordBatch]:
    """Batches of rows L."""
    r = np.random.default_rng(1)
    made = []
    for _ in range(batches):
        floats = pa.array(r.random(rows * length, np.float32))
        lists = pa.ListArray.from_arrays(np.arange(0, rows * length + 1, length, dtype=np.int32), floats)
        fixed = pa.FixedSizeListArray.from_arrays(floats, length)
        made.append(pa.record_batch({"k": r.integers(0, 1_000_003, rows), "l": lists, "f": fixed}))
    return made


def ours(batches: list[pa.RecordBatch], parts: int) -> Callable[[], None]:
    """Each batch hashed, grouped, and written into its partitions' segments."""
    scatter, keys = BatchScatter(batches[0].schema, parts), HashPartitioner("k", parts)
    segments, filled = Arena(parts, SEGMENT).array, np.zeros(parts, np.int64)

    def run() -> None:
        for batch in batches:
            scatter.start_hashed(batch, keys)
            while scatter.encode_all(segments, filled):
                filled[:] = 0
            filled[filled > SEGMENT - 4096] = 0

    return run


def bytes_per_row(batch: pa.RecordBatch, parts: int) -> dict[str, float]:
    """What a row takes in its partition's chunks, beside Arrow's own buffers."""
    scatter, keys = BatchScatter(batch.schema, parts), HashPartitioner("k", parts)
    segments, filled, written, left = np.zeros((parts, SEGMENT), np.uint8), np.zeros(parts, np.int64), 0, 1
    scatter.start_hashed(batch, keys)
    while left:
        filled[:] = 0
        left = scatter.encode_all(segments, filled)
        written += int(filled.sum())
    return {
        "fastbuf": round(written / batch.num_rows, 2),
        "Arrow in memory": round(batch.nbytes / batch.num_rows, 2),
    }


def with_pyarrow(batches: list[pa.RecordBatch], parts: int) -> Callable[[], None]:
    keys = HashPartitioner("k", parts)

    def run() -> None:
        for batch in batches:
            pids = keys.partition(batch)
            taken = batch.take(pa.array(np.argsort(pids, kind="stable")))
            ends = np.cumsum(np.bincount(pids, minlength=parts))
            start = 0
            for end in ends.tolist():
                taken.slice(start, end - start)
                start = end

    return run


def with_masks(batches: list[pa.RecordBatch], parts: int) -> Callable[[], None]:
    """NumPy boolean masks, the numeric columns only."""
    keys = HashPartitioner("k", parts)

    def run() -> None:
        for batch in batches:
            pids = keys.partition(batch)
            columns = [batch[name].to_numpy() for name in "kvd"]
            for part in range(parts):
                mask = pids == part
                for column in columns:
                    column[mask]

    return run


def with_polars(batches: list[pa.RecordBatch], parts: int) -> Callable[[], None]:
    import polars

    frames = [polars.from_arrow(batch) for batch in batches]
    keys = HashPartitioner("k", parts)

    def run() -> None:
        for batch, frame in zip(batches, frames, strict=True):
            frame.with_columns(polars.Series("p", keys.partition(batch))).partition_by("p", include_key=False)

    return run


def by_hand(batches: list[pa.RecordBatch], parts: int) -> dict[str, Callable[[], None]]:
    """What C++ for these rows alone does; nothing where there is no compiler."""
    library = compiled("partition")
    if library is None:
        return {}
    rows, text = batches[0].num_rows, max(batch["s"].buffers()[2].size for batch in batches)
    kinds = (np.int64, np.int64, np.float64, np.int32, np.uint8, np.uint8, np.uint32)
    sizes = (rows, rows, rows, rows + 1, text + 16, parts * SEGMENT, parts)
    out = [np.zeros(size, kind) for size, kind in zip(sizes, kinds, strict=True)]

    def targets() -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * len(out))(*(array.ctypes.data for array in out))

    def pointers(batch: pa.RecordBatch) -> ctypes.Array[ctypes.c_void_p]:
        columns = [batch[name].buffers()[1].address for name in "kvds"]
        return (ctypes.c_void_p * 6)(*columns, batch["s"].buffers()[2].address, batch.num_rows)

    given = [(batch, pointers(batch)) for batch in batches]

    def all_of(call: Callable[..., int]) -> Callable[[], None]:
        def run() -> None:
            to = targets()  # asked for each time, and a batch beside its own: what the addresses are of must live
            for _, batch in given:
                call(batch, parts, to)

        return run

    first = library.gather(given[0][1], parts, targets())
    assert first == library.append(given[0][1], parts, targets())
    order = np.argsort(out[1][:first])  # partition 0 has its rows whole, and each row is there once
    assert (np.sort(out[0]) == np.sort(batches[0]["k"])).all()
    assert (out[0][:first][order] == batches[0]["k"].to_numpy()[out[1][:first][order]]).all()
    return {"C++ for these columns alone, by hand": all_of(library.gather), "C++, rows": all_of(library.append)}


def memcpy(batches: list[pa.RecordBatch]) -> Callable[[], None]:
    """All buffers of all batches copied into one place that stays warm."""
    sources = [
        [np.frombuffer(b, np.uint8) for c in batch.columns for b in c.buffers() if b is not None] for batch in batches
    ]
    target = np.zeros(max(sum(map(len, batch)) for batch in sources), np.uint8)

    def run() -> None:
        for batch in sources:
            at = 0
            for source in batch:
                target[at : at + len(source)] = source
                at += len(source)

    return run


@pytest.mark.parametrize("parts", PARTS)
def test_partition_rows_a(in_turn: Callable[..., dict[str, float]], parts: int) -> None:
    batches = rows_a()
    ways = {
        "fastbuf": ours(batches, parts),
        "pyarrow": with_pyarrow(batches, parts),
        "numpy masks": with_masks(batches, parts),
        "memcpy": memcpy(batches),
        **by_hand(batches, parts),
    }
    if importlib.util.find_spec("polars"):
        ways["polars"] = with_polars(batches, parts)
    rows = sum(batch.num_rows for batch in batches)
    size = bytes_per_row(batches[0], parts)
    medians = in_turn(ways, rounds=ROUNDS, baselines=("fastbuf", "memcpy"), rows=rows, parts=parts, bytes_per_row=size)
    report(medians, rows)
    assert SMOKE or medians["fastbuf"] < medians["pyarrow"]


@pytest.mark.parametrize("parts", PARTS)
def test_partition_rows_l(in_turn: Callable[..., dict[str, float]], parts: int) -> None:
    batches = rows_l()
    bytes_ = sum(batch.nbytes for batch in batches)
    source, target = np.ones(bytes_, np.uint8), np.zeros(bytes_, np.uint8)
    ways = {
        "fastbuf": ours(batches, parts),
        "pyarrow": with_pyarrow(batches, parts),
        "cold memcpy": lambda: np.copyto(target, source),
    }
    medians = in_turn(ways, rounds=ROUNDS, baselines=("fastbuf", "cold memcpy"), bytes=bytes_, parts=parts)
    report(medians, sum(batch.num_rows for batch in batches))


@pytest.mark.parametrize("parts", PARTS)
def test_assemble_rows_a(in_turn: Callable[..., dict[str, float]], parts: int) -> None:
    """The chunks of a batch cut up for P partitions, put together again; pyarrow: concatenation of as many batches.

    Each way reads data of its own: none finds it in the cache because another has just read it.  Ours has looked at
    every offset of bytes from anywhere, and puts together as many chunks as segments were filled; pyarrow believes P
    slices of one batch.  The way named "validated" looks as well: at UTF-8 besides, and pyarrow has nothing that looks
    at offsets alone.
    """
    batches, for_pyarrow, for_memcpy, for_validated = rows_a(), rows_a(), rows_a(), rows_a()
    scatter, keys = BatchScatter(batches[0].schema, parts), HashPartitioner("k", parts)
    segments, filled = np.zeros((parts, SEGMENT), np.uint8), np.zeros(parts, np.int64)
    elements = []
    for batch in batches:
        scatter.start_hashed(batch, keys)
        pieces, left = [], 1
        while left:
            filled[:] = 0
            left = scatter.encode_all(segments, filled)
            pieces += [segments[p, : filled[p]].tobytes() for p in range(parts)]
        elements.append(b"".join(pieces))
    assembler = BatchAssembler(batches[0].schema)
    cut = -(-batches[0].num_rows // parts)

    def cut_up(given: list[pa.RecordBatch]) -> list[pa.Table]:
        return [pa.Table.from_batches([b.slice(at, cut) for at in range(0, b.num_rows, cut)]) for b in given]

    tables, others = cut_up(for_pyarrow), cut_up(for_validated)

    def assemble() -> None:
        for data in elements:
            assembler.add_elements(data)
            assembler.batch()

    def concatenate() -> None:
        for table in tables:
            table.combine_chunks()

    def validate() -> None:
        for table in others:
            table.combine_chunks().validate(full=True)

    for batch, data in zip(batches, elements, strict=True):
        assembler.add_elements(data)
        by_key = [("k", "ascending"), ("v", "ascending")]
        assert assembler.batch().sort_by(by_key).equals(batch.sort_by(by_key))
    ways = {
        "fastbuf": assemble,
        "pyarrow concatenation": concatenate,
        "pyarrow concatenation, validated": validate,
        "memcpy": memcpy(for_memcpy),
    }
    rows = sum(batch.num_rows for batch in batches)
    medians = in_turn(ways, rounds=ROUNDS, baselines=("fastbuf", "memcpy"), rows=rows, parts=parts)
    report(medians, rows)


def report(medians: dict[str, float], rows: int) -> None:
    """A line for who runs it by hand (``-s``)."""
    print("  " + ", ".join(f"{way} {1e9 * seconds / rows:.1f} ns/row" for way, seconds in medians.items()))
