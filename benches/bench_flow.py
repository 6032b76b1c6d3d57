"""One slow channel among eight on one wire: how long the other seven take, by credit and by watermarks.

Shape: eight writers and eight gates of one process, a thread each, rows of about 200 bytes, segments of 4 KiB; the slow
consumer rests a millisecond after every record. What is measured is the time in which the seven others have all theirs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CHANNELS = 8
RECORDS = 300 if SMOKE else 5000
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))


def eight(flow_control: str, slow: bool) -> Callable[[], None]:
    """A run; the slow channel is cancelled when the others are through."""

    def run() -> None:
        config = fb.ExchangeConfig(exclusive=2, floating=2, max_buffers_per_channel=4)
        with fb.ShuffleEnvironment(segments=256, segment_size=4096) as env:
            wire = env.create_wire(flow_control)
            gates = [env.create_input_gate(ROWS, channels=1, config=config) for _ in range(CHANNELS)]
            writers = [env.create_result_partition(ROWS, [wire.to(g)], config=config, maximum=8) for g in gates]
            got = [0] * CHANNELS

            def write(writer: fb.RecordWriter) -> None:
                writer.emit_many((k, "x" * 200) for k in range(RECORDS))
                writer.close()

            def read(i: int) -> None:
                try:
                    for _ in gates[i]:
                        got[i] += 1
                        if slow and i == 0:
                            time.sleep(0.001)  # what makes it slow
                except fb.errors.ExchangeClosed:
                    assert i == 0

            threads = [threading.Thread(target=read, args=(i,)) for i in range(CHANNELS)]
            threads += [threading.Thread(target=write, args=(w,)) for w in writers]
            for thread in threads:
                thread.start()
            for thread in threads[1:CHANNELS]:
                thread.join()
            assert got[1:] == [RECORDS] * (CHANNELS - 1)
            if slow:
                gates[0].close()
            for thread in threads:
                thread.join()

    return run


@pytest.mark.timeout(600)
def test_one_slow_channel_among_eight(in_turn: Any, benchmark: Any) -> None:
    benchmark.group = f"one wire, {CHANNELS} channels of {RECORDS:,} records"
    in_turn(
        {
            f"{flow_control}, {'one slow' if slow else 'all fast'}": eight(flow_control, slow)
            for flow_control in ("credit", "watermark")
            for slow in (False, True)
        },
        rounds=5,
        baselines=("credit, all fast",),
        rows=RECORDS * (CHANNELS - 1),
    )
