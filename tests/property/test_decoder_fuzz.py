"""Every decoder on blocks that were cut, flipped, spliced and forged: an error each time or a value, never a crash.

Bounded by rounds here, with FASTBUF_LONG=1 by two minutes a decoder (or FASTBUF_FUZZ_S seconds).  FASTBUF_FUZZ_SEED
chooses another run; a failure names the round's seed.  ``make asan-test`` runs it under AddressSanitizer.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import sys
import time
import tracemalloc
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "serializers"))

from golden_cases import EVERY, OBJECTS, RECORDS, batch  # noqa: E402

from fastbuf.errors import BlockError, RecordError, RecordTooLong, SchemaError, SchemaMismatch  # noqa: E402
from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema  # noqa: E402
from fastbuf.serializers.block import HEADER_BYTES  # noqa: E402
from fastbuf.serializers.schema_types import parse_type  # noqa: E402
from fastbuf.serializers.spanning import SpanningReader  # noqa: E402

LONG = os.environ.get("FASTBUF_LONG") == "1"
ROUNDS = 2000
LONG_S = float(os.environ.get("FASTBUF_FUZZ_S", "120"))
SEED = int(os.environ.get("FASTBUF_FUZZ_SEED", "1"))
NAMED = namedtuple("NAMED", EVERY.names)
INTERESTING = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
#: What a decoder may hold: so many bytes for each that it was given, and this besides.
BYTES_PER_BYTE, BYTES_BESIDES = 400, 1 << 20


def mutated(data: bytes, rng: random.Random, first: int = 0) -> bytes:
    """Another version of data; nothing before `first` is touched."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if len(out) <= first:
            break
        at = rng.randrange(first, len(out))
        match rng.randrange(6):
            case 0:
                del out[at:]
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                value = rng.choice((*INTERESTING, len(out), len(out) - at)) & ((1 << 8 * width) - 1)
                out[at : at + width] = value.to_bytes(width, "little")
            case 3:
                out[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
            case 4:
                other = rng.randrange(first, len(out))
                out[at:at] = out[other : other + rng.randrange(64)]
            case 5:
                out += rng.randbytes(rng.randrange(1, 16))
    return bytes(out)


def with_length(block: bytes) -> bytes:
    """The header's count of body bytes made true, so that the body is looked at."""
    if len(block) < HEADER_BYTES:
        return block
    return block[:16] + struct.pack("<Q", len(block) - HEADER_BYTES) + block[24:]


def rounds(data: bytes, salt: str, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """Mutations of data, each with what makes it again."""
    stop = time.monotonic() + LONG_S
    number = 0
    while number < ROUNDS or (LONG and time.monotonic() < stop):
        name = f"{SEED}/{salt}/{number}"
        yield name, mutated(data, random.Random(name), first)
        number += 1


def try_all(data: bytes, salt: str, read: Callable[[bytes], Any], first: int = 0, block: bool = True) -> None:
    refused = 0
    for name, other in rounds(data, salt, first):
        given = with_length(other) if block and name[-1] != "0" else other
        try:
            read(given)
        except (BlockError, RecordTooLong):
            refused += 1
        except BaseException as error:
            raise AssertionError(f"round {name}, {len(given)} bytes {given[:200].hex()}: {error!r}") from error
    assert refused > ROUNDS // 20


def lazily(rows: RowSerializer, block: bytes) -> None:
    view = rows.view(block, key=("i8", "text", "f64", "d", "raw"))
    failed = None
    for read in (
        lambda: sorted(view),
        lambda: {hash(row) for row in view},
        *(lambda n=n: view.values(n) for n in EVERY.names),
        *(lambda n=n: view.array(n) for n in EVERY.names),
    ):
        try:
            read()
        except BlockError as error:
            failed = error
        except (RecordError, SchemaError):  # None, or a type of which there is no array
            continue
    view.release()
    if failed is not None:
        raise failed


@pytest.mark.parametrize("way", ["loads", "iter", "view", "decode", "lazy", "named"])
def test_rows(way: str) -> None:
    rows = RowSerializer(EVERY)
    reads: dict[str, Callable[[bytes], Any]] = {
        "loads": rows.loads,
        "iter": lambda block: list(rows.iter(block)),
        "view": lambda block: lazily(rows, block),
        "decode": rows.decode,
        "lazy": lambda payload: rows.lazy(payload, key="i8").as_tuple(),
        "named": RowSerializer(EVERY, record=NAMED).loads,
    }
    alone = way in ("decode", "lazy")
    data = rows.encode(RECORDS[0]) if alone else rows.dumps(RECORDS * 2)
    try_all(data, f"rows {way}", reads[way], block=not alone)


@pytest.mark.parametrize("way", ["loads", "iter", "nested", "in place"])
def test_columns(way: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="columns need pyarrow")
    data = batch() if way != "nested" else pa.record_batch({"l": [[["a"], None, []], None] * 9, "m": [{"x": [1]}] * 18})
    cols = ColumnarSerializer(data.schema)
    block = cols.dumps([data, data.slice(1), data] if way != "in place" else data)

    def read(given: bytes) -> None:
        if way == "in place":
            found = list(cols.iter(given, copy=False))
        else:
            found = [cols.loads(given)] if way != "iter" else list(cols.iter(given, max_rows=1))
        for piece in found:
            assert piece.nbytes <= BYTES_PER_BYTE * len(given) + BYTES_BESIDES
            for column in piece.columns:
                # Offsets and lengths are sound; what is in a string may be any bytes.
                column.validate()

    try_all(block, f"columns {way}", read)


@pytest.mark.parametrize("group", [1, 4])
def test_pickles(group: int) -> None:
    # What a pickle says is run, so its own bytes are nobody's to forge: a length is, the count, and the buffers' head.
    pickled = PickledSerializer(group=group)
    block = pickled.dumps(OBJECTS[:-1])
    starts, at = [], HEADER_BYTES
    while at < len(block):
        starts.append(at)
        at += 4 + int.from_bytes(block[at : at + 4], "little")
    rng = random.Random(SEED)
    refused = 0
    for _ in range(ROUNDS):
        other = bytearray(block)
        where = rng.choice((*starts, 24))
        other[where : where + 4] = struct.pack("<I", rng.choice((*INTERESTING, rng.randrange(200))))
        if rng.random() < 0.3:
            del other[rng.randrange(len(other)) :]
        if bytes(other) == block:
            continue
        try:
            found = pickled.loads(with_length(bytes(other)))
        except BlockError:
            refused += 1
        else:  # cut and counted anew, it can be a whole block again
            assert found == OBJECTS[: len(found)]
    assert refused > ROUNDS // 2
    payload = pickled.encode(OBJECTS[-1])
    for _ in range(ROUNDS):
        at, width = rng.choice(((1, 1), (4, 1), (4, 4), (8, 4), (8, 8), (16, 4), (16, 8)))
        forged = rng.choice(INTERESTING).to_bytes(8, "little")[:width]
        if forged != payload[at : at + width]:
            with pytest.raises(BlockError):
                pickled.decode(payload[:at] + forged + payload[at + width :])


def test_memory_follows_the_input() -> None:
    rows = RowSerializer(EVERY)
    block = rows.dumps(RECORDS)
    tracemalloc.start()
    try:
        for name, other in rounds(block, "memory"):
            given = with_length(other)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(BlockError, RecordTooLong):
                rows.loads(given)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < BYTES_PER_BYTE * len(given) + BYTES_BESIDES, name
    finally:
        tracemalloc.stop()


def test_streams_cut_anywhere() -> None:
    payloads = [random.Random(i).randbytes(i * 7 % 300) for i in range(30)]
    stream = b"".join(struct.pack("<I", len(p)) + p for p in payloads)
    for name, other in rounds(stream, "stream"):
        rng = random.Random(name)
        reader, total, at = SpanningReader(1000), 0, 0
        try:
            while at < len(other):
                size = rng.choice((1, 3, 4, 5, 64, 1000))
                reader.feed_bytes(other[at : at + size])
                at += size
                while (found := reader.next_payload()) is not None:
                    total += 4 + len(found[0])
        except RecordTooLong:
            continue
        assert total <= len(other), name


def test_texts_of_types() -> None:
    text = EVERY.text.encode()
    for name, other in rounds(text, "text"):
        try:
            kind, _ = parse_type(other.decode("utf-8", "replace"))
            assert parse_type(str(kind))[0] == kind, name
        except SchemaError:
            continue


def test_another_schemas_blocks() -> None:
    schemas = [Schema.of(**{f"c{i}": field.type}) for i, field in enumerate(EVERY)]
    serializers = [RowSerializer(schema) for schema in schemas]
    blocks = [rows.dumps([]) for rows in serializers]
    for i, rows in enumerate(serializers):
        for j, block in enumerate(blocks):
            if i != j:
                with pytest.raises(SchemaMismatch):
                    rows.loads(block)
