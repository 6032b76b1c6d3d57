"""Every state of small exchanges: two producers and two consumers, cancel, death, limits that move (see the model)."""

from __future__ import annotations

import os

import pytest
from buffer_manager_model import Forbidden, Setting
from credit_model import explore

PRODUCER, CONSUMER = ("producer", 0), ("consumer", 0)

SCENARIOS: dict[str, Setting] = {
    # One gate, all orders of everything.
    "two producers, one consumer": Setting(((0, 0), (0, 0)), limits=(3,)),
    "one producer, two consumers": Setting(((0, 1, 0),), limits=(2, 2)),
    "no more segments than channels": Setting(((0, 0), (0,)), limits=(2,), exclusive=2),
    "a consumer has enough": Setting(((0, 0), (0,)), limits=(3,), cancels=(0,)),
    "a limit falls and rises": Setting(((0, 0), (0,)), limits=(4,), exclusive=2, floating=0, moves=((0, 2), (0, 4))),
    "a producer dies on one gate": Setting(((0, 0), (0,)), limits=(3,), dies=(PRODUCER,), eager=True),
    # Two by two.
    "two by two": Setting(((0, 1), (1, 0)), eager=True),
    "two by two, a long backlog": Setting(((0, 0, 1), (0,)), bound=3, eager=True),
    "two by two, one cancels": Setting(((0, 1), (1, 0)), cancels=(0,), eager=True),
    "two by two, a producer dies": Setting(((0,), (1,)), dies=(PRODUCER,), eager=True),
    "two by two, a consumer dies": Setting(((0,), (1,)), dies=(CONSUMER,), eager=True),
    "two by two, a loss is a cancel": Setting(((0,), (1,)), dies=(CONSUMER,), loss_is_cancel=True, eager=True),
    "each is producer and consumer": Setting(
        ((1, 1, 0), (0, 0)), fused=True, bound=1, floating=0, limits=(2, 2), eager=True
    ),
}
# An open gate with one segment for two channels: producer 0 has the credit, and nothing to send until a buffer of
# producer 1 is read, who then waits for producer 0 in its turn.
TURNS = Setting(((0, 0), (0, 0)), limits=(1,), floating=0, open=True, waits=((0, 0, 1, 1), (1, 1, 0, 1), (0, 1, 1, 2)))
SCENARIOS |= {
    "one segment goes round": TURNS,
    "one segment, one cancels": Setting(**{**vars(TURNS), "cancels": (0,)}),
    "one segment, its holder dies": Setting(**{**vars(TURNS), "dies": (PRODUCER,)}),
    "one segment, the consumer dies": Setting(((0,), (0,)), limits=(1,), floating=0, open=True, dies=(CONSUMER,)),
    "two exclusive ones, both with the first": Setting(
        ((0, 0), (0,)), limits=(2,), exclusive=2, floating=0, open=True, waits=((0, 0, 1, 1),)
    ),
    "a floating one is asked back": Setting(((0, 0, 0), (0,)), limits=(2,), bound=3, open=True, waits=((0, 2, 1, 1),)),
}
SCENARIOS |= {
    "a channel is blocked": Setting(((0, 0), (0,)), limits=(3,), blocks=((0, 0),)),
    "a channel is blocked, and has more than its share": Setting(
        ((0, 0, 0), (0,)), limits=(3,), bound=3, floating=1, blocks=((0, 0),)
    ),
    "a blocked channel, a cancel": Setting(((0, 0), (0,)), limits=(3,), blocks=((0, 0),), cancels=(0,)),
    "a blocked channel's producer dies": Setting(((0, 0), (0,)), limits=(3,), blocks=((0, 0),), dies=(PRODUCER,)),
    "both are blocked": Setting(((0, 0), (0,)), limits=(2,), floating=0, blocks=((0, 0), (0, 1))),
    "one segment goes round, one is blocked": Setting(
        ((0,), (0, 0)), limits=(1,), floating=0, open=True, blocks=((0, 0),)
    ),
    "a limit falls while one is blocked": Setting(
        ((0, 0), (0,)), limits=(4,), exclusive=2, floating=0, moves=((0, 2),), blocks=((0, 0),)
    ),
}
if os.environ.get("FASTBUF_LONG") == "1":  # a few minutes in all; the ones above have their parts
    SCENARIOS |= {
        "two by two, one segment each": Setting(((0,), (1,)), limits=(1, 1), floating=0, open=True, eager=True),
        "one segment, no turns": Setting(((0, 0), (0, 0)), limits=(1,), floating=0, open=True),
        "one segment, who waits for it dies": Setting(**{**vars(TURNS), "dies": (("producer", 1),)}),
        "a floating one is asked back of a producer that dies": Setting(
            ((0, 0, 0), (0,)), limits=(2,), bound=3, open=True, waits=((0, 2, 1, 1),), dies=(PRODUCER,)
        ),
        "two by two, one segment each, one cancels": Setting(
            ((0,), (1,)), limits=(1, 1), floating=0, open=True, cancels=(1,), eager=True
        ),
        "two by two, one segment each, one dies": Setting(
            ((0,), (1,)), limits=(1, 1), floating=0, open=True, dies=(PRODUCER,), eager=True
        ),
        "two by two, one segment each, and turns": Setting(
            ((0, 1), (1,)), limits=(1, 1), floating=0, open=True, waits=((0, 0, 1, 1),), eager=True
        ),
        "two by two, a producer dies in the middle": Setting(((0, 1), (1,)), dies=(PRODUCER,), eager=True),
        "two by two, a consumer dies in the middle": Setting(((0, 1), (0,)), dies=(CONSUMER,), eager=True),
        "two by two, one cancels and one dies": Setting(((0, 1), (0,)), cancels=(0,), dies=(PRODUCER,), eager=True),
        "two by two, a loss in the middle is a cancel": Setting(
            ((0, 1), (0,)), dies=(CONSUMER,), loss_is_cancel=True, eager=True
        ),
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_forbidden_can_happen(name: str) -> None:
    assert explore(SCENARIOS[name]) > 1000


BLOCKED = Setting(((0, 0, 0), (0,)), limits=(3,), bound=3, blocks=((0, 0),))
ONE = Setting(((0, 0),), limits=(1,), floating=0)


@pytest.mark.parametrize(
    ("without", "setting", "outcome"),
    [
        ("no buffer without credit", ONE, "F1"),
        ("what is released is credit again", ONE, "F7"),
        ("credit returns on release, not on reading", ONE, "F2"),
        ("the sender counts", Setting(((0, 0, 0),), limits=(2,)), "F3|F6"),
        ("a floating segment goes back to the gate", Setting(((0, 0, 0), (0,)), limits=(3,)), "F7"),
        ("who waits is served by a release", Setting(((0, 0), (0, 0)), limits=(3,)), "F5"),
        ("leave one for who has none", Setting(((0, 0), (0,)), limits=(2,), exclusive=2), "F5"),
        ("a closed channel gives its segments back", Setting(((0,), (0,)), limits=(2,)), "F2"),
        ("a cancel drops what is queued", Setting(((0, 1), (0,)), cancels=(0,), eager=True), "F7"),
        ("an end without end of partition is a failure", Setting(((0, 0),), limits=(2,), dies=(PRODUCER,)), "F7"),
        ("an error of one reaches the others", Setting(((0, 1),), dies=(CONSUMER,), eager=True), "F7"),
        ("who has what it does not need is asked for it", TURNS, "F7"),
        ("who was asked says when it has something", TURNS, "F7"),
        ("a channel is asked again after its next credit", TURNS, "F7"),
        ("who waits is served by what is given back", TURNS, "F5|F7"),
        ("what is given back is the sender's no longer", TURNS, "F1|F3"),
        ("a blocked channel is given nothing", BLOCKED, "F8"),
        ("a blocked channel waits for nothing", BLOCKED, "F8"),
        ("what is taken back is not told", BLOCKED, "F3"),
        (
            "who is unblocked is given what it waits for",
            Setting(((0, 0),), limits=(1,), floating=0, blocks=((0, 0),)),
            "F7",
        ),
        (
            "take in while a send is blocked",
            Setting(((1, 1, 1, 1), (0, 0, 0, 0)), fused=True, bound=1, floating=0, limits=(2, 2), eager=True),
            "F7",
        ),
    ],
)
def test_the_model_finds_what_is_left_out(without: str, setting: Setting, outcome: str) -> None:
    explore(setting)  # what is found below is found because of what is left out
    mutant = Setting(**{**vars(setting), "without": without})
    with pytest.raises(Forbidden, match=outcome):
        explore(mutant)


@pytest.mark.parametrize(
    "setting", [Setting(((0, 1),)), Setting(((0, 0), (0,)), limits=(3,), cancels=(0,), dies=(PRODUCER,))]
)
def test_fewer_orders_find_the_same_ends(setting: Setting) -> None:
    """The reduction of `eager` keeps every end that there is."""
    all_orders: set[tuple[str, ...]] = set()
    fewer: set[tuple[str, ...]] = set()
    assert explore(Setting(**{**vars(setting), "eager": True}), ends=fewer) < explore(setting, ends=all_orders)
    assert fewer == all_orders
