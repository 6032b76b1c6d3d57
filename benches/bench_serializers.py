"""Rows to bytes and back, 1,000 records at a time, beside what Python has for it.

Record A is (int64, int64, float64, str), about 35 bytes; record B is (int, str or None, list of 8 floats, 32 bytes),
about 120 bytes.  One operation is a thousand records; a way is run often enough within a round that the clock does not
count.  Every way gives back the same records; that is checked before anything is measured.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
RECORDS = 1000
REPEATS = 1 if SMOKE else 20
Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def record_a(i: int) -> tuple[Any, ...]:
    return i, i * 7919, i * 0.5, f"user-{i}"


def record_b(i: int) -> tuple[Any, ...]:
    return i, None if i % 10 == 0 else f"name-{i}", [i + j * 0.25 for j in range(8)], bytes([i % 256]) * 32


SCHEMAS = {
    "A": Schema.of(id="int64", key="int64", value="float64", name="string"),
    "B": Schema.of(id="int64", name="string?", vec="list<float64>", raw="binary"),
}
MAKE = {"A": record_a, "B": record_b}


def peers(shape: str) -> dict[str, Pair]:
    """Encoder and decoder of a list of records, by name."""
    rows, objects = RowSerializer(SCHEMAS[shape]), PickledSerializer()
    found: dict[str, Pair] = {
        "fastbuf rows": (rows.dumps, rows.loads),
        "fastbuf pickled": (objects.dumps, objects.loads),
        "pickle 5": (lambda records: pickle.dumps(records, 5), pickle.loads),
        "marshal": (marshal.dumps, marshal.loads),
    }
    if importlib.util.find_spec("pyspark"):
        from pyspark.serializers import BatchedSerializer, CPickleSerializer

        batches = BatchedSerializer(CPickleSerializer(), RECORDS).serializer
        found["PySpark CPickle batches"] = (batches.dumps, batches.loads)
    if importlib.util.find_spec("msgspec"):
        import msgspec

        types = {
            "A": [("id", int), ("key", int), ("value", float), ("name", str)],
            "B": [("id", int), ("name", str | None), ("vec", list[float]), ("raw", bytes)],
        }
        record = msgspec.defstruct("Record", types[shape], array_like=True)
        encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[record])
        found["msgspec (Structs)"] = (encoder.encode, decoder.decode)
        STRUCTS[shape] = record
    if importlib.util.find_spec("pyarrow"):
        import pyarrow as pa

        arrow, columns = SCHEMAS[shape].to_arrow(), ColumnarSerializer(SCHEMAS[shape])

        def from_rows(records: list[tuple[Any, ...]]) -> Any:
            fields = zip(zip(*records, strict=True), arrow.types, strict=True)
            return pa.record_batch([pa.array(values, kind) for values, kind in fields], schema=arrow)

        def to_rows(data: bytes) -> list[tuple[Any, ...]]:
            return list(zip(*(column.to_pylist() for column in columns.loads(data).columns), strict=True))

        def ipc(records: list[tuple[Any, ...]]) -> bytes:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, arrow) as writer:
                writer.write_batch(from_rows(records))
            return sink.getvalue().to_pybytes()

        def from_ipc(data: bytes) -> list[tuple[Any, ...]]:
            batch = pa.ipc.open_stream(data).read_next_batch()
            return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

        found["pyarrow IPC of lists"] = (ipc, from_ipc)
        found["fastbuf columns of lists"] = (lambda records: columns.dumps(from_rows(records)), to_rows)
    return found


STRUCTS: dict[str, Any] = {}


def repeated(work: Callable[[Any], Any], given: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in range(REPEATS):
            work(given)

    return run


@pytest.mark.parametrize("shape", ["A", "B"])
@pytest.mark.parametrize("way", ["encode", "decode"])
def test_records(in_turn: Callable[..., dict[str, float]], benchmark: Any, shape: str, way: str) -> None:
    """ns per record of every peer, and the ratio of each to ours (above 1: slower than fastbuf's rows)."""
    records = [MAKE[shape](i) for i in range(RECORDS)]
    ways, size = {}, {}
    for name, (encode, decode) in peers(shape).items():
        given = [STRUCTS[shape](*record) for record in records] if "Structs" in name else records
        data = encode(given)
        assert decode(data) == given, name
        size[name] = round(len(data) / RECORDS, 1)
        ways[name] = repeated(encode, given) if way == "encode" else repeated(decode, data)
    seconds = in_turn(
        ways,
        rounds=2 if SMOKE else 21,
        warm_up=1,
        baselines=("fastbuf rows",),
        shape=shape,
        records=RECORDS,
        bytes_per_record=size,
    )
    benchmark.extra_info["ns_per_record"] = {
        name: round(median * 1e9 / (RECORDS * REPEATS), 1) for name, median in seconds.items()
    }


@pytest.mark.parametrize("field", ["key", "name"])
def test_one_field(in_turn: Callable[..., dict[str, float]], benchmark: Any, field: str) -> None:
    """ns per record to read one field of record A out of a block: lazily in its ways, and by decoding all of it."""
    rows, place = RowSerializer(SCHEMAS["A"]), SCHEMAS["A"].index(field)
    records = [record_a(i) for i in range(RECORDS)]
    block, wanted = rows.dumps(records), [record[place] for record in records]
    found: dict[str, Callable[[Any], Any]] = {
        "lazy rows, values()": lambda data: rows.view(data, key="id").values(field),
        "lazy rows, row by row": lambda data: [row[place] for row in rows.view(data, key="id")],
        "all decoded": lambda data: [record[place] for record in rows.loads(data)],
    }
    if field == "key":
        found["lazy rows, array()"] = lambda data: rows.view(data, key="id").array(field)
    for read in found.values():
        assert list(read(block)) == wanted
    seconds = in_turn(
        {name: repeated(read, block) for name, read in found.items()},
        rounds=2 if SMOKE else 21,
        baselines=("all decoded",),
        records=RECORDS,
        field=field,
    )
    benchmark.extra_info["ns_per_record"] = {
        name: round(median * 1e9 / (RECORDS * REPEATS), 1) for name, median in seconds.items()
    }
