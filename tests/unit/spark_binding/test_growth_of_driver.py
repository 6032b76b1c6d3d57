"""What the driver does for a task does not grow with the number of tasks: else 10,000 of them would stop it.

Steps of Python are counted, not seconds, so the figures are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fastbuf_spark import pyspark_private
from fastbuf_spark.driver.held import HeldRuns
from fastbuf_spark.driver.reported import Reported
from fastbuf_spark.driver.run import Run, RunPlan, StageTasks
from fastbuf_spark.protocol import FromDriver, Serves

FEW, MANY = 40, 160
LIVE = {"state": "runs"}


class Peer:
    def send(self, message: FromDriver) -> None:
        message.encode()


def steps_of(call: Callable[[], Any]) -> int:
    """Python's instructions in a call."""
    steps = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def steps_each(of: Callable[[int], Callable[[], Any]]) -> tuple[float, float]:
    """Steps for each task, of few and of many."""
    few, many = (steps_of(of(count)) / count for count in (FEW, MANY))
    return few, many


def blocking(count: int) -> Callable[[], Any]:
    """Map and reduce tasks, all at once, as they tell what they do; each ends."""
    runs = Reported("x", "name", "blocking", [], lambda stage: StageTasks(count, count, 0))

    def call() -> None:
        for side, stage in (("producer", 1), ("consumer", 2)):
            peers = [Peer() for _ in range(count)]
            for number, peer in enumerate(peers):
                runs.tells(peer, side, number, stage, number, {"records": 1, **LIVE}, 0.0)
            for number, peer in enumerate(peers):
                runs.tells(peer, side, number, stage, number, {"records": 1}, 0.0)
                runs.lost(peer, 0.0)

    return call


def failing(count: int) -> Callable[[], Any]:
    """Tasks that fail, beside others that go on."""
    runs = Reported("x", "name", "blocking", [], lambda stage: StageTasks(count, count, 0))

    def call() -> None:
        for number in range(count):
            runs.tells(Peer(), "producer", number, 1, number, {"failed": "why"}, 0.0)

    return call


def files(count: int) -> Callable[[], Any]:
    """Reduce tasks that ask where the files are, and connections that end; a server for every fourth map task."""
    held = HeldRuns()
    servers = [Peer() for _ in range(count // 4)]
    for number, server in enumerate(servers):
        held.serves(Serves(str(number), "host", number, ("/r",)), server)
    for number in range(count):
        held.add(None, "x", 1, number, {"run": 5, "folder": f"/r/{number % 4}", "server": str(number % len(servers))})

    def call() -> None:
        for _ in range(count):
            peer = Peer()
            peer.send(held.where("x", 5))
            held.gone(peer)

    return call


class Job:
    def __init__(self, count: int) -> None:
        self.count = count

    def tasks(self, stage: int) -> int:
        return self.count

    def accumulates(self) -> bool:
        return False

    def cancel(self) -> None:
        raise AssertionError("nobody cancels it")


def pipelined(count: int) -> Callable[[], Any]:
    """Consumers and producers, all at once, from the first request to the last end; no rows, so no channels."""
    submit: Any = lambda run, targets: Job(count)  # noqa: E731
    run = Run(RunPlan("x", "name", count, 120.0, submit), 1, 0.0)

    def call() -> None:
        consumers = [Peer() for _ in range(count)]
        for number, peer in enumerate(consumers):
            run.join(peer, number, number, 0.0)
        for peer in consumers:
            run.ready(peer, "host", 1, 1, 0.0)
        producers = [Peer() for _ in range(count)]
        for number, peer in enumerate(producers):
            run.lease(peer, number, number, 2)
            run.begin(peer)
            run.seen(peer, {number}, count, count)
            run.watched(peer, {"records": 1, **LIVE})
        for peer in consumers:
            run.watched(peer, {"records": 1, **LIVE})
        for peer in producers:
            assert not run.without_producers
            run.producer_done(peer, [], {"records": 1}, 0.0)
            run.lost(peer, 0.0)
            run.tick(0.0)
        for peer in consumers:
            run.consumer_done(peer, {"records": 1}, 0.0)
            run.lost(peer, 0.0)
        run.job_finished("", 0.0)
        assert run.over

    return call


@pytest.mark.parametrize("of", [blocking, failing, files, pipelined])
def test_a_task_costs_the_driver_the_same_among_many(
    of: Callable[[int], Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark_private, "shuffle_of", lambda sc, stage: None)
    few, many = steps_each(of)
    assert many < 1.3 * few, f"{few:.0f} steps for each of {FEW} tasks, {many:.0f} for each of {MANY}"


def test_the_count_sees_what_grows() -> None:
    few, many = steps_each(lambda count: lambda: [sum(1 for _ in range(count)) for _ in range(count)])
    assert many > 3 * few
