"""Columns in place: what loads gives, no copy, and bytes that cannot go while an array is held."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from columnar_cases import batch, batches
from golden_cases import EVERY
from golden_cases import batch as every
from hypothesis import given, settings

from fastbuf.errors import BlockCorrupt, BlockTruncated, SchemaError, SegmentExported
from fastbuf.memory import NetworkBufferPool
from fastbuf.serializers import ColumnarSerializer, Schema
from fastbuf.serializers.block import HEADER_BYTES

pa = pytest.importorskip("pyarrow", reason="columns need pyarrow")
SCHEMA = Schema.of(
    i="int64", f="float32?", s="string", v="list<float32>", m="fixed_size_list(2)<fixed_size_list(2)<int16>>",
    t="timestamp[us]", x="fixed_size_binary(3)", b="bool", st="struct<a: int8>", l="list<string>",
)  # fmt: skip
DATA = pa.RecordBatch.from_pylist(
    [
        {"i": i, "f": None if i == 1 else i / 2, "s": "é" * i, "v": [float(i)] * i, "m": [[i, 1], [2, 3]], "t": i,
         "x": bytes([i] * 3), "b": True, "st": {"a": i}, "l": ["x"]}
        for i in range(5)
    ],
    SCHEMA.to_arrow(),
)  # fmt: skip


def test_what_loads_gives() -> None:
    cols = ColumnarSerializer(SCHEMA)
    block = cols.dumps([DATA, DATA.slice(2)])
    first, second = cols.view(block)
    assert (len(first), len(second)) == (5, 3)
    assert first["i"].tolist() == DATA["i"].to_pylist()
    assert second["i"].tolist() == [2, 3, 4]
    assert first["f"][first.valid("f")].tolist() == [0.0, 1.0, 1.5, 2.0]
    assert first.valid("i") is None
    assert first["m"].shape == (5, 2, 2)
    assert first["m"].tolist() == DATA["m"].to_pylist()
    assert first["t"].dtype == "M8[us]"
    assert first["t"].astype(int).tolist() == [0, 1, 2, 3, 4]
    assert [bytes(row) for row in first["x"]] == DATA["x"].to_pylist()
    for name in "sv":
        values, ends = first.pieces(name)
        cut = np.split(values, ends[:-1])
        found = [bytes(piece).decode() for piece in cut] if name == "s" else [piece.tolist() for piece in cut]
        assert found == DATA[name].to_pylist()
    place = np.frombuffer(block, np.uint8)
    for array in (first["i"], first["f"], first["m"], first["x"], first.pieces("s")[0], *first.pieces("v")):
        assert np.shares_memory(array, place)
        assert array.flags.aligned
        assert not array.flags.writeable


def test_what_is_no_array_in_place() -> None:
    (view,) = ColumnarSerializer(SCHEMA).view(ColumnarSerializer(SCHEMA).dumps(DATA))
    for name in ("b", "st", "s", "l"):
        with pytest.raises(SchemaError, match=f"column '{name}'"):
            view[name]
    for name in ("i", "l", "m"):
        with pytest.raises(SchemaError, match=f"column '{name}'"):
            view.pieces(name)
    with pytest.raises(SchemaError, match="no column 'y'"):
        view["y"]


def test_every_type_is_walked() -> None:
    for data in (every(), every().slice(1), every().slice(0, 0)):
        cols = ColumnarSerializer(EVERY)
        views = cols.view(cols.dumps(data))
        assert sum(map(len, views)) == data.num_rows
        for view in views:
            assert view["i64"][view.valid("i64") if view.valid("i64") is not None else slice(None)].tolist() == [
                value for value in data["i64"].to_pylist() if value is not None
            ]
            assert view["du4"].astype(np.int64).tolist() == data["du4"].cast(pa.int64()).to_pylist()


@settings(max_examples=60, deadline=None)
@given(batches())
def test_any_batch_is_walked(data: pa.RecordBatch) -> None:
    cols = ColumnarSerializer()
    assert sum(map(len, cols.view(cols.dumps(data)))) == data.num_rows


def test_the_bytes_cannot_go() -> None:
    cols = ColumnarSerializer(SCHEMA)
    block = cols.dumps(DATA)
    given_ = bytearray(block)
    array = cols.view(given_)[0]["i"][2:]
    with pytest.raises(BufferError):
        given_.clear()
    assert array.tolist() == [2, 3, 4]
    del array
    given_.clear()
    local = NetworkBufferPool(segments=4, segment_size=4096).create_local_pool(required=1, maximum=2)
    segment = local.request(timeout=1.0)
    segment.view()[: len(block)] = block
    values = cols.view(segment.view()[: len(block)])[0].pieces("v")[0]
    with pytest.raises(SegmentExported):
        segment.recycle()
    assert values.sum() == 30
    del values
    segment.recycle()
    local.destroy()


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("fixed_size_list(3)<float32>?", [[1.0, 2.0, 3.0], None, [4.0, 5.0, 6.0]]),
        ("struct<a: int64, b: string>?", [{"a": 1, "b": "x"}, None]),
        ("fixed_size_list(1)<struct<a: int64>>?", [None, [{"a": 1}]]),
    ],
)
def test_nulls_below_a_null(kind: str, rows: list[Any]) -> None:
    """They are legal where the schema allows none: Arrow has slots for the children of a null."""
    cols = ColumnarSerializer(Schema.of(v=kind))
    block = cols.dumps(pa.RecordBatch.from_pylist([{"v": row} for row in rows], schema=cols.arrow_schema))
    assert cols.loads(block).to_pydict() == {"v": rows}
    (view,) = cols.view(block)
    assert view.valid("v").tolist() == [row is not None for row in rows]


def test_truncated_and_altered() -> None:
    data = batch(20)
    cols = ColumnarSerializer(data.schema)
    block = cols.dumps(data)
    for end in range(0, len(block), 7):
        with pytest.raises(BlockTruncated):
            cols.view(block[:end])
    with pytest.raises(BlockCorrupt, match="20"):
        cols.view(block[:24] + b"\x13" + block[25:])
    text = ColumnarSerializer(Schema.of(s="string"))
    made = bytearray(text.dumps(pa.record_batch([["ab", "c"]], schema=Schema.of(s="string").to_arrow())))
    first_end, flags, last = HEADER_BYTES + 16 + 4, HEADER_BYTES + 8, len(made) - 1
    for at, to, says in (
        (first_end, 9, "column 's' has offsets that decrease"),
        (first_end - 4, 1, "column 's' has offsets that decrease, or do not begin at 0"),
        (flags, 2, "column 's' has nulls"),
        (flags, 1, "a flag that is unknown for its type"),
        (flags + 7, 1, "a flag that is unknown for its type"),
        (last, 1, "column 's' has padding that is not 0"),
    ):
        other = bytearray(made)
        other[at] = to
        with pytest.raises(BlockCorrupt, match=says):
            text.view(other)
