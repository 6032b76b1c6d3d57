"""Ranges as a selector: records and batches go to the same consumer, and consumers follow each other in order."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, SchemaError
from fastbuf.serializers import RangePartitioner

pa = pytest.importorskip("pyarrow", reason="ranges need pyarrow")
RNG = np.random.default_rng(11)
DAY = dt.datetime(2001, 2, 3)
VALUES: dict[str, list[Any]] = {
    "int8": RNG.integers(-128, 128, 300).tolist(),
    "uint64": [int(x) for x in RNG.integers(0, 2**64 - 1, 300, dtype=np.uint64)],
    "float64": [*RNG.normal(size=290).tolist(), *[math.inf, -math.inf, 0.0, -0.0, math.nan] * 2],
    "float32": [*RNG.normal(size=300).tolist(), 0.1, 0.7],
    "float16": [*RNG.normal(size=300).tolist(), 0.1, 0.7],
    "bool": [True, False] * 150,
    "string": [f"{x:x}é\U0001f600" for x in RNG.integers(0, 900, 300).tolist()] + ["", "\uffff", "\U00010000"],
    "large_string": [f"{x:x}" for x in RNG.integers(0, 900, 300).tolist()],
    "binary": [bytes(RNG.integers(0, 256, 2, dtype=np.uint8)) for _ in range(300)],
    "decimal(12,2)": [Decimal(int(x)) / 100 for x in RNG.integers(-(10**9), 10**9, 300)],
    "decimal256(60,2)": [Decimal(int(x)) / 100 * 10**40 for x in RNG.integers(-(10**9), 10**9, 300)],
    "date32": [dt.date(1900, 1, 1) + dt.timedelta(int(x)) for x in RNG.integers(0, 90_000, 300)],
    "time64[us]": [(DAY + dt.timedelta(microseconds=int(x))).time() for x in RNG.integers(0, 10**10, 300)],
    "timestamp[us]": [DAY + dt.timedelta(microseconds=int(x)) for x in RNG.integers(-(10**14), 10**14, 300)],
    "timestamp[ns]": [DAY + dt.timedelta(microseconds=int(x)) for x in RNG.integers(-(10**4), 10**4, 300)],
    "timestamp[us,Europe/Berlin]": [
        DAY.replace(tzinfo=dt.UTC) + dt.timedelta(hours=int(x)) for x in RNG.integers(-(10**4), 10**4, 300)
    ],
    "duration[ns]": [dt.timedelta(microseconds=int(x)) for x in RNG.integers(-(10**9), 10**9, 300)],
}


def columns(schema: fb.Schema, items: list[tuple[Any, ...]]) -> Any:
    arrow = schema.to_arrow()
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*items, strict=True), arrow, strict=True)], schema=arrow
    )


def routed(selector: Any, serializer: Any, consumers: int, items: Any) -> list[list[Any]]:
    """What each consumer gets of records, or of one batch."""
    with fb.ShuffleEnvironment(segments=128, segment_size=4096) as env:
        writer, gates = env.exchange(serializer, consumers=consumers, selector=selector)
        writer.emit_batch(items) if hasattr(items, "num_rows") else writer.emit_many(items)
        writer.close()
        return [list(gate) for gate in gates]


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("kind", VALUES)
def test_records_and_batches_are_placed_alike(kind: str, ascending: bool) -> None:
    schema = fb.Schema.of(k=f"{kind}?", n="int64")
    arrow = schema.to_arrow()
    keys = [None if i % 9 == 0 else value for i, value in enumerate(VALUES[kind])]
    if kind == "float16":
        keys = [None if k is None else np.float16(k) for k in keys]
    batch = pa.record_batch([pa.array(keys, arrow.field("k").type), pa.array(range(len(keys)))], schema=arrow)
    if kind == "timestamp[ns]":  # bounds between Python's microseconds
        shifted = pa.array(np.asarray(batch["k"].view(pa.int64()).fill_null(0)) + 500).view(pa.timestamp("ns"))
        sample = pa.record_batch([shifted], ["k"])
    else:
        sample = batch
    selector = fb.range_by("k", sample=sample, ascending=ascending)
    got = routed(selector, fb.RowSerializer(schema), 5, list(zip(keys, range(len(keys)), strict=True)))
    batches = routed(selector, fb.ColumnarSerializer(schema), 5, batch)
    assert [[row[1] for row in part] for part in got] == [
        [n for b in part for n in b["n"].to_pylist()] for part in batches
    ]
    if kind != "bool":
        assert all(got)

    def order(row: Any) -> tuple[Any, ...]:
        k = row[0]
        return (k is not None, k is not None and k != k, 0 if k is None or k != k else k)

    filled = [part for part in (got if ascending else got[::-1]) if part]
    for one, after in itertools.pairwise(filled):
        assert max(map(order, one)) < min(map(order, after))


def test_several_keys_and_nanoseconds_between() -> None:
    """A bound half a microsecond above a record's time is above it, whatever the second key says."""
    schema = fb.Schema.of(t="timestamp[ns]", s="string")
    bounds = pa.record_batch([pa.array([1_000_000_500], pa.timestamp("ns")), pa.array(["b"])], ["t", "s"])
    items = [
        (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=m), s) for m in (999_999, 10**6, 10**6 + 1) for s in "az"
    ]
    arrow = schema.to_arrow()
    batch = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*items, strict=True), arrow, strict=True)], schema=arrow
    )
    expected = RangePartitioner(["t", "s"], bounds).partition(batch).tolist()
    assert expected == [0, 0, 0, 0, 1, 1]
    got = routed(fb.range_by("t", "s", bounds=bounds), fb.RowSerializer(schema), 2, items)
    assert got == [items[:4], items[4:]]


