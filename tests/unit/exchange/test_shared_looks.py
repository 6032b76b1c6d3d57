"""A gate that waits for memfd channels looks at few of them for itself, and at its bell for many: nothing is missed.

And how often its bell is rung.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.exchange._testing import rung

ROWS = fb.RowSerializer(fb.Schema.of(k="int64"))
SECRET = b"looks"
MOST_LOOKS = 8  #: of shared_reader.pxd


@pytest.mark.parametrize("channels", [1, 2, MOST_LOOKS, MOST_LOOKS + 1])
def test_whatever_comes_is_seen_whichever_channel_it_comes_by(channels: int) -> None:
    """Flushed bytes, whole buffers, events, ends: each is waited for before the next is sent."""
    config = fb.ExchangeConfig(transport="memfd", stall_timeout_s=20)
    room: dict[str, Any] = {"segments": 256, "segment_size": 4096, "shared": True}
    came: list[Any] = []
    news = threading.Semaphore(0)

    def read() -> None:
        while (got := gate.poll()) is not None:
            came.append(got)
            news.release(len(got) if isinstance(got, list) else 1)

    def seen(n: int) -> None:
        for _ in range(n):
            assert news.acquire(timeout=10)

    with fb.ShuffleEnvironment(**room) as producer, fb.ShuffleEnvironment(**room) as consumer:
        gate = consumer.create_input_gate(ROWS, channels=channels, secret=SECRET, config=config)
        target = (*consumer.listen(), gate.gate_id)
        writers = [
            producer.create_result_partition(ROWS, [target], channel=i, secret=SECRET, config=config)
            for i in range(channels)
        ]
        reader = threading.Thread(target=read)
        reader.start()
        for turn in range(30):
            for i, writer in enumerate(writers):
                writer.emit((100 * turn + i,))
                writer.flush()
                seen(1)
        for writer in writers:
            writer.emit_event(fb.Watermark(7))
            seen(1)
            writer.emit_many([(-1,)] * 1024)  # of 12 bytes: three whole buffers
            seen(1024)
            writer.close()
        reader.join(10)
        assert gate.finished
        rows = [k for got in came if isinstance(got, list) for (k,) in got]
        assert [k for k in rows if k >= 0] == [100 * turn + i for turn in range(30) for i in range(channels)]
        assert rows.count(-1) == 1024 * channels
        assert sum(isinstance(got, fb.Watermark) for got in came) == channels
    assert producer.pool.available == consumer.pool.available == 256


@pytest.mark.parametrize(("rows", "whole"), [(100, False), (5_000, True)])
def test_a_burst_is_rung_for_once_and_at_its_end(rows: int, whole: bool) -> None:
    """5,000 rows of 8 bytes fill nine segments of 4 KiB: nobody sleeps, so one ring says it.  100 fill none."""
    config = fb.ExchangeConfig(transport="memfd", floating=30, max_buffers_per_channel=32, buffer_timeout_s=-1)
    room: dict[str, Any] = {"segments": 128, "segment_size": 4096, "shared": True}
    batch = pa.RecordBatch.from_pydict({"k": pa.array(range(rows), pa.int64())})
    columns = fb.ColumnarSerializer(batch.schema)
    with fb.ShuffleEnvironment(**room) as producer, fb.ShuffleEnvironment(**room) as consumer:
        gate = consumer.create_input_gate(columns, channels=1, secret=SECRET, config=config)
        target = (*consumer.listen(), gate.gate_id)
        writer = producer.create_result_partition(columns, [target], secret=SECRET, config=config)
        before = rung(gate)
        writer.emit_batch(batch)
        assert rung(gate) - before == whole
        writer.flush()
        assert rung(gate) - before == whole + 1
        assert gate.poll(0).num_rows == rows
        # Whoever has announced itself is told of the first, and may sleep no more: then of the last.
        assert gate.poll(0.001) is None
        before = rung(gate)
        writer.emit_batch(batch)
        assert rung(gate) - before == 2 * whole
        writer.close()
        read = 0
        while (got := gate.poll()) is not None:
            read += got.num_rows
        assert read == rows
    assert producer.pool.available == consumer.pool.available == 128
