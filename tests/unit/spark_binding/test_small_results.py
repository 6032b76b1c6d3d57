"""What functions give for groups, in batches for Spark."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from fastbuf_spark.worker.groups import Limits
from fastbuf_spark.worker.small_results import gathered


def test_small_tables_leave_together() -> None:
    limits = Limits(1 << 20, "", 100, 4000)
    tables = [pa.table({"n": [i] * 3}) for i in range(100)] + [pa.table({"n": pa.array([], pa.int64())})]
    made = list(gathered(tables, limits))
    assert sum(batch.num_rows for batch in made) == 300
    assert len(made) <= 6
    assert [n for batch in made for n in batch.column(0).to_pylist()] == [i for i in range(100) for _ in range(3)]
    assert list(gathered([], limits)) == []


def test_small_slices_do_not_keep_their_tables() -> None:
    """The first rows of many tables, all of one size."""
    limits, before = Limits(1 << 20, "", 10_000, 8 << 20), pa.total_allocated_bytes()
    most = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal most
        for i in range(50):
            yield pa.table({"n": pa.nulls(1 << 17, pa.int64()).fill_null(i)}).slice(0, 3)
            most = max(most, pa.total_allocated_bytes() - before)

    (made,) = gathered(tables(), limits)
    assert made.column(0).to_pylist() == [i for i in range(50) for _ in range(3)]
    assert most < 8 << 20


def test_a_function_may_write_on_to_the_memory_of_its_tables() -> None:
    limits, numbers = Limits(1 << 20, "", 100, 8 << 20), np.zeros(200, np.int64)

    def tables() -> Iterator[pa.Table]:
        for rows in (1, 3, 150, 2):
            numbers[:] = rows
            yield pa.table({"n": numbers[:rows]})

    made = [batch.column(0).to_pylist() for batch in gathered(tables(), limits)]
    assert made == [[1, 3, 3, 3], [150] * 100, [150] * 50 + [2, 2]]


def test_a_table_of_few_large_rows_leaves_alone() -> None:
    limits = Limits(1 << 20, "", 100, 4000)
    large = pa.table({"s": ["x" * 1000] * 20})
    small = pa.table({"s": ["y"]})
    assert [batch.num_rows for batch in gathered([small, large, small, small], limits)] == [1, 20, 2]


@pytest.mark.parametrize(
    "made",
    [
        pa.table({"l": pa.array([[None], []], pa.list_(pa.null())), "n": [1, 2]}),  # what no channel carries
        pa.table([pa.array([1, None], pa.int64())], schema=pa.schema([pa.field("n", pa.int64(), nullable=False)])),
    ],
    ids=["lists of nulls", "nulls where none are declared"],
)
def test_results_that_no_channel_takes_leave_together_too(made: pa.Table) -> None:
    limits = Limits(1 << 20, "", 7, 4000)
    found = list(gathered(iter([made] * 4), limits))
    assert [batch.num_rows for batch in found] == [7, 1]
    assert pa.Table.from_batches(found).equals(pa.concat_tables([made] * 4))
