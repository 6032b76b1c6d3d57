"""Blocks of Arrow batches written and read, ns per row, beside pyarrow IPC, pickle, and memcpy of the same bytes.

Shapes.  Rows A: (int64 key, int64, float64, string "user-N"), about 35 bytes, batches of 10,000.  Rows L: (int64 key,
list<float32> of 256, fixed_size_list<float32> of 256), 2,056 bytes, batches of 1,000.  20 batches a round (4 in a
smoke run), each written or read for itself and let go of before the next.

Memory is had in the same way by all that are compared: *new*, where each result is made and let go of (bytes by dumps
and memcpy, a buffer of pyarrow's own pool by IPC), and *into*, where one buffer is written again and again.  Read, a
batch is either copied out, beside a memcpy, or lies in what it was read from, as IPC's do; "schema known" is IPC's
record batch message alone, without the schema that its stream repeats.  IPC believes what it reads, as ours does with
``check=False``, the way named "believed"; else ours has looked at every offset when it gives a batch out.  For IPC's
batches ``validate(full=True)`` does that, in the way named after it: it looks at UTF-8 as well, and pyarrow has nothing
that looks at offsets alone.  What believes beside what believes, and what looks beside what looks, is the same work.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench_partition import ROUNDS, report, rows_a, rows_l

from fastbuf.serializers.columnar import ColumnarSerializer

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
SHAPES: dict[str, Callable[[], list[pa.RecordBatch]]] = {"A": rows_a, "L": rows_l}


def ipc_dumps(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def ipc_dump_into(batch: pa.RecordBatch, buffer: pa.Buffer) -> None:
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def ipc_loads(block: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(block).read_next_batch()


def ipc_validated(message: pa.Buffer, schema: pa.Schema) -> None:
    pa.ipc.read_record_batch(message, schema).validate(full=True)


def each(work: Callable[[Any], Any], given: Iterable[Any]) -> Callable[[], None]:
    """Does it for one after the other; a result is gone before the next is made."""

    def run() -> None:
        for one in given:
            work(one)

    return run


def sizes(batch: pa.RecordBatch) -> dict[str, float]:
    """Bytes per row of each format."""
    made = {
        "fastbuf": len(ColumnarSerializer(batch.schema).dumps(batch)),
        "pyarrow IPC": ipc_dumps(batch).size,
        "pickle 5": len(pickle.dumps(batch, 5)),
        "Arrow in memory": batch.nbytes,
    }
    return {name: round(size / batch.num_rows, 2) for name, size in made.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_dumps(in_turn: Callable[..., dict[str, float]], shape: str) -> None:
    batches = SHAPES[shape]()
    cols, summed = ColumnarSerializer(batches[0].schema), ColumnarSerializer(batches[0].schema, checksum=True)
    blocks = [cols.dumps(batch) for batch in batches]
    views, arrays = [memoryview(block) for block in blocks], [np.frombuffer(block, np.uint8) for block in blocks]
    room = np.zeros(2 * max(map(len, blocks)), np.uint8)
    target = pa.py_buffer(room)
    ways = {
        "fastbuf, new": each(cols.dumps, batches),
        "fastbuf with checksum, new": each(summed.dumps, batches),
        "pyarrow IPC, new": each(ipc_dumps, batches),
        "pickle 5, new": each(lambda batch: pickle.dumps(batch, 5), batches),
        "memcpy, new": each(bytes, views),
        "fastbuf, into": each(lambda batch: cols.dump_into(batch, room), batches),
        "pyarrow IPC, into": each(lambda batch: ipc_dump_into(batch, target), batches),
        "memcpy, into": each(lambda array: np.copyto(room[: len(array)], array), arrays),
    }
    assert ipc_loads(ipc_dumps(batches[0])).equals(cols.loads(blocks[0]))
    rows = sum(batch.num_rows for batch in batches)
    medians = in_turn(
        ways,
        rounds=ROUNDS,
        baselines=("memcpy, new", "memcpy, into", "fastbuf, new", "fastbuf, into"),
        rows=rows,
        bytes=sum(map(len, blocks)),
        bytes_per_row=sizes(batches[0]),
    )
    report(medians, rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_loads(in_turn: Callable[..., dict[str, float]], shape: str) -> None:
    """What lies in place has blocks of its own in each way: none is in the cache because another has just read it."""
    batches = SHAPES[shape]()
    schema = batches[0].schema
    cols, summed = ColumnarSerializer(schema), ColumnarSerializer(schema, checksum=True)
    blocks, checked = [cols.dumps(batch) for batch in batches], [summed.dumps(batch) for batch in batches]
    streams, pickles = [ipc_dumps(batch) for batch in batches], [pickle.dumps(batch, 5) for batch in batches]
    in_place, believed = [cols.dumps(batch) for batch in batches], [cols.dumps(batch) for batch in batches]
    messages, validated = [batch.serialize() for batch in batches], [batch.serialize() for batch in batches]
    ways = {
        "fastbuf, copied": each(cols.loads, blocks),
        "fastbuf with checksum, copied": each(summed.loads, checked),
        "pickle 5, copied": each(pickle.loads, pickles),
        "memcpy": each(bytes, [memoryview(block) for block in blocks]),
        "fastbuf, in place": each(lambda block: cols.loads(block, copy=False), in_place),
        "fastbuf, in place, believed": each(lambda block: cols.loads(block, copy=False, check=False), believed),
        "pyarrow IPC, in place": each(ipc_loads, streams),
        "pyarrow IPC, schema known": each(lambda message: pa.ipc.read_record_batch(message, schema), messages),
        "pyarrow IPC, schema known, validated": each(lambda message: ipc_validated(message, schema), validated),
    }
    for batch, block, message in zip(batches, blocks, messages, strict=True):
        assert cols.loads(block).equals(batch)
        assert cols.loads(block, copy=False).equals(batch)
        assert cols.loads(block, copy=False, check=False).equals(batch)
        assert pa.ipc.read_record_batch(message, schema).equals(batch)
    rows = sum(batch.num_rows for batch in batches)
    medians = in_turn(
        ways,
        rounds=ROUNDS,
        baselines=("memcpy", "fastbuf, copied", "fastbuf, in place", "fastbuf, in place, believed"),
        rows=rows,
        bytes=sum(map(len, blocks)),
        bytes_per_row=sizes(batches[0]),
    )
    report(medians, rows)
