"""Rows of several batches put into order: as by Arrow's concatenation and take, with nulls and slices."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.errors import ResourceError
from fastbuf.serializers.reorder import counted_places, places_of, put_fixed, put_lengths, put_texts
from fastbuf_spark.worker.order import codes_by, placing, sorting
from fastbuf_spark.worker.placing import permute
from fastbuf_spark.worker.runs import in_order, together

#: a type, and what makes a value of it
KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "int8": (pa.int8(), lambda r: r.randrange(-128, 128)),
    "int16": (pa.int16(), lambda r: r.randrange(-(1 << 15), 1 << 15)),
    "int32": (pa.int32(), lambda r: r.randrange(-9, 9)),
    "int64": (pa.int64(), lambda r: r.getrandbits(62)),
    "half": (pa.float16(), lambda r: np.float16(r.random())),
    "float": (pa.float32(), lambda r: float(np.float32(r.random()))),
    "double": (pa.float64(), lambda r: r.random()),
    "boolean": (pa.bool_(), lambda r: r.random() < 0.5),
    "decimal": (pa.decimal128(20, 2), lambda r: decimal.Decimal(r.randrange(-999, 999)) / 100),
    "wide decimal": (pa.decimal256(50, 0), lambda r: decimal.Decimal(r.randrange(999))),
    "date": (pa.date32(), lambda r: datetime.date(2020, 1, r.randrange(1, 28))),
    "timestamp": (pa.timestamp("us", "UTC"), lambda r: datetime.datetime(2020, 1, r.randrange(1, 28), 0, 0, 0, 7)),
    "duration": (pa.duration("us"), lambda r: datetime.timedelta(r.randrange(9))),
    "string": (pa.string(), lambda r: "é" * r.randrange(20)),
    "binary": (pa.binary(), lambda r: bytes(range(r.randrange(40)))),
    "large string": (pa.large_string(), lambda r: "x" * r.randrange(20)),
    "fixed binary": (pa.binary(3), lambda r: r.randbytes(3)),
    "array": (pa.list_(pa.int64()), lambda r: [r.randrange(9)] * r.randrange(4)),
    "struct": (pa.struct([("x", pa.int64())]), lambda r: {"x": r.randrange(9)}),
    "map": (pa.map_(pa.string(), pa.int32()), lambda r: [("k", r.randrange(9))]),
    "null": (pa.null(), lambda r: None),
}
SCHEMA = pa.schema([("key", pa.int64()), *((name, kind) for name, (kind, _) in KINDS.items())])


def batch_of(r: random.Random, rows: int, nulls: bool) -> pa.RecordBatch:
    """A slice, so that no buffer begins with its first value."""
    first, total = r.randrange(0, 9), rows + r.randrange(9, 20)
    columns = [pa.array([r.randrange(6) for _ in range(total)], pa.int64())]
    for kind, value in KINDS.values():
        columns.append(pa.array([None if nulls and r.random() < 0.3 else value(r) for _ in range(total)], kind))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).slice(first, rows)


@pytest.mark.parametrize("seed", range(40))
def test_as_concatenated_and_taken(seed: int) -> None:
    r = random.Random(seed)
    batches = [batch_of(r, r.choice((0, 1, 7, 8, 9, 63)), r.random() < 0.5) for _ in range(r.randrange(1, 5))]
    by = r.choice([(0,), (~0,), (0, SCHEMA.get_field_index("string")), (SCHEMA.get_field_index("double"), ~0)])
    whole = together(batches)
    found, bound = codes_by([whole], by)
    order = sorting(found, bound)
    want = whole if order is None else whole.take(pa.array(order))

    made = together(list(in_order(iter(batches), by, 1 << 30, ""))) if len(whole) else want
    made.validate(full=True)
    assert made.equals(want)
    if order is not None:
        direct = permute(batches, placing(found, bound))  # type: ignore[arg-type]
        direct.validate(full=True)
        assert direct.equals(want)


@pytest.mark.parametrize("bound", [1, 2, 255, 70_000, 1 << 40])
def test_places_are_the_inverse_of_the_order(bound: int) -> None:
    found = np.random.default_rng(bound).integers(0, bound, 5000)
    order, places = sorting(found, bound), placing(found, bound)
    if order is None:
        assert places is None
        return
    assert places is not None
    assert places.dtype == np.uint32
    assert np.array_equal(places[order], np.arange(len(found)))
    assert np.array_equal(places_of(order), places)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 2"):
        counted_places(np.array([0, 3]), 3)
    with pytest.raises(ValueError, match="from 0 to 2"):
        counted_places(np.array([-1]), 3)
    with pytest.raises(ValueError, match="from 0 to 1"):
        places_of(np.array([0, 2]))
    places = np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="2 values of 8 bytes in 15"):
        put_fixed(bytes(15), 8, places, np.empty(16, np.uint8))
    with pytest.raises(ValueError, match="widths are"):
        put_fixed(bytes(16), 3, places, np.empty(16, np.uint8))
    with pytest.raises(ValueError, match="2 offsets of 2 texts"):
        put_lengths(np.zeros(2, np.int32), places, np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="do not fit"):
        put_texts(np.array([0, 1, 9], np.int32), b"ab", places, np.zeros(3, np.int32), np.empty(9, np.uint8))


def test_texts_that_offsets_cannot_tell_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lengths were added up in 32 bits, and bytes written behind the array."""
    monkeypatch.setattr("fastbuf_spark.worker.placing.MOST_TEXT", 299)
    batches = [pa.record_batch({"s": ["x" * 100]}) for _ in range(3)]
    with pytest.raises(ResourceError, match="3 rows that are sorted at once have 300 bytes in a column of type string"):
        permute(batches, np.array([2, 0, 1], np.uint32))
