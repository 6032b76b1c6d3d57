"""Which inputs are folded, and how a folded input is cut into the partitions it was made of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbuf_spark.folding import Fold, each_partition, fold

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("partitions", "slots", "found"),
    [(None, 2, None), (16, 2, None), (17, 2, Fold(17, 8)), (400, 1, Fold(400, 4)), (9, 0, Fold(9, 4))],
)
def test_fold(partitions: int | None, slots: int, found: Fold | None) -> None:
    assert fold(partitions, slots) == found


def batch(*pairs: tuple[int, int]) -> pa.RecordBatch:
    """Rows of (partition, value)."""
    values = pa.array([value for _, value in pairs], pa.int64())
    return pa.record_batch({"v": values, "mark": pa.array([p for p, _ in pairs], pa.int32())})


def test_the_function_is_called_once_for_each_partition() -> None:
    source = [batch((3, 1), (3, 2), (5, 3)), batch(), batch((5, 4), (0, 5)), batch((0, 6))]
    asked: list[list[int]] = []
    calls: list[list[int]] = []

    def before(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [v for b in batches for v in b["v"].to_pylist()]
        calls.append(rows)
        yield pa.record_batch({"n": [len(rows)]})

    def empty(seen: list[int]) -> list[int]:
        asked.append(seen)
        return [1, 2]

    counts = [b["n"][0].as_py() for b in each_partition(source, before, empty)]
    assert calls == [[1, 2], [3, 4], [5, 6], [], []]
    assert counts == [2, 2, 2, 0, 0]
    assert asked == [[3, 5, 0]]


def test_a_function_that_stops_early_does_not_get_the_rest_of_it_for_the_next() -> None:
    source = [batch((0, 1), (0, 2)), batch((0, 3), (1, 4))]

    def before(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)

    got = [b["v"].to_pylist() for b in each_partition(source, before, lambda seen: [])]
    assert got == [[1, 2], [4]]
