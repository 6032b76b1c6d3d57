"""The driver of a cluster that is not there: M map tasks x R partitions on H hosts, through the driver's own code.

State and messages are real: ``Reported`` and ``HeldRuns`` of blocking exchanges, ``Run`` of pipelined ones, get the
frames that tasks send, and what they answer is encoded.  There is no Spark, and but for the last cases no socket; those
go through a ``Rendezvous``, to which this process' main thread plays the tasks.

Told: CPU seconds of the driver's thread (decoding, state, answers), so that other load counts little; the most memory
that the process had beside what it had before; messages and bytes.  Each case has a process of its own, and the figures
are medians::

    python benches/simulate_cluster.py --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fastbuf.json_frames import FRAME_BYTES
from fastbuf_spark import protocol, pyspark_private
from fastbuf_spark.driver import talk
from fastbuf_spark.driver.held import HeldRuns
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.driver.reported import Reported
from fastbuf_spark.driver.run import Run, RunPlan, StageTasks
from fastbuf_spark.driver.talk import EXCHANGE, MAP, REDUCE, RUN
from fastbuf_spark.messages import Unpacker
from fastbuf_spark.protocol import FromDriver, FromWorker, Target
from fastbuf_spark.worker.control import Control

SECRET = b"s" * 32
CHUNK = 256  #: messages that are encoded at a time, before the driver hears them
SIZES = (100, 1_000, 10_000)  #: map tasks, and as many partitions
SOCKETS = 1_000  #: the same where they have sockets: twice as many connections at once
WAIT_S = 300.0
SLOTS = 14  #: of a host; there is one for ten map tasks


@dataclass
class Told:
    """What a case took."""

    way: str
    map_tasks: int
    partitions: int
    cpu_s: float = 0.0
    peak_mib: float = 0.0
    messages: int = 0
    mib: float = 0.0
    wall_s: float = 0.0

    @property
    def hosts(self) -> int:
        """Hosts, of an executor each."""
        return max(1, self.map_tasks // 10)

    @property
    def slots(self) -> int:
        """Tasks at once."""
        return SLOTS * self.hosts

    @contextmanager
    def working(self) -> Iterator[None]:
        """The driver's own work; what plays the tasks is not counted."""
        begin = time.thread_time()
        yield
        self.cpu_s += time.thread_time() - begin

    def passed(self, frame: bytes) -> bytes:
        """A message goes over a control connection."""
        self.messages += 1
        self.mib += len(frame) / (1 << 20)
        return frame


class Task:
    """A task's control connection; ``hears`` is what the driver does with a message of it."""

    def __init__(self, told: Told, hears: Callable[[Task, Any], None]) -> None:
        self._told, self._hears = told, hears
        self._unpacker: Unpacker[FromWorker[Any]] = Unpacker(FromWorker)
        self._unpacker.limit = FRAME_BYTES
        self.heard: type[FromDriver] | None = None  #: the driver's last message

    def send(self, message: FromDriver) -> None:
        """The driver answers."""
        self._told.passed(message.encode())
        self.heard = type(message)

    def says(self, frame: bytes) -> None:
        """The driver hears a message."""
        self._unpacker.feed(frame)
        self._hears(self, self._unpacker.next())


def say(told: Told, said: Iterable[tuple[Task, FromWorker[Any]]], then: Callable[[Task], None] | None = None) -> None:
    """Tasks say something to the driver; ``then`` is called with each afterwards, as where its connection ends."""
    frames: list[tuple[Task, bytes]] = []

    def heard() -> None:
        with told.working():
            for task, frame in frames:
                task.says(frame)
                if then is not None:
                    then(task)
        frames.clear()

    for task, message in said:
        frames.append((task, told.passed(message.encode())))
        if len(frames) == CHUNK:
            heard()
    heard()


def waves(tasks: int, at_once: int, told: Told, hears: Callable[[Task, Any], None]) -> Iterator[dict[int, Task]]:
    """Tasks by number, as many as there are slots for them."""
    for first in range(0, tasks, at_once):
        yield {number: Task(told, hears) for number in range(first, min(tasks, first + at_once))}


