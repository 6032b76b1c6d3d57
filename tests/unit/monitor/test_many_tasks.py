"""A thousand tasks at once: what a look at them costs the driver, in time and in memory."""

from __future__ import annotations

import dataclasses
import random
import resource
import time

import monitored

from fastbuf.monitor import Exchange, History, Recorder
from fastbuf.monitor.prometheus import exposition
from fastbuf.monitor.routes import event

TASKS = 1_000
LOOKS = 12


def moving(exchange: Exchange, step: int) -> Exchange:
    """Every figure of every task is another one each second."""
    chance = random.Random(step)

    def told(figures: dict) -> dict:  # type: ignore[type-arg]
        grown = {name: took + step * chance.random() for name, took in figures["seconds"].items()}
        blocked = {name: took + step * chance.random() for name, took in figures.get("blocked", {}).items()}
        shares = {name: chance.random() for name in ("backPressured", "idle", "busy", "inPoolUsage", "outPoolUsage")}
        return {**figures, **shares, "seconds": grown, "blocked": blocked, "records": figures["records"] + 1000 * step}

    sides = {
        side: {number: told(dict(figures)) for number, figures in getattr(exchange, side).items()}
        for side in ("producers", "consumers")
    }
    return dataclasses.replace(exchange, **sides)


def test_a_look_each_second_costs_little() -> None:
    still = monitored.many(TASKS // 2)
    steps = [[moving(still, step)] for step in range(LOOKS)]
    turn, now = iter(steps), [monitored.BEGAN]
    recorder = Recorder(lambda: next(turn), clock=lambda: now[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    looks = sent = 0.0
    size = 0
    for _ in range(LOOKS):
        now[0] += 1
        begin = time.process_time()
        found = recorder.look()
        looks += time.process_time() - begin
        begin = time.process_time()
        size = len(event(found))
        sent += time.process_time() - begin
    begin = time.process_time()
    exposed = len(exposition(recorder))
    scrape = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{TASKS:,} tasks: a look {1000 * looks / LOOKS:.0f} ms of CPU, to write it {1000 * sent / LOOKS:.0f} ms "
        f"({size / 1024:.0f} KiB); a scrape {1000 * scrape:.0f} ms ({exposed / 1024:.0f} KiB); "
        f"a moment {recorder.history.size / LOOKS / 1024:.0f} KiB of history; {grown:.0f} MiB more at the most"
    )
    assert looks / LOOKS < 0.3, "a third of a core, on the slowest machine"
    assert recorder.history.size / LOOKS < 400 << 10


def test_hours_of_a_thousand_tasks_stay_within_bounds() -> None:
    history = History(most_bytes=2 << 20)
    still, now = monitored.many(TASKS // 2), [monitored.BEGAN]
    turn = [moving(still, step) for step in range(6)]
    recorder = Recorder(lambda: [turn[int(now[0]) % 6]], history, lambda: now[0])
    for _ in range(40):
        now[0] += 1
        recorder.look()
    assert history.size <= 2 << 20
    assert history.line("many-4")["at"][-1] == now[0]
