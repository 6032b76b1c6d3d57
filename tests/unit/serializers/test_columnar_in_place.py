"""Batches that lie in their block: equal to those copied out, and the bytes stay until the last buffer goes."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from columnar_cases import TYPES, batch, batches, column
from golden_cases import EVERY
from golden_cases import batch as every
from hypothesis import given

from fastbuf import NetworkBufferPool
from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, SegmentExported
from fastbuf.serializers import ColumnarSerializer, Schema
from fastbuf.serializers.block import HEADER_BYTES


def buffers_of(array: pa.Array) -> list[pa.Buffer]:
    """The buffers of an array and of all below it."""
    return [buffer for buffer in array.buffers() if buffer is not None]


def lie_in(found: pa.RecordBatch, block: Any) -> bool:
    begin = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
    return all(
        begin <= buffer.address and buffer.address + buffer.size <= begin + len(block)
        for column in found.columns
        for buffer in buffers_of(column)
        if buffer.size
    )


@pytest.mark.parametrize("name", TYPES)
def test_every_type(name: str) -> None:
    for rows, nulls in ((0, 0.0), (1, 1.0), (1, 0.0), (100, 0.0), (100, 0.3)):
        data = pa.record_batch({"c": column(TYPES[name], rows, nulls)})
        cols = ColumnarSerializer(data.schema)
        for given_ in (data, data.slice(rows // 3)):
            block = cols.dumps(given_)
            found = cols.loads(block, copy=False)
            found.validate(full=True)
            assert found.equals(given_)
            assert found.column(0).null_count == given_.column(0).null_count
            assert cols.loads(block, copy=False, check=False).equals(given_)
            assert cols.loads(block, check=False).equals(given_)
            assert "large" in name or rows < 50 or lie_in(found, block)
            assert all(buffer.address % 8 == 0 for buffer in buffers_of(found.column(0)) if buffer.size)


@given(batches())
def test_any_batch(data: pa.RecordBatch) -> None:
    cols = ColumnarSerializer()
    block = cols.dumps(data)
    found = cols.loads(block, copy=False) if data.num_rows else data
    found.validate(full=True)
    assert found.equals(data)
    assert [piece.num_rows for piece in cols.iter(block, copy=False)] == [data.num_rows] * bool(data.num_rows)


def test_views_and_dictionaries_too() -> None:
    cols = ColumnarSerializer(EVERY)
    found = cols.loads(cols.dumps(every()), copy=False)
    found.validate(full=True)
    assert found.schema == every().schema
    assert found.to_pylist() == every().to_pylist()


def test_a_bytearray_cannot_go_before_its_last_buffer() -> None:
    data = pa.record_batch(
        {"i": np.arange(1000), "s": [f"user-{i}" for i in range(1000)], "l": [[i] for i in range(1000)]}
    )
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps(data))
    found = cols.loads(block, copy=False)
    child = found["l"].slice(10).values
    table = pa.Table.from_batches([found.slice(7, 3)]).select(["s"])
    del found
    gc.collect()
    for held in ("child", "table"):
        with pytest.raises(BufferError):
            block.clear()
        if held == "child":
            assert pc.sum(child).as_py() == sum(range(1000))
            del child
    assert table["s"].to_pylist() == ["user-7", "user-8", "user-9"]
    del table
    gc.collect()
    block.clear()


def test_a_segment_is_not_recycled_under_a_batch() -> None:
    data = pa.record_batch({"i": np.arange(100), "s": ["abc"] * 100})
    cols = ColumnarSerializer(data.schema)
    block = cols.dumps(data)
    local = NetworkBufferPool(segments=4, segment_size=8192).create_local_pool(required=1, maximum=2)
    segment = local.request(timeout=1.0)
    segment.view()[: len(block)] = block
    found = cols.loads(segment.view()[: len(block)], copy=False)
    assert found.equals(data)
    numbers = found["i"]
    del found
    with pytest.raises(SegmentExported):
        segment.recycle()
    assert numbers.to_pylist() == list(range(100))
    array = numbers.to_numpy()
    del numbers
    with pytest.raises(SegmentExported):
        segment.recycle()
    del array
    segment.recycle()
    local.destroy()


def test_released_on_another_thread() -> None:
    data = batch(100)
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps(data))
    held = [cols.loads(block, copy=False) for _ in range(8)]
    table = pa.Table.from_batches(held)
    threads = [threading.Thread(target=held.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.num_rows == 800
    with pytest.raises(BufferError):
        block.clear()
    del table
    gc.collect()
    block.clear()


def test_a_copy_holds_nothing() -> None:
    data = batch(100)
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps(data))
    found = cols.loads(block)
    block[:] = bytes(len(block))
    block.clear()
    found.validate(full=True)
    assert found.equals(data)


def test_several_chunks_are_several_batches() -> None:
    data = batch(60)
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps([data, data.slice(0, 0), data.slice(10, 5), data]))
    with pytest.raises(ValueError, match="a block of 3 chunks"):
        cols.loads(block, copy=False)
    whole = list(cols.iter(block, copy=False))
    assert [piece.num_rows for piece in whole] == [60, 5, 60]
    assert whole[1].equals(data.slice(10, 5))
    cut = list(cols.iter(block, max_rows=25, copy=False))
    assert [piece.num_rows for piece in cut] == [25, 25, 10, 5, 25, 25, 10]
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches(whole))
    del whole
    with pytest.raises(BufferError):
        block.clear()
    del cut
    gc.collect()
    block.clear()
    assert cols.loads(cols.dumps(data.slice(0, 0)), copy=False).num_rows == 0
    assert list(cols.iter(cols.dumps([]), copy=False)) == []


def test_what_is_not_aligned_is_refused() -> None:
    data = batch(10)
    cols = ColumnarSerializer(data.schema)
    block = cols.dumps(data)
    moved = np.zeros(len(block) + 16, np.uint8)
    for at in range(1, 8):
        moved[at : at + len(block)] = np.frombuffer(block, np.uint8)
        for read in (cols.loads, cols.iter):
            with pytest.raises(ValueError, match=rf"{at} bytes behind a multiple of 8"):
                read(moved[at : at + len(block)], copy=False)
        assert cols.loads(moved[at : at + len(block)]).equals(data)


def test_a_refused_block_is_let_go_of() -> None:
    data = pa.record_batch({"s": ["ab", "c"]})
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps(data))
    block[HEADER_BYTES + 20] = 9
    with pytest.raises(BlockCorrupt, match="offsets that decrease"):
        cols.loads(block, copy=False)
    block[HEADER_BYTES + 20], block[24] = 2, 3
    with pytest.raises(BlockCorrupt, match="counts 3 records, its body has 2"):
        cols.loads(block, copy=False)
    gc.collect()
    block.clear()


def test_what_is_believed_lies_in_the_block() -> None:
    """Offsets and padding are not read; every length is, whatever was altered."""
    data = pa.record_batch({"s": ["ab", "c", "defg"], "l": [[1], [2, 3], [4]], "b": [True, None, False]})
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps([data]))
    offset = HEADER_BYTES + 16 + 4  # behind length, rows and flags: the end of the first string
    assert block[offset] == 2
    block[offset] = 9
    with pytest.raises(BlockCorrupt, match="offsets that decrease"):
        cols.loads(block)
    for believed in (cols.loads(block, copy=False, check=False), next(cols.iter(block, copy=False, check=False))):
        assert believed.num_rows == 3
        assert believed["l"].equals(data["l"])
        assert lie_in(believed, block)
    with pytest.raises(BlockCorrupt, match="offsets that decrease"):
        cols.loads(block, copy=False)  # the next one is looked at again
    del believed
    gc.collect()
    good = cols.dumps(data)
    refused = 0
    for at in range(HEADER_BYTES + 4, len(good) - 4):
        for value in (0, 1, 13, 0x7FFFFFFF, 0xFFFFFFFF):
            other = bytearray(good)
            other[at : at + 4] = value.to_bytes(4, "little")
            try:
                found = cols.loads(other, copy=False, check=False)
            except BlockError:
                refused += 1
            else:
                assert lie_in(found, other)
    assert refused > 100
    for end in range(len(good)):
        with pytest.raises(BlockTruncated):
            cols.loads(good[:end], copy=False, check=False)


def test_views_and_dictionaries_are_looked_at_always() -> None:
    data = pa.record_batch({"v": pa.array(["ab", "c"], pa.string_view())})
    cols = ColumnarSerializer(data.schema)
    block = bytearray(cols.dumps(data))
    assert cols.loads(block, check=False).equals(data)
    block[HEADER_BYTES + 20] = 9
    with pytest.raises(BlockCorrupt, match="offsets that decrease"):
        cols.loads(block, check=False)


def test_nothing_is_read_outside() -> None:
    """Every cut and every altered length of a block: refused, or a batch whose values can all be read."""
    data = batch(12, 0.3)
    cols = ColumnarSerializer(data.schema)
    block = cols.dumps(data)
    for end in range(0, len(block), 5):
        with pytest.raises(BlockTruncated):
            cols.loads(block[:end], copy=False)
    refused = 0
    with pytest.raises(BlockTruncated, match="announces"):
        cols.loads(block[:HEADER_BYTES] + b"\xff" + block[HEADER_BYTES + 1 :], copy=False)
    for at in range(HEADER_BYTES + 4, len(block) - 4, 4):
        for value in (0, 1, 13, 0x7FFFFFFF, 0xFFFFFFFF):
            other = bytearray(block)
            other[at : at + 4] = value.to_bytes(4, "little")
            try:
                found = cols.loads(other, copy=False)
            except BlockError:
                refused += 1
            else:
                found.validate()
    assert refused > 100


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
    for copy in (True, False):
        assert cols.loads(block, copy=copy).to_pydict() == {"v": rows}