def blocking(told: Told) -> None:
    """Map tasks tell where their rows are, reduce tasks ask, and all is removed at the end."""
    held, summaries = HeldRuns(), []
    tasks = {MAP: told.map_tasks, REDUCE: told.partitions}
    runs = Reported(EXCHANGE, "shuffle", "blocking", summaries, lambda stage: StageTasks(tasks[stage], 0, 0))

    def hears(task: Task, said: Any) -> None:
        match said:
            case protocol.Serves():
                held.serves(said, task)
                task.send(protocol.Heard())
            case protocol.Where(run):
                task.send(held.where(EXCHANGE, run))
            case protocol.Report(side, partition, stage, attempt, stats):
                if side == "producer":
                    held.add(None, EXCHANGE, stage, partition, stats)
                runs.tells(task, side, partition, stage, attempt, stats, 0.0)
                if said.asks:
                    task.send(protocol.Heard())

    def leaves(task: Task) -> None:
        held.gone(task)
        runs.lost(task, 0.0)

    servers = [Task(told, hears) for _ in range(told.hosts)]
    say(told, ((server, talk.serves(host)) for host, server in enumerate(servers)))
    for wave in waves(told.map_tasks, told.slots, told, hears):
        said = {number: talk.map_task(number, told.hosts)[0] for number in wave}
        say(told, ((task, said[number][0]) for number, task in wave.items()))
        say(told, ((task, said[number][1]) for number, task in wave.items()), leaves)
    for wave in waves(told.partitions, told.slots, told, hears):
        said = {number: talk.reduce_task(number)[0] for number in wave}
        say(told, ((Task(told, hears), protocol.Where(RUN)) for _ in wave), leaves)
        say(told, ((task, said[number][0]) for number, task in wave.items()))
        say(told, ((task, said[number][1]) for number, task in wave.items()), leaves)
    (summary,) = summaries
    assert (summary.outcome, len(summary.producers), len(summary.consumers)) == ("ok", told.map_tasks, told.partitions)
    with told.working():
        held.sweep(1e9)
    assert all(server.heard is protocol.Remove for server in servers)


class Job:
    """Stands for the producers' job of Spark."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def cancel(self) -> None:
        """Nothing is left to cancel."""

    def active(self) -> bool:
        """It runs."""
        return True

    def tasks(self, stage: int) -> int:
        """Its tasks."""
        return self._tasks

    def accumulates(self) -> bool:
        """It has no accumulators."""
        return False


def pipelined(told: Told) -> None:
    """Consumers join and listen, producers come as slots are free, each consumer hears how many buffers there were."""
    job, started = Job(told.map_tasks), []

    def submit(run: Run, targets: list[Target]) -> Job:
        started.append(len(targets))
        return job

    run = Run(RunPlan(EXCHANGE, "shuffle", told.partitions, 120.0, submit), REDUCE, 0.0)

    def hears(task: Task, said: Any) -> None:
        match said:
            case protocol.Join(_, partition, attempt):
                run.join(task, partition, attempt, 0.0)
            case protocol.Ready(host, port, gate):
                run.ready(task, host, port, gate, 0.0)
            case protocol.Lease(_, partition, attempt, stage):
                run.lease(task, partition, attempt, stage)
            case protocol.Begin():
                run.begin(task)
            case protocol.Watch(stats, _):
                run.watched(task, stats)
            case protocol.ProducerDone(totals, stats, unreached):
                run.producer_done(task, totals, stats, 0.0, unreached)
            case protocol.ConsumerDone(stats):
                run.consumer_done(task, stats, 0.0)

    def leaves(task: Task) -> None:
        run.lost(task, 0.0)
        run.tick(0.0)

    consumers = [Task(told, hears) for _ in range(told.partitions)]
    join, ready, watch, done = zip(*(talk.consumer(number, 0)[0] for number in range(told.partitions)), strict=True)
    say(told, zip(consumers, join, strict=True))
    say(told, zip(consumers, ready, strict=True))
    assert started == [told.partitions]
    for wave in waves(told.map_tasks, max(1, told.slots - told.partitions), told, hears):
        for step in range(4):
            if step == 2:  # a second goes by
                say(told, zip(consumers, watch, strict=True))
            said = ((task, talk.producer(number, told.partitions, run.epoch)[0][step]) for number, task in wave.items())
            say(told, said, leaves if step == 3 else None)
    with told.working():
        run.job_finished("", 0.0)
    assert all(task.heard is protocol.Seal for task in consumers)
    say(told, zip(consumers, done, strict=True), leaves)
    assert run.over
    assert run.summary.outcome == "ok"


def rendezvous_cpu_s() -> float:
    """CPU of the rendezvous' thread, as the kernel knows it."""
    tasks = [
        each for each in Path("/proc/self/task").iterdir() if (each / "comm").read_text().startswith("fastbuf-rend")
    ]
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9


@contextmanager
def rendezvous(told: Told) -> Iterator[Rendezvous]:
    """A driver's rendezvous with sockets, whose thread is measured."""
    server, begin = Rendezvous(), time.monotonic()
    try:
        yield server
        told.cpu_s, told.wall_s = rendezvous_cpu_s(), time.monotonic() - begin
    finally:
        server.close(WAIT_S)


def connected(told: Told, server: Rendezvous, count: int) -> list[Control]:
    """So many workers, all at once."""
    told.messages += 3 * count
    return [Control(server.address, EXCHANGE, SECRET, WAIT_S) for _ in range(count)]


