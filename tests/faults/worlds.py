"""A small exchange in processes of its own, into which faults are planted: producers, consumers, sinks, links, others.

What a healthy task does takes time and no CPU (it sleeps for each row), so that many of them fit on a small machine,
and what a fault takes is seen beside it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import multiprocessing
import os
import queue
import random
import re
import signal
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from records import Recorded

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(k="int64", text="string"))
TEXT = "x" * 1000
SEGMENT = 16384
CHUNK = 20  #: rows that a producer makes at a time
ROW_S = 100e-6  #: that a producer takes for each
PRODUCERS = 2
KEYS = 600
PIECE = 4096  #: bytes that a link takes at a time
START_S = 30.0  #: that all processes may take to be ready
FILE = 32 << 20  #: bytes
HEAP = 150_000  #: objects that the collector has to look at


@dataclass(frozen=True)
class World:
    """What runs, and what is wrong with it.

    Attributes
    ----------
    consumers
        How many; with `sinks`, each writes what it read to those.
    row_s, producer_row_s
        Seconds that each consumer takes for a row, and each producer.
    burn
        Consumers need a CPU for what they take, in place of sleeping.
    hot
        Which share of the rows has one key, and which consumer gets it.
    collect_s
        By consumer: seconds of Python's collector for each row, about.
    page_s
        By consumer: seconds of waiting for pages of a file that nothing keeps in memory, for each row, about.
    backtrack_s
        Seconds for each row of a regular expression that goes astray, in every consumer.
    stop
        By consumer: stopped for so many seconds of every two.
    spike
        A consumer that sleeps once, and when, and for how long.
    paced, late
        By consumer: bytes a second that the link to it takes; seconds that it delays each byte, both ways.
    sinks, sink_row_s
        Seconds that each sink takes for a row.
    bursts
        Producers write so many rows to one consumer before they go on to the next.
    spinners
        Processes that do nothing but use a CPU.
    """

    consumers: int
    row_s: tuple[float, ...]
    producer_row_s: tuple[float, ...] = (ROW_S,) * PRODUCERS
    burn: bool = False
    hot: tuple[float, int] | None = None
    collect_s: dict[int, float] = field(default_factory=dict)
    page_s: dict[int, float] = field(default_factory=dict)
    backtrack_s: float = 0.0
    stop: dict[int, float] = field(default_factory=dict)
    spike: tuple[int, float, float] | None = None
    paced: dict[int, float] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    sink_row_s: tuple[float, ...] = ()
    bursts: int = 0
    spinners: int = 0
    config: fb.ExchangeConfig = field(default_factory=fb.ExchangeConfig)
    segments: int | None = None
    shared: bool = False
    seed: int = 0


# ---- what tasks do


def scan(rows: int, seconds: float) -> None:
    """A producer's input."""
    time.sleep(rows * seconds)


def lookup(rows: int, seconds: float) -> None:
    """A consumer's function."""
    time.sleep(rows * seconds)


def crunch(rows: int, seconds: float) -> None:
    """A consumer's function that needs a CPU."""
    end = time.thread_time() + rows * seconds
    while time.thread_time() < end:
        pass


def match(rows: int, seconds: float) -> None:
    """A regular expression that tries all ways to fail."""
    end = time.thread_time() + rows * seconds
    while time.thread_time() < end:
        re.match(r"(a+)+$", "a" * 14 + "b")


class Heap:
    """Objects that the collector looks at again and again."""

    def __init__(self) -> None:
        self.kept = [[i] for i in range(HEAP)]
        begin = time.perf_counter()
        gc.collect()
        self.once_s = time.perf_counter() - begin
        self.owed_s = 0.0

    def litter(self, rows: int, seconds: float) -> None:
        """As much garbage as costs so much."""
        self.owed_s += rows * seconds
        while self.owed_s > self.once_s:
            begin = time.perf_counter()
            gc.collect()
            self.once_s = time.perf_counter() - begin
            self.owed_s -= self.once_s


