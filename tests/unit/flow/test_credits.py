"""A gate's credits: announced = used + available, floating segments never above their number."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import fastbuf as fb
from fastbuf.errors import SequenceError

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))


@contextmanager
def two_channels(**config: int) -> Iterator[tuple[fb.InputGate, list[fb.RecordWriter]]]:
    set_to = fb.ExchangeConfig(transport="tcp", **config)
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as env,
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as far,
        env.create_input_gate(ROWS, channels=2, config=set_to) as gate,
    ):
        env.listen()
        yield gate, [far.create_result_partition(ROWS, [gate.address], i, config=set_to) for i in range(2)]


def test_credits_can_be_seen_and_proved_while_the_io_thread_goes_on() -> None:
    with two_channels(exclusive=2, floating=3) as (gate, writers):
        for name, value in (("announced", 2), ("used", 0), ("available", 2), ("exclusive", 2), ("floating", 0)):
            assert gate.credits[name].tolist() == [value, value], name

        def send(writer: fb.RecordWriter) -> None:
            writer.emit_many((k, "x" * 300) for k in range(6000))
            writer.close()

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(send, writer) for writer in writers]
            got = 0
            while not gate.finished:
                got += len(gate.poll(1) or [])
                assert gate.audit()
            for sent in done:
                sent.result()
        assert got == 12_000
        sent_buffers = [sum(w.totals()) for w in writers]
        assert gate.credits["used"].tolist() == gate.credits["announced"].tolist() == sent_buffers
        assert gate.credits["available"].tolist() == [0, 0]
    assert gate.credits["used"].tolist() == sent_buffers, "they outlive the gate"


def test_nobody_else_can_write_them() -> None:
    with two_channels() as (gate, _), pytest.raises(ValueError, match="read-only"):
        gate.credits["available"] = 9


@pytest.mark.parametrize("altered", [("announced",), ("announced", "available"), ("floating",)])
def test_an_altered_counter_is_found(altered: tuple[str, ...]) -> None:
    """Also where announced = used + available still holds, and nobody set a segment aside for it."""
    with two_channels() as (gate, _):
        gate.audit()
        columns = [gate.credits.dtype.names.index(name) for name in altered]
        rows = gate.credits.base  # the counters themselves
        rows[1, columns] += 1
        try:
            with pytest.raises(SequenceError, match="channel 1: announced"):
                gate.audit()
        finally:
            rows[1, columns] -= 1
        assert gate.audit()