def blocking_sockets(told: Told) -> None:
    """Map tasks that are all connected at once, then reduce tasks."""
    with rendezvous(told) as server:
        runs = Reported(EXCHANGE, "shuffle", "blocking", server.summaries, lambda stage: None)
        add = lambda stage, number, stats: server.held.add(None, EXCHANGE, stage, number, stats)  # noqa: E731
        server.register_reports(EXCHANGE, SECRET, runs, held=add)
        servers = connected(told, server, told.hosts)
        for host, control in enumerate(servers):
            control.ask(talk.serves(host), WAIT_S)
        maps = connected(told, server, told.map_tasks)
        for step in range(2):
            for number, control in enumerate(maps):
                message = talk.map_task(number, told.hosts)[0][step]
                control.ask(message, WAIT_S) if step else control.send(message)
        reduces = connected(told, server, told.partitions)
        for control in reduces:
            control.send(protocol.Where(RUN))
        for number, control in enumerate(reduces):
            assert control.expect(protocol.Files, timeout=WAIT_S).at[-1] >= 0
            for message in talk.reduce_task(number)[0]:
                control.send(message)
        told.messages += 2 * told.hosts + 3 * told.map_tasks + 4 * told.partitions
        for control in (*maps, *reduces, *servers):
            control.close()
        while len(server.summaries[-1].consumers) < told.partitions:
            time.sleep(0.01)  # the last reports are answered by nothing


def pipelined_sockets(told: Told) -> None:
    """Consumers and producers that are all connected at once."""
    started = threading.Event()

    def submit(run: Run, targets: list[Target]) -> Job:
        started.set()
        return Job(told.map_tasks)

    with rendezvous(told) as server:
        server.register(EXCHANGE, SECRET, RunPlan(EXCHANGE, "shuffle", told.partitions, WAIT_S, submit))
        consumers = connected(told, server, told.partitions)
        talks = [talk.consumer(number, 0)[0] for number in range(told.partitions)]
        for control, said in zip(consumers, talks, strict=True):
            control.send(said[0])
        (epoch,) = {control.expect(protocol.Epoch, timeout=WAIT_S).epoch for control in consumers}
        for control, said in zip(consumers, talks, strict=True):
            control.send(said[1])
        assert started.wait(WAIT_S)
        producers = connected(told, server, told.map_tasks)
        for step in range(4):
            for number, control in enumerate(producers):
                message = talk.producer(number, told.partitions, epoch)[0][step]
                control.ask(message, WAIT_S) if step in (0, 3) else control.send(message)
        for control, said in zip(consumers, talks, strict=True):
            assert len(control.expect(protocol.Seal, timeout=WAIT_S).totals) == told.map_tasks
            control.send(said[3])
        told.messages += 5 * told.partitions + 6 * told.map_tasks
        for control in (*producers, *consumers):
            control.close()
        (run,) = server.live_runs() or [None]
        if run is not None:
            server.job_finished(run, "")
        while server.live_runs():
            time.sleep(0.01)  # it hears the ends one by one


WAYS = {each.__name__: each for each in (blocking, pipelined, blocking_sockets, pipelined_sockets)}


def resident_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(way: str, size: int) -> Told:
    """One case, in this process."""
    told, before = Told(way, size, size), resident_mib()
    with (
        mock.patch.object(pyspark_private, "shuffle_of", return_value="a shuffle"),
        mock.patch.object(pyspark_private, "is_garbage", return_value=way == "blocking"),
    ):
        WAYS[way](told)
    told.peak_mib = resident_mib() - before
    return told


def cases(smoke: bool) -> list[tuple[str, int]]:
    """What is measured."""
    sizes, sockets = ((20,), 20) if smoke else (SIZES, SOCKETS)
    return [(way, size) for way in ("blocking", "pipelined") for size in sizes] + [
        (way, sockets) for way in ("blocking_sockets", "pipelined_sockets")
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is measured")
    parser.add_argument("--smoke", action="store_true", help="each once, tiny")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SIZE"), help="this case, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(one(options.one[0], int(options.one[1])))))
        return
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores\n")
    print("| way | map tasks x partitions | CPU of the driver, s | memory, MiB | messages | MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for way, size in cases(options.smoke):
        command = [sys.executable, __file__, "--one", way, str(size)]
        told = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(1 if options.smoke else options.rounds)
        ]
        cpu_s, peak, mib = (statistics.median(each[name] for each in told) for name in ("cpu_s", "peak_mib", "mib"))
        carried = f"{mib:,.1f}" if mib else "-"
        row = way.replace("_", ", "), f"{size:,} x {size:,}", f"{cpu_s:.2f}", f"{peak:.0f}", f"{told[0]['messages']:,}"
        print(f"| {' | '.join(row)} | {carried} |", flush=True)


if __name__ == "__main__":
    main()
