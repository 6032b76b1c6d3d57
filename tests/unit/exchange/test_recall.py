"""More channels than segments: what an idle one holds is asked back, and goes round among those that have something."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SEGMENTS = 3
CHANNELS = 7


@contextlib.contextmanager
def open_gate(**config: Any) -> Iterator[tuple[fb.InputGate, list[fb.RecordWriter]]]:
    """A gate that may hold three segments, and seven channels to it."""
    settings = fb.ExchangeConfig(**config)
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=512) as far,
        fb.ShuffleEnvironment(segments=200, segment_size=512) as near,
    ):
        gate = far.create_input_gate(ROWS, config=settings, maximum=SEGMENTS)
        far.listen()
        target = gate.address
        yield (
            gate,
            [near.create_result_partition(ROWS, [target], i, config=settings, maximum=6) for i in range(CHANNELS)],
        )


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_idle_channels_keep_no_other_waiting(flow_control: str) -> None:
    """The first ones had every segment, as credit that they did not use, and the others waited until they stalled."""
    with open_gate(flow_control=flow_control, buffer_timeout_s=0) as (gate, writers):
        for turn in range(3):
            for i in (*range(CHANNELS), *reversed(range(CHANNELS))):
                for k in range(4):
                    writers[i].emit((turn, f"{i} {k}"))
                got: list[Any] = []
                while len(got) < 4:
                    came = gate.poll(20)
                    assert came, f"channel {i} waits: {gate.describe_stall()}"
                    got += came
                    assert gate.audit()
                assert got == [(turn, f"{i} {k}") for k in range(4)]
                assert gate.pool.in_use <= SEGMENTS
        for writer in writers:
            writer.abort()


@pytest.mark.parametrize("flow_control", FLOW_CONTROLS)
def test_busy_channels_all_get_their_turn(flow_control: str) -> None:
    records = 1500
    with open_gate(flow_control=flow_control, buffer_timeout_s=0.01) as (gate, writers):

        def write(i: int) -> None:
            writers[i].emit_many((k, f"{i}" + "x" * (k % 90)) for k in range(records))
            writers[i].close()

        threads = [threading.Thread(target=write, args=(i,)) for i in range(CHANNELS)]
        for thread in threads:
            thread.start()
        got: list[list[int]] = [[] for _ in range(CHANNELS)]
        while sum(map(len, got)) < records * CHANNELS:
            came = gate.poll(20)
            assert came, gate.describe_stall()
            for n, text in came:
                got[int(text[0])].append(n)
            assert gate.audit()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert got == [list(range(records))] * CHANNELS
        gate.seal({i: writer.totals()[0] for i, writer in enumerate(writers)})
        assert gate.poll(20) is None
        assert gate.finished
        assert gate.stats()["peak_segments"] <= SEGMENTS


def test_a_channel_that_is_cancelled_or_ends_gives_back_all() -> None:
    with open_gate(buffer_timeout_s=0) as (gate, writers):
        for writer in writers[:3]:
            writer.close()
        writers[3].abort("gone")
        with pytest.raises(fb.ExchangeAborted, match="gone"):
            list(gate)
        gate.close()
        assert gate.environment.pool.stats().in_use == 0
        for writer in writers[4:]:
            with contextlib.suppress(fb.ExchangeError):
                writer.emit((1, "to nobody"))
                writer.close()
            writer.abort()
