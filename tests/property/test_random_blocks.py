"""Random sequences of send, block, unblock, read and close, against a gate written in Python."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(channel="int64", n="int64", text="string"))
CHANNELS = 3
SEGMENT = 512
PATIENCE_S = 30
NUMBER = st.integers(0, CHANNELS - 1)
STEPS = st.one_of(
    st.tuples(st.just("send"), NUMBER, st.integers(1, 12)),
    st.tuples(st.just("event"), NUMBER, st.just(1)),
    st.tuples(st.sampled_from(["block", "unblock"]), NUMBER, st.just(0)),
    st.tuples(st.just("read"), st.just(0), st.integers(1, 6)),
)


class Model:
    """What each channel has been given and not given out, in order; blocked ones give out nothing."""

    def __init__(self) -> None:
        self.waiting: list[deque[Any]] = [deque() for _ in range(CHANNELS)]
        self.blocked: set[int] = set()
        self.taken_in: set[int] = set()  # blocked behind records: an event that came with them may still be given out
        self.next = [0] * CHANNELS

    def given_out(self, item: Any) -> None:
        channel = item.channel if isinstance(item, fb.Event) else item[0]
        if channel in self.blocked:
            assert isinstance(item, fb.Event), f"{item} of a blocked channel"
            assert channel in self.taken_in, f"{item} of a blocked channel"
            self.taken_in.remove(channel)
        assert self.waiting[channel], f"{item} was not sent"
        assert self.waiting[channel].popleft() == item, "out of order, lost or twice"

    def due(self) -> int:
        return sum(len(waiting) for i, waiting in enumerate(self.waiting) if i not in self.blocked)


class Pair:
    """A gate with three channels, and its model."""

    def __init__(self, kind: str, near: fb.ShuffleEnvironment, far: fb.ShuffleEnvironment, **flow: Any) -> None:
        config = fb.ExchangeConfig(
            transport="auto" if kind == "local" else kind, buffer_timeout_s=-1, max_buffers_per_channel=3, **flow
        )
        self.model = Model()
        self.event_behind = False  # the last poll gave records, so the gate may have an event that came behind them
        self.gate = far.create_input_gate(ROWS, channels=CHANNELS, secret=b"s", config=config)
        target = self.gate if kind == "local" else self.gate.address
        self.writers = [
            near.create_result_partition(ROWS, [target], i, secret=b"s", config=config) for i in range(CHANNELS)
        ]
        for i in range(CHANNELS):  # who has not come cannot be blocked
            self.send(i, 1)
        self.read(1)

    def send(self, i: int, records: int) -> None:
        """As many of so many as there is room for: a blocked channel's producer has it for a few buffers alone."""
        self.settle(i)
        for _ in range(records):
            record = (i, self.model.next[i], "t" * (self.model.next[i] * 37 % 150))
            if self.pending(i):
                break
            # What is not taken at once is kept by the writer, and goes by `resume`: it is sent all the same.
            self.writers[i].try_emit(record)
            self.model.waiting[i].append(record)
            self.model.next[i] += 1
        if not self.pending(i):
            self.writers[i].flush()

    def pending(self, i: int) -> bool:
        return not self.writers[i].resume()

    def settle(self, i: int) -> None:
        if not self.pending(i):
            self.writers[i].flush()

    def event(self, i: int) -> None:
        if not self.pending(i) and self.writers[i].try_emit_event(fb.Watermark(self.model.next[i])):
            self.model.waiting[i].append(fb.Watermark(self.model.next[i]))
            self.model.next[i] += 1

    def read(self, polls: int) -> None:
        """Some polls; all that is due comes in the end."""
        for _ in range(polls):
            self.poll(0)

    def poll(self, timeout: float) -> None:
        came = self.gate.poll(timeout)
        self.event_behind = isinstance(came, list)
        for item in [came] if isinstance(came, fb.Event) else came or ():
            self.model.given_out(item)
        assert self.gate.audit()

    def drain(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.model.due():
            for i in range(CHANNELS):
                self.settle(i)
            self.poll(0.001)
            assert time.monotonic() < deadline, f"{self.model.due()} are due: {self.gate.describe_stall()}"

    def step(self, what: str, i: int, n: int) -> None:
        if what == "send":
            self.send(i, n)
        elif what == "event":
            self.event(i)
        elif what == "read":
            self.read(n)
        elif what == "block":
            self.gate.block(i)
            if i not in self.model.blocked and self.event_behind:
                self.model.taken_in.add(i)
            self.model.blocked.add(i)
        else:
            self.gate.unblock(i)
            self.model.blocked.discard(i)
            self.model.taken_in.discard(i)

    def finish(self) -> None:
        """Everything is unblocked, and all comes."""
        self.drain()  # what is not blocked comes though others are
        for i in range(CHANNELS):
            self.step("unblock", i, 0)
        self.drain()
        closers = [threading.Thread(target=writer.close) for writer in self.writers]
        for closer in closers:
            closer.start()
        assert self.gate.poll(PATIENCE_S) is None
        assert self.gate.finished
        for closer in closers:
            closer.join(PATIENCE_S)
            assert not closer.is_alive()


CASES = [
    ("local", {}),
    ("memfd", {}),
    ("tcp", {"exclusive": 1, "floating": 2}),
    ("tcp", {"exclusive": 2, "floating": 0}),
]


@pytest.mark.parametrize(("kind", "flow"), CASES, ids=["local", "memfd", "tcp, floating", "tcp, exclusive"])
def test_random_sequences_are_those_of_the_model(kind: str, flow: dict[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        far = stack.enter_context(fb.ShuffleEnvironment(segments=128, segment_size=SEGMENT, shared=kind == "memfd"))
        near = far
        if kind != "local":
            near = stack.enter_context(
                fb.ShuffleEnvironment(segments=128, segment_size=SEGMENT, shared=kind == "memfd")
            )
            far.listen()

        @hypothesis.settings(max_examples=60)
        @hypothesis.given(st.lists(STEPS, max_size=40), st.booleans())
        def run(steps: list[tuple[str, int, int]], to_the_end: bool) -> None:
            pair = Pair(kind, near, far, **flow)
            try:
                for step in steps:
                    pair.step(*step)
                if to_the_end:
                    pair.finish()
            finally:  # else in the middle, with whatever is blocked and waits
                pair.gate.close()
                for writer in pair.writers:
                    writer.abort("over")
            for env in (near, far):
                deadline = time.monotonic() + PATIENCE_S
                while env.pool.stats().in_use and time.monotonic() < deadline:
                    time.sleep(0.001)  # a reader's last word travels
                assert env.pool.stats().in_use == 0
                env.pool.audit()

        run()