class Pages:
    """A file that is read at random places, and of which the kernel is told to forget what was read."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as its process
        self.file.write(os.urandom(FILE))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.map = mmap.mmap(self.file.fileno(), FILE, prot=mmap.PROT_READ)
        self.map.madvise(mmap.MADV_RANDOM)
        self.places = random.sample(range(0, FILE, mmap.PAGESIZE), FILE // mmap.PAGESIZE)
        self.at = len(self.places)
        self.owed_s = 0.0

    def read(self, rows: int, seconds: float) -> None:
        """As many pages as take so long."""
        self.owed_s += rows * seconds
        begin = time.perf_counter()
        while self.owed_s > time.perf_counter() - begin:
            if self.at == len(self.places):
                self.at = 0
                self.map.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.map[self.places[self.at]]
            self.at += 1
        self.owed_s -= time.perf_counter() - begin


def store(rows: int, seconds: float) -> None:
    """A sink."""
    time.sleep(rows * seconds)


# ---- processes


def rows_of(world: World, number: int) -> list[tuple[int, str]]:
    """Keys of rows, over and over: all alike, or one of them far more often."""
    chance = random.Random(world.seed * 100 + number)
    keys = [chance.randrange(KEYS) for _ in range(6000)]
    places = fb.hash_partition(np.array([(k,) for k in range(KEYS)], dtype=[("k", "<i8")]), "k", world.consumers)
    if world.hot is not None:
        share, place = world.hot
        hot = next(k for k in range(KEYS) if places[k] == place)
        keys = [hot if chance.random() < share else k for k in keys]
    if world.bursts:
        by_place = [[k for k in range(KEYS) if places[k] == place] for place in range(world.consumers)]
        keys = [by_place[i // world.bursts % world.consumers][i % 20] for i in range(6000)]
    return [(k, TEXT) for k in keys]


def environment(world: World) -> fb.ShuffleEnvironment:
    return fb.ShuffleEnvironment(segments=512, segment_size=SEGMENT, shared=world.shared)


def produce(world: World, number: int, monitor: fb.MonitorAddress, pipe: Connection) -> None:
    rows = rows_of(world, number)
    with environment(world) as env:
        env.monitor.report_to(monitor, stage="source")
        targets = pipe.recv()
        writer = env.create_result_partition(
            ROWS, targets, channel=number, selector=fb.hash_by("k"), config=world.config, maximum=world.segments
        )
        pipe.send("ready")
        pipe.recv()
        with contextlib.suppress(fb.FastbufError):  # consumers end first
            for at in itertools.count(step=CHUNK):
                if pipe.poll():
                    break
                scan(CHUNK, world.producer_row_s[number])
                writer.emit_many(rows[at % len(rows) : at % len(rows) + CHUNK])
            writer.close(1.0)


def consume(world: World, number: int, monitor: fb.MonitorAddress, pipe: Connection) -> None:
    heap = Heap() if number in world.collect_s else None
    pages = Pages() if number in world.page_s else None
    begin, spiked = float("inf"), False
    with environment(world) as env:
        env.listen()
        env.monitor.report_to(monitor, stage="total")
        gate = env.create_input_gate(ROWS, channels=PRODUCERS, config=world.config)
        pipe.send(gate.address)
        writer = None
        if world.sink_row_s:
            writer = env.create_result_partition(ROWS, pipe.recv(), channel=number, config=world.config)
        pipe.send("ready")
        while not (pipe.poll() and pipe.recv() == "stop"):
            records = gate.poll(0.05) or []
            if records and begin == float("inf"):
                begin = time.monotonic()
            for at in range(0, len(records), 10):
                part = records[at : at + 10]
                (crunch if world.burn else lookup)(len(part), world.row_s[number])
                if heap is not None:
                    heap.litter(len(part), world.collect_s[number])
                if pages is not None:
                    pages.read(len(part), world.page_s[number])
                if world.backtrack_s:
                    match(len(part), world.backtrack_s)
                if world.spike is not None and number == world.spike[0] and not spiked:
                    spiked = time.monotonic() - begin > world.spike[1]
                    lookup(1, world.spike[2] if spiked else 0.0)
                if writer is not None:
                    writer.emit_many(part)
        gate.close()
        if writer is not None:
            with contextlib.suppress(fb.FastbufError):
                writer.abort("over")


def sink(world: World, number: int, monitor: fb.MonitorAddress, pipe: Connection) -> None:
    with environment(world) as env:
        env.listen()
        env.monitor.report_to(monitor, stage="sink")
        gate = env.create_input_gate(ROWS, channels=world.consumers, config=world.config)
        pipe.send(gate.address)
        pipe.send("ready")
        while not (pipe.poll() and pipe.recv() == "stop"):
            records = gate.poll(0.05) or []
            for at in range(0, len(records), 10):
                store(len(records[at : at + 10]), world.sink_row_s[number])
        gate.close()


def link(rate: float, delay: float, target: tuple[str, int], pipe: Connection) -> None:
    """A connection's bytes, at most so many a second towards the target, and so late both ways."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # as little as a network keeps
    server.bind(("127.0.0.1", 0))
    server.listen(16)
    pipe.send(server.getsockname()[1])
    shared, free = threading.Lock(), time.monotonic()

    def pump(source: socket.socket, sink: socket.socket, rate: float) -> None:
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()

        def late() -> None:
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    return
                try:
                    sink.sendall(data)
                except OSError:
                    return

        if delay:
            threading.Thread(target=late, daemon=True).start()
        nonlocal free
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if rate:
                    with shared:  # connections share a link
                        free = max(free, time.monotonic() - 0.01) + len(data) / rate
                        turn = free
                    time.sleep(max(0.0, turn - time.monotonic()))
                if delay:
                    pieces.put((time.monotonic() + delay, data))
                else:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    while True:
        near, _ = server.accept()
        far = socket.create_connection(target)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pump, args=(near, far, rate), daemon=True).start()
        threading.Thread(target=pump, args=(far, near, 0.0), daemon=True).start()


