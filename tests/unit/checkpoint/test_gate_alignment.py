"""A gate does what the alignment says: each snapshot is exactly the rows before the barriers, over every transport."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nights import LONG

import fastbuf as fb
from fastbuf.checkpoint import Alignment

ROWS = fb.RowSerializer(fb.Schema.of(producer="int64", n="int64", text="string"))
SECRET = b"of these tests"
PATIENCE_S = 30
CHECKPOINTS = 40 if LONG else 12
# As little as there can be: a channel that is blocked has nothing to go on with.
CONFIG: dict[str, Any] = {"exclusive": 1, "floating": 2, "max_buffers_per_channel": 2, "buffer_timeout_s": 0.001}

Script = list[tuple[str, int]]  # ("rows", how many), ("barrier" or "cancel" or "late", checkpoint)


@contextlib.contextmanager
def channels(kind: str, n: int) -> Iterator[tuple[list[fb.RecordWriter], fb.InputGate]]:
    with contextlib.ExitStack() as stack:
        near, far = (
            stack.enter_context(fb.ShuffleEnvironment(segments=128, segment_size=512, shared=kind == "memfd"))
            for _ in range(2)
        )
        near = far if kind == "local" else near
        config = fb.ExchangeConfig(transport="auto" if kind == "local" else kind, **CONFIG)
        if kind != "local":
            far.listen()
        gate = far.create_input_gate(ROWS, channels=n, secret=SECRET, config=config)
        target = gate if kind == "local" else gate.address
        yield (
            [near.create_result_partition(ROWS, [target], i, secret=SECRET, config=config) for i in range(n)],
            gate,
        )
    for env in (near, far):
        env.pool.audit()
        assert env.pool.available == env.pool.total


def scripts_of(rng: random.Random, n: int) -> list[Script]:
    """What each producer sends.  Of most checkpoints one is late: it waits until another's barrier was read."""
    scripts: list[Script] = []
    for _ in range(n):
        script: Script = []
        for checkpoint in range(1, (CHECKPOINTS if rng.random() < 0.6 else rng.randint(1, CHECKPOINTS)) + 1):
            script.append(("rows", rng.choice((0, 1, 5, 40, 150))))
            kind = rng.choices(("barrier", "cancel", "nothing"), (16, 1, 1))[0]
            script += [(kind, checkpoint)] if kind != "nothing" else []
        scripts.append([*script, ("rows", rng.randint(0, 40))])
    for checkpoint in range(1, CHECKPOINTS + 1):
        send = [script for script in scripts if ("barrier", checkpoint) in script]
        # Others may be blocked for the one before: who said nothing of that does not keep them waiting.
        may = [s for s in send if checkpoint == 1 or {("barrier", checkpoint - 1), ("cancel", checkpoint - 1)} & set(s)]
        if len(send) > 1 and may:
            late = rng.choice(may)
            late.insert(late.index(("barrier", checkpoint)) - rng.randint(0, 1), ("late", checkpoint))
    return scripts


def snapshots_of(scripts: list[Script]) -> dict[int, list[int]]:
    """The rows of each producer by checkpoint, of those that everybody takes part in who has not ended by then."""
    wanted: dict[int, list[int]] = {}
    for checkpoint in range(1, CHECKPOINTS + 1):
        counts, barriers, missing = [], 0, False
        for script in scripts:
            at = script.index(("barrier", checkpoint)) if ("barrier", checkpoint) in script else None
            barriers += at is not None
            missing |= at is None and any(kind != "rows" and kind != "late" and k >= checkpoint for kind, k in script)
            counts.append(sum(count for kind, count in script[:at] if kind == "rows"))
        if barriers and not missing:
            wanted[checkpoint] = counts
    return wanted


def send(writer: fb.RecordWriter, number: int, script: Script, reached: dict[int, threading.Event]) -> None:
    n = 0
    with writer:
        for kind, value in script:
            if kind == "late":
                assert reached[value].wait(PATIENCE_S)
            elif kind == "barrier":
                writer.emit_event(fb.Barrier(value))
            elif kind == "cancel":
                writer.emit_event(fb.CancelCheckpoint(value))
            else:
                for _ in range(value):
                    writer.emit((number, n, "x" * (n % 90)))
                    n += 1
        writer.emit_event(fb.EndOfData())


def read(gate: fb.InputGate, n: int, alignment: Alignment, reached: dict[int, threading.Event]) -> dict[int, list[int]]:
    """The snapshots; rows come in the order of their producer, so that numbers of rows say which."""
    rows, snapshots = [0] * n, dict[int, list[int]]()
    blocked: set[int] = set()
    now = 0.0
    for item in gate:
        now += 1
        match item:
            case fb.Barrier():
                step = alignment.barrier(item.channel, item.checkpoint, now)
                reached[item.checkpoint].set()
            case fb.CancelCheckpoint():
                step = alignment.cancel(item.channel, item.checkpoint)
            case fb.EndOfData():
                step = alignment.end(item.channel, now)
            case (producer, number, _):
                assert producer not in blocked
                assert number == rows[producer]
                rows[producer] += 1
                continue
        assert item.channel not in blocked
        if step.snapshot:
            snapshots[step.snapshot] = list(rows)
        for channel in step.block:
            gate.block(channel)
        for channel in step.unblock:
            gate.unblock(channel)
        blocked = (blocked | set(step.block)) - set(step.unblock)
        assert gate.audit()
    assert not blocked
    assert gate.finished
    return snapshots


def run(kind: str, scripts: list[Script], exactly_once: bool) -> dict[int, list[int]]:
    reached = {checkpoint: threading.Event() for checkpoint in range(1, CHECKPOINTS + 1)}
    errors: list[BaseException] = []
    n = len(scripts)
    with channels(kind, n) as (writers, gate):

        def run(i: int) -> None:
            try:
                send(writers[i], i, scripts[i], reached)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        try:
            snapshots = read(gate, n, Alignment(range(n), exactly_once), reached)
        finally:
            gate.close()
            for event in reached.values():
                event.set()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
    assert errors == []
    return snapshots


@pytest.mark.parametrize("kind", ["local", "memfd", "tcp"])
def test_snapshots_are_exactly_what_came_before_the_barriers(kind: str) -> None:
    taken = 0
    for seed in range(300 if LONG else 30):
        rng = random.Random(seed)
        scripts = scripts_of(rng, rng.randint(1, 5))
        wanted = snapshots_of(scripts)
        taken += len(wanted)
        assert run(kind, scripts, exactly_once=True) == wanted, f"seed {seed}"
    assert taken > 100


@pytest.mark.parametrize("kind", ["local", "memfd", "tcp"])
def test_at_least_once_waits_for_nobody_and_lacks_nothing(kind: str) -> None:
    taken = 0
    for seed in range(300 if LONG else 10):
        scripts = scripts_of(random.Random(seed), 4)
        wanted, snapshots = snapshots_of(scripts), run(kind, scripts, exactly_once=False)
        for checkpoint in snapshots.keys() & wanted.keys():
            assert all(map(int.__ge__, snapshots[checkpoint], wanted[checkpoint])), (seed, checkpoint)
            taken += 1
    assert taken > 10
