"""Batches scattered over partitions, and put together again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest
from columnar_cases import NESTED, TYPES, assemble, batch, batches, column, drain
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf.serializers.partition import HashPartitioner, hash_partition
from fastbuf.serializers.scatter import BatchScatter
from fastbuf.serializers.schema import Schema


def scattered(data: pa.RecordBatch, pids: np.ndarray | None, partitions: int, room: int) -> None:
    """Scatter, assemble, and compare each partition with the rows that pyarrow takes out."""
    scatter = BatchScatter(data.schema, partitions)
    scatter.start(data, pids)
    ids = np.zeros(data.num_rows, np.int32) if pids is None else pids
    for part in range(partitions):
        found = assemble(data.schema, drain(scatter, part, room))
        expected = data.take(pa.array(np.flatnonzero(ids == part)))
        assert found.schema.equals(data.schema, check_metadata=True)
        assert found.equals(expected), [n for n in data.schema.names if not found[n].equals(expected[n])]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("nulls", [0.0, 0.2, 1.0])
def test_every_type(name: str, nulls: float) -> None:
    whole = pa.record_batch({"c": column(TYPES[name], 300, nulls)})
    for start, rows in ((0, 300), (3, 201), (8, 64), (299, 1), (13, 0)):
        data = whole.slice(start, rows)
        for partitions in (1, 2, 7):
            pids = np.random.default_rng(rows).integers(0, partitions, rows).astype(np.int32)
            for room in (120, 1 << 16):
                scattered(data, pids, partitions, room)


@pytest.mark.parametrize("room", [64, 1000, 32768])
@pytest.mark.parametrize("partitions", [1, 2, 5, 64])
def test_all_types_in_one_batch(room: int, partitions: int) -> None:
    data = batch(200).slice(5, 190)
    scattered(data, (np.arange(190) * 7 % partitions).astype(np.int32), partitions, room)
    scattered(data, np.full(190, partitions - 1, np.int32), partitions, room)
    scattered(data, None, partitions, room)


@pytest.mark.parametrize("columns", range(1, 11))
@pytest.mark.parametrize("longest", [1, 15, 16, 31, 32, 33])
def test_wide_columns_side_by_side_and_short_strings(columns: int, longest: int) -> None:
    """Columns of 8 bytes are gathered up to four at once, strings of up to 16 and 32 bytes by copies of as many.

    Of more than four partitions both share a band, whose rows are cut where a small room ends.
    """
    r = np.random.default_rng(columns)
    for nulls in (None, columns // 2):
        arrays = {}
        for k in range(columns):
            values = r.integers(0, 1 << 60, 500)
            arrays[f"c{k}"] = pa.array(values, mask=values % 3 == 0 if k == nulls else None)
        texts = ["x" * int(n) for n in r.integers(0, longest + 1, 499)] + ["y" * longest]
        data = pa.record_batch({"first": texts, **arrays, "last": texts})
        for partitions, room in ((2, 8192), (61, 8192), (61, 300)):
            scattered(data, r.integers(0, partitions, 500).astype(np.int32), partitions, room)


@pytest.mark.parametrize("length", [10, 11])
def test_rows_that_are_much_alike_fill_the_room(length: int) -> None:
    """The rows that surely fit are taken without a look at each; what they leave of the room is little."""
    r = np.random.default_rng(1)
    texts = ["x" * int(n) for n in r.integers(length - 1, length + 1, 5000)]
    data = pa.record_batch({"k": np.arange(5000), "s": texts})
    scatter = BatchScatter(data.schema, 2)
    scatter.start(data, np.arange(5000, dtype=np.int32) % 2)
    buffer = np.zeros((1, 32768), np.uint8)
    at, pieces = 0, []
    while written := scatter.encode_into(0, buffer[0], at):
        pieces.append(bytes(buffer[0, at + 4 : at + written]))
        at += written
    assert 32768 - at < 128
    assert len(pieces) <= 4
    rows = assemble(data.schema, pieces).num_rows
    assert assemble(data.schema, pieces).equals(data.take(pa.array(np.arange(0, 2 * rows, 2))))


@settings(max_examples=150, deadline=None)
@given(batches(), st.integers(1, 9), st.sampled_from([0, 8, 17, 100, 1000, 100_000]), st.randoms(use_true_random=False))
def test_any_batch(data: pa.RecordBatch, partitions: int, room: int, r: object) -> None:
    scattered(data, np.array([r.randrange(partitions) for _ in range(data.num_rows)], np.int32), partitions, room)


@given(
    st.lists(
        st.tuples(st.none() | st.text(max_size=40), st.none() | st.lists(st.floats(width=32), max_size=9)), max_size=60
    ),
    st.integers(1, 5),
)
def test_any_strings_and_lists(rows: list[tuple], partitions: int) -> None:
    data = pa.record_batch(
        {"s": pa.array([r[0] for r in rows], pa.string()), "l": pa.array([r[1] for r in rows], pa.list_(pa.float32()))}
    )
    scatter = BatchScatter(data.schema, partitions)
    pids = (np.arange(len(rows)) % partitions).astype(np.int32)
    scatter.start(data, pids)
    for part in range(partitions):
        found = assemble(data.schema, drain(scatter, part, 256))
        # By bits: a NaN equals itself, and -0.0 is not 0.0.
        assert repr(found.to_pylist()) == repr(data.take(pa.array(np.flatnonzero(pids == part))).to_pylist())


def test_rows_keep_their_order_within_a_partition() -> None:
    for partitions in (3, 4, 5, 9, 300):  # either side of the counting sort's two ways
        data = pa.record_batch({"n": np.arange(10_007)})
        pids = np.random.default_rng(1).integers(0, partitions, 10_007).astype(np.int32)
        scattered(data, pids, partitions, 1 << 20)


@pytest.mark.parametrize("partitions", [2, 3, 4])
def test_few_partitions_of_any_number_of_rows(partitions: int) -> None:
    """Up to four partitions are found eight rows at a time, and what is left of them one by one."""
    r = np.random.default_rng(partitions)
    scatter = BatchScatter(pa.schema({"n": pa.int32()}), partitions)
    for rows in (*range(1, 35), 255, 256, 257):
        data = pa.record_batch({"n": np.arange(rows, dtype=np.int32)})
        for pids in (
            r.integers(0, partitions, rows),
            np.arange(rows) % partitions,
            np.arange(rows) * partitions // rows,
        ):
            scatter.start(data, pids.astype(np.int32))
            for part in range(partitions):
                found = [n for payload in drain(scatter, part, 1 << 16) for n in assemble(data.schema, [payload])["n"]]
                assert [n.as_py() for n in found] == np.flatnonzero(pids == part).tolist()


def test_a_value_longer_than_the_room() -> None:
    data = pa.record_batch({"n": [1, 2, 3], "s": ["short", "x" * 100_000, "short too"]})
    scatter = BatchScatter(data.schema, 1)
    scatter.start(data)
    buffer = bytearray(4096)
    assert scatter.encode_into(0, buffer) > 0
    assert scatter.left(0) == 2
    assert scatter.encode_into(0, buffer) == 0
    assert 100_000 < scatter.next_bytes(0) <= 100_064
    scattered(data, None, 1, 4096)


def test_overhead_of_small_chunks() -> None:
    """50 rows of (int64, int64, float64, string): no more than 32 bytes beside the values and the ends."""
    data = pa.record_batch({"k": np.arange(50), "v": np.arange(50), "d": np.ones(50), "s": pa.array(["user-1"] * 50)})
    scatter = BatchScatter(data.schema, 1)
    scatter.start(data)
    (payload,) = drain(scatter, 0, 4096)
    assert len(payload) + 4 - 50 * (24 + 4 + 6) <= 32


def test_slices_ship_only_their_rows() -> None:
    parent = pa.record_batch({"s": pa.array(["x" * 100] * 10_000), "l": pa.array([[1.0] * 10] * 10_000)})
    scatter = BatchScatter(parent.schema, 1)
    scatter.start(parent.slice(5000, 10))
    assert sum(map(len, drain(scatter, 0, 1 << 20))) < 10 * (100 + 80 + 8) + 32


def test_chunks_without_nulls_ship_no_bitmap() -> None:
    values = pa.array([None, *range(800)])
    sizes = []
    for data in (values.slice(1), values.slice(0, 800)):
        scatter = BatchScatter(pa.schema({"n": pa.int64()}), 1)
        scatter.start(pa.record_batch({"n": data}))
        sizes.append(sum(map(len, drain(scatter, 0, 1 << 20))))
    assert sizes[0] + 96 <= sizes[1] <= sizes[0] + 104


def test_hashed_is_partitioned() -> None:
    data = batch(500, types={"int64": pa.int64(), "string": pa.string()})
    for n in (1, 2, 16):
        scatter, keys = BatchScatter(data.schema, n), HashPartitioner(["string", "int64"], n)
        pids = hash_partition(data, ["string", "int64"], n)
        for start in (0, 7):
            scatter.start_hashed(data.slice(start), keys)
            assert [scatter.left(p) for p in range(n)] == np.bincount(pids[start:], minlength=n).tolist()
            for p in range(n):
                expected = data.slice(start).take(pa.array(np.flatnonzero(pids[start:] == p)))
                assert assemble(data.schema, drain(scatter, p, 999)).equals(expected)
    with pytest.raises(ValueError, match="3 partitions"):
        scatter.start_hashed(data, HashPartitioner("int64", 3))


@pytest.mark.parametrize("partitions", [5, 61, 700])
def test_columns_of_every_width_by_partition(partitions: int) -> None:
    """More than four partitions: columns with slots are laid out by partition at once, the others gathered."""
    r = np.random.default_rng(partitions)
    rows = 2003
    texts = [["x" * int(n) for n in r.integers(0, longest + 1, rows)] for longest in (0, 3, 15, 16, 31, 32, 33)]
    fixed = {f"i{bits}": r.integers(-100, 100, rows).astype(f"i{bits}") for bits in (1, 2, 4, 8)}
    wide = pa.array(r.integers(0, 1 << 40, rows)).cast(pa.decimal128(25, 0))
    gaps = r.integers(0, 5, rows) == 0
    plain = {**fixed, "d": wide, **{f"s{k}": pa.array(text) for k, text in enumerate(texts[:5])}}
    holes = {f"h{n}": pa.array(column, mask=gaps) for n, column in enumerate([fixed["i8"], fixed["i4"], texts[2]])}
    lists = [[n] * (n % 3) for n in range(rows)]
    mixed = {"long": texts[5], "longer": texts[6], "bits": fixed["i1"] > 0, "list": lists}
    pids = r.integers(0, partitions, rows).astype(np.int32)
    for columns in (plain, {**plain, **holes}, {**mixed, **holes, **plain}, mixed):
        whole = pa.record_batch(columns)
        for data, ids in ((whole, pids), (whole.slice(77, 900), pids[:900])):
            for room in (200, 1500, 1 << 16):
                scattered(data, ids, partitions, room)


def test_a_batch_too_large_for_slots() -> None:
    """More than 16 MiB of them: the columns are gathered, and the next small batch has slots again."""
    rows = 260_000
    value = pa.array(np.arange(rows)).cast(pa.decimal128(25, 0))
    large = pa.record_batch({"a": value, "b": value, "c": value, "d": value, "k": np.arange(rows)})
    pids = (np.arange(rows, dtype=np.int32) * 7) % 9
    scatter = BatchScatter(large.schema, 9)
    for data in (large.slice(0, 100), large, large.slice(3, 1000)):
        scatter.start(data, pids[: data.num_rows])
        for part in range(9):
            expected = data.take(pa.array(np.flatnonzero(pids[: data.num_rows] == part)))
            assert assemble(data.schema, drain(scatter, part, 1 << 20)).equals(expected)


def test_rows_are_measured_where_no_order_was_needed() -> None:
    data = pa.record_batch({"k": np.arange(90), "s": [str(n) for n in range(90)]})
    scatter = BatchScatter(data.schema, 9)
    scatter.start(data, (np.arange(90) % 9).astype(np.int32))
    sizes = [scatter.next_bytes(part) for part in range(9)]
    assert all(0 < scatter.encode_into(part, bytearray(size)) <= size for part, size in enumerate(sizes))
    assert [scatter.left(part) for part in range(9)] == [9] * 9


def test_encode_all_fills_every_buffer() -> None:
    data = pa.record_batch({"n": np.arange(10_000), "s": pa.array([str(i) for i in range(10_000)])})
    scatter = BatchScatter(data.schema, 3)
    scatter.start(data, (np.arange(10_000) % 3).astype(np.int32))
    buffers, filled = np.zeros((3, 4096), np.uint8), np.zeros(3, np.int64)
    parts: list[list[bytes]] = [[], [], []]
    while True:
        left = scatter.encode_all(buffers, filled)
        for p in range(3):
            parts[p].append(buffers[p, : filled[p]].tobytes())
        filled[:] = 0
        if not left:
            break
    from fastbuf.serializers.assemble import BatchAssembler

    for p in range(3):
        assembler = BatchAssembler(data.schema)
        assembler.add_elements(b"".join(parts[p]))
        assert assembler.batch().equals(data.take(pa.array(np.arange(p, 10_000, 3))))
    with pytest.raises(ValueError, match="2 buffers"):
        scatter.encode_all(buffers[:2], filled[:2])
    with pytest.raises(ValueError, match="filled with 5000"):
        scatter.encode_all(buffers, np.array([0, 0, 5000]))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.list_view(pa.int8()), "list_view"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "run_end_encoded"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "sparse_union"),
        (pa.month_day_nano_interval(), "month_day_nano_interval"),
        (pa.list_(pa.null()), "take no bytes"),
        (pa.list_(pa.struct([]), 3), "take no bytes"),
    ],
)
def test_types_refused_by_name(kind: pa.DataType, name: str) -> None:
    for nested in (kind, pa.struct([("x", kind)]), pa.list_(pa.struct([("y", pa.int8()), ("x", kind)]))):
        with pytest.raises(SchemaError, match=name) as raised:
            BatchScatter(pa.schema({"ok": pa.int8(), "odd": nested}), 2)
        assert "odd" in str(raised.value)


def test_other_batches_are_refused() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.string()))])
    scatter = BatchScatter(schema, 2)
    good = pa.record_batch([[1], [["x"]]], schema=schema)
    for other, what in (
        (pa.record_batch({"a": [1]}), "has 2 fields, the batch has 1"),
        (pa.record_batch({"b": [1], "a": [["x"]]}), "column 0 is 'a' in the schema and 'b'"),
        (pa.record_batch({"a": [1.0], "b": [["x"]]}), "'a' is of Arrow format 'l'"),
        (pa.record_batch({"a": [1], "b": [[1]]}), r"'b\[\]' is of Arrow format 'u'"),
        (pa.record_batch({"a": pa.array([None], pa.int64()), "b": [["x"]]}), "'a' has nulls"),
    ):
        with pytest.raises(SchemaMismatch, match=what):
            scatter.start(other)
        assert scatter.left(0) == 0
    # What only looks different: nullable flags, and the name of a list's items.
    same = pa.record_batch(
        [pa.array([1]), pa.array([["x"]], pa.list_(pa.field("element", pa.string())))], names=["a", "b"]
    )
    scatter.start(same)
    assert assemble(schema, drain(scatter, 0, 99)).equals(good)
    with pytest.raises(TypeError, match="__arrow_c_array__"):
        scatter.start([1])


def test_wrong_partition_ids() -> None:
    data = pa.record_batch({"a": [1, 2, 3]})
    scatter = BatchScatter(data.schema, 2)
    for pids, what in (
        ([0, 2, 1], "row 1 has the partition 2"),
        ([0, 0, -1], "row 2 has the partition -1"),
        ([0, 1], "2 partition ids"),
    ):
        with pytest.raises(ValueError, match=what):
            scatter.start(data, np.array(pids, np.int32))
        assert scatter.left(0) == scatter.left(1) == 0
    scatter.start(data, np.array([1, 0, 1]))  # int64, as NumPy makes them
    assert [scatter.left(0), scatter.left(1)] == [1, 2]
    for call in (scatter.left, scatter.next_bytes):
        with pytest.raises(IndexError):
            call(2)
    with pytest.raises(ValueError, match="at least 1"):
        BatchScatter(data.schema, 0)
    with pytest.raises(ValueError, match="the buffer has 8 bytes"):
        scatter.encode_into(0, bytearray(8), 9)


def test_the_batch_is_let_go_of() -> None:
    values = np.arange(100)
    gone = weakref.ref(values)
    scatter = BatchScatter(pa.schema({"a": pa.int64()}), 1)
    scatter.start(pa.record_batch({"a": pa.array(values)}))
    del values
    gc.collect()
    assert gone() is not None
    scatter.stop_batch()
    gc.collect()
    assert gone() is None
    assert scatter.left(0) == 0


def test_schemas_of_ours_are_taken() -> None:
    schema = Schema.of(id="int64", name="string?", vec="list<float32>")
    data = pa.record_batch([[1], [None], [[1.0]]], schema=schema.to_arrow())
    scatter = BatchScatter(schema, 1)
    scatter.start(data)
    assert assemble(schema, drain(scatter, 0, 99)).equals(data)


def test_foreign_arrays_through_the_c_interface() -> None:
    """Anything with __arrow_c_array__: here a struct array, with an offset of its own and one for each field."""
    data = batch(100, types=NESTED).to_struct_array().slice(11, 50)
    scatter = BatchScatter(pa.schema(list(data.type)), 2)
    pids = (np.arange(50) % 2).astype(np.int32)
    scatter.start(data, pids)
    for part in range(2):
        expected = pa.RecordBatch.from_struct_array(data.take(pa.array(np.flatnonzero(pids == part))))
        assert assemble(expected.schema, drain(scatter, part, 500)).equals(expected)
