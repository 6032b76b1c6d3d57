"""Text columns of what comes from elsewhere are UTF-8, or are refused with the column's name."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.errors import BlockCorrupt
from fastbuf.serializers import assemble

# Table 3-7 of the Unicode standard at its edges, and what is cut off.
BAD = [
    b"\x80",
    b"\xbf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc3",
    b"\xc3(",
    b"\xe0\x9f\xbf",
    b"\xe2\x82",
    b"\xe2\x28\xa1",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xff",
]
GOOD = ["", "ascii", "\x00", "\x7f", "é", "€", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff", "aé€😀" * 100]


@pytest.fixture(params=[0, 2], ids=["plain", "best"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every test runs with the kernel for any processor, and with the best one that this processor has."""
    assemble._best_way(request.param)
    yield request.param
    assemble._best_way(2)


def strings(values: list[bytes | None], of_type: pa.DataType) -> pa.Array:
    """An array of text whose bytes nobody has looked at."""
    raw = pa.array(values, pa.large_binary() if of_type == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(of_type, len(raw), raw.buffers())


def block_of(array: pa.Array) -> tuple[fb.ColumnarSerializer, bytes]:
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(array))), array], names=["id", "text"])
    serializer = fb.ColumnarSerializer(batch.schema)
    return serializer, serializer.dumps(batch)


@pytest.mark.parametrize("of_type", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("bad", BAD, ids=bytes.hex)
def test_text_that_is_not_utf8_is_refused(bad: bytes, of_type: pa.DataType, copy: bool) -> None:
    """Decoding refuses a text column with invalid UTF-8, by the column's name; unless the writer is trusted."""
    for values in ([bad], [b"x" * 500, bad, b"y" * 500], ["é".encode(), None, b"tail" + bad]):
        serializer, block = block_of(strings(values, of_type))
        place = len(values) - 1 if values[-1] and bad in values[-1] else values.index(bad)
        words = rf"column 'text' has text that is not UTF-8, in its value {place}"
        with pytest.raises(BlockCorrupt, match=words):
            serializer.loads(block, copy=copy)
        with pytest.raises(BlockCorrupt, match=words):
            list(serializer.iter(block, copy=copy))
        assert serializer.loads(block, copy=copy, check=False).num_rows == len(values)
        binary = fb.ColumnarSerializer(pa.schema([("text", pa.binary())]))
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["text"])
        assert binary.loads(binary.dumps(batch)).equals(batch)  # bytes are bytes


