"""A record of 100 MB through segments of 32 KiB, of every kind, both ways, with the length it is refused at."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import RecordTooLong
from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema, Serializer

pa = pytest.importorskip("pyarrow", reason="batches need pyarrow")
SIZE = 100 << 20
LONG = np.arange(SIZE // 8, dtype=np.int64)
SCHEMA = Schema.of(id="int64", raw="binary", after="string")


def through(serializer: Serializer, send: Any, most: int) -> tuple[list[Any], dict[str, Any]]:
    """What arrives of what `send` writes, and the gate's figures."""
    config = fb.ExchangeConfig(max_record_bytes=most)
    with fb.ShuffleEnvironment(segments=64, segment_size=32 * 1024) as env:
        writer, (gate,) = env.exchange(serializer=serializer, consumers=1, selector=fb.forward(), config=config)
        failed: list[BaseException] = []

        def produce() -> None:
            try:
                send(writer)
                writer.close()
            except BaseException as error:
                failed.append(error)
                writer.abort(str(error))

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            found = list(gate)
        except fb.ExchangeError:
            found = []
        thread.join(60)
        assert not thread.is_alive()
        if failed:
            raise failed[0]
        return found, gate.stats()


def test_row() -> None:
    rows = RowSerializer(SCHEMA)
    records = [(1, b"before", "x"), (2, LONG.tobytes(), "y"), (3, b"", "after")]
    found, stats = through(rows, lambda writer: [writer.emit(record) for record in records], SIZE + 1000)
    assert found == records
    assert stats["peak_segments"] <= 64
    assert rows.loads(rows.dumps(records)) == records


@pytest.mark.parametrize("record", [LONG, LONG.tobytes()], ids=["outside the pickle", "in it"])
def test_pickle(record: Any) -> None:
    found, stats = through(
        PickledSerializer(), lambda writer: [writer.emit(x) for x in ("a", record, "b")], SIZE + 1000
    )
    assert (found[0], found[2]) == ("a", "b")
    assert np.array_equal(found[1], record)
    assert stats["peak_segments"] <= 64


def test_columns() -> None:
    cols = ColumnarSerializer(SCHEMA)
    data = pa.record_batch([[1, 2, 3], [b"a", LONG.tobytes(), b"c"], ["x", "y", "z"]], schema=SCHEMA.to_arrow())
    found, stats = through(cols, lambda writer: writer.emit_batch(data), SIZE + 1000)
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([data]))
    assert stats["peak_segments"] <= 64
    assert cols.loads(cols.dumps(data)).equals(data)


@pytest.mark.parametrize("kind", ["row", "pickled", "columnar"])
def test_longer_than_allowed(kind: str) -> None:
    raw = bytes(1 << 20)
    if kind == "columnar":
        data = pa.record_batch([[1], [raw], ["x"]], schema=SCHEMA.to_arrow())
        serializer: Serializer = ColumnarSerializer(SCHEMA)
        send: Any = lambda writer: writer.emit_batch(data)  # noqa: E731
    else:
        serializer = RowSerializer(SCHEMA) if kind == "row" else PickledSerializer()
        send = lambda writer: writer.emit((1, raw, "x"))  # noqa: E731
    with pytest.raises(RecordTooLong, match="max_record_bytes"):
        through(serializer, send, 1 << 19)
