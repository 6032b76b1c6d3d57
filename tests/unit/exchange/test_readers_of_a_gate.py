"""Loops that stop, polls between them, and threads that read the same gate: each record is given out once."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


def test_a_poll_gives_out_what_a_broken_loop_left() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
        writer, (gate,) = env.exchange(ROWS)
        writer.emit_many((k,) for k in range(1000))
        writer.emit_event(fb.Watermark(7))
        writer.close()
        got: list[Any] = [next(gate)]
        for record in gate:
            got.append(record)
            if record == (4,):
                break
        assert gate.records_in > 5
        assert not gate.finished
        got += gate.poll(0)
        for item in gate:
            got.append(item)
        assert got == [*((k,) for k in range(1000)), fb.Watermark(7)]
        assert gate.finished
        assert gate.poll(0) is None


def test_a_gate_is_finished_when_its_last_record_was_given_out() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
        writer, (gate,) = env.exchange(ROWS)
        writer.emit_many([(1,), (2,)])
        writer.close()
        assert next(gate) == (1,)
        assert not gate.finished
        assert next(gate) == (2,)
        assert next(gate, None) is None
        assert gate.finished


def test_threads_that_iterate_over_one_gate_lose_nothing() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
        writer, (gate,) = env.exchange(ROWS, config=fb.ExchangeConfig(batch_rows=100))
        got: list[Any] = []
        readers = [threading.Thread(target=lambda: got.append(next(gate))) for _ in range(4)]
        for thread in readers:
            thread.start()  # all of them wait, and each gets a list of its own
        writer.emit_many((k,) for k in range(1000))
        writer.close()
        for thread in readers:
            thread.join(30)
        got += gate
        assert sorted(got) == [(k,) for k in range(1000)]
        assert gate.finished


def test_rows_that_cannot_be_given_out_fail_the_gate() -> None:
    """Their batch is gone, so reading on would lose them."""
    kind = pa.dictionary(pa.int8(), pa.string())
    serializer = fb.ColumnarSerializer(pa.schema([("c", kind)]))
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer)
        for part in range(2):
            texts = pa.array([f"{part} {k}" for k in range(100)])
            writer.emit_batch(pa.record_batch([texts.dictionary_encode().cast(kind)], ["c"]))
        writer.close()
        with pytest.raises(fb.RecordError, match="wider index"):
            gate.poll()
        assert not gate.finished
        with pytest.raises(fb.ExchangeAborted, match="the consumer failed while reading: RecordError: column 'c'"):
            gate.poll()
