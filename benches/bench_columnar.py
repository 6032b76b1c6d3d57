"""Blocks of Arrow batches: dumps and loads, ns per row, beside pyarrow IPC, pickle, and memcpy of the same bytes.

Shapes.  Rows A: (int64 key, int64, float64, string "user-N"), about 35 bytes, batches of 10,000.  Rows L: (int64 key,
list<float32> of 256, fixed_size_list<float32> of 256), 2,056 bytes, batches of 1,000.  20 batches a round (4 in a
smoke run), each dumped and loaded for itself.  The memcpy makes a new array each time, as dumps must; pyarrow's
IPC reads in place and copies nothing when it loads.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from bench_partition import ROUNDS, report, rows_a, rows_l

from fastbuf.serializers.columnar import ColumnarSerializer

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"


def ipc_dumps(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def ipc_loads(block: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(block).read_next_batch()


SHAPES: dict[str, Callable[[], list[pa.RecordBatch]]] = {"A": rows_a, "L": rows_l}


@pytest.mark.parametrize("shape", SHAPES)
def test_dumps(in_turn: Callable[..., dict[str, float]], shape: str) -> None:
    batches = SHAPES[shape]()
    cols, summed = ColumnarSerializer(batches[0].schema), ColumnarSerializer(batches[0].schema, checksum=True)
    blocks = [np.frombuffer(cols.dumps(batch), np.uint8) for batch in batches]
    ways = {
        "fastbuf": lambda: [cols.dumps(batch) for batch in batches],
        "fastbuf, checksum": lambda: [summed.dumps(batch) for batch in batches],
        "pyarrow IPC": lambda: [ipc_dumps(batch) for batch in batches],
        "pickle 5": lambda: [pickle.dumps(batch, 5) for batch in batches],
        "memcpy": lambda: [block.copy() for block in blocks],
    }
    rows = sum(batch.num_rows for batch in batches)
    bytes_ = sum(map(len, blocks))
    report(in_turn(ways, rounds=ROUNDS, baselines=("fastbuf", "memcpy"), rows=rows, bytes=bytes_), rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_loads(in_turn: Callable[..., dict[str, float]], shape: str) -> None:
    batches = SHAPES[shape]()
    cols, summed = ColumnarSerializer(batches[0].schema), ColumnarSerializer(batches[0].schema, checksum=True)
    blocks, checked = [cols.dumps(batch) for batch in batches], [summed.dumps(batch) for batch in batches]
    arrays = [np.frombuffer(block, np.uint8) for block in blocks]
    streams, pickles = [ipc_dumps(batch) for batch in batches], [pickle.dumps(batch, 5) for batch in batches]
    ways = {
        "fastbuf": lambda: [cols.loads(block) for block in blocks],
        "fastbuf, checksum": lambda: [summed.loads(block) for block in checked],
        "pyarrow IPC": lambda: [ipc_loads(stream) for stream in streams],
        "pickle 5": lambda: [pickle.loads(data) for data in pickles],
        "memcpy": lambda: [array.copy() for array in arrays],
    }
    rows = sum(batch.num_rows for batch in batches)
    bytes_ = sum(map(len, blocks))
    report(in_turn(ways, rounds=ROUNDS, baselines=("fastbuf", "memcpy"), rows=rows, bytes=bytes_), rows)
