"""When checkpoints are triggered and how they end: against a reference, with random answers and times."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from nights import LONG

from fastbuf.checkpoint import Abort, CheckpointCoordinator, Complete, Fail, Store, Trigger
from fastbuf.errors import ConfigError

RUNS = 20_000 if LONG else 1_500


class Reference:
    """What comes out, worked out from what has come out before: a list of (time, what)."""

    def __init__(self, tasks: int, interval: float, timeout: float, pause: float, tolerated: int, last: int) -> None:
        self.tasks, self.interval, self.timeout, self.pause = set(range(tasks)), interval, timeout, pause
        self.tolerated, self.last, self.outs = tolerated, last, list[tuple[float, Any]]()
        self.acks: dict[int, dict[str, int]] = {}
        self.asked: list[bool] = []

    def of(self, *kinds: type) -> list[tuple[float, Any]]:
        return [out for out in self.outs if isinstance(out[1], kinds)]

    def live(self) -> Any:
        """The trigger of the one in progress and its time, or None."""
        triggers = self.of(Trigger)
        return triggers[-1] if len(triggers) > len(self.of(Complete, Abort)) else None

    def storing(self) -> bool:
        return self.live() is not None and any(out.checkpoint == self.live()[1].checkpoint for _, out in self.of(Store))

    def over(self) -> bool:
        return any(isinstance(out, Fail) or (isinstance(out, Complete) and out.final) for _, out in self.outs)

    def due(self) -> float:
        starts = [at for at, _ in self.of(Trigger)]
        ends = [at for at, _ in self.of(Complete)]
        return max((starts[-1] if starts else 0) + self.interval, (ends[-1] if ends else -math.inf) + self.pause)

    def fail(self, now: float) -> list[Any]:
        trigger = self.live()[1]
        self.asked += [True] if trigger.final else []
        self.outs.append((now, Abort(trigger.checkpoint, "")))
        ends = [type(out) for _, out in self.of(Complete, Abort)]
        in_a_row = len(ends) - max((i + 1 for i, kind in enumerate(ends) if kind is Complete), default=0)
        self.outs += [(now, Fail(""))] if in_a_row > self.tolerated else []
        return [out for _, out in self.outs[-2 if in_a_row > self.tolerated else -1 :]]

    def tick(self, now: float, wall: int) -> list[Any]:
        outs = []
        if self.live() and not self.storing() and now - self.live()[0] >= self.timeout:
            outs = self.fail(now)
        if not self.live() and not self.over() and (self.asked or now >= self.due()):
            number = self.last + len(self.of(Trigger)) + 1
            self.outs.append((now, Trigger(number, wall, any(self.asked))))
            self.asked, self.acks = [], {}
            outs.append(self.outs[-1][1])
        return outs


def without_reasons(outs: list[Any]) -> list[Any]:
    return [Abort(o.checkpoint, "") if isinstance(o, Abort) else Fail("") if isinstance(o, Fail) else o for o in outs]


def test_any_answers_at_any_time_are_as_the_reference_has_it() -> None:
    met: dict[type, int] = {}
    for seed in range(RUNS):
        rng = random.Random(seed)
        n, last = rng.randint(1, 4), rng.choice((0, 0, 7))
        # Whole numbers, so that both add up to the same.
        interval, timeout, pause = rng.randint(0, 8), rng.randint(3, 30), rng.choice((0, 0, rng.randint(1, 20)))
        tolerated = rng.randint(0, 4)
        r = Reference(n, interval, timeout, pause, tolerated, last)
        c = CheckpointCoordinator(
            range(n), interval, timeout_s=timeout, min_pause_s=pause, tolerated=tolerated, last=last
        )
        now = 0.0
        for wall in range(60):
            now += rng.choice((0, 0, 1, 1, 2, 9)) if rng.random() < 0.97 else timeout
            newest = max((t.checkpoint for _, t in r.of(Trigger)), default=last)
            id = newest if rng.random() < 0.9 else rng.randint(1, newest + 2)
            mine, storing = r.live() is not None and id == r.live()[1].checkpoint, r.storing()
            kind = rng.choices(("tick", "ack", "decline", "stored", "store_failed", "trigger"), (6, 16, 1, 6, 1, 1))[0]
            wanted: list[Any] = []
            if kind == "tick":
                wanted, outs = r.tick(now, wall), c.tick(now, wall)
            elif kind == "ack":
                task = rng.randrange(n)
                if mine and not storing:
                    r.acks.setdefault(task, {"at": wall})
                    if r.acks.keys() == r.tasks:
                        wanted = [Store(id, dict(r.acks), r.live()[1].final)]
                        r.outs.append((now, wanted[0]))
                outs = c.acknowledge(task, id, {"at": wall}, now)
            elif kind == "decline":
                wanted = r.fail(now) if mine and not storing else []
                outs = c.decline(rng.randrange(n), id, "no room", now)
            elif kind == "stored":
                if mine and storing:
                    wanted = [Complete(id, r.live()[1].final)]
                    r.outs.append((now, wanted[0]))
                outs = c.stored(id, now)
            elif kind == "store_failed":
                wanted = r.fail(now) if mine and storing else []
                outs = c.store_failed(id, "disk full", now)
            else:
                final = rng.random() < 0.2
                if not r.over() and not (r.live() and r.live()[1].final):
                    r.asked.append(final)
                    wanted = r.tick(now, wall)
                outs = c.trigger(now, wall, final)
            told = f"seed {seed}, {kind} of {id} at {now}: {r.outs[-4:]}"
            assert without_reasons(outs) == wanted, told
            for out in outs:
                met[type(out)] = met.get(type(out), 0) + 1
            live = r.live()
            assert c.in_progress == (live[1].checkpoint if live else None), told
            assert c.waiting_for() == (r.tasks - r.acks.keys() if live else frozenset()), told
            assert c.completed == max((out.checkpoint for _, out in r.of(Complete)), default=last), told
            if r.over() or r.storing():
                due = math.inf
            elif live:
                due = live[0] + timeout - now
            else:
                due = 0.0 if r.asked else r.due() - now
            assert c.next_due(now) == max(due, 0.0), told
        check_order([out for _, out in r.outs])
        assert [a.id for a in c.history] == [out.checkpoint for _, out in r.of(Trigger)][-100:]
    assert set(met) == {Trigger, Store, Complete, Abort, Fail}
    assert min(met.values()) > RUNS // 50, met


def check_order(outs: list[Any]) -> None:
    """What holds whatever comes: the reference and the coordinator give the same, so of both."""
    live, stored, ids, over = None, False, [0], False
    for out in outs:
        assert not over
        if isinstance(out, Trigger):
            assert live is None, "two at once"
            assert out.checkpoint > ids[-1], "ids only grow"
            ids.append(out.checkpoint)
            live, stored = out.checkpoint, False
        elif isinstance(out, Store):
            assert out.checkpoint == live
            stored = True
        elif isinstance(out, Complete):
            assert out.checkpoint == live
            assert stored
            live, over = None, out.final
        elif isinstance(out, Abort):
            assert out.checkpoint == live
            live = None
        else:
            over = True


def run(c: CheckpointCoordinator, now: float, *tasks: int) -> list[Any]:
    """These tasks acknowledge the one in progress."""
    assert c.in_progress is not None
    return [out for task in tasks for out in c.acknowledge(task, c.in_progress, {"task": task}, now)]


def test_one_checkpoint_from_its_trigger_to_its_completion() -> None:
    c = CheckpointCoordinator([3, 5], 10.0, now=100.0)
    assert (c.next_due(100.0), c.tick(109.9, 1)) == (10.0, [])
    assert c.tick(110.0, 1234) == [Trigger(1, 1234, False)]
    assert (c.in_progress, c.waiting_for(), c.next_due(110.0)) == (1, {3, 5}, 600.0)
    assert run(c, 111.0, 5) == []
    assert (c.waiting_for(), c.history[-1].state, c.history[-1].duration_s) == ({3}, "in progress", 1.0)
    assert run(c, 111.5, 5) == [], "again"
    assert run(c, 112.0, 3) == [Store(1, {3: {"task": 3}, 5: {"task": 5}}, False)]
    assert (c.completed, c.next_due(112.0)) == (0, math.inf)
    assert c.decline(3, 1, "too late", 112.0) == c.tick(5000.0, 2) == [], "the store alone says how it ends now"
    assert c.stored(1, 113.0) == [Complete(1, False)]
    assert c.stored(1, 113.0) == c.store_failed(1, "?", 113.0) == []
    assert (c.completed, c.in_progress, c.next_due(113.0)) == (1, None, 7.0)
    attempt = c.history[-1]
    assert (attempt.state, attempt.duration_s, attempt.started_ms, attempt.reason) == ("completed", 3.0, 1234, "")


def test_one_that_takes_longer_than_its_interval_is_followed_by_one_alone() -> None:
    c = CheckpointCoordinator([0], 1.0, min_pause_s=0.5)
    assert c.tick(1.0, 0) == [Trigger(1, 0, False)]
    for now in (2.0, 3.0, 4.0, 7.0):
        assert c.tick(now, 0) == []
    run(c, 7.2, 0)
    assert c.stored(1, 7.25) == [Complete(1, False)]
    assert (c.next_due(7.25), c.tick(7.5, 0)) == (0.5, [])
    assert c.tick(7.75, 9) == [Trigger(2, 9, False)]
    run(c, 7.8, 0)
    c.stored(2, 7.8)
    assert c.next_due(7.8) == pytest.approx(0.95), "of the interval; what was missed is not made up for"


def test_silence_is_named_and_what_comes_late_is_ignored() -> None:
    c = CheckpointCoordinator(range(4), 1.0, timeout_s=5.0, tolerated=1, last=41)
    c.tick(1.0, 0)
    run(c, 2.0, 0, 2)
    told = "checkpoint 42 expired: 2 of 4 tasks had not acknowledged it after 5 s: 1, 3"
    assert c.tick(6.0, 8) == [Abort(42, told), Trigger(43, 8, False)]
    assert c.acknowledge(1, 42, {}, 6.1) == c.decline(3, 42, "?", 6.1) == c.stored(42, 6.1) == []
    assert c.waiting_for() == {0, 1, 2, 3}, "of the next one"
    assert (c.failures, c.completed, c.history[0].reason) == (1, 41, told)
    (abort, fail) = c.decline(2, 43, "state of 3 GiB, 1 GiB free", 7.0)
    assert abort == Abort(43, "task 2 declined checkpoint 43: state of 3 GiB, 1 GiB free")
    assert fail == Fail(f"2 checkpoints failed in a row, 1 are tolerated; the last one: {abort.reason}")
    assert c.tick(1e9, 0) == c.trigger(1e9, 0) == c.trigger(1e9, 0, final=True) == []
    assert c.next_due(7.0) == math.inf


def test_success_begins_the_count_of_failures_anew() -> None:
    c = CheckpointCoordinator([0], 1.0, tolerated=1)
    for now in range(1, 101):
        (trigger,) = c.tick(float(now), 0)
        if now % 2:
            outs = c.decline(0, trigger.checkpoint, "?", float(now))
            assert [type(out) for out in outs] == [Abort]
        else:
            run(c, float(now), 0)
            outs = c.stored(trigger.checkpoint, float(now))
            assert outs == [Complete(trigger.checkpoint, False)]
    assert len(c.history) == 100


def test_one_that_is_asked_for_waits_for_the_one_in_progress_and_for_nothing_else() -> None:
    c = CheckpointCoordinator([0], math.inf, min_pause_s=60.0)
    assert c.next_due(0.0) == math.inf
    assert c.trigger(5.0, 1) == [Trigger(1, 1, False)]
    assert c.trigger(6.0, 2) == c.trigger(6.0, 2) == []
    run(c, 7.0, 0)
    c.stored(1, 7.0)
    assert c.next_due(7.0) == 0.0, "at once, and the two are one"
    assert c.tick(7.0, 3) == [Trigger(2, 3, False)]
    run(c, 8.0, 0)
    c.stored(2, 8.0)
    assert c.next_due(8.0) == math.inf


def test_the_final_one_is_tried_again_and_nothing_comes_behind_it() -> None:
    c = CheckpointCoordinator([0, 1], 1.0, tolerated=2)
    assert c.tick(1.0, 1) == [Trigger(1, 1, False)]
    assert c.trigger(1.5, 2, final=True) == [], "it waits"
    assert c.trigger(1.5, 2) == [], "and the last is the last"
    assert [type(out) for out in c.decline(0, 1, "?", 2.0)] == [Abort]
    assert c.tick(2.0, 3) == [Trigger(2, 3, True)]
    assert c.trigger(2.5, 4, final=True) == []
    run(c, 3.0, 0, 1)
    assert [type(out) for out in c.store_failed(2, "disk full", 3.0)] == [Abort]
    assert c.next_due(3.0) == 0.0
    assert c.tick(3.0, 5) == [Trigger(3, 5, True)]
    assert run(c, 4.0, 0, 1) == [Store(3, {0: {"task": 0}, 1: {"task": 1}}, True)]
    assert c.stored(3, 4.0) == [Complete(3, True)]
    assert c.trigger(5.0, 6) == c.tick(1e9, 7) == []
    assert c.next_due(5.0) == math.inf
    assert [a.state for a in c.history] == ["failed", "failed", "completed"]


def test_ten_thousand_of_them_keep_what_a_hundred_do() -> None:
    c = CheckpointCoordinator([0], 0.0)
    for now in range(10_000):
        (trigger,) = c.tick(float(now), now)
        run(c, float(now), 0)
        c.stored(trigger.checkpoint, float(now))
    assert (c.completed, len(c.history), c.history[0].id) == (10_000, 100, 9_901)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: CheckpointCoordinator([], 1.0), "tasks is empty"),
        (lambda: CheckpointCoordinator([0], -1.0), "interval_s is -1"),
        (lambda: CheckpointCoordinator([0], 1.0, timeout_s=0), "timeout_s is 0"),
        (lambda: CheckpointCoordinator([0], 1.0, min_pause_s=math.nan), "min_pause_s is nan"),
        (lambda: CheckpointCoordinator([0], 1.0, tolerated=-1), "tolerated is -1"),
        (lambda: CheckpointCoordinator([0], 1.0, last="7"), "last is '7'"),  # type: ignore[arg-type]
        (lambda: CheckpointCoordinator([0, 1], 1.0).acknowledge(2, 1, {}, 0.0), r"task is 2: there are tasks \[0, 1\]"),
        (lambda: CheckpointCoordinator([0, 1], 1.0).decline(9, 1, "?", 0.0), "task is 9"),
    ],
)
def test_wrong_calls_are_named(call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()
