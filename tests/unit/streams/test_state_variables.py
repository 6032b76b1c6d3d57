"""Lists and maps of a processor's state: against Python's own, over random steps with snapshots in between."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from nights import LONG
from pyspark.sql import types as T

from fastbuf.checkpoint.state import GroupedMap, Timers
from fastbuf_spark.streams.stateful import Handle, _Here

RUNS = 2_000 if LONG else 100
ONE = T.StructType([T.StructField("v", T.LongType())])
KEYS = [(0, ("a",)), (0, ("b",)), (1, ("c",))]


def handle() -> tuple[Handle, _Here]:
    here = _Here()
    return Handle(here, Timers(), True, {}), here


class Snapshots:
    """Of a variable: what was frozen must stay as it was, until it is let go of."""

    def __init__(self, state: Any) -> None:
        self.entries = state.entries
        self.frozen: Any = None
        self.copy: Any = None

    def step(self) -> None:
        if self.frozen is None:
            self.frozen = self.entries.freeze(frozenset())
            self.copy = self._copied()
        else:
            assert self._copied() == self.copy
            self.entries.thaw()
            self.frozen = None

    def check(self) -> None:
        assert self.frozen is None or self._copied() == self.copy

    def _copied(self) -> Any:
        return {
            g: {
                k: (until, type(v)(v)) if isinstance(v, tuple) else (until, dict(v) if isinstance(v, dict) else list(v))
                for k, (until, v) in part.items()
            }
            for g, part in self.frozen.items()
        }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ttl", [None, 20])
def test_a_map_with_snapshots(seed: int, ttl: int | None) -> None:
    dice = random.Random(seed)
    for _ in range(RUNS):
        hold, here = handle()
        state = hold.getMapState("m", ONE, ONE, ttl)
        model: dict[Any, dict[int, tuple[int, int]]] = defaultdict(dict)
        snapshots = Snapshots(state)

        def alive(of: Any) -> dict[int, int]:
            return {k: v for k, (v, until) in model[of].items() if until > here.now_ms}  # noqa: B023

        for step in range(dice.randrange(60)):
            here.group, here.key = at = dice.choice(KEYS)
            here.now_ms += dice.randrange(3)
            name = dice.randrange(6)
            match dice.randrange(8):
                case 0 | 1 | 2:
                    state.updateValue((name,), (step,))
                    model[at][name] = step, here.now_ms + ttl if ttl else 1 << 60
                case 3:
                    state.removeKey((name,))
                    model[at].pop(name, None)
                case 4:
                    state.clear()
                    model[at].clear()
                case 5 if ttl:
                    state.expire(here.group, here.now_ms)
                case 6:
                    snapshots.step()
                case _:
                    for (k,), (v,) in state.iterator():  # what it changes it does not meet
                        state.updateValue((k + 6,), (v,))
                        model[at][k + 6] = v, here.now_ms + ttl if ttl else 1 << 60
                        if k > 100:
                            break
            assert dict((k, v) for (k,), (v,) in state.iterator()) == alive(at)
            assert sorted(k for (k,) in list(state.keys())) == sorted(alive(at))
            assert sorted(v for (v,) in state.values()) == sorted(alive(at).values())
            assert state.exists() == bool(alive(at))
            found = state.getValue((name,))
            assert (found and found[0]) == alive(at).get(name)
            assert state.containsKey((name,)) == (name in alive(at))
            snapshots.check()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ttl", [None, 20])
def test_a_list_with_snapshots(seed: int, ttl: int | None) -> None:
    dice = random.Random(seed)
    for _ in range(RUNS):
        hold, here = handle()
        state = hold.getListState("l", ONE, ttl)
        model: dict[Any, list[int]] = defaultdict(list)
        until: dict[Any, int] = defaultdict(int)
        snapshots = Snapshots(state)
        for step in range(dice.randrange(60)):
            here.group, here.key = at = dice.choice(KEYS)
            here.now_ms += dice.randrange(3)
            if until[at] <= here.now_ms:
                model[at] = []
            match dice.randrange(7):
                case 0 | 1:
                    state.appendValue((step,))
                    model[at].append(step)
                    until[at] = here.now_ms + ttl if ttl else 1 << 60
                case 2:
                    state.appendList([(step,), (-step,)])
                    model[at] += [step, -step]
                    until[at] = here.now_ms + ttl if ttl else 1 << 60
                case 3:
                    state.put([(step,)])
                    model[at] = [step]
                    until[at] = here.now_ms + ttl if ttl else 1 << 60
                case 4:
                    state.clear()
                    model[at] = []
                case 5:
                    snapshots.step()
                case _:
                    for (v,) in state.get():  # what it adds it does not meet
                        state.appendValue((v,))
                        model[at].append(v)
                        until[at] = here.now_ms + ttl if ttl else 1 << 60
                        if len(model[at]) > 100:
                            break
            assert [v for (v,) in state.get()] == model[at]
            assert state.exists() == bool(model[at])
            snapshots.check()


def test_a_long_list_and_a_large_map_are_not_copied_at_each_change() -> None:
    """They were: a key with a hundred thousand items took minutes."""
    hold, here = handle()
    items, entries = hold.getListState("l", ONE), hold.getMapState("m", ONE, ONE)

    def changed() -> list[int]:
        items.appendValue((1,))
        entries.updateValue((len(list(entries.keys())),), (1,))
        entries.removeKey((-1,))
        return [id(state.entries.get(here.group, here.key)[1]) for state in (items, entries)]

    before = changed()
    assert changed() == before
    frozen = [state.entries.freeze(frozenset()) for state in (items, entries)]
    after = changed()
    assert not set(after) & set(before)
    assert changed() == after
    assert [len(each[here.group][here.key][1]) for each in frozen] == [2, 2]


def test_the_timers_of_a_key_are_found_without_a_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing many processors do with a row is to take back the timers of its key."""
    hold, here = handle()
    for n in range(100):
        here.key = (n,)
        hold.registerTimer(n)
        hold.registerTimer(n + 1)
    monkeypatch.setattr(GroupedMap, "items", None)
    assert list(hold.listTimers()) == [99, 100]
    hold.deleteTimer(99)
    assert list(hold.listTimers()) == [100]
