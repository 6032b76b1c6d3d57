"""The same faults in Spark: a pipelined shuffle of two producers and some consumers, looked at from the driver."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pacing
import pyarrow as pa
from scenarios import Truth
from worlds import link

import fastbuf as fb

ROOT = Path(__file__).resolve().parents[2]
PRODUCERS = 2
ROW_S = 100e-6  #: that a producer takes for each row
LOAD = 0.5
RATE = 0.9 * PRODUCERS / ROW_S
LINK = 2e6  #: bytes a second
ROW_BYTES = 520
HOT_KEY = 7
HASHED = 12_000  #: takes the JVM about as long as a producer has for a row
SEGMENT = 16384
TCP = {"transport": "tcp"}
START_S = 60.0  # for Spark's workers to import what they need
SPIN = "while True: pass"
SOURCE, TOTAL = "producers", "Work"


@dataclass
class Work:
    """A consumer's function.

    Attributes
    ----------
    row_s, collect_s, backtrack_s
        Seconds for each row, by consumer: of sleep, of Python's collector; of a CPU, in all.
    pids
        Where it notes its process, by consumer, and the port where it listens.
    burn
        It needs a CPU for what it takes, in place of sleeping.
    spike
        A consumer that sleeps once, and when, and for how long.
    """

    row_s: tuple[float, ...]
    collect_s: dict[int, float] = field(default_factory=dict)
    backtrack_s: float = 0.0
    pids: str = ""
    burn: bool = False
    spike: tuple[int, float, float] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        me = context.partitionId()
        if self.pids:
            Path(self.pids, str(me)).write_text(str(os.getpid()))
            Path(self.pids, f"port-{me}").write_text(" ".join(map(str, pacing.listens_at())))
        begin, spiked = time.monotonic(), False
        kept = [[i] for i in range(150_000)] if me in self.collect_s else []
        owed = 0.0
        for batch in batches:
            (self.crunch if self.burn else self.lookup)(batch.num_rows * self.row_s[me])
            if self.spike is not None and me == self.spike[0] and not spiked:
                spiked = time.monotonic() - begin > self.spike[1]
                self.lookup(self.spike[2] if spiked else 0.0)
            owed += batch.num_rows * self.collect_s.get(me, 0.0)
            while kept and owed > 0:
                begin = time.perf_counter()
                gc.collect()
                owed -= time.perf_counter() - begin
            if self.backtrack_s:
                self.match(batch.num_rows * self.backtrack_s)
            yield batch

    def lookup(self, seconds: float) -> None:
        """The healthy part, or the slow one."""
        time.sleep(seconds)

    def crunch(self, seconds: float) -> None:
        """The same, on a CPU."""
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    def match(self, seconds: float) -> None:
        """A regular expression that tries all ways to fail."""
        import re

        end = time.thread_time() + seconds
        while time.thread_time() < end:
            re.match(r"(a+)+$", "a" * 14 + "b")


@dataclass
class Slow:
    """Rows on their way, each of which takes its time; ``paced``: and what its process sends to consumers, by these."""

    row_s: tuple[float, ...]
    paced: dict[int, float] = field(default_factory=dict)
    ports: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        slow = dict(self.paced)
        for batch in batches:
            for consumer, rate in list(slow.items()):
                note = Path(self.ports, f"port-{consumer}")
                ports = note.read_text().split() if note.exists() else []
                if any(pacing.pace(int(port), int(rate / PRODUCERS)) for port in ports):
                    del slow[consumer]
            time.sleep(batch.num_rows * self.row_s[context.partitionId() % len(self.row_s)])
            yield batch


@dataclass
class SparkWorld:
    """What runs, and what is wrong with it.

    Attributes
    ----------
    conf
        Settings of the shuffle beside those of a healthy one.
    bursts
        Producers have so many rows in a row for one consumer before they go on to the next.
    late
        Seconds by which each byte between workers is delayed, both ways.
    hashed
        For each row, the JVM takes the hash of its number written so many times: without more, it is fast enough.
    collecting
        The JVM collects its garbage again and again, and rests for so many seconds in between.
    """

    consumers: int
    work: Work
    before: Slow
    scan: Slow | None = None
    sink: Slow | None = None
    hot: float = 0.0
    stop: int | None = None
    spinners: int = 0
    conf: dict[str, Any] = field(default_factory=dict)
    bursts: int = 0
    late: float = 0.0
    hashed: int = 0
    collecting: float | None = None
    mode: str = "pipelined"
    rows: int = 10_000_000


def plant(name: str, seed: int) -> tuple[SparkWorld, tuple[Truth, ...]]:
    """That fault, at the place and strength of that seed."""
    chance = random.Random(f"spark {name} {seed}")
    consumers = chance.choice((2, 3))
    place = chance.randrange(consumers)
    even = LOAD * consumers / RATE
    row_s = [even] * consumers
    world = SparkWorld(consumers, Work(tuple(row_s)), Slow((ROW_S,) * PRODUCERS))
    if name == "sleep_one":
        row_s[place] *= chance.uniform(4, 10)
        world.work = Work(tuple(row_s))
        return world, (Truth(TOTAL, place, ("user_function",)),)
    if name == "hot_key":
        world.work = Work((even * 1.8,) * consumers)
        world.hot = chance.uniform(0.55, 0.7)
        return world, (Truth(TOTAL, -1, ("skew",)),)  # where the key goes, the run will tell
    if name == "spike":
        world.work = Work(tuple(row_s), spike=(place, chance.uniform(2, 5), 2.0))
        return world, ()
    if name == "not_the_root":
        world.work, world.sink = Work((even * 1.7,) * consumers), Slow((even * chance.uniform(6, 10),) * consumers)
        return world, (Truth(TOTAL, None, ("slow_sink",)),)
    if name == "neighbours":
        slow = 5.0  # so that all of it needs one CPU of two
        world.work, world.before = Work((even * slow,) * consumers, burn=True), Slow((ROW_S * slow,) * PRODUCERS)
        world.spinners = 2 * (os.cpu_count() or 2)
        return world, (Truth(TOTAL, None, ("cpu_starved",)),)
    if name == "slow_link":
        world.before = Slow((ROW_S,) * PRODUCERS, {place: LINK * chance.uniform(0.7, 1.3)})
        world.conf = TCP
        return world, (Truth(TOTAL, place, ("slow_link",)),)
    if name == "sleep_and_link":
        slow_at, far = chance.sample(range(3), 2)
        even, rate = LOAD * 3 / RATE, LINK * chance.uniform(0.7, 1.0)
        row_s = [even, even, even]
        row_s[slow_at] = ROW_BYTES / rate
        world = SparkWorld(3, Work(tuple(row_s)), Slow((ROW_S,) * PRODUCERS, {far: rate}), conf=TCP)
        return world, (Truth(TOTAL, slow_at, ("user_function",)), Truth(TOTAL, far, ("slow_link",)))
    if name == "skew_and_gc":
        even, share = 0.9 * 3 / RATE, chance.uniform(0.55, 0.65)
        hot = int(fb.hash_partition(np.array([(HOT_KEY,)], dtype=[("k", "<i8")]), "k", 3)[0])
        littered = chance.choice([k for k in range(3) if k != hot])
        # Both take the same time for the rows that come to each
        mine, others = share + (1 - share) / 3, (1 - share) / 3
        world = SparkWorld(3, Work((even,) * 3, collect_s={littered: even * (mine / others - 1)}), Slow((ROW_S,) * 2))
        world.hot = share
        return world, (Truth(TOTAL, hot, ("skew",)), Truth(TOTAL, littered, ("gc",)))
    if name == "one_consumer":
        return SparkWorld(1, Work((chance.uniform(0.4, 0.55) / RATE,)), world.before), ()
    if name == "few_segments":
        consumers = 6
        work = Work((0.8 * consumers / RATE,) * consumers)
        conf = {"memory_bytes": 8 * SEGMENT, "segment_size": SEGMENT, "overdraft": 0}
        world = SparkWorld(consumers, work, world.before, conf=conf, bursts=chance.choice((400, 600)))
        return world, (Truth(SOURCE, None, ("segments", "credits")),)
    if name == "blocking":  # nothing runs at the same time, so nobody holds up anybody, however slow
        row_s[place] *= chance.uniform(4, 10)
        world.work, world.mode, world.rows = Work(tuple(row_s)), "blocking", 40_000
        world.hot = chance.choice((0.0, 0.6))
        return world, ()
    if name == "one_credit":
        world.conf, world.late = {**TCP, "exclusive": 1, "floating": 0}, chance.uniform(0.01, 0.03)
        # A writer may hold as many segments as its consumers have given credit: both are too few, by the same settings
        return world, (Truth(SOURCE, None, ("credits", "segments")),)
    if name == "jvm_gc":
        # Its pauses are felt where the JVM has much to do: sockets hold enough rows to bridge them else
        world.hashed, world.before, world.collecting = HASHED, Slow((0.0,)), chance.uniform(0.0, 0.05)
        return world, (Truth(SOURCE, None, ("jvm_gc",)),)
    if name == "gc_storm":
        world.work = Work(tuple(row_s), collect_s={place: even * chance.uniform(6, 10)})
        return world, (Truth(TOTAL, place, ("gc",)),)
    if name == "stopped":
        world.work, world.stop = Work((even * 1.8,) * consumers), place
        return world, (Truth(TOTAL, place, ("stopped",)),)
    if name == "redos":
        world.work = Work((even * 0.2,) * consumers, backtrack_s=even * chance.uniform(6, 12))
        return world, (Truth(TOTAL, None, ("user_function",)),)
    if name == "slow_sink":
        world.sink = Slow((even * chance.uniform(6, 10),) * consumers)
        return world, (Truth(TOTAL, None, ("slow_sink",)),)
    if name == "slow_scan":
        world.scan = Slow((ROW_S * chance.uniform(4, 8),) * PRODUCERS)
        world.before = Slow((0.0,))
        return world, (Truth("source", None, ("source_bound",)),)
    if name == "slow_before":
        world.before = Slow((ROW_S * chance.uniform(4, 8),) * PRODUCERS)
        return world, (Truth(SOURCE, None, ("user_function",)),)
    assert name == "healthy", name
    return world, ()


SCENARIOS = (
    "healthy",
    "sleep_one",
    "hot_key",
    "gc_storm",
    "stopped",
    "redos",
    "slow_sink",
    "slow_scan",
    "slow_before",
    "spike",
    "not_the_root",
    "neighbours",
    "slow_link",
    "sleep_and_link",
    "skew_and_gc",
    "one_consumer",
    "few_segments",
    "one_credit",
    "jvm_gc",
    "blocking",
)


def session() -> Any:
    """One Spark for all runs."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    path = [str(ROOT), str(ROOT / "bindings"), str(ROOT / "tests"), str(Path(__file__).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    }
    builder = SparkSession.builder.master("local[8]").appName("planted faults")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Job:
    """A run of that world, in a thread; ended by cancelling it."""

    def __init__(self, spark: Any, world: SparkWorld, folder: Path) -> None:
        import fastbuf_spark as fbs

        self.spark, self.world, self.folder = spark, world, folder
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        world.work.pids = world.before.ports = str(folder)
        key = "id % 5000"
        if world.hot:
            key = f"if(id * 7919 % 1000 < {int(1000 * world.hot)}, {HOT_KEY}L, id)"
        if world.bursts:
            keys = np.array([(k,) for k in range(1000)], dtype=[("k", "<i8")])
            places = fb.hash_partition(keys, "k", world.consumers).tolist()
            one_each = ", ".join(f"{places.index(place)}L" for place in range(world.consumers))
            key = f"element_at(array({one_each}), int(id / {world.bursts} % {world.consumers}) + 1)"
        text = "repeat('x', 500)"
        if world.hashed:
            text = f"concat(repeat('x', 372), sha2(repeat(string(id), {world.hashed}), 512))"
        df = spark.range(0, world.rows, 1, PRODUCERS).selectExpr(f"{key} as k", f"{text} as text")
        if world.scan is not None:
            df = df.mapInArrow(world.scan, df.schema)
        conf = replace(fbs.ShuffleConf(memory_bytes="1m", batch_rows=200, batch_bytes="128k"), **world.conf)
        made = fbs.map_in_arrow(
            df,
            world.work,
            df.schema,
            keys="k",
            num_partitions=world.consumers,
            before=world.before,
            before_schema=df.schema,
            mode=self.world.mode,
            conf=conf,
        )
        if world.sink is not None:
            made = made.mapInArrow(world.sink, df.schema)
        self.made = made
        self.before = {run.number for run in fbs.progress()}  # of the job before, which may be about to end
        self.over = threading.Event()

    def __enter__(self) -> Job:
        from pyspark import InheritableThread

        def run() -> None:
            try:
                self.made.write.format("noop").mode("overwrite").save()
            except Exception as error:  # cancelled at the end
                self.ended = error

        self.thread = InheritableThread(target=run)
        self.others = [threading.Thread(target=other) for other in (self._stop, self._collect)]
        with self._late():
            self.thread.start()
            for other in self.others:
                other.start()
            wait = time.monotonic() + START_S
            while self.world.late and not self.runs() and time.monotonic() < wait:
                time.sleep(0.1)
        self.spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(self.world.spinners)]
        return self

    def _stop(self) -> None:
        while self.world.stop is not None and not self.over.wait(0.1):
            note = self.folder / str(self.world.stop)
            if note.exists() and note.read_text():
                pid = int(note.read_text())
                os.kill(pid, signal.SIGSTOP)
                self.over.wait(0.8)
                os.kill(pid, signal.SIGCONT)
                self.over.wait(1.2)

    def _collect(self) -> None:
        collect = self.spark.sparkContext._jvm.java.lang.System.gc
        while self.world.collecting is not None and not self.over.wait(self.world.collecting):
            if self.runs():
                collect()

    def _late(self) -> contextlib.AbstractContextManager[Any]:
        """While this holds, producers are told of a link in place of each consumer."""
        from fastbuf_spark.driver.run import Run

        if not self.world.late:
            return contextlib.nullcontext()
        listens = Run.ready

        def ready(run: Run, peer: Any, host: str, port: int, gate: int, now: float) -> None:
            ports: queue.Queue[int] = queue.Queue()
            put = SimpleNamespace(send=ports.put)
            threading.Thread(target=link, args=(0.0, self.world.late, (host, port), put), daemon=True).start()
            listens(run, peer, "127.0.0.1", ports.get(), gate, now)

        return mock.patch.object(Run, "ready", ready)

    def runs(self) -> list[Any]:
        """Those that are under way and have begun to move rows."""
        import fastbuf_spark as fbs

        blocking = self.world.mode == "blocking"  # its consumers begin when its producers have ended
        new = [run for run in fbs.progress() if run.number not in self.before]
        return [run for run in new if (run.records_sent if blocking else run.records_received)]

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for spinner in self.spinning:
            spinner.kill()
            spinner.wait()
        for other in self.others:
            other.join()
        self.spark.sparkContext.cancelAllJobs()
        self.thread.join(60)
