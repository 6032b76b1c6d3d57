"""Columns of 8 bytes side by side, with strings behind them: laid by partition four rows at once, the rest singly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from columnar_cases import assemble, drain

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