def test_mixed_keys_of_batches_and_records() -> None:
    schema = fb.Schema.of(a="int32?", b="float64?", c="string?")
    items = [
        (
            None if i % 5 == 0 else i % 4,
            math.nan if i % 11 == 0 else (i * 37 % 100) / 7,
            None if i % 3 else f"s{i % 13}",
        )
        for i in range(700)
    ]
    arrow = schema.to_arrow()
    batch = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*items, strict=True), arrow, strict=True)], schema=arrow
    )
    partitioner = RangePartitioner.from_sample(batch, ["a", "b", "c"], 9)
    assert [partitioner.place(item) for item in items] == partitioner.partition(batch).tolist()


def test_a_selector_is_pickled_and_bound_anew() -> None:
    sample = np.zeros(100, [("k", "<i4")])
    sample["k"] = np.arange(100)
    schema = fb.Schema.of(k="int32")
    selector = pickle.loads(pickle.dumps(fb.range_by("k", sample=sample)))
    for consumers in (2, 4):
        got = routed(selector, fb.RowSerializer(schema), consumers, [(i,) for i in range(100)])
        assert [row for part in got for row in part] == [(i,) for i in range(100)]
        assert [len(part) for part in got] == pytest.approx([100 / consumers] * consumers, abs=1)
    bounds = pa.record_batch({"k": pa.array([9, 19], pa.int32())})
    selector = pickle.loads(pickle.dumps(fb.range_by("k", bounds=bounds, ascending=False)))
    got = routed(selector, fb.RowSerializer(schema), 4, [(i,) for i in range(30)])
    assert got == [[(i,) for i in range(20, 30)], [(i,) for i in range(10, 20)], [(i,) for i in range(10)], []]


def test_what_cannot_be() -> None:
    batch = pa.record_batch({"k": pa.array(range(10)), "m": pa.array([[1]] * 10)})
    serializer = fb.ColumnarSerializer(batch.schema)
    with pytest.raises(ConfigError, match="neither of sample and bounds"):
        fb.range_by("k")
    with pytest.raises(ConfigError, match="at least one key"):
        fb.range_by(sample=batch)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        with pytest.raises(ConfigError, match="9 bounds for 3 subpartitions"):
            env.exchange(serializer, consumers=3, selector=fb.range_by("k", bounds=batch.slice(0, 9)))
        with pytest.raises(SchemaError, match="'x'"):
            env.exchange(serializer, consumers=3, selector=fb.range_by("x", sample=batch))
        with pytest.raises(SchemaError, match="no order"):
            env.exchange(serializer, consumers=3, selector=fb.range_by("m", sample=batch))
        with pytest.raises(ValueError, match="ascend"):
            env.exchange(serializer, consumers=9, selector=fb.range_by("k", bounds=batch.take([3, 1])))
        assert env.pool.available == 64
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, _ = env.exchange(fb.PickledSerializer(), consumers=3, selector=fb.range_by("k", sample=batch))
        with pytest.raises(SchemaError, match="schema"):
            writer.emit((1,))
        writer.abort()


def test_samples_and_bounds_are_whatever_a_batch_is() -> None:
    """Bounds that were no Arrow batch, and samples that were frames, failed with words of Python or of Arrow."""
    pd = pytest.importorskip("pandas", reason="frames are pandas'")
    array = np.array([(i,) for i in range(10)], [("k", "i8")])
    frame = pd.DataFrame(array)
    rows = fb.RowSerializer(fb.Schema.of(k="int64"))
    selectors = [fb.range_by("k", sample=sample) for sample in (array, frame, [frame[:5], frame[5:]], pa.table(frame))]
    selectors += [fb.range_by("k", bounds=bounds) for bounds in (array[5:6], frame[5:6], pa.table(frame[5:6]))]
    for selector in selectors:
        with fb.ShuffleEnvironment(segments=16) as env:
            writer, gates = env.exchange(rows, consumers=2, selector=selector)
            writer.emit_many([(i,) for i in range(10)])
            writer.close()
            assert [[k for (k,) in gate] for gate in gates] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]


def test_keys_are_names() -> None:
    with pytest.raises(ConfigError, match="key 0: it must be a column's name"):
        fb.range_by(0, bounds=pa.record_batch({"k": [1]}))  # type: ignore[arg-type]
