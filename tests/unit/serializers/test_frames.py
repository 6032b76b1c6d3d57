"""Frames and tables of other libraries, by Arrow's C stream interface: pandas, polars, and whoever else speaks it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.errors import SchemaMismatch

COLUMNS: dict[str, list[Any]] = {"id": [1, 2, 3, 4], "name": ["a", None, "é", "long" * 9], "x": [0.5, 1.5, None, 2.0]}
SCHEMA = fb.Schema.of(id="int64", name="string?", x="float64?")


class Stream:
    """Nothing but the interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def chunked() -> pa.Table:
    table = pa.table(COLUMNS)
    return pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1)])


FRAMES = {
    "pandas": lambda: pd.DataFrame(COLUMNS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars in chunks": lambda: pl.concat([pl.DataFrame(COLUMNS)[:1], pl.DataFrame(COLUMNS)[1:]], rechunk=False),
    "table": lambda: pa.table(COLUMNS),
    "table in chunks": chunked,
    "reader": lambda: pa.table(COLUMNS).to_reader(),
    "stream": lambda: Stream(chunked()),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_to_blocks(kind: str) -> None:
    """``dumps`` takes whatever speaks Arrow's C stream interface, with a schema or without one."""
    given = fb.ColumnarSerializer(SCHEMA)
    learnt = fb.ColumnarSerializer()
    for serializer in (given, learnt):
        assert serializer.loads(serializer.dumps(FRAMES[kind]())).to_pydict() == COLUMNS
    memory = bytearray(10_000)
    size = given.dump_into(FRAMES[kind](), memory)
    assert given.loads(memory[:size]).to_pydict() == COLUMNS


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_through_an_exchange(kind: str) -> None:
    """``emit_batch`` takes the same, and places their rows as it does a batch's."""
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        serializer = fb.ColumnarSerializer(SCHEMA)
        writer, gates = env.exchange(serializer, consumers=2, selector=fb.hash_by("id"))
        writer.emit_batch(FRAMES[kind]())
        assert writer.try_emit_batch(FRAMES[kind]())
        assert writer.records == 8
        writer.close()
        parts = [pa.Table.from_batches(list(gate), serializer.arrow_schema) for gate in gates]
        twice = sorted(zip(*COLUMNS.values(), strict=True)) * 2
        assert sorted((tuple(r.values()) for part in parts for r in part.to_pylist()), key=lambda r: r[0]) == sorted(
            twice, key=lambda r: r[0]
        )
        for part, partition in zip(parts, range(2), strict=True):
            assert all(fb.hash_partition(part.to_batches()[0], ["id"], 2) == partition)
    env.pool.audit()


def test_the_index_of_a_filtered_or_sorted_frame_is_left_out() -> None:
    """pandas sends it as a further column."""
    frame = pd.DataFrame({"id": [3, 4, 1, 2], "x": [0.5, 1.5, 2.5, 3.5]})
    given = fb.ColumnarSerializer(fb.Schema.of(id="int64", x="float64?"))
    for part in (frame[frame["id"] > 1], frame.sort_values("id"), frame.set_index(frame["id"].rename("other"))):
        for serializer in (given, fb.ColumnarSerializer()):
            if part.index.name is None or serializer is given:
                assert serializer.loads(serializer.dumps(part)).to_pydict() == part.to_dict("list")
        with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
            writer, (gate,) = env.exchange(given)
            writer.emit_batch(part)
            writer.close()
            assert pa.Table.from_batches(gate).to_pydict() == part.to_dict("list")


def test_an_index_with_a_name_is_a_column() -> None:
    frame = pd.DataFrame({"x": [0.5, 1.5, 2.5], "id": [3, 1, 2]}).set_index("id")
    wanted = {"x": [0.5, 1.5, 2.5], "id": [3, 1, 2]}
    for serializer in (fb.ColumnarSerializer(fb.Schema.of(x="float64?", id="int64?")), fb.ColumnarSerializer()):
        assert serializer.loads(serializer.dumps(frame)).to_pydict() == wanted


def test_the_same_values_in_another_layout_are_carried() -> None:
    """Categories, large and view types are layouts: a serializer with the plain type takes them."""
    serializer = fb.ColumnarSerializer(
        pa.schema(
            [("c", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.string())), ("s", pa.struct({"t": "string"}))]
        )
    )
    frame = pl.DataFrame(
        {"c": ["x", "y", "x"], "b": [b"1", b"2", b"3"], "l": [["p"], [], ["q", "r"]], "s": [{"t": "v"}] * 3},
        schema_overrides={"c": pl.Categorical},
    )
    got = serializer.loads(serializer.dumps(frame))
    assert got.schema == serializer.arrow_schema
    assert got.to_pylist() == frame.to_dicts()


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pl.DataFrame({"id": [1.5], "name": ["a"], "x": [1.0]}), "column 'id'"),
        (pl.DataFrame({"id": [1], "name": ["a"]}), r"columns \['id', 'name', 'x'\], the batch \['id', 'name'\]"),
        (pl.DataFrame({"id": [None], "name": ["a"], "x": [1.0]}, schema_overrides={"id": pl.Int64}), "'id' has nulls"),
        (Stream(pa.chunked_array([[1, 2]])), "Stream cannot be read as a table"),
        (pd.DataFrame({"id": [1, "a"]}), "column .id. has the dtype object, .*with type str"),
    ],
)
def test_frames_with_other_columns_are_refused(frame: Any, words: str) -> None:
    serializer = fb.ColumnarSerializer(SCHEMA)
    with pytest.raises(SchemaMismatch, match=words):
        serializer.dumps(frame)
    with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer)
        with pytest.raises(SchemaMismatch, match=words):
            writer.emit_batch(frame)
        writer.emit_batch(pa.table(COLUMNS))  # the writer goes on
        writer.close()
        assert sum(batch.num_rows for batch in gate) == 4


