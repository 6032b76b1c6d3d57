"""The faults that are planted, at a random place and strength by seed, and what is to be said of each."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass

from worlds import PRODUCERS, ROW_S, World

import fastbuf as fb

RATE = 0.9 * PRODUCERS / ROW_S  #: rows a second that producers make when nobody holds them up, about
LOAD = 0.5  #: of a healthy consumer's time
LINK = 2e6  #: bytes a second
ROW_BYTES = 1020


@dataclass(frozen=True)
class Truth:
    """Who is to blame; subtask None: the whole stage."""

    stage: str
    subtask: int | None
    causes: tuple[str, ...]


@dataclass(frozen=True)
class Planted:
    """A world and what is wrong with it; nothing: there is to be no verdict at all."""

    world: World
    truths: tuple[Truth, ...] = ()


def _even(consumers: int, load: float) -> float:
    return load * consumers / RATE


def _plain(chance: random.Random, load: float = LOAD, **more: object) -> World:
    consumers = chance.choice((2, 3))
    row_s = (_even(consumers, load),) * consumers
    return World(consumers, row_s, seed=chance.randrange(1 << 20), shared=chance.random() < 0.5, **more)  # type: ignore[arg-type]


def _with(world: World, **more: object) -> World:
    return World(**{**vars(world), **more})  # type: ignore[arg-type]


def _slower(row_s: tuple[float, ...], place: int, times: float) -> tuple[float, ...]:
    return tuple(s * times if k == place else s for k, s in enumerate(row_s))


def healthy(chance: random.Random) -> Planted:
    return Planted(_plain(chance, chance.uniform(0.4, 0.55)))


def spike(chance: random.Random) -> Planted:
    world = _plain(chance)
    return Planted(_with(world, spike=(chance.randrange(world.consumers), chance.uniform(2, 5), 2.0)))


def sleep_one(chance: random.Random) -> Planted:
    world = _plain(chance)
    place = chance.randrange(world.consumers)
    slow = _slower(world.row_s, place, chance.uniform(4, 12))
    return Planted(_with(world, row_s=slow), (Truth("total", place, ("user_function",)),))


def one_consumer(chance: random.Random) -> Planted:
    world = World(1, (_even(1, chance.uniform(3, 6)),), seed=chance.randrange(1 << 20), shared=chance.random() < 0.5)
    return Planted(world, (Truth("total", None, ("user_function",)),))


def one_healthy(chance: random.Random) -> Planted:
    """The same with time to spare: it has no peers, and is not to blame for that."""
    return Planted(World(1, (_even(1, chance.uniform(0.4, 0.55)),), seed=chance.randrange(1 << 20)))


def redos(chance: random.Random) -> Planted:
    consumers = 2
    world = World(
        consumers,
        (_even(consumers, 0.1),) * consumers,
        backtrack_s=_even(consumers, chance.uniform(3, 8)),
        seed=chance.randrange(1 << 20),
    )
    return Planted(world, (Truth("total", None, ("user_function",)),))


def hot_key(chance: random.Random) -> Planted:
    world = _plain(chance, 0.85)
    place = chance.randrange(world.consumers)
    return Planted(_with(world, hot=(chance.uniform(0.55, 0.7), place)), (Truth("total", place, ("skew",)),))


def gc_storm(chance: random.Random) -> Planted:
    world = _plain(chance)
    place = chance.randrange(world.consumers)
    cost = {place: _even(world.consumers, chance.uniform(3, 6))}
    return Planted(_with(world, collect_s=cost), (Truth("total", place, ("gc",)),))


def paging(chance: random.Random) -> Planted:
    world = _plain(chance)
    place = chance.randrange(world.consumers)
    cost = {place: _even(world.consumers, chance.uniform(3, 6))}
    return Planted(_with(world, page_s=cost), (Truth("total", place, ("paging",)),))


def stopped(chance: random.Random) -> Planted:
    world = _plain(chance, 0.9)
    place = chance.randrange(world.consumers)
    return Planted(_with(world, stop={place: 0.8}), (Truth("total", place, ("stopped",)),))


def slow_link(chance: random.Random) -> Planted:
    world = _with(_plain(chance), shared=False)
    place = chance.randrange(world.consumers)
    return Planted(
        _with(world, paced={place: LINK * chance.uniform(0.7, 1.3)}), (Truth("total", place, ("slow_link",)),)
    )


def slow_sink(chance: random.Random) -> Planted:
    world = _plain(chance, 0.4)
    sinks = chance.choice((1, 2))
    place = chance.randrange(sinks)
    row_s = _slower((_even(sinks, 0.3),) * sinks, place, chance.uniform(8, 16))
    truth = Truth("sink", place if sinks > 1 else None, ("user_function",))
    return Planted(_with(world, sink_row_s=row_s), (truth,))


def not_the_root(chance: random.Random) -> Planted:
    """A function that is slow enough to be suspected, before a sink that is slower."""
    world = _plain(chance, 0.85)
    return Planted(
        _with(world, sink_row_s=(_even(1, chance.uniform(3, 5)),)), (Truth("sink", None, ("user_function",)),)
    )


def few_segments(chance: random.Random) -> Planted:
    """As few as a writer can have, and rows that come in bursts for one consumer: the others wait meanwhile."""
    consumers = 5
    config = fb.ExchangeConfig(overdraft=0)
    row_s = (_even(consumers, 0.8),) * consumers
    world = World(consumers, row_s, bursts=chance.choice((400, 600)), segments=consumers + 1, config=config)
    return Planted(_with(world, seed=chance.randrange(1 << 20)), (Truth("source", None, ("segments", "credits")),))


def one_credit(chance: random.Random) -> Planted:
    consumers = chance.choice((2, 3))
    config = fb.ExchangeConfig(exclusive=1, floating=0)
    late = dict.fromkeys(range(consumers), chance.uniform(0.01, 0.03))
    world = World(consumers, (_even(consumers, LOAD),) * consumers, late=late, config=config, segments=64)
    return Planted(_with(world, seed=chance.randrange(1 << 20)), (Truth("source", None, ("credits",)),))


def slow_scan(chance: random.Random) -> Planted:
    world = _with(_plain(chance), producer_row_s=(ROW_S * chance.uniform(3, 8),) * PRODUCERS)
    return Planted(world, (Truth("source", None, ("user_function", "source_bound")),))


def slow_before(chance: random.Random) -> Planted:
    place = chance.randrange(PRODUCERS)
    row_s = tuple(ROW_S * (chance.uniform(6, 10) if k == place else 1) for k in range(PRODUCERS))
    world = _with(_plain(chance), producer_row_s=row_s)
    return Planted(world, (Truth("source", place, ("user_function",)),))


def neighbours(chance: random.Random) -> Planted:
    cores, consumers = os.cpu_count() or 2, 2
    slow = 5.0  # so that all of it needs one CPU of two
    row_s = (_even(consumers, 0.5) * slow,) * consumers
    world = World(
        consumers, row_s, (ROW_S * slow,) * PRODUCERS, burn=True, spinners=2 * cores, seed=chance.randrange(1 << 20)
    )
    return Planted(world, (Truth("total", None, ("cpu_starved",)),))


def sleep_and_link(chance: random.Random) -> Planted:
    world = _with(_plain(chance), shared=False, consumers=3, row_s=(_even(3, LOAD),) * 3)
    slow, far = chance.sample(range(3), 2)
    rate = LINK * chance.uniform(0.7, 1.0)
    row_s = _slower(world.row_s, slow, ROW_BYTES / rate / world.row_s[0])
    truths = (Truth("total", slow, ("user_function",)), Truth("total", far, ("slow_link",)))
    return Planted(_with(world, row_s=row_s, paced={far: rate}), truths)


def skew_and_gc(chance: random.Random) -> Planted:
    base = _even(3, 0.9)
    world = _with(_plain(chance), consumers=3, row_s=(base,) * 3)
    hot, littered = chance.sample(range(3), 2)
    share = chance.uniform(0.55, 0.65)
    # Both take the same time for the rows that come to each
    mine, others = share + (1 - share) / 3, (1 - share) / 3
    world = _with(world, hot=(share, hot), collect_s={littered: base * (mine / others - 1)})
    return Planted(world, (Truth("total", hot, ("skew",)), Truth("total", littered, ("gc",))))


SCENARIOS: dict[str, Callable[[random.Random], Planted]] = {
    plant.__name__: plant
    for plant in (
        healthy,
        spike,
        sleep_one,
        one_consumer,
        one_healthy,
        redos,
        hot_key,
        gc_storm,
        paging,
        stopped,
        slow_link,
        slow_sink,
        not_the_root,
        few_segments,
        one_credit,
        slow_scan,
        slow_before,
        neighbours,
        sleep_and_link,
        skew_and_gc,
    )
}


def plant(name: str, seed: int) -> Planted:
    """That fault, at the place and strength of that seed."""
    return SCENARIOS[name](random.Random(f"{name} {seed}"))
