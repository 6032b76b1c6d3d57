"""Every interleaving, and every delay of a store, of small scenarios of magazines and those who seize them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from explorer import Violation, explore
from magazine_model import MagazineWorld

Scenario = Callable[[str], MagazineWorld]


def one_takes_what_another_keeps(without: str = "") -> MagazineWorld:
    """A thread puts and takes its one segment; another wants it just then, without waiting."""
    w = MagazineWorld(2, {0: (1,)}, without)
    return w.begin(w.user(0, "+-"), w.user(1, "-"))


def a_waiter_and_a_parked_segment(without: str = "") -> MagazineWorld:
    """One waits for the segment that the other is putting into its magazine."""
    w = MagazineWorld(2, {0: (1,)}, without)
    return w.begin(w.user(0, "+"), w.waiter(1))


def a_waiter_and_one_who_takes_again(without: str = "") -> MagazineWorld:
    """The same, and the other takes and puts once more: what he took back he brings back."""
    w = MagazineWorld(2, {0: (1,)}, without, magazines=1)
    return w.begin(w.user(0, "+-+"), w.waiter(1))


def a_surplus_in_a_magazine(without: str = "") -> MagazineWorld:
    """The limit falls while a thread puts; somebody in another pool waits for what is beyond it."""
    w = MagazineWorld(3, {0: (1,)}, without, limit=1, magazines=1)
    return w.begin(w.user(0, "+"), w.other(1), w.lower(2, 0))


def destroyed_while_putting(without: str = "") -> MagazineWorld:
    """The pool is destroyed while a thread puts."""
    w = MagazineWorld(2, {0: (1,)}, without, magazines=1)
    return w.begin(w.user(0, "+-+"), w.destroy(1))


def the_thread_ends(without: str = "") -> MagazineWorld:
    """A thread puts and ends, while another wants the segment."""
    w = MagazineWorld(2, {0: (1,)}, without)
    return w.begin(w.user(0, "+."), w.user(1, "-"))


def chunks_come_and_go(without: str = "") -> MagazineWorld:
    """A full magazine gives a chunk away, and another thread takes it."""
    w = MagazineWorld(2, {0: (4,)}, without)
    w.segments = (1, 2, 3, 4)
    w.held = 4
    w.memory |= {"hot0": 1, "items0": (2, 3)}
    return w.begin(w.user(0, "+"), w.user(1, "-"))


def a_waiter_and_a_chunk(without: str = "") -> MagazineWorld:
    """The same, and the other one waits: a chunk that is on its way is not missed."""
    w = MagazineWorld(2, {0: (4,)}, without)
    w.segments = (1, 2, 3, 4)
    w.held = 4
    w.memory |= {"hot0": 1, "items0": (2, 3)}
    return w.begin(w.user(0, "+"), w.waiter(1))


def two_want_what_a_third_keeps(without: str = "") -> MagazineWorld:
    """Two waiters, and two segments in the magazine of a thread that does nothing more."""
    w = MagazineWorld(3, {}, without)
    w.segments, w.held = (1, 2), 2
    w.memory |= {"hot0": 1, "items0": (2,)}
    return w.begin(w.waiter(1), w.waiter(2))


def a_waiter_and_a_magazine_that_opens(without: str = "") -> MagazineWorld:
    """A thread's magazine is shut, and opens with what another one waits for."""
    w = MagazineWorld(2, {0: (1,)}, without, magazines=1)
    w.memory["open0"] = 0
    return w.begin(w.user(0, "+-+"), w.waiter(1))


def overdrawn_while_putting(without: str = "") -> MagazineWorld:
    """The pool is lent one more than its limit while a thread, whose magazine is open, puts."""
    w = MagazineWorld(2, {0: (1,)}, without, limit=1, magazines=1)
    w.segments, w.everywhere = (1, 2), (2,)
    return w.begin(w.user(0, "+-+"), w.overdraw(1))


def overdrawn_while_opening(without: str = "") -> MagazineWorld:
    """The same, and the magazine opens meanwhile."""
    w = overdrawn_while_putting(without)
    w.memory["open0"] = 0
    return w


