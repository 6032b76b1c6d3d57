"""Ranges, turns, chance and the user's function: each row once, where the rule says, whatever its type."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import RecordError, SchemaError
from fastbuf.serializers import (
    ColumnarSerializer,
    CustomPartitioner,
    RandomPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
)

pa = pytest.importorskip("pyarrow", reason="batches need pyarrow")
RNG = np.random.default_rng(3)
VALUES: dict[str, list[Any]] = {
    "int8": RNG.integers(-128, 128, 500).tolist(),
    "uint64": [int(x) for x in RNG.integers(0, 2**64 - 1, 500, dtype=np.uint64)],
    "float64": [*RNG.normal(size=500).tolist(), math.inf, -math.inf, 0.0, -0.0],
    "bool": [True, False] * 250,
    "string": [f"{x:x}é" for x in RNG.integers(0, 10_000, 500).tolist()],
    "binary": [bytes(RNG.integers(0, 256, 3, dtype=np.uint8)) for _ in range(500)],
    "decimal128(12, 2)": [Decimal(int(x)) / 100 for x in RNG.integers(-(10**9), 10**9, 500)],
    "date32": [dt.date(1900, 1, 1) + dt.timedelta(int(x)) for x in RNG.integers(0, 90_000, 500)],
    "timestamp[us]": [dt.datetime(1900, 1, 1) + dt.timedelta(int(x)) for x in RNG.integers(0, 90_000, 500)],
}
KINDS = {"date32": pa.date32(), "timestamp[us]": pa.timestamp("us"), "decimal128(12, 2)": pa.decimal128(12, 2)}


def order(value: Any) -> tuple[bool, bool, Any]:
    """Nulls first, NaN last."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is not None, nan, 0 if value is None or nan else value


def check_ranges(keys: list[tuple[Any, ...]], pids: np.ndarray, partitions: int) -> None:
    assert pids.dtype == np.int32
    assert pids.min() >= 0
    assert pids.max() < partitions
    groups = [
        [tuple(map(order, k)) for k, p in zip(keys, pids.tolist(), strict=True) if p == q] for q in range(partitions)
    ]
    filled = [group for group in groups if group]
    for one, after in itertools.pairwise(filled):
        assert max(one) < min(after)


class TestRange:
    @pytest.mark.parametrize("nulls", [False, True])
    @pytest.mark.parametrize("kind", VALUES)
    def test_every_type(self, kind: str, nulls: bool) -> None:
        values = [None if nulls and i % 7 == 0 else value for i, value in enumerate(VALUES[kind])]
        batch = pa.record_batch({"x": pa.array(range(len(values))), "k": pa.array(values, KINDS.get(kind, kind))})
        for partitions in (1, 2, 7):
            ranges = RangePartitioner.from_sample(batch, "k", partitions)
            pids = ranges.partition(batch)
            check_ranges([(v,) for v in values], pids, partitions)
            if kind != "bool":
                assert ranges.partitions == partitions
                assert np.bincount(pids, minlength=partitions).min() > 0.4 * len(values) / partitions - 30
            down = RangePartitioner.from_sample(batch, "k", partitions, ascending=False).partition(batch)
            assert (down == ranges.partitions - 1 - pids).all()
            assert (ranges.partition(batch.slice(100, 50)) == pids[100:150]).all()
            assert len(ranges.partition(batch.slice(0, 0))) == 0

    @pytest.mark.parametrize("nulls", [False, True])
    def test_several_keys(self, nulls: bool) -> None:
        a = [None if nulls and i % 5 == 0 else i % 4 for i in range(600)]
        b = [math.nan if i % 11 == 0 else v for i, v in enumerate(VALUES["float64"] + VALUES["float64"][:96])]
        c = [f"s{i % 3}" for i in range(600)]
        batch = pa.record_batch({"a": pa.array(a, pa.int64()), "b": b, "c": c})
        ranges = RangePartitioner.from_sample([batch.slice(0, 300), batch.slice(300)], ["a", "b", "c"], 9)
        assert ranges.partitions == 9
        check_ranges(list(zip(a, b, c, strict=True)), ranges.partition(batch), 9)

    def test_nan_is_more_than_all(self) -> None:
        batch = pa.record_batch({"k": [1.0, math.nan, math.inf, 2.0]})
        ranges = RangePartitioner("k", pa.record_batch({"k": [1.0, math.inf]}))
        assert ranges.partition(batch).tolist() == [0, 2, 1, 1]

    def test_a_frequent_key_bounds_one_partition(self) -> None:
        batch = pa.record_batch({"k": [5] * 900 + list(range(100))})
        ranges = RangePartitioner.from_sample(batch, "k", 10)
        assert ranges.partitions < 10
        assert len(set(ranges.partition(batch)[:900].tolist())) == 1

    def test_same_seed_same_bounds(self) -> None:
        table = pa.table({"k": RNG.normal(size=20_000)})
        first, second = (RangePartitioner.from_sample(table, "k", 8, seed=4) for _ in range(2))
        assert [b.equals(c) for b, c in zip(first.bounds, second.bounds, strict=True)] == [True]
        counts = np.bincount(first.partition(table.to_batches()[0]), minlength=8)
        assert counts.min() > 1800

    def test_refusals(self) -> None:
        batch = pa.record_batch({"k": [1, 2], "l": [[1], [2]]})
        for bad in ("x", ["k", "x"]):
            with pytest.raises(SchemaError, match="'x'"):
                RangePartitioner.from_sample(batch, bad, 2)
        with pytest.raises(SchemaError, match="no order"):
            RangePartitioner.from_sample(batch, "l", 2)
        with pytest.raises(RecordError, match="no rows"):
            RangePartitioner.from_sample(batch.slice(0, 0), "k", 2)
        with pytest.raises(ValueError, match="partitions is 0: it must be an integer from 1"):
            RangePartitioner.from_sample(batch, "k", 0)
        with pytest.raises(ValueError, match="not in ascending order"):
            RangePartitioner("k", pa.record_batch({"k": [2, 1]}))
        with pytest.raises(SchemaError, match="int64, its bounds are double"):
            RangePartitioner("k", pa.record_batch({"k": [1.5]})).partition(batch)


