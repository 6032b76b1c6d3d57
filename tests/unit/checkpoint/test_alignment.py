"""Alignment of barriers: against a reference, in random orders, and through channels that keep their order."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from nights import LONG

from fastbuf.checkpoint import Alignment, Step
from fastbuf.checkpoint.alignment import MOST_PENDING
from fastbuf.errors import ConfigError

MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly_once", "at_least_once"])
SCRIPTS = 20_000 if LONG else 1_000  # in each mode


class Reference:
    """What is to be done, worked out anew from all that has come."""

    def __init__(self, channels: int, exactly_once: bool) -> None:
        self.exactly_once, self.open = exactly_once, set(range(channels))
        self.log: list[tuple[str, int, int]] = []  # (kind, channel, checkpoint)
        self.over = 0

    def newest(self) -> int:
        return max((checkpoint for _, _, checkpoint in self.log), default=0)

    def pending(self) -> list[int]:
        born, newest = [], 0
        for kind, _, checkpoint in self.log:
            if kind == "barrier" and checkpoint > newest:
                born.append(checkpoint)
            newest = max(newest, checkpoint)
        return [each for each in born if each > self.over and (each == newest or not self.exactly_once)]

    def barriers(self, checkpoint: int) -> set[int]:
        return {channel for kind, channel, id in self.log if kind == "barrier" and id == checkpoint}

    def blocked(self) -> set[int]:
        return self.barriers(self.pending()[0]) if self.exactly_once and self.pending() else set()

    def step(self, kind: str, channel: int, checkpoint: int) -> Step:
        before, blocked, newest = self.pending(), self.blocked(), self.newest()
        cancelled = snapshot = None
        self.log.append((kind, channel, checkpoint))
        if kind == "end":
            self.open.discard(channel)
        elif kind == "barrier":
            cancelled = next((each for each in before if each not in self.pending()), None)
        elif checkpoint > self.over and (checkpoint >= newest or not self.exactly_once):
            cancelled = checkpoint
        self.over = max(self.over, cancelled or 0)
        for each in self.pending():
            if self.open <= self.barriers(each):
                snapshot = each
        self.over = max(self.over, snapshot or 0)
        after = self.blocked()
        return Step(tuple(sorted(after - blocked)), tuple(sorted(blocked - after)), snapshot, cancelled)


def act(alignment: Alignment, kind: str, channel: int, checkpoint: int, now: float) -> Step:
    if kind == "barrier":
        return alignment.barrier(channel, checkpoint, now)
    if kind == "cancel":
        return alignment.cancel(channel, checkpoint)
    return alignment.end(channel, now) if kind == "end" else alignment.abort(checkpoint)


@MODES
def test_any_order_is_as_the_reference_has_it(exactly_once: bool) -> None:
    met: dict[str, int] = dict.fromkeys(("block", "unblock", "snapshot", "cancelled", "nothing"), 0)
    for seed in range(SCRIPTS):
        rng = random.Random(seed)
        channels = rng.randint(1, 5)
        reference, alignment = Reference(channels, exactly_once), Alignment(range(channels), exactly_once)
        for now in range(rng.randint(1, 40)):
            kind = rng.choices(("barrier", "cancel", "end", "abort"), (20, 2, 1, 1))[0]
            free = sorted(reference.open - reference.blocked())  # a blocked channel says nothing
            if not free and kind != "abort":
                continue
            channel = rng.choice(free) if kind != "abort" else -1
            checkpoint = max(1, reference.newest() + rng.choice((-3, -1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2)))
            wanted = reference.step(kind, channel, 0 if kind == "end" else checkpoint)
            step = act(alignment, kind, channel, checkpoint, float(now))
            told = f"seed {seed}, {reference.log}"
            assert step == wanted, told
            pending = reference.pending()
            assert alignment.pending == bool(pending), told
            assert alignment.current == reference.newest() or not exactly_once or kind == "end", told
            wait = reference.open - reference.barriers(pending[-1]) if pending else frozenset()
            assert alignment.waiting == wait, told
            for name in ("block", "unblock", "snapshot", "cancelled"):
                met[name] += bool(getattr(step, name))
            met["nothing"] += step == Step()
    never = {"block", "unblock"} if not exactly_once else set()
    assert {name for name, times in met.items() if not times} == never, met


def script(rng: random.Random, checkpoints: int) -> deque[tuple[str, int]]:
    """What a channel sends: rows, and of each checkpoint a barrier, a cancel marker or nothing; then its end."""
    items: list[tuple[str, int]] = []
    last = checkpoints if rng.random() < 0.7 else rng.randint(0, checkpoints)
    for checkpoint in range(1, last + 1):
        items += [("row", 0)] * rng.randint(0, 4)
        kind = rng.choices(("barrier", "cancel", "nothing"), (30, 1, 1))[0]
        items += [(kind, checkpoint)] if kind != "nothing" else []
    return deque([*items, *[("row", 0)] * rng.randint(0, 4), ("end", 0)])


@MODES
def test_a_snapshot_is_what_came_before_the_barriers_and_every_channel_is_read_to_its_end(exactly_once: bool) -> None:
    snapshots = 0
    for seed in range(SCRIPTS):
        rng = random.Random(seed)
        n = rng.randint(1, 6)
        scripts = [script(rng, 8) for _ in range(n)]
        before = [rows_before(each) for each in scripts]  # by channel: {checkpoint: rows}; 0: all of them
        alignment = Alignment(range(n), exactly_once)
        read, blocked, ended = [0] * n, set[int](), dict[int, str]()
        while any(scripts):
            abort = rng.random() < 0.02
            if abort:
                step = alignment.abort(max(1, alignment.current + rng.randint(-1, 1)))
            else:
                ready = [c for c in range(n) if scripts[c] and c not in blocked]
                assert ready, f"seed {seed}: all that have something are blocked"
                channel = rng.choice(ready)
                kind, checkpoint = scripts[channel].popleft()
                if kind == "row":
                    read[channel] += 1
                    continue
                step = act(alignment, kind, channel, checkpoint, 0.0)
            if step.cancelled is not None:
                assert step.cancelled not in ended
                ended[step.cancelled] = "cancelled"
            if step.snapshot is not None:
                at = step.snapshot
                assert at > max((each for each, how in ended.items() if how == "snapshot"), default=0)
                assert at not in ended
                ended[at] = "snapshot"
                snapshots += 1
                wanted = [rows.get(at, rows[0]) for rows in before]
                assert read == wanted if exactly_once else all(map(int.__ge__, read, wanted)), f"seed {seed}"
                for c in range(n):  # each sent the barrier, or has ended
                    assert at in before[c] or not scripts[c], f"seed {seed}"
            assert not blocked & set(step.block)
            blocked |= set(step.block)
            assert blocked >= set(step.unblock)
            blocked -= set(step.unblock)
            assert exactly_once or not blocked
            assert not blocked or alignment.pending
        assert not blocked, f"seed {seed}"
        assert not alignment.pending
    assert snapshots > SCRIPTS


def rows_before(items: Any) -> dict[int, int]:
    rows, result = 0, {}
    for kind, checkpoint in items:
        rows += kind == "row"
        if kind == "barrier":
            result[checkpoint] = rows
    return {**result, 0: rows}


def test_one_channel_is_never_blocked() -> None:
    alignment = Alignment([7])
    assert alignment.barrier(7, 1, 5.0) == Step(snapshot=1)
    assert (alignment.current, alignment.pending, alignment.taken_s) == (1, False, 0.0)


def test_how_long_it_took_and_who_is_awaited() -> None:
    alignment = Alignment(range(3))
    assert alignment.barrier(1, 4, 10.0) == Step(block=(1,))
    assert (alignment.since, alignment.waiting) == (10.0, {0, 2})
    assert alignment.barrier(0, 4, 11.0) == Step(block=(0,))
    assert alignment.barrier(2, 4, 12.5) == Step(unblock=(0, 1), snapshot=4)
    assert (alignment.taken_s, alignment.waiting) == (2.5, frozenset())
    assert alignment.barrier(1, 5, 20.0) == Step(block=(1,))
    assert alignment.end(0, 23.0) == Step()
    assert alignment.taken_s == 2.5, "of the last that ended in a snapshot"
    assert alignment.end(2, 24.0) == Step(unblock=(1,), snapshot=5)
    assert (alignment.since, alignment.taken_s) == (20.0, 4.0)
    assert alignment.end(2) == Step(), "a set, not a count"
    assert alignment.barrier(1, 6, 30.0) == Step(snapshot=6)


def test_a_newer_barrier_ends_the_older_checkpoint_and_may_complete_its_own() -> None:
    alignment = Alignment(range(3))
    assert alignment.barrier(0, 1, 0.0) == Step(block=(0,))
    assert alignment.barrier(1, 1, 0.0) == Step(block=(1,))
    assert alignment.barrier(2, 2, 0.0) == Step(block=(2,), unblock=(0, 1), cancelled=1)
    assert alignment.barrier(0, 2, 0.0) == Step(block=(0,))
    assert alignment.end(1) == Step(unblock=(0, 2), snapshot=2)
    assert alignment.barrier(0, 3, 0.0) == Step(block=(0,))
    alignment.abort(3)
    assert alignment.barrier(0, 4, 0.0) == Step(block=(0,))
    assert alignment.barrier(2, 3, 0.0) == Step(), "stale"
    assert alignment.end(2) == Step(unblock=(0,), snapshot=4)


@MODES
def test_an_end_and_a_newer_barrier_at_once(exactly_once: bool) -> None:
    """The last open channel leaves a checkpoint out for which another, which has ended, waits."""
    alignment = Alignment(range(2), exactly_once)
    assert alignment.barrier(0, 1, 0.0) == Step(block=(0,) if exactly_once else ())
    if exactly_once:
        assert alignment.barrier(1, 2, 0.0) == Step(block=(1,), unblock=(0,), cancelled=1)
        assert alignment.end(0) == Step(unblock=(1,), snapshot=2)
    else:
        assert alignment.end(0) == Step()
        assert alignment.barrier(1, 1, 0.0) == Step(snapshot=1), "not a new one, though one channel is left"


def test_a_blocked_channel_that_is_lost_is_unblocked_with_the_others() -> None:
    """Its end is told from outside, as nothing is read of it; whoever comes in its place is not to find it blocked."""
    alignment = Alignment(range(2))
    assert alignment.barrier(0, 1, 0.0) == Step(block=(0,))
    assert alignment.end(0) == Step()
    assert alignment.barrier(1, 2, 0.0) == Step(unblock=(0,), snapshot=2, cancelled=1)
    assert alignment.barrier(1, 3, 0.0) == Step(snapshot=3)


@MODES
def test_a_marker_or_an_abort_that_comes_first_makes_the_barriers_stale(exactly_once: bool) -> None:
    alignment = Alignment(range(2), exactly_once)
    assert alignment.cancel(1, 3) == Step(cancelled=3)
    assert alignment.cancel(0, 3) == Step(), "told once"
    assert alignment.barrier(0, 3, 0.0) == Step()
    assert alignment.abort(4) == Step(cancelled=4)
    assert alignment.abort(4) == Step()
    assert alignment.barrier(0, 4, 0.0) == alignment.barrier(1, 4, 0.0) == Step()
    assert not alignment.pending
    assert alignment.current == 4


def test_at_least_once_follows_several_and_a_complete_one_ends_the_older() -> None:
    alignment = Alignment(range(2), exactly_once=False)
    for checkpoint in (1, 2, 3):
        assert alignment.barrier(0, checkpoint, float(checkpoint)) == Step()
    assert alignment.waiting == {1}
    assert alignment.barrier(1, 2, 10.0) == Step(snapshot=2)
    assert alignment.taken_s == 8.0
    assert alignment.pending
    assert alignment.barrier(1, 1, 10.0) == Step()
    assert alignment.barrier(1, 3, 11.0) == Step(snapshot=3)
    assert alignment.taken_s == 8.0
    assert not alignment.pending


def test_at_least_once_keeps_track_of_so_many() -> None:
    alignment = Alignment(range(2), exactly_once=False)
    for checkpoint in range(1, MOST_PENDING + 1):
        assert alignment.barrier(0, checkpoint, 0.0) == Step()
    assert alignment.barrier(0, MOST_PENDING + 1, 0.0) == Step(cancelled=1)
    assert alignment.barrier(1, 1, 0.0) == Step()
    assert alignment.barrier(1, 2, 0.0) == Step(snapshot=2)
    for checkpoint in range(MOST_PENDING + 2, 10_000):
        alignment.barrier(0, checkpoint, 0.0)
    assert len(alignment._arrived) == len(alignment._began) == MOST_PENDING


def test_nothing_is_kept_of_checkpoints_that_are_over() -> None:
    alignment = Alignment(range(2))
    for checkpoint in range(1, 10_000):
        alignment.barrier(0, checkpoint, 0.0)
        alignment.barrier(1, checkpoint, 0.0) if checkpoint % 2 else alignment.cancel(1, checkpoint)
        assert not alignment._arrived
        assert not alignment._began
        assert not alignment._blocked


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: a.barrier(3, 1, 0.0), r"channel is 3: this alignment has \[0, 1, 2\]"),
        (lambda a: a.cancel(-1, 1), "channel is -1"),
        (lambda a: a.end(9), "channel is 9"),
        (lambda a: a.barrier(0, 0, 0.0), "checkpoint is 0: it must be an integer from 1"),
        (lambda a: a.cancel(0, 1.5), "checkpoint is 1.5"),
        (lambda a: a.abort(None), "checkpoint is None"),
        (lambda a: (a.end(0), a.barrier(0, 2, 0.0)), "channel 0 has ended: it cannot have a barrier of checkpoint 2"),
        (lambda a: Alignment([0, "1"]), "channel is '1'"),  # type: ignore[list-item]
        (lambda a: Alignment([0], "yes"), "exactly_once is 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_calls_are_named(call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(Alignment(range(3)))