@pytest.mark.parametrize("of_type", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_that_is_utf8_is_taken(of_type: pa.DataType) -> None:
    for values in ([v] for v in GOOD):
        serializer, block = block_of(pa.array([*values, None], of_type))
        assert serializer.loads(block).column("text").to_pylist() == [*values, None]
    serializer, block = block_of(pa.array(GOOD, of_type))
    assert serializer.loads(block).column("text").to_pylist() == GOOD


def test_a_character_that_two_texts_share_is_in_neither() -> None:
    serializer, block = block_of(strings([b"a\xc3", b"\xa9b"], pa.string()))
    with pytest.raises(BlockCorrupt, match="in its value 0"):
        serializer.loads(block)


def test_the_bytes_of_a_null_are_nobodys() -> None:
    raw = pa.array([b"\xff\xff", b"e", "é".encode()], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x06"), *raw.buffers()[1:]])
    serializer, block = block_of(text)
    assert serializer.loads(block).column("text").to_pylist() == [None, "e", "é"]


def test_text_below_others_is_looked_at_too() -> None:
    text = strings([b"a", b"\xff", b"c"], pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), text)
    serializer, block = block_of(pa.StructArray.from_arrays([lists], ["inner"]))
    with pytest.raises(BlockCorrupt, match=r"column 'text.inner\[\]' has text that is not UTF-8, in its value 1"):
        serializer.loads(block)


def test_it_agrees_with_python_on_any_bytes() -> None:
    rng = random.Random(7)
    pieces = [*BAD, *(text.encode() for text in GOOD[:-1])]
    for _ in range(2000):
        values = [b"".join(rng.choices(pieces, k=rng.randrange(4))) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.5:
            values = [bytes(rng.choices(b"az\xc3\xa9\xe2\x82\xac\xff", k=rng.randrange(40))) for _ in values]
        if rng.random() < 0.5:  # long enough for the kernels, and cut by their steps at every place
            values = ["€é😀a".encode() * rng.randrange(9) + b"x" * rng.randrange(40) + v for v in values]
        serializer, block = block_of(strings(values, pa.string()))
        wrong = next((i for i, v in enumerate(values) if v.decode("utf-8", "replace").encode() != v), None)
        if wrong is None:
            assert serializer.loads(block).column("text").to_pylist() == [v.decode() for v in values]
        else:
            with pytest.raises(BlockCorrupt, match=f"in its value {wrong}:"):
                serializer.loads(block)


def exchange(target: str, batch: pa.RecordBatch) -> Any:
    serializer = fb.ColumnarSerializer(batch.schema)
    shared = target == "memfd"
    with (
        fb.ShuffleEnvironment(16, 4096, shared=shared) as near,
        fb.ShuffleEnvironment(16, 4096, shared=shared) as far,
    ):
        gate = far.create_input_gate(serializer, channels=1, secret=b"of this very test")
        if target == "local":
            writer = far.create_result_partition(serializer, [gate])
        else:
            writer = near.create_result_partition(
                serializer,
                [(*far.listen(), gate.gate_id)],
                secret=b"of this very test",
                config=fb.ExchangeConfig(transport=target),
            )

        def write() -> None:
            try:
                writer.emit_batch(batch)
                writer.close()
            except fb.ExchangeError:
                writer.abort()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            with gate:
                return list(gate)
        finally:
            thread.join()
            for env in (near, far):
                env.close()
                assert env.pool.stats().in_use == 0


@pytest.mark.parametrize("bad", BAD, ids=bytes.hex)
def test_what_is_wrong_is_found_at_every_place_of_a_step(bad: bytes) -> None:
    for before in range(70):
        for around in ("€", "a"):
            text = (around * 40).encode()[: before - before % len(around.encode())] + b"a" * (
                before % len(around.encode())
            )
            for value in (text + bad, text + bad + b"a" * 80, text + bad + "é😀".encode() * 9):
                serializer, block = block_of(strings([value], pa.string()))
                with pytest.raises(BlockCorrupt, match="in its value 0"):
                    serializer.loads(block)


@pytest.mark.parametrize("target", ["tcp", "memfd"])
def test_a_gate_refuses_what_another_process_sends(target: str) -> None:
    batch = pa.RecordBatch.from_arrays([strings([b"ok", b"\xff"], pa.string())], names=["text"])
    with pytest.raises(BlockCorrupt, match="column 'text' has text that is not UTF-8"):
        exchange(target, batch)


def test_what_the_process_wrote_itself_is_taken_as_it_is() -> None:
    """Nobody can have altered it: local channels do not look."""
    batch = pa.RecordBatch.from_arrays([strings([b"ok", b"\xff"], pa.string())], names=["text"])
    (got,) = exchange("local", batch)
    assert got.column("text").cast(pa.binary()).to_pylist() == [b"ok", b"\xff"]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 31, 32, 33, 255, 256, 257, 1000])
def test_every_place_of_a_long_text_is_looked_at(length: int) -> None:
    text = np.full(length + 1, ord("a"), np.uint8)
    for at in range(length + 1):
        text[at] = 0xFF
        serializer, block = block_of(strings([text.tobytes()], pa.string()))
        with pytest.raises(BlockCorrupt, match="in its value 0"):
            serializer.loads(block)
        text[at] = ord("a")