def test_in_turn_goes_on_from_batch_to_batch() -> None:
    turns = RoundRobinPartitioner(3, start=2)
    batch = pa.record_batch({"k": list(range(4))})
    assert [turns.partition(batch).tolist() for _ in range(2)] == [[2, 0, 1, 2], [0, 1, 2, 0]]


def test_chance_is_even_and_repeats_with_its_seed() -> None:
    batch = pa.record_batch({"k": list(range(30_000))})
    found = RandomPartitioner(3, seed=1).partition(batch)
    assert (found == RandomPartitioner(3, seed=1).partition(batch)).all()
    assert (found != RandomPartitioner(3, seed=2).partition(batch)).any()
    assert np.bincount(found).min() > 9500


def test_the_users_function_is_checked() -> None:
    batch = pa.record_batch({"k": [0, 1, 2]})
    assert CustomPartitioner(lambda b, n: [2, 0, 1], 3).partition(batch).tolist() == [2, 0, 1]
    for wrong, says in (
        ([0, 1], "shape"),
        ([0.0, 1.0, 2.0], "float64"),
        ([0, 3, 1], "row 1 3 of 3"),
        ([-1, 0, 0], "row 0"),
    ):
        with pytest.raises(RecordError, match=says):
            CustomPartitioner(lambda b, n, wrong=wrong: wrong, 3).partition(batch)
    for partitions in (0, 1 << 31):
        with pytest.raises(ValueError, match="partitions is"):
            RandomPartitioner(partitions)


def test_as_a_selector_of_an_exchange() -> None:
    batch = pa.record_batch({"k": RNG.integers(0, 100, 1000)})
    ranges = RangePartitioner.from_sample(batch, "k", 2)
    with fb.ShuffleEnvironment(segments=64, segment_size=8192) as env:
        writer, gates = env.exchange(ColumnarSerializer(batch.schema), consumers=2, selector=fb.custom(ranges))
        writer.emit_batch(batch)
        writer.close()
        low, high = (pa.Table.from_batches(list(gate))["k"].to_numpy() for gate in gates)
    assert len(low) + len(high) == 1000
    assert low.max() < high.min()
    with pytest.raises(ValueError, match="2 partitions was given to 3 consumers"):
        ranges(batch, 3)
