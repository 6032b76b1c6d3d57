"""What the assembler takes, what it refuses, and what it hands over."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest
from columnar_cases import TYPES, assemble, batch, column, drain

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, SchemaError
from fastbuf.serializers.assemble import BatchAssembler
from fastbuf.serializers.scatter import BatchScatter


def payload(data: pa.RecordBatch) -> bytes:
    """The one chunk of a batch."""
    scatter = BatchScatter(data.schema, 1)
    scatter.start(data)
    (found,) = drain(scatter, 0, 1 << 22)
    return found


def u32(*values: int) -> bytes:
    return b"".join(v.to_bytes(4, "little") for v in values)


@pytest.mark.parametrize("name", TYPES)
def test_empty(name: str) -> None:
    found = assemble(pa.schema({"c": TYPES[name]}), [])
    assert found.num_rows == 0
    assert found.schema == pa.schema({"c": TYPES[name]})


@pytest.mark.parametrize("name", TYPES)
def test_chunks_of_every_length(name: str) -> None:
    """Bitmaps that begin at any bit, nulls that begin in any chunk."""
    parts = [
        column(TYPES[name], rows, nulls)
        for rows, nulls in ((1, 0.0), (3, 0.0), (7, 0.5), (8, 0.0), (64, 0.3), (5, 1.0), (9, 0.0))
    ]
    chunks = [payload(pa.record_batch({"c": part})) for part in parts]
    assert assemble(pa.schema({"c": TYPES[name]}), chunks).column(0).equals(pa.concat_arrays(parts))


def test_many_batches_from_one_assembler() -> None:
    data = batch(50)
    assembler = BatchAssembler(data.schema)
    chunk, kept = payload(data), []
    for times in (1, 40, 0, 2):
        for _ in range(times):
            assembler.add(chunk)
        assert assembler.rows == 50 * times
        kept.append(assembler.batch())
    del assembler
    gc.collect()
    for times, found in zip((1, 40, 0, 2), kept, strict=True):
        found.validate(full=True)
        assert found.equals(
            pa.Table.from_batches([data] * times, data.schema).combine_chunks().to_batches()[0]
            if times
            else data.slice(0, 0)
        )


def test_buffers_are_aligned_and_owned_by_the_batch() -> None:
    gc.collect()  # what earlier tests left in cycles may not end meanwhile
    before = pa.total_allocated_bytes()
    found = assemble(pa.schema({"a": pa.int64()}), [payload(pa.record_batch({"a": np.arange(1000)}))])
    assert found.column(0).buffers()[1].address % 64 == 0
    assert pa.total_allocated_bytes() == before  # not pyarrow's memory: nothing was copied
    array = found.column(0)
    del found
    gc.collect()
    assert array.to_pylist() == list(range(1000))


def test_metadata_and_nullability_are_the_schemas() -> None:
    schema = pa.schema(
        [pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"}), ("b", pa.string())], metadata={"m": "n"}
    )
    found = assemble(schema, [payload(pa.record_batch([[1], ["x"]], schema=schema))])
    assert found.schema.equals(schema, check_metadata=True)


def test_extension_types_come_back() -> None:
    data = pa.record_batch(
        {"u": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))}
    )
    assert assemble(data.schema, [payload(data)]).equals(data)


ONE = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("s", pa.string())])
# flags: bit 1 is column n, bit 2 column s
NUMBERS, OFFSETS, TEXT = u32(7, 8), u32(0, 1, 3, 0), b"abc" + bytes(5)
GOOD = u32(2, 0, 0) + NUMBERS + OFFSETS + TEXT


@pytest.mark.parametrize(
    ("chunk", "error", "what"),
    [
        (b"", BlockTruncated, "needs 12 bytes and 0 are left"),
        (u32(0, 0), BlockTruncated, "needs 12 bytes and 8 are left"),
        (u32(2, 0, 0, 7), BlockTruncated, "the chunk needs"),
        (GOOD[:-1], BlockTruncated, "column 's' needs 8 bytes and 7 are left"),
        (u32(2, 0, 0) + NUMBERS + u32(0, 3, 1, 0) + TEXT, BlockCorrupt, "column 's' has offsets that decrease"),
        (u32(2, 0, 0) + NUMBERS + u32(1, 1, 3, 0) + TEXT, BlockCorrupt, "column 's' .* do not begin at 0"),
        (u32(2, 0, 0) + NUMBERS + u32(0, 1, 0xFFFFFFFF, 0) + TEXT, BlockError, "column 's'"),
        (u32(2, 0, 0) + NUMBERS + u32(0, 1, 3, 1) + TEXT, BlockCorrupt, "column 's' has padding that is not 0"),
        (GOOD[:-1] + b"\1", BlockCorrupt, "column 's' has padding that is not 0"),
        (u32(2, 0, 0) + NUMBERS + u32(0, 1, 2, 0) + TEXT, BlockCorrupt, "column 's' has padding that is not 0"),
        (u32(0xFFFFFFFF, 0, 0) + NUMBERS, BlockTruncated, "needs"),
        (
            u32(2, 2, 0) + u32(3, 0) + GOOD[12:],
            BlockCorrupt,
            "column 'n' has nulls and the schema allows none",
        ),
        (u32(2, 1, 0) + GOOD[12:], BlockCorrupt, "a flag that is unknown for its type"),
        (u32(2, 8, 0) + GOOD[12:], BlockCorrupt, "a flag that is unknown for its type"),
        (u32(2, 0, 1 << 31) + GOOD[12:], BlockCorrupt, "a flag that is unknown for its type"),
        (GOOD + bytes(8), BlockCorrupt, "followed by 8 bytes that belong to no column"),
        (GOOD + b"\0", BlockCorrupt, "belong to no column"),
        (u32(2, 4, 0) + NUMBERS + u32(0, 0) + OFFSETS + TEXT, None, ""),
        (u32(0, 0, 0), None, ""),
    ],
)
def test_bad_chunks_leave_the_assembler_as_it_was(chunk: bytes, error: type | None, what: str) -> None:
    assembler = BatchAssembler(ONE)
    assembler.add(GOOD)
    if error is None:
        assembler.add(chunk)
        assembler.batch().validate()
        return
    with pytest.raises(error, match=what):
        assembler.add(chunk)
    assert assembler.rows == 2
    assembler.add(GOOD)
    found = assembler.batch()
    found.validate(full=True)
    assert found.to_pylist() == [{"n": 7, "s": "a"}, {"n": 8, "s": "bc"}] * 2


def test_claims_that_cost_nothing_are_bounded() -> None:
    nothing = pa.schema({"n": pa.null()})
    with pytest.raises(BlockCorrupt, match="rows of no bytes"):
        BatchAssembler(nothing).add(u32(0xFFFFFFFF, 0, 0))
    lists = pa.schema({"l": pa.list_(pa.list_(pa.bool_(), 1 << 20), 1 << 10)})
    with pytest.raises(BlockTruncated):
        BatchAssembler(lists).add(u32(1000) + bytes(100))
    with pytest.raises(SchemaError, match="a row of column"):
        BatchAssembler(pa.schema({"l": pa.list_(pa.list_(pa.int64(), (1 << 31) - 1), (1 << 31) - 1)}))


def test_offsets_past_2_gib_are_refused() -> None:
    """Lists of bools count eight values a byte: 300 MiB of payload reach 2^31 values."""
    schema = pa.schema({"l": pa.list_(pa.bool_())})
    values = (1 << 30) + 8
    chunk = u32(1, 0, 0, 0, values) + bytes(-(-values // 64) * 8)
    assembler = BatchAssembler(schema)
    assembler.add(chunk)
    from fastbuf.errors import RecordTooLong

    with pytest.raises(RecordTooLong, match="2 GiB"):
        assembler.add(chunk)
    assert assembler.batch().column(0).value_lengths().to_pylist() == [values]


def test_elements_are_bounded_too() -> None:
    assembler = BatchAssembler(ONE)
    with pytest.raises(BlockTruncated, match="too few for an element"):
        assembler.add_elements(b"\0\0")
    with pytest.raises(BlockTruncated, match="announces 21 bytes and 20 are left"):
        assembler.add_elements(u32(21) + GOOD[:20])
    assembler.add_elements((u32(len(GOOD)) + GOOD) * 3)
    assert assembler.rows == 6
