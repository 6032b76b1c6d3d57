"""Small batches that are copied together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from columnar_cases import TYPES, batch, column

from fastbuf.errors import SchemaMismatch
from fastbuf.serializers.coalesce import BatchCoalescer


@pytest.mark.parametrize("name", TYPES)
def test_batches_of_every_type_and_length(name: str) -> None:
    parts = [
        column(TYPES[name], rows, nulls)
        for rows, nulls in ((1, 0.0), (3, 0.0), (7, 0.5), (8, 0.0), (64, 0.3), (5, 1.0), (9, 0.0))
    ]
    coalescer = BatchCoalescer(pa.schema({"c": TYPES[name]}), 1 << 20)
    for part in parts:
        assert coalescer.add(pa.record_batch({"c": part}))
    assert coalescer.rows == 97
    made = coalescer.batch()
    made.validate(full=True)
    assert made.column(0).equals(pa.concat_arrays(parts))
    assert (coalescer.rows, coalescer.nbytes) == (0, 0)
    assert coalescer.batch().num_rows == 0


def test_slices_are_copied_alone() -> None:
    whole = batch(300)
    coalescer = BatchCoalescer(whole.schema, 1 << 20)
    places = [(0, 1), (7, 13), (290, 10), (64, 64), (5, 0)]
    for start, rows in places:
        assert coalescer.add(whole.slice(start, rows))
    assert coalescer.nbytes < whole.nbytes
    wanted = pa.Table.from_batches([whole.slice(start, rows) for start, rows in places])
    assert pa.Table.from_batches([coalescer.batch()]).equals(wanted.combine_chunks())


def test_of_a_batch_that_is_too_long_nothing_is_copied() -> None:
    coalescer = BatchCoalescer(pa.schema({"s": pa.string()}), 100)
    assert coalescer.add(pa.record_batch({"s": ["a"]}))
    assert not coalescer.add(pa.record_batch({"s": ["x" * 40] * 3}))
    assert not coalescer.add(pa.record_batch({"s": ["x" * 200]}))
    assert coalescer.add(pa.record_batch({"s": ["b", None]}))
    assert coalescer.batch().to_pydict() == {"s": ["a", "b", None]}


def test_what_is_copied_stays_as_it_was() -> None:
    numbers = np.zeros(5, np.int64)
    coalescer = BatchCoalescer(pa.schema({"n": pa.int64()}), 1000)
    for i in range(3):
        numbers[:] = i
        coalescer.add(pa.record_batch({"n": numbers[: i + 1]}))
    first = coalescer.batch()
    coalescer.add(pa.record_batch({"n": [9, 9]}))
    assert first.to_pydict() == {"n": [0, 1, 1, 2, 2, 2]}
    assert coalescer.batch().to_pydict() == {"n": [9, 9]}


def test_another_schema_is_refused_and_nothing_is_lost() -> None:
    coalescer = BatchCoalescer(pa.schema([pa.field("n", pa.int64(), nullable=False)]), 1000)
    coalescer.add(pa.record_batch({"n": [1]}))
    for wrong, said in (
        (pa.record_batch({"m": [1]}), "'m' in the batch"),
        (pa.record_batch({"n": ["1"]}), "column 'n'"),
        (pa.record_batch({"n": [1], "m": [1]}), "the batch has 2"),
        (pa.record_batch({"n": pa.array([None], pa.int64())}), "nulls and the schema allows none"),
    ):
        with pytest.raises(SchemaMismatch, match=said):
            coalescer.add(wrong)
    with pytest.raises(TypeError):
        coalescer.add(1)
    coalescer.add(pa.record_batch({"n": [2]}))
    assert coalescer.batch().to_pydict() == {"n": [1, 2]}