def test_frames_without_rows() -> None:
    empty = pl.DataFrame(COLUMNS).clear()
    serializer = fb.ColumnarSerializer(SCHEMA)
    assert serializer.loads(serializer.dumps(empty)).num_rows == 0
    learnt = fb.ColumnarSerializer()
    assert learnt.loads(learnt.dumps(empty)).schema.names == list(COLUMNS)
    with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer)
        writer.emit_batch(empty)
        writer.close()
        assert list(gate) == []


def test_neither_pandas_nor_polars_is_imported_for_it() -> None:
    code = """
import sys, numpy as np, pyarrow as pa, fastbuf as fb
table = pa.Table.from_arrays([pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(np.ones(1, np.int64))])], ["id"])
class Stream:
    def __arrow_c_stream__(self, requested_schema=None):
        return table.__arrow_c_stream__(requested_schema)
serializer = fb.ColumnarSerializer()
assert serializer.loads(serializer.dumps(Stream())).equals(table.to_batches()[0])
assert not {"pandas", "polars"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_categories_of_polars_without_a_schema() -> None:
    """pyarrow can cast no dictionary of views."""
    frame = pl.DataFrame({"c": ["b", "a", None, "b"]}, schema={"c": pl.Categorical})
    serializer = fb.ColumnarSerializer()
    got = serializer.loads(serializer.dumps(frame))
    assert got.schema == serializer.arrow_schema
    assert got.to_pydict() == {"c": ["b", "a", None, "b"]}
    with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer)
        writer.emit_batch(frame)
        writer.emit_batch(frame.slice(1, 2))
        writer.close()
        assert pa.Table.from_batches(gate).to_pydict() == {"c": ["b", "a", None, "b", "a", None]}


@pytest.mark.parametrize("learnt", [True, False])
def test_no_order_of_categories_is_claimed(learnt: bool) -> None:
    """They come in the order in which their values do."""
    values = pd.Categorical(["mid", "low", "mid"], categories=["low", "mid", "high"], ordered=True)
    batch = pa.RecordBatch.from_pandas(pd.DataFrame({"c": values}), preserve_index=False)
    assert batch.schema.field("c").type.ordered
    serializer = fb.ColumnarSerializer() if learnt else fb.ColumnarSerializer(batch.schema)
    got = serializer.loads(serializer.dumps(batch))
    assert got.schema == serializer.arrow_schema
    assert got.to_pydict() == {"c": ["mid", "low", "mid"]}
    assert not got.schema.field("c").type.ordered
    assert not got.to_pandas()["c"].cat.ordered
