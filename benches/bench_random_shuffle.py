"""A random order of more rows than fit into memory, beside writing and reading the same bytes once.

Shape: FASTBUF_BENCH_BYTES (4 GiB; 8 MiB in a smoke run) of (long, binary of a kilobyte that nothing makes shorter) in
Parquet files of 256 MiB, shuffled into two partitions by tasks of FASTBUF_BENCH_MEMORY (256 MiB) each.  In one run, in
turn: ``random_shuffle``, its rows counted; the same files copied by the same workers and the copy counted; and as many
plain bytes written and read by two processes, which is the least that any order that does not fit into memory takes.
What is in the page cache is not on the disk: a machine with more memory than bytes measures no disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
BYTES = int(os.environ.get("FASTBUF_BENCH_BYTES", 8 << 20 if SMOKE else 4 << 30))
MEMORY = int(os.environ.get("FASTBUF_BENCH_MEMORY", 1 << 20 if SMOKE else 256 << 20))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "3"))
ROW = 1024
ROWS = BYTES // ROW
PARTS = 2
FILE_BYTES = BYTES // 4 if SMOKE else 256 << 20
PIECE = 1 << 20
COUNTS = "rows long, total long, falls long"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("random shuffle", memory="1g") as made:
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("random") / "in"
    path.mkdir()
    dice = np.random.default_rng(1)
    each = FILE_BYTES // ROW
    for first in range(0, ROWS, each):
        count = min(each, ROWS - first)
        data = pa.py_buffer(dice.bytes(count * (ROW - 8)))
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ROW - 8), count, [None, data])
        table = pa.table({"id": np.arange(first, first + count), "data": fixed.cast(pa.binary())})
        pq.write_table(table, path / f"{first:012}.parquet", compression="none", use_dictionary=False)
    yield path
    shutil.rmtree(path)


def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows, the sum of their numbers, and how many stand before a smaller one: half of them, in a random order."""
    rows = total = falls = 0
    last = -1
    for batch in batches:
        ids = batch["id"].to_numpy()
        rows += len(ids)
        total += int(ids.sum())
        falls += int((ids[1:] < ids[:-1]).sum()) + int(ids[0] < last)
        last = ids[-1]
    yield pa.record_batch({"rows": [rows], "total": [total], "falls": [falls]})


def check(table: pa.Table, is_random: bool) -> None:
    assert sum(table["rows"].to_pylist()) == ROWS
    assert sum(table["total"].to_pylist()) == ROWS * (ROWS - 1) // 2
    if is_random:
        assert abs(sum(table["falls"].to_pylist()) / ROWS - 0.5) < 0.02


def written_and_read(folder: str, count: int) -> int:
    """Plain bytes, in pieces; how many came back."""
    piece = os.urandom(PIECE)
    back = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(count // PIECE):
            file.write(piece)
        file.seek(0)
        into = bytearray(PIECE)
        while got := file.readinto(into):
            back += got
    return back


@pytest.mark.timeout(3600)
def test_random_shuffle(spark: Any, files: Path, tmp_path: Path, in_turn: Any, benchmark: Any) -> None:
    import fastbuf_spark as fbs

    conf = fbs.ShuffleConf(memory_bytes=MEMORY, spill_directory=str(tmp_path))
    read = fbs.pipeline(fbs.read_parquet(spark, files), conf=conf)

    def shuffled() -> None:
        check(read.random_shuffle(7, partitions=PARTS).map_in_arrow(counting, COUNTS).to_arrow(), True)

    def copied() -> None:
        out = tmp_path / "copy"
        read.write_parquet(out, compression="none")
        check(fbs.read_parquet(spark, out).map_in_arrow(counting, COUNTS).to_arrow(), False)
        shutil.rmtree(out)

    benchmark.group = f"random shuffle, {BYTES >> 20} MiB in tasks of {MEMORY >> 20} MiB"
    with ProcessPoolExecutor(PARTS, get_context("spawn")) as pool:

        def plain() -> None:
            back = pool.map(written_and_read, [str(tmp_path)] * PARTS, [BYTES // PARTS] * PARTS)
            assert sum(back) == BYTES

        in_turn(
            {"random_shuffle": shuffled, "copied and read": copied, "plain bytes": plain},
            rounds=ROUNDS,
            baselines=("copied and read", "plain bytes"),
            rows=ROWS,
            bytes=BYTES,
            memory_bytes=MEMORY,
        )
    assert list(tmp_path.iterdir()) == []
