"""Batches that the columnar tests share: every type that is carried, with and without nulls, sliced and not."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from fastbuf.serializers.assemble import BatchAssembler
from fastbuf.serializers.scatter import BatchScatter

FLAT: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in [
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time32("ms"),
        pa.time64("us"),
        pa.time64("ns"),
        pa.timestamp("s"),
        pa.timestamp("ms"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("ns"),
        pa.duration("s"),
        pa.duration("ms"),
        pa.duration("us"),
        pa.duration("ns"),
        pa.decimal128(38, 3),
        pa.decimal256(70, 3),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.binary(1),
        pa.binary(7),
    ]
}
NESTED: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in [
        pa.list_(pa.float32()),
        pa.large_list(pa.float64()),
        pa.list_(pa.int8()),
        pa.list_(pa.bool_()),
        pa.list_(pa.string()),
        pa.list_(pa.float32(), 4),
        pa.list_(pa.string(), 2),
        pa.list_(pa.list_(pa.int16())),
        pa.large_list(pa.list_(pa.string())),
        pa.list_(pa.list_(pa.bool_(), 3), 2),
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        pa.struct([]),
        pa.struct([("a", pa.list_(pa.int64())), ("b", pa.struct([("c", pa.null()), ("d", pa.bool_())]))]),
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.int32(), pa.list_(pa.string())),
        pa.list_(pa.struct([("x", pa.binary(3))])),
    ]
}
TYPES = FLAT | NESTED


def value(r: random.Random, kind: pa.DataType, nulls: float) -> Any:
    """A random value of a type; None with the probability `nulls`, at every level."""
    is_ = pa.types
    if is_.is_null(kind) or r.random() < nulls:
        return None
    if is_.is_struct(kind):
        return {f.name: value(r, f.type, nulls) for f in kind}
    if is_.is_map(kind):
        return [(value(r, kind.key_type, 0), value(r, kind.item_type, nulls)) for _ in range(r.randrange(4))]
    if is_.is_fixed_size_list(kind):
        return [value(r, kind.value_type, nulls) for _ in range(kind.list_size)]
    if is_.is_list(kind) or is_.is_large_list(kind):
        return [value(r, kind.value_type, nulls) for _ in range(r.choice([0, 1, 2, 3, 20]))]
    if is_.is_boolean(kind):
        return r.random() < 0.5
    if is_.is_floating(kind):
        return r.choice([0.0, -0.0, 1.5, -1e4, float("inf"), r.randrange(2048) / 4])
    if is_.is_string(kind) or is_.is_large_string(kind):
        return r.choice(["", "a", "Grüße", "日本語\U0001f600", "x" * r.randrange(60), f"user-{r.randrange(10**6)}"])
    if is_.is_fixed_size_binary(kind):
        return r.randbytes(kind.byte_width)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return r.randbytes(r.choice([0, 1, 15, 16, 17, 32, 33, 100]))
    if is_.is_decimal(kind):
        return Decimal(r.randrange(-(10**kind.precision) + 1, 10**kind.precision)).scaleb(-kind.scale)
    if is_.is_integer(kind):
        low, bits = (
            (0, kind.bit_width) if is_.is_unsigned_integer(kind) else (-(1 << kind.bit_width - 1), kind.bit_width - 1)
        )
        return r.choice([low, (1 << bits) - 1, r.randrange(100)])
    if is_.is_date64(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(days=r.randrange(-9999, 9999))
    return pa.scalar(r.randrange(86400), pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def column(kind: pa.DataType, rows: int, nulls: float, seed: int = 0) -> pa.Array:
    """An array of `rows` random values."""
    r = random.Random(f"{kind} {rows} {nulls} {seed}")
    values = [value(r, kind, nulls) for _ in range(rows)]
    if pa.types.is_float16(kind):
        values = [None if v is None else np.float16(v) for v in values]
    return pa.array(values, kind)


def batch(rows: int, nulls: float = 0.2, types: dict[str, pa.DataType] = TYPES, seed: int = 0) -> pa.RecordBatch:
    """A column of each type."""
    return pa.record_batch({name: column(kind, rows, nulls, seed) for name, kind in types.items()})


def drain(scatter: BatchScatter, part: int, room: int) -> list[bytes]:
    """The payloads of a partition's elements in buffers of `room` bytes; a row that fits in none gets its own."""
    found = []
    while left := scatter.left(part):
        # Canaries: nothing may be written past the room.
        buffer = bytearray(b"\xa5" * (room + 64))
        written = scatter.encode_into(part, memoryview(buffer)[:room])
        assert buffer[room:] == b"\xa5" * 64
        if not written:
            need = scatter.next_bytes(part)
            assert need > room - room % 8
            buffer = bytearray(need)
            written = scatter.encode_into(part, buffer)
            assert 0 < written <= need
            assert scatter.left(part) < left
        assert written % 8 == 0
        assert int.from_bytes(buffer[:4], "little") == written - 4
        found.append(bytes(buffer[4:written]))
    return found


def assemble(schema: Any, payloads: list[bytes]) -> pa.RecordBatch:
    """The batch of some payloads, fully validated."""
    assembler = BatchAssembler(schema)
    for payload in payloads:
        assembler.add(payload)
    assert assembler.nbytes == sum(map(len, payloads))
    found = assembler.batch()
    found.validate(full=True)
    assert assembler.rows == assembler.nbytes == 0
    return found


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch of some types, sliced."""
    names = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(0, 70))
    whole = batch(
        rows, draw(st.sampled_from([0.0, 0.3, 1.0])), {name: TYPES[name] for name in names}, draw(st.integers(0, 99))
    )
    start = draw(st.integers(0, rows))
    return whole.slice(start, draw(st.integers(0, rows - start)))
