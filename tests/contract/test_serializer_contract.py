"""What every serializer does alike: the same block, the same refusals, one record or batch as good as many."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, SchemaMismatch
from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema, Serializer
from fastbuf.serializers.block import FLAG_CRC, FLAG_GROUPS, HEADER_BYTES, MAGIC, VERSIONS
from fastbuf.serializers.checksum import crc32c

SCHEMA = Schema.of(id="int64", name="string?", value="float64")
OTHER = Schema.of(id="int64", name="string", value="float64")
RECORDS = [(i, None if i % 5 == 0 else f"name {i}", i / 4) for i in range(100)]


@dataclass(frozen=True)
class Way:
    """How one kind is made, and what it takes and gives for records."""

    kind: int
    make: Callable[..., Serializer]
    pack: Callable[[list], Any]
    unpack: Callable[[Any], list]
    other: Callable[..., Serializer] | None


def _batch(records: list) -> Any:
    pa = pytest.importorskip("pyarrow", reason="batches need pyarrow")
    columns = list(zip(*records, strict=True)) or [[], [], []]
    arrow = SCHEMA.to_arrow()
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow)


def _rows(batch: Any) -> list:
    return [tuple(row.values()) for row in batch.to_pylist()]


WAYS = {
    "row": Way(1, lambda **k: RowSerializer(SCHEMA, **k), list, list, lambda: RowSerializer(OTHER)),
    "columnar": Way(2, lambda **k: ColumnarSerializer(SCHEMA, **k), _batch, _rows, lambda: ColumnarSerializer(OTHER)),
    "pickled": Way(3, lambda **k: PickledSerializer(**k), list, list, None),
}


@pytest.fixture(params=WAYS, name="way")
def _way(request: pytest.FixtureRequest) -> Way:
    if request.param == "columnar":
        pytest.importorskip("pyarrow", reason="batches need pyarrow")
    return WAYS[request.param]


@pytest.mark.parametrize("n", [0, 1, 100])
@pytest.mark.parametrize("checksum", [False, True])
def test_round_trip(way: Way, n: int, checksum: bool) -> None:
    serializer = way.make(checksum=checksum)
    block = serializer.dumps(way.pack(RECORDS[:n]))
    assert isinstance(block, bytes)
    assert way.unpack(serializer.loads(block)) == RECORDS[:n]
    assert way.unpack(serializer.loads(memoryview(bytearray(block)))) == RECORDS[:n]


@pytest.mark.parametrize("checksum", [False, True])
def test_header(way: Way, checksum: bool) -> None:
    serializer = way.make(checksum=checksum)
    block = serializer.dumps(way.pack(RECORDS))
    body = block[HEADER_BYTES:]
    expected = (
        MAGIC, VERSIONS[way.kind], way.kind, checksum * FLAG_CRC | (way.kind == 3) * FLAG_GROUPS,
        serializer.fingerprint, len(body), len(RECORDS),
        crc32c(body) if checksum else 0,
    )  # fmt: skip
    assert struct.unpack("<4sHBBQQII", block[:HEADER_BYTES]) == expected


def test_body_is_elements(way: Way) -> None:
    # From an iterator, since pickles of a list go in groups.
    data = way.pack(RECORDS)
    body = way.make().dumps(data if way.kind == 2 else iter(data))[HEADER_BYTES:]
    at = count = 0
    while at < len(body):
        at += 4 + int.from_bytes(body[at : at + 4], "little")
        count += 1
    assert at == len(body)
    assert count == (1 if way.kind == 2 else len(RECORDS))


def test_identity(way: Way) -> None:
    serializer = way.make(checksum=True)
    assert isinstance(serializer, Serializer)
    assert serializer.kind == next(name for name, other in WAYS.items() if other is way)
    assert serializer.schema == (SCHEMA if way.other else None)
    assert serializer.fingerprint == (SCHEMA.fingerprint if way.other else 0)


def test_travels_by_pickle(way: Way) -> None:
    serializer = way.make(checksum=True)
    copy = pickle.loads(pickle.dumps(serializer))
    assert (type(copy), copy.schema, copy.fingerprint, copy.checksum) == (
        type(serializer), serializer.schema, serializer.fingerprint, True,
    )  # fmt: skip
    assert way.unpack(copy.loads(serializer.dumps(way.pack(RECORDS)))) == RECORDS


def test_every_truncation_is_refused(way: Way) -> None:
    serializer = way.make()
    block = serializer.dumps(way.pack(RECORDS[:7]))
    for end in range(len(block)):
        with pytest.raises(BlockTruncated):
            serializer.loads(block[:end])
    with pytest.raises(BlockCorrupt):
        serializer.loads(block + b"\0")


def test_with_a_checksum_every_bit_flip_is_refused(way: Way) -> None:
    serializer = way.make(checksum=True)
    block = bytearray(serializer.dumps(way.pack(RECORDS[:3])))
    for bit in range(8 * len(block)):
        block[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BlockError):
            serializer.loads(block)
        block[bit >> 3] ^= 1 << (bit & 7)


@pytest.mark.parametrize("records", [0, 99, 101, 0xFFFFFFFF])
def test_a_count_that_is_not_the_bodys(way: Way, records: int) -> None:
    serializer = way.make()
    block = bytearray(serializer.dumps(way.pack(RECORDS)))
    block[24:28] = struct.pack("<I", records)
    with pytest.raises(BlockCorrupt, match=r"\d"):
        serializer.loads(block)


def test_another_kind(way: Way) -> None:
    block = way.make().dumps(way.pack(RECORDS))
    for other in WAYS.values():
        if other is not way:
            with pytest.raises(BlockError):
                other.make().loads(block)


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.other])
def test_another_schema(name: str) -> None:
    way = WAYS[name]
    with pytest.raises(SchemaMismatch, match=f"{SCHEMA.fingerprint:016x}"):
        way.other().loads(way.make().dumps(way.pack(RECORDS)))
