"""Close in any order, from any thread, twice, in the middle of any blocked call: it ends, and nothing is left.

Every order of ending the writer, the gate and the environments, for every way to exchange and every call that may just
be waiting.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from left_behind import held, nothing_left
from nights import nightly

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS

pytestmark = pytest.mark.stress
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
KINDS = ("local", "tcp", "watermark tcp", "on_off tcp", "blocking local", "blocking tcp")
CALLS = ("nothing", "emit", "emit_event", "poll", "close", "poll_async")
PATIENCE_S = 60.0


class Exchange:
    """One writer and one gate, with environments that are known by name."""

    def __init__(self, kind: str, directory: Path) -> None:
        remote = kind.endswith("tcp")
        config = fb.ExchangeConfig(
            max_buffers_per_channel=2,
            exclusive=1,
            floating=1,
            spill_directory=str(directory),
            flow_control=next((name for name in FLOW_CONTROLS if kind.startswith(name)), "credit"),
        )
        self.ends: dict[str, Callable[[], Any]] = {}
        self.envs = [fb.ShuffleEnvironment(segments=16, segment_size=1024) for _ in range(2 if remote else 1)]
        near, far = self.envs[0], self.envs[-1]
        self.gate = far.create_input_gate(ROWS, channels=1, config=config)
        target: Any = self.gate
        if remote:
            far.listen()
            target = self.gate.address
        self.writer = near.create_result_partition(
            ROWS, [target], config=config, partition_type="blocking" if "blocking" in kind else "pipelined"
        )
        self.ends = {"writer": self.writer.abort, "gate": self.gate.close, "near": near.close}
        if remote:
            self.ends["far"] = far.close

    def blocked(self, call: str) -> None:
        """Waits until somebody else ends it."""
        if call == "emit":
            self.writer.emit_many((k, "x" * 300) for k in itertools.count())
        elif call == "emit_event":
            while True:
                self.writer.emit_event(fb.Watermark(1))
        elif call == "poll":
            list(self.gate)
        elif call == "close":
            self.writer.emit_many((k, "x" * 300) for k in range(3))
            self.writer.close()
            list(self.gate)  # where close need not wait for the consumer
        elif call == "poll_async":
            import asyncio

            async def read() -> None:
                async for _ in self.gate:
                    pass

            asyncio.run(read())


def in_thread(func: Callable[[], Any]) -> threading.Thread:
    """Runs func, which may end with an error of ours and with no other."""

    def run() -> None:
        with contextlib.suppress(fb.FastbufError):
            func()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def join(thread: threading.Thread, what: str) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"hangs: {what}"


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:" in line for line in maps)


@nightly(but_one="kind")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_order(kind: str, call: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    def once(order: tuple[str, ...]) -> None:
        exchange = Exchange(kind, tmp_path)
        waiting = in_thread(lambda: exchange.blocked(call))
        deadline = time.monotonic() + 0.003
        while waiting.is_alive() and time.monotonic() < deadline:
            time.sleep(0.0005)  # it is to be within its wait, as a rule; where it is makes no difference to what is due
        for name in order:
            for _ in range(2):
                join(in_thread(exchange.ends[name]), f"{kind}: {name} of {order}, while {call} waits")
        join(waiting, f"{kind}: {call}, after {order}")
        for env in exchange.envs:
            assert env.pool.stats().in_use == 0, f"{kind}, {call}, {order}"
            env.pool.audit()

    names = ("writer", "gate", "near", "far") if kind.endswith("tcp") else ("writer", "gate", "near")
    once(names)  # what is made once and stays is there now
    gc.collect()
    recwarn.clear()  # of what tests before this one left to the collector
    memfds = mapped()
    with nothing_left():
        for order in itertools.permutations(names):
            once(order)
        gc.collect()
    assert mapped() <= memfds
    assert not [name for name in held() if name.startswith(str(tmp_path))], "a spill file is open"
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]
