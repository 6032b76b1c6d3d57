"""Ways of Python to turn a list of records into bytes and back, each as its users do it and at its fastest.

What a way is given is made beforehand, in the form that it takes: tuples, Structs, or dicts.  Peers that are not
installed are left out.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema

Record = tuple[Any, ...]


def record_a(i: int) -> Record:
    """About 35 bytes: (int64, int64, float64, str)."""
    return i, i * 7919, i * 0.5, f"user-{i}"


def record_b(i: int) -> Record:
    """About 120 bytes: (int, str or None, list of 8 floats, 32 bytes)."""
    return i, None if i % 10 == 0 else f"name-{i}", [i + j * 0.25 for j in range(8)], bytes([i % 256]) * 32


SCHEMAS = {
    "A": Schema.of(id="int64", key="int64", value="float64", name="string"),
    "B": Schema.of(id="int64", name="string?", vec="list<float64>", raw="binary"),
}
MAKE = {"A": record_a, "B": record_b}


class Way(NamedTuple):
    """An encoder and a decoder of a whole list of records; decode(encode(given(records))) == wanted(records)."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    given: Callable[[list[Record]], Any] = list
    wanted: Callable[[list[Record]], Any] | None = None


def record_ways(shape: str, batch: int) -> dict[str, Way]:
    """All of them for records of a shape ("A" or "B"), by name; `batch`: records of a PySpark batch."""
    rows, objects = RowSerializer(SCHEMAS[shape]), PickledSerializer()
    found = {
        "fastbuf rows": Way(rows.dumps, rows.loads),
        "fastbuf pickled": Way(objects.dumps, objects.loads),
        "pickle 5": Way(lambda records: pickle.dumps(records, 5), pickle.loads),
        "marshal": Way(marshal.dumps, marshal.loads),
    }
    for module, add in {
        "pyspark": _pyspark,
        "msgspec": _msgspec,
        "msgpack": _msgpack,
        "fastavro": _fastavro,
        "pyarrow": _pyarrow,
    }.items():
        if importlib.util.find_spec(module):
            found |= add(shape, batch)
    return found


def _pyspark(_shape: str, batch: int) -> dict[str, Way]:
    from pyspark.serializers import BatchedSerializer, CPickleSerializer

    batches = BatchedSerializer(CPickleSerializer(), batch).serializer
    return {"PySpark CPickle batches": Way(batches.dumps, batches.loads)}


def _msgspec(shape: str, _batch: int) -> dict[str, Way]:
    import msgspec

    types: dict[str, list[tuple[str, Any]]] = {
        "A": [("id", int), ("key", int), ("value", float), ("name", str)],
        "B": [("id", int), ("name", str | None), ("vec", list[float]), ("raw", bytes)],
    }
    # gc=False: its own advice for speed where records are in no cycles.
    record: Any = msgspec.defstruct("Record", types[shape], array_like=True, gc=False)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[record])
    return {
        "msgspec (Structs)": Way(encoder.encode, decoder.decode, lambda records: [record(*found) for found in records])
    }


def _msgpack(_shape: str, _batch: int) -> dict[str, Way]:
    import msgpack

    def as_tuples(records: list[Record]) -> list[Record]:
        return [tuple(tuple(x) if isinstance(x, list) else x for x in record) for record in records]

    # Tuples for lists are its faster way, and give back a record as it was, but for lists in it.
    return {
        "msgpack": Way(
            msgpack.packb,
            lambda data: msgpack.unpackb(data, use_list=False),
            wanted=lambda records: tuple(as_tuples(records)),
        )
    }


def _fastavro(shape: str, _batch: int) -> dict[str, Way]:
    import fastavro

    types: dict[str, list[Any]] = {
        "A": ["long", "long", "double", "string"],
        "B": ["long", ["null", "string"], {"type": "array", "items": "double"}, "bytes"],
    }
    names = SCHEMAS[shape].names
    fields = [{"name": name, "type": kind} for name, kind in zip(names, types[shape], strict=True)]
    # One array of records: no call of Python's a record, and no container around it.
    schema = fastavro.parse_schema({"type": "array", "items": {"type": "record", "name": "Record", "fields": fields}})

    def encode(records: list[dict[str, Any]]) -> bytes:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, schema, records)
        return sink.getvalue()

    def as_dicts(records: list[Record]) -> list[dict[str, Any]]:
        return [dict(zip(names, record, strict=True)) for record in records]

    return {"fastavro": Way(encode, lambda data: fastavro.schemaless_reader(io.BytesIO(data), schema, None), as_dicts)}


def _pyarrow(shape: str, _batch: int) -> dict[str, Way]:
    import pyarrow as pa

    arrow, columns = SCHEMAS[shape].to_arrow(), ColumnarSerializer(SCHEMAS[shape])

    def from_rows(records: list[Record]) -> Any:
        fields = zip(zip(*records, strict=True), arrow.types, strict=True)
        return pa.record_batch([pa.array(values, kind) for values, kind in fields], schema=arrow)

    def to_rows(batch: Any) -> list[Record]:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def ipc(records: list[Record]) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, arrow) as writer:
            writer.write_batch(from_rows(records))
        return sink.getvalue().to_pybytes()

    return {
        "pyarrow IPC of lists": Way(ipc, lambda data: to_rows(pa.ipc.open_stream(data).read_next_batch())),
        "fastbuf columns of lists": Way(
            lambda records: columns.dumps(from_rows(records)), lambda data: to_rows(columns.loads(data))
        ),
    }
