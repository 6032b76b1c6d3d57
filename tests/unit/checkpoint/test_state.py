"""State by key group, timers, and which files hold it: against dicts, over random steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from nights import LONG

from fastbuf.checkpoint.state import Confirmed, GroupedMap, Timers

RUNS = 3_000 if LONG else 150
GROUPS, KEYS = 3, 5


@pytest.mark.parametrize("seed", range(4))
def test_a_map_with_snapshots_against_a_dict(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(RUNS):
        state: GroupedMap[int, int] = GroupedMap()
        model: dict[tuple[int, int], int] = {}
        changed: set[int] = set()
        frozen: tuple[Any, Any] | None = None
        ever: set[int] = set()
        for step in range(dice.randrange(60)):
            group, key = dice.randrange(GROUPS), dice.randrange(KEYS)
            match dice.randrange(7):
                case 0 | 1 | 2:
                    state.put(group, key, step)
                    model[group, key] = step
                    changed.add(group)
                    ever.add(group)
                case 3:
                    state.remove(group, key)
                    if model.pop((group, key), None) is not None:
                        changed.add(group)
                case 4 if frozen is None:
                    more = frozenset(g for g in range(GROUPS) if dice.random() < 0.3)
                    taken = state.freeze(more)
                    assert taken.keys() == (changed | more) & ever
                    frozen = taken, {g: {k: v for (h, k), v in model.items() if h == g} for g in taken}
                    changed = set()
                case 5 if frozen is not None:
                    assert {g: dict(held) for g, held in frozen[0].items()} == frozen[1]
                    state.thaw()
                    frozen = None
                case _:
                    assert len(state) == len(model)
            if dice.random() < 0.5:
                assert state.get(group, key) == model.get((group, key))
                assert dict(state.items(group)) == {k: v for (h, k), v in model.items() if h == group}
            assert state.changed == changed
            if frozen is not None:  # another thread may read it at any time
                assert {g: dict(held) for g, held in frozen[0].items()} == frozen[1]
        assert {(g, k): v for g in state.groups for k, v in state.items(g)} == model
        assert len(state) == len(model)


@pytest.mark.parametrize("seed", range(4))
def test_timers_against_a_set(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(RUNS):
        timers, model, now = Timers(), set[tuple[int, int, str]](), 0
        for _ in range(dice.randrange(80)):
            group, key, at = dice.randrange(GROUPS), dice.choice("abc"), dice.randrange(now, now + 20)
            match dice.randrange(6):
                case 0 | 1:
                    timers.add(group, key, at)
                    model.add((at, group, key))
                case 2:
                    timers.remove(group, key, at)
                    model.discard((at, group, key))
                case 3:
                    now += dice.randrange(5)
                    found = [(time, g, k) for g, k, time in timers.due(now)]
                    wanted = {each for each in model if each[0] <= now}
                    assert sorted(found) == sorted(wanted)
                    assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)
                    model -= wanted
                case 4:
                    assert timers.of(group, key) == sorted(t for t, g, k in model if (g, k) == (group, key))
                case 5:
                    restored = Timers()
                    for g, held in timers.state.freeze(frozenset(range(GROUPS))).items():
                        restored.restore(g, dict(held))
                    timers.state.thaw()
                    timers = restored


def test_a_timer_that_is_moved_again_and_again_takes_no_memory() -> None:
    """As for the end of a session: taken back and set later at each row."""
    timers = Timers()
    for at in range(100_000):
        timers.remove(0, "a", at + 1_000_000 - 1)
        timers.add(0, "a", at + 1_000_000)
    assert timers.of(0, "a") == [1_099_999]
    assert len(timers._heap) < 1_000


def test_a_timer_set_while_others_are_due() -> None:
    """One that is due at once comes with the next ones; one that was taken back meanwhile does not come."""
    timers = Timers()
    for key in "abc":
        timers.add(0, key, 1)
    found = []
    for _, key, _ in timers.due(5):
        found.append(key)
        timers.remove(0, "c", 1)
        timers.add(0, key, 2)
    assert found == ["a", "b"]
    assert [key for _, key, _ in timers.due(5)] == ["a", "b"]


@pytest.mark.parametrize("seed", range(4))
def test_pieces_are_of_complete_checkpoints_or_ones_own(seed: int) -> None:
    """Checkpoints that fail, and whose completion is heard late, as it is behind the next barrier."""
    dice = random.Random(seed)
    for _ in range(RUNS):
        confirmed = Confirmed()
        value: dict[int, int] = {}  # of each group
        dirty: set[int] = set()
        files: dict[tuple[int, int], int | None] = {}  # by checkpoint and group: what was written
        complete: set[int] = set()
        unheard: list[int] = []
        for number in range(1, 25):
            for group in range(GROUPS):
                if dice.random() < 0.4:
                    value[group] = dice.randrange(100)
                    dirty.add(group)
                elif dice.random() < 0.1 and group in value:
                    del value[group]
                    dirty.add(group)
            frozen = frozenset(dirty) | confirmed.unconfirmed
            dirty = set()
            confirmed.taken(number, frozen)
            if unheard and dice.random() < 0.3:  # between the snapshot and its end
                confirmed.complete(unheard.pop(0))
            if dice.random() < 0.1:
                continue  # its file could not be written
            pieces: dict[int, Any] = {}
            for group in frozen:
                files[number, group] = value.get(group)
                pieces[group] = [number, group] if group in value else None
            told = confirmed.written(number, pieces)
            assert {group: files[piece[0], piece[1]] for group, piece in told.items()} == value
            assert all(piece[0] == number or piece[0] in complete for piece in told.values())
            if dice.random() < 0.7:
                complete.add(number)
                unheard.append(number)
            while unheard and dice.random() < 0.6:
                confirmed.complete(unheard.pop(0))
