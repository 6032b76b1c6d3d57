"""Blocks of batches: round trips, pickling, NumPy, and blocks that were tampered with."""

from __future__ import annotations

import pickle
import random
import threading

import numpy as np
import pyarrow as pa
import pytest
from columnar_cases import FLAT, TYPES, batch, batches, column
from hypothesis import given, settings

from fastbuf.errors import (
    BlockCorrupt,
    BlockError,
    BlockTruncated,
    RecordError,
    RecordTooLong,
    SchemaError,
    SchemaMismatch,
)
from fastbuf.serializers.block import HEADER_BYTES
from fastbuf.serializers.columnar import ColumnarSerializer
from fastbuf.serializers.schema import Schema


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_round_trip(name: str, checksum: bool) -> None:
    for rows, nulls in ((0, 0.0), (1, 1.0), (100, 0.0), (100, 0.3)):
        data = pa.record_batch({"c": column(TYPES[name], rows, nulls)})
        cols = ColumnarSerializer(data.schema, checksum)
        found = cols.loads(cols.dumps(data))
        found.validate(full=True)
        assert found.equals(data)
        assert cols.loads(cols.dumps(data.slice(rows // 3))).equals(data.slice(rows // 3))


@settings(max_examples=150, deadline=None)
@given(batches())
def test_any_batch(data: pa.RecordBatch) -> None:
    cols = ColumnarSerializer()
    assert cols.loads(cols.dumps(data)).equals(data)


def test_schema_is_learnt_from_the_first_batch() -> None:
    cols = ColumnarSerializer()
    assert cols.schema is cols.arrow_schema is None
    assert cols.fingerprint == 0
    with pytest.raises(RecordError, match="no schema yet"):
        cols.loads(b"")
    data = batch(3)
    cols.dumps(data)
    assert cols.kind == "columnar"
    assert cols.arrow_schema == data.schema
    assert cols.fingerprint == Schema.from_arrow(data.schema).fingerprint != 0
    with pytest.raises(SchemaMismatch):
        cols.dumps(pa.record_batch({"x": [1]}))
    assert cols.loads(cols.dumps(data)).equals(data)


def test_every_way_to_say_a_schema() -> None:
    ours = Schema.of(id="int64", name="string?", vec="list<float32>")
    theirs = ours.to_arrow()
    data = pa.record_batch([[1, 2], ["a", None], [[1.0], []]], schema=theirs)
    prints = set()
    for schema in (ours, theirs, None):
        cols = ColumnarSerializer(schema)
        block = cols.dumps(data)
        prints.add(cols.fingerprint)
        for other in (ColumnarSerializer(ours), pickle.loads(pickle.dumps(ColumnarSerializer(theirs, True)))):
            assert other.loads(block).equals(data)
    assert len(prints) == 1
    with pytest.raises(TypeError, match="not a schema"):
        ColumnarSerializer(7)


def test_pickled_with_its_arguments() -> None:
    schema = pa.schema({"a": pa.int64()}, metadata={"k": "v"})
    again = pickle.loads(pickle.dumps(ColumnarSerializer(schema, checksum=True)))
    assert again.checksum
    assert again.arrow_schema.equals(schema, check_metadata=True)
    learnt = ColumnarSerializer()
    learnt.dumps(pa.record_batch({"a": [1]}))
    assert pickle.loads(pickle.dumps(learnt)).arrow_schema == pa.schema({"a": pa.int64()})


def test_tables_and_their_chunks() -> None:
    data = batch(40)
    table = pa.Table.from_batches([data, data.slice(3, 5), data.slice(0, 0), data])
    cols = ColumnarSerializer(checksum=True)
    assert pa.Table.from_batches([cols.loads(cols.dumps(table))]).equals(table.combine_chunks())
    empty = ColumnarSerializer(data.schema)
    assert empty.loads(empty.dumps(table.slice(0, 0))).num_rows == 0
    learnt = ColumnarSerializer()
    assert learnt.loads(learnt.dumps(data.schema.empty_table())).num_rows == 0


def test_slices_are_compacted() -> None:
    data = pa.record_batch({"s": pa.array(["x" * 100] * 10_000)})
    assert len(ColumnarSerializer().dumps(data.slice(9_000, 10))) < 10 * 104 + HEADER_BYTES + 32


def test_structured_arrays() -> None:
    rows = np.zeros(
        5,
        [
            ("i", "<i4"),
            ("f", "f8"),
            ("b", "?"),
            ("t", "M8[us]"),
            ("v", "f4", (3,)),
            ("s", "S4"),
            ("u", "U5"),
            ("big", ">i8"),
        ],
    )
    rows["i"] = range(5)
    rows["v"] = np.arange(15).reshape(5, 3)
    rows["u"] = "añ"
    rows["s"] = b"xy"
    rows["b"][::2] = True
    rows["big"] = 7
    cols = ColumnarSerializer()
    block = cols.dumps(rows)
    found = cols.loads(block).to_pydict()
    assert found["i"] == [0, 1, 2, 3, 4]
    assert found["v"][1] == [3.0, 4.0, 5.0]
    assert found["b"] == [True, False, True, False, True]
    assert found["u"] == ["añ"] * 5
    assert found["big"] == [7] * 5
    with pytest.raises(TypeError, match="neither an Arrow batch"):
        cols.dumps([1, 2])
    with pytest.raises(RecordError, match="one dimension"):
        cols.dumps(rows.reshape(5, 1))


@pytest.mark.parametrize("checksum", [False, True])
def test_dump_into_writes_what_dumps_gives(checksum: bool) -> None:
    data = batch(200)
    cols = ColumnarSerializer(data.schema, checksum)
    buffer = bytearray(b"\xa5" * 1_000_000)
    for given_ in (data, data.slice(3, 50), data.slice(0, 0), pa.Table.from_batches([data, data.slice(7)])):
        wanted = cols.dumps(given_)
        assert cols.dump_into(given_, buffer) == len(wanted)
        assert buffer[: len(wanted)] == wanted
        assert cols.dump_into(given_, memoryview(buffer)[8 : 8 + len(wanted) + 800]) == len(wanted)
        assert buffer[8 : 8 + len(wanted)] == wanted
    assert ColumnarSerializer().dump_into(data, np.zeros(1_000_000, np.uint8)) == len(cols.dumps(data))


def test_long_copies_at_any_distance() -> None:
    """Copies go another way where source and target lie next to each other within their pages."""
    r = np.random.default_rng(1)
    source = np.zeros(1 << 17, np.int64)
    target = np.zeros(1 << 20, np.uint8)
    for rows in (255, 256, 257, 1500):
        for shift in (0, 8, 40):
            values = source[shift // 8 : shift // 8 + rows]
            values[:] = r.integers(0, 1 << 60, rows)
            data = pa.record_batch({"n": values})
            cols = ColumnarSerializer(data.schema)
            # The first value of column n goes 48 bytes behind the block's first.
            for distance in (8, 24, 56, 64, 4088):
                first = values.__array_interface__["data"][0] + distance - 48
                at = (first - target.__array_interface__["data"][0]) % 4096
                size = cols.dump_into(data, target[at:])
                assert cols.loads(target[at : at + size]).equals(data)


def test_dump_into_too_little() -> None:
    data = batch(200)
    cols = ColumnarSerializer(data.schema)
    wanted = cols.dumps(data)
    buffer = bytearray(b"\xa5" * len(wanted))
    for room in (0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 60, len(wanted) // 2, len(wanted) - 8):
        with pytest.raises(RecordTooLong, match=rf"a buffer of {room:,} bytes"):
            cols.dump_into(data, memoryview(buffer)[:room])
        assert buffer[room:] == b"\xa5" * (len(buffer) - room)
    assert cols.dumps(data) == wanted
    with pytest.raises((BufferError, TypeError)):
        cols.dump_into(data, bytes(len(wanted)))


def test_single_records_are_no_business_of_a_columnar_serializer() -> None:
    with pytest.raises(TypeError, match="does not encode single records"):
        ColumnarSerializer().encode((1,))
    with pytest.raises(TypeError, match="does not decode single records"):
        ColumnarSerializer().decode(b"")


def test_threads_share_a_serializer() -> None:
    data = batch(300)
    cols = ColumnarSerializer(data.schema)
    expected, wrong = cols.dumps(data), []

    def work() -> None:
        for _ in range(30):
            if cols.dumps(data) != expected or not cols.loads(expected).equals(data):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_wrong_with_a_block_is_named() -> None:
    data = pa.record_batch({"n": np.arange(10), "s": pa.array(["abc"] * 10)})
    cols = ColumnarSerializer(data.schema, checksum=True)
    block = cols.dumps(data)
    with pytest.raises(BlockTruncated):
        cols.loads(block[:-1])
    altered = bytearray(block)
    altered[50] ^= 1
    with pytest.raises(BlockCorrupt, match="CRC32C"):
        cols.loads(altered)
    with pytest.raises(SchemaMismatch):
        ColumnarSerializer(pa.schema({"n": pa.int64()})).loads(block)
    counted = bytearray(ColumnarSerializer(data.schema).dumps(data))
    counted[24] += 1
    with pytest.raises(BlockCorrupt, match="counts 11 records, its body has 10"):
        cols.loads(counted)


def survives(cols: ColumnarSerializer, block: bytes) -> bool:
    """Whether a block is a batch; it may be refused, but neither crash nor give a batch that is not valid."""
    try:
        found = cols.loads(block)
    except BlockError:
        return False
    found.validate()  # not full: without a checksum, altered text is text that may be no UTF-8
    return True


@pytest.mark.parametrize("seed", range(4))
def test_fuzz(seed: int) -> None:
    """Truncation, flipped bits, and lengths set to what breaks things, in blocks without a checksum."""
    r = random.Random(seed)
    types = {name: TYPES[name] for name in r.sample(sorted(TYPES), 12)} | {"string": FLAT["string"]}
    data = batch(r.randrange(1, 40), 0.2, types, seed)
    cols = ColumnarSerializer(data.schema)
    block = cols.dumps(data)
    assert survives(cols, block)
    for cut in {r.randrange(len(block)) for _ in range(300)}:
        assert not survives(cols, block[:cut])
    accepted = refused = 0
    for _ in range(3000):
        bad = bytearray(block)
        for _ in range(r.choice([1, 1, 1, 4, 40])):
            at = r.randrange(HEADER_BYTES, len(bad))
            match r.randrange(3):
                case 0:
                    bad[at] ^= 1 << r.randrange(8)
                case 1:
                    bad[at : at + 4] = r.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(bad)]).to_bytes(
                        4, "little"
                    )
                case 2:
                    del bad[at : at + r.randrange(1, 9)]
        del bad[len(block) :]
        bad[16:24] = (len(bad) - HEADER_BYTES).to_bytes(8, "little")
        if survives(cols, bytes(bad)):
            accepted += 1
        else:
            refused += 1
    assert accepted > 100  # else the fuzz does not get past the first check
    assert refused > 100


VIEWS = {
    "string_view": pa.array(["a", None, "", "longer than twelve bytes"], pa.string_view()),
    "binary_view": pa.array([b"a", None, b"", b"longer than twelve bytes"], pa.binary_view()),
    "dictionary": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "small index": pa.array(["x", None, "y", "x"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    "numbers": pa.array([7, 8, None, 7], pa.int16()).dictionary_encode(),
    "list": pa.array([["a"], None, [], ["b", None]], pa.list_(pa.string_view())),
    "large list": pa.array([["a"], None, [], ["b", None]], pa.large_list(pa.string_view())),
    "fixed list": pa.array([["a", "b"], None, ["c", None], ["", ""]], pa.list_(pa.string_view(), 2)),
    "struct": pa.array([{"v": "a", "i": 1}, None], pa.struct([("v", pa.string_view()), ("i", pa.int8())])),
    "map": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string_view())),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_dictionaries_come_back_as_they_were(name: str) -> None:
    data = pa.record_batch({"i": pa.array(range(len(VIEWS[name]))), "c": VIEWS[name]})
    for schema in (None, data.schema, Schema.from_arrow(data.schema)):
        cols = ColumnarSerializer(schema)
        for given_ in (data, data.slice(1), data.slice(0, 0)):
            found = cols.loads(cols.dumps(given_))
            found.validate(full=True)
            assert found.schema == data.schema
            assert found.to_pylist() == given_.to_pylist()


def test_a_dictionary_within_another_type_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match=r"column 'c' has a dictionary within list"):
        ColumnarSerializer(pa.schema({"c": pa.list_(pa.dictionary(pa.int8(), pa.string()))}))


def test_a_dictionary_is_decoded_where_the_schema_has_its_values() -> None:
    plain = pa.record_batch({"c": pa.array(["x", None, "y", "x"])})
    coded = pa.record_batch({"c": VIEWS["dictionary"]})
    cols = ColumnarSerializer(plain.schema)
    assert cols.loads(cols.dumps(coded)).equals(plain)
    with pytest.raises(SchemaMismatch, match=r"column 'c' is string in the schema and dictionary.*int16"):
        cols.dumps(pa.record_batch({"c": VIEWS["numbers"]}))
    with pytest.raises(SchemaMismatch, match="columns"):
        cols.dumps(pa.record_batch({"d": VIEWS["dictionary"]}))


def test_an_index_that_is_too_narrow_for_what_comes_together() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    first = pa.record_batch({"c": pa.array(map(str, range(100))).dictionary_encode().cast(kind)})
    second = pa.record_batch({"c": pa.array(map(str, range(100, 200))).dictionary_encode().cast(kind)})
    cols = ColumnarSerializer(first.schema)
    assert cols.loads(cols.dumps(first)).equals(first)
    with pytest.raises(RecordError, match=r"column 'c' cannot be dictionary.*wider index"):
        cols.loads(cols.dumps(pa.Table.from_batches([first, second])))


class TestSizes:
    def test_many_small_batches_become_one_block_and_one_batch(self) -> None:
        data = batch(1000)
        cols = ColumnarSerializer(data.schema)
        block = cols.dumps([data.slice(at, 7) for at in range(0, 1000, 7)])
        assert cols.loads(block).equals(data)
        assert [found.num_rows for found in cols.iter(block)] == [1000]
        assert cols.loads(cols.dumps([])).num_rows == 0
        with pytest.raises(TypeError, match="list of batches"):
            cols.dumps([data, 5])
        with pytest.raises(RecordError, match="no schema yet"):
            ColumnarSerializer().dumps([])

    @pytest.mark.parametrize("cut", [1, 90])
    @pytest.mark.parametrize("max_rows", [None, 1, 64])
    @pytest.mark.parametrize("max_bytes", [None, 3000, 1 << 30])
    def test_batches_keep_to_their_bounds(self, cut: int, max_rows: int | None, max_bytes: int | None) -> None:
        data = batch(300)
        cols = ColumnarSerializer(data.schema)
        block = cols.dumps([data.slice(at, cut) for at in range(0, 300, cut)])
        found = list(cols.iter(bytearray(block), max_rows, max_bytes))
        assert pa.Table.from_batches(found).combine_chunks().equals(pa.Table.from_batches([data]).combine_chunks())
        for piece in found:
            assert 0 < piece.num_rows <= (max_rows or 300)
            assert piece.num_rows == 1 or piece.nbytes <= (max_bytes or 1 << 40)
        if cut == 1 and max_rows == 64 and max_bytes is None:
            assert [piece.num_rows for piece in found] == [64, 64, 64, 64, 44]

    def test_a_few_long_rows_among_short_ones(self) -> None:
        data = pa.record_batch({"t": ["x" * (100_000 if i % 50 == 0 else 1) for i in range(200)]})
        cols = ColumnarSerializer(data.schema)
        found = list(cols.iter(cols.dumps(data), max_bytes=50_000))
        assert [row for piece in found for row in piece["t"].to_pylist()] == data["t"].to_pylist()
        assert [piece.num_rows for piece in found if piece.nbytes > 50_000] == [1] * 4

    def test_what_is_wrong_is_found_on_the_way(self) -> None:
        data = batch(10)
        cols = ColumnarSerializer(data.schema)
        assert list(cols.iter(cols.dumps(data.slice(0, 0)))) == []
        block = bytearray(cols.dumps([data] * 5))
        for count in (0, 49, 51):
            block[24:28] = count.to_bytes(4, "little")
            with pytest.raises(BlockCorrupt, match="50"):
                list(cols.iter(block, max_rows=10))
        block[24:28] = (50).to_bytes(4, "little")
        block[HEADER_BYTES : HEADER_BYTES + 4] = b"\xff\xff\xff\x7f"
        with pytest.raises(BlockTruncated, match="announces"):
            next(cols.iter(block))
        for wrong in ({"max_rows": 0}, {"max_bytes": -1}):
            with pytest.raises(ValueError, match="at least 1"):
                cols.iter(block, **wrong)