def counted_while_the_limit_falls(without: str = "") -> MagazineWorld:
    """A magazine opens, the limit falls, and the figures are asked for: who counts opens again what was open."""
    w = MagazineWorld(3, {0: (1, 2)}, without, limit=2, magazines=1)
    w.memory["open0"] = 0
    return w.begin(w.user(0, "++"), w.lower(1, 0), w.look_in(2))


def counted_while_opening(without: str = "") -> MagazineWorld:
    """The figures are asked for while a magazine opens."""
    w = counted_while_moving(without)
    w.memory["open0"] = 0
    return w


def counted_while_moving(without: str = "") -> MagazineWorld:
    """The figures are asked for while a thread puts and takes."""
    w = MagazineWorld(2, {0: (1,)}, without)
    return w.begin(w.user(0, "+-"), w.count(1))


def both_put_at_once(without: str = "") -> MagazineWorld:
    """A thread puts two at once and takes them again; another wants one just then, without waiting."""
    w = MagazineWorld(2, {0: (1, 2)}, without)
    return w.begin(w.user(0, "*="), w.user(1, "-"))


def a_waiter_and_both_put_at_once(without: str = "") -> MagazineWorld:
    """One waits for a segment, and the other puts two at once into a magazine that is shut, or opens."""
    w = MagazineWorld(2, {0: (1, 2)}, without, magazines=1)
    w.memory["open0"] = 0
    return w.begin(w.user(0, "*"), w.waiter(1))


def destroyed_while_both_are_taken(without: str = "") -> MagazineWorld:
    """The pool is destroyed while a thread takes two at once."""
    w = MagazineWorld(2, {}, without, magazines=1)
    w.segments, w.held = (1, 2), 2
    w.memory |= {"hot0": 1, "items0": (2,)}
    return w.begin(w.user(0, "="), w.destroy(1))


SCENARIOS: list[Scenario] = [
    one_takes_what_another_keeps,
    a_waiter_and_a_parked_segment,
    a_waiter_and_one_who_takes_again,
    a_surplus_in_a_magazine,
    destroyed_while_putting,
    the_thread_ends,
    chunks_come_and_go,
    a_waiter_and_a_chunk,
    two_want_what_a_third_keeps,
    a_waiter_and_a_magazine_that_opens,
    overdrawn_while_putting,
    overdrawn_while_opening,
    counted_while_the_limit_falls,
    counted_while_opening,
    counted_while_moving,
    both_put_at_once,
    a_waiter_and_both_put_at_once,
    destroyed_while_both_are_taken,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_nothing_forbidden_can_happen(scenario: Scenario) -> None:
    assert explore(lambda: scenario("")) > 50


@pytest.mark.parametrize(
    ("without", "scenario"),
    [
        ("membarrier", one_takes_what_another_keeps),
        ("busy", one_takes_what_another_keeps),
        ("look at open", one_takes_what_another_keeps),
        ("shut", one_takes_what_another_keeps),
        ("membarrier", a_waiter_and_a_parked_segment),
        ("busy", a_waiter_and_a_parked_segment),
        ("hungry", a_waiter_and_a_parked_segment),
        ("sure", a_waiter_and_a_parked_segment),
        ("limit", a_surplus_in_a_magazine),
        ("membarrier", destroyed_while_putting),
        ("shut", a_waiter_and_a_parked_segment),
        ("gate", counted_while_opening),
        ("hungry", a_waiter_and_a_magazine_that_opens),
        ("shut at the limit", overdrawn_while_putting),
        ("limit", overdrawn_while_opening),
        ("second look", overdrawn_while_opening),
        ("second look", counted_while_opening),
        ("look before opening", counted_while_the_limit_falls),
        ("flush", the_thread_ends),
        ("membarrier", counted_while_moving),
        ("busy", counted_while_moving),
        ("membarrier", both_put_at_once),
        ("busy", both_put_at_once),
        ("hungry", a_waiter_and_both_put_at_once),
        ("membarrier", destroyed_while_both_are_taken),
    ],
)
def test_the_model_finds_what_is_left_out(without: str, scenario: Scenario) -> None:
    with pytest.raises(Violation):
        explore(lambda: scenario(without))