def spin() -> None:
    while True:
        pass


# ---- all of them


class Running:
    """The processes of a world, from when they work until they are told to end.

    Attributes
    ----------
    monitor
        What they tell.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["fastbuf", "numpy"])
        self.monitor = Recorded.listen()
        self._tasks: list[tuple[Any, Connection]] = []
        self._others: list[Any] = []
        self._over = threading.Event()
        self._stopper: threading.Thread | None = None

    def _start(self, run: Any, *arguments: Any, other: bool = False) -> tuple[Any, Connection]:
        mine, its = self.context.Pipe()
        made = self.context.Process(target=run, args=(*arguments, *([] if run is spin else [its])), daemon=True)
        made.start()
        its.close()
        if other:
            self._others.append(made)
        else:
            self._tasks.append((made, mine))
        return made, mine

    def _heard(self, pipe: Connection) -> Any:
        if not pipe.poll(START_S):
            raise TimeoutError("a process of the world did not begin")
        return pipe.recv()

    def __enter__(self) -> Running:
        world, address = self.world, self.monitor.address
        try:
            sinks = [self._start(sink, world, k, address) for k in range(len(world.sink_row_s))]
            consumers = [self._start(consume, world, k, address) for k in range(world.consumers)]
            producers = [self._start(produce, world, k, address) for k in range(PRODUCERS)]
            sink_gates = [self._heard(pipe) for _, pipe in sinks]
            gates = [self._linked(k, self._heard(pipe)) for k, (_, pipe) in enumerate(consumers)]
            if sinks:
                for _, pipe in consumers:
                    pipe.send(sink_gates)
            for _, pipe in producers:
                pipe.send(gates)
            for _, pipe in self._tasks:
                assert self._heard(pipe) == "ready"
            for _ in range(world.spinners):
                self._start(spin, other=True)
            for _, pipe in producers:
                pipe.send("go")
            if world.stop:
                self._stopper = threading.Thread(target=self._stop_again_and_again, args=(consumers,))
                self._stopper.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _linked(self, number: int, gate: fb.GateAddress) -> fb.GateAddress:
        rate, delay = self.world.paced.get(number, 0.0), self.world.late.get(number, 0.0)
        if not rate and not delay:
            return gate
        _, pipe = self._start(link, rate, delay, (gate.host, gate.port), other=True)
        return gate._replace(port=self._heard(pipe))

    def _stop_again_and_again(self, consumers: list[tuple[Any, Connection]]) -> None:
        while not self._over.is_set():
            for number, seconds in self.world.stop.items():
                pid = consumers[number][0].pid
                os.kill(pid, signal.SIGSTOP)
                self._over.wait(seconds)
                os.kill(pid, signal.SIGCONT)
                self._over.wait(2.0 - seconds)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._stopper is not None:
            self._stopper.join()
        for other in self._others:
            other.kill()
        for _, pipe in self._tasks:
            with contextlib.suppress(OSError):
                pipe.send("stop")
        deadline = time.monotonic() + 2.0
        for made, pipe in self._tasks:
            made.join(max(0.0, deadline - time.monotonic()))
            if made.is_alive():  # blocked in what the fault did to it
                made.kill()
                made.join()
            pipe.close()
        for other in self._others:
            other.join()
        self.monitor.close()
