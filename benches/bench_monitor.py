"""What it costs to be watched: an exchange within a process, and the main job in Spark, with the monitor and without.

In turn, in pairs whose order changes, many and short.  Told: the pairs' ratios less one, and the upper end of the 95 %
interval, of the wall clock and of CPU seconds to the kernel's account (process clocks, in nanoseconds).  Of the main
job, the CPU seconds of all its processes, the JVM among them; of the Python processes alone, where the monitor runs;
and of the tasks alone: each task's process clock, all of its threads, while it has rows.  Of both jobs also what the
monitor's own threads used, which scatters least.  On several cores the two threads of the exchange meet at the GIL at
other places in each run; bound to one core (``taskset -c 0``) its pairs differ a third as much.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.json_frames import pack

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
PAIRS = int(os.environ.get("FASTBUF_BENCH_TURNS", "2" if SMOKE else "40"))
BATCHES = 50 if SMOKE else 60_000
ROWS = 10_000
SPARK_ROWS = 100_000 if SMOKE else 10_000_000
TASK_S = 1.5 if SMOKE else 12.0  # more than a burst of samples takes
NORMAL = 1.96  #: of a standard normal variable 95 % lie within
OWN = ("fastbuf-monitor", "fastbuf-watch", "fastbuf-ticker")  #: the monitor's threads


def bound(without: list[float], watched: list[float]) -> tuple[float, float]:
    """The pairs' ratios less one, and the upper end of the 95 % interval.

    The Hodges-Lehmann estimate: the median of all pairs' averages, with the interval of Wilcoxon's signed ranks
    (Hollander and Wolfe, Nonparametric Statistical Methods, 3.2 and 3.3).  Outliers move it as little as a median, and
    its variance is two thirds of a median's.
    """
    ratios = np.array(watched) / np.array(without) - 1
    count = len(ratios)
    first, second = np.triu_indices(count)
    averages = np.sort((ratios[first] + ratios[second]) / 2)
    beyond = len(averages) / 2 - NORMAL * np.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return float(np.median(averages)), float(averages[len(averages) - 1 - max(0, int(beyond))])


def threads_cpu_s(*names: str) -> float:
    """Of threads of these names (as the kernel knows them)."""
    used = 0.0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if (task / "comm").read_text().strip() in names:
                used += int((task / "schedstat").read_text().split()[0]) / 1e9
    return used


def one_exchange(batch: pa.RecordBatch, watched: bool) -> tuple[float, float, float]:
    """Wall, CPU, and what the monitor's threads had of it."""
    columns = fb.ColumnarSerializer(batch.schema)
    with fb.ShuffleEnvironment(segments=512) as env:
        if watched:
            env.monitor.start()
        writer, (gate,) = env.exchange(serializer=columns)
        begin, cpu = time.perf_counter(), time.process_time()

        def write() -> None:
            for _ in range(BATCHES):
                writer.emit_batch(batch)
            writer.close()

        thread = threading.Thread(target=write)
        thread.start()
        rows = sum(got.num_rows for got in gate)
        thread.join()
        took = time.perf_counter() - begin, time.process_time() - cpu
        own = threads_cpu_s(*OWN) if watched else 0.0
    assert rows == BATCHES * ROWS
    return *took, own


def told(benchmark: Any, name: str, without: list[float], watched: list[float]) -> None:
    share, most = bound(without, watched)
    benchmark.extra_info[f"{name}_more_percent"] = round(100 * share, 2)
    benchmark.extra_info[f"{name}_at_most_percent"] = round(100 * most, 2)
    print(f"{name}: {share:+.2%}, at most {most:+.2%} (95 %, {len(without)} pairs of {np.median(without):.2f} s)")


def test_exchange_watched(benchmark: Any) -> None:
    rng = np.random.default_rng(1)
    batch = pa.record_batch({"k": rng.integers(0, 1000, ROWS), "a": rng.random(ROWS), "b": rng.random(ROWS)})
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}

    def rounds() -> None:
        one_exchange(batch, True)
        for pair in range(PAIRS):
            for watched in (False, True) if pair % 2 else (True, False):
                found[watched].append(one_exchange(batch, watched))

    benchmark.pedantic(rounds, rounds=1)
    for k, name in enumerate(("wall", "cpu")):
        told(benchmark, name, [each[k] for each in found[False]], [each[k] for each in found[True]])
    tell_own(benchmark, "of the CPU seconds", [each[2] for each in found[True]], [each[1] for each in found[True]])


def tell_own(benchmark: Any, what: str, own: list[float], all_s: list[float]) -> None:
    share = sum(own) / sum(all_s)
    benchmark.extra_info[f"own_threads_percent_{what.replace(' ', '_')}"] = round(100 * share, 2)
    print(f"the monitor's own threads: {share:.2%} {what}")


class Told:
    """A control connection to a driver that hears all at once."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def tell(self, message: dict[str, Any]) -> None:
        self.messages += 1
        self.bytes += len(pack(message))


def test_a_task_watched(benchmark: Any) -> None:
    """What a Spark task's monitor uses itself: its threads, by the second, and to begin and end.  Exact, where the
    difference of two runs of a job is lost in what scatters.
    """
    from fastbuf.monitor.figures import longest
    from fastbuf.monitor.links import Links
    from fastbuf.monitor.ticker import Ticker
    from fastbuf.monitor.vitals import Vitals
    from fastbuf_spark.worker.watch import TaskClock, Watch, state_of, times

    batch = pa.record_batch({"k": np.arange(ROWS) % 1000, "a": np.arange(ROWS) / 7, "b": np.arange(ROWS)})
    columns = fb.ColumnarSerializer(batch.schema)
    over, told = threading.Event(), Told()
    found: dict[str, float] = {}

    def task(env: Any, address: Any) -> None:
        writer = env.create_result_partition(columns, [address])
        clock, links, ticker = TaskClock(), Links(), Ticker(writer)

        def watched() -> contextlib.ExitStack:
            vitals, stack = Vitals(), contextlib.ExitStack()

            def figures() -> dict[str, Any]:
                held = {"blocked": longest(writer.blocked_s(), [0]), "linked": longest(writer.blocked_s(True), [0])}
                own = {**writer.stats(), **writer.gauges(), **times(clock, writer.activity())}
                return {**own, **held, **links.figures([0]), **vitals.figures()}

            def look() -> str:
                links.look(writer, env.links())
                return state_of(clock, writer.activity())

            stack.enter_context(ticker)
            stack.enter_context(Watch(told, figures, look, vitals))  # type: ignore[arg-type]
            return stack

        begin = time.process_time()
        for _ in range(20):
            watched().close()
        found["to begin and end, ms"] = 1000 * (time.process_time() - begin) / 20
        told.messages = told.bytes = 0
        with watched():
            begin = time.monotonic()
            while not over.is_set():
                writer.emit_batch(batch)
            used = threads_cpu_s(*OWN)
            found["of a CPU, %"] = 100 * used / (time.monotonic() - begin)
        writer.close()

    def rounds() -> None:
        with fb.ShuffleEnvironment(segments=512) as far, fb.ShuffleEnvironment(segments=512) as near:
            far.listen()
            gate = far.create_input_gate(columns, channels=1)
            threads = [
                threading.Thread(target=task, args=(near, gate.address)),
                threading.Thread(target=lambda: sum(got.num_rows for got in gate)),
                threading.Timer(TASK_S, over.set),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    benchmark.pedantic(rounds, rounds=1)
    assert told.messages >= TASK_S / 2, "a task tells once a second"
    found["bytes a second"] = told.bytes / told.messages
    benchmark.extra_info.update(found)
    print(f"the monitor of a task: {found}")


def timed(folder: str) -> Any:
    """A function that hands on its rows, and writes down the CPU seconds of its process meanwhile, and of the monitor's
    threads in it.
    """

    def passing(batches: Any) -> Any:
        begin = time.process_time()
        yield from batches
        with open(os.path.join(folder, str(os.getpid())), "a") as file:
            file.write(f"{time.process_time() - begin} {threads_cpu_s(*OWN)}\n")

    return passing


def taken(folder: Path) -> tuple[float, float]:
    """The sums of what they wrote down, which is forgotten then."""
    seconds = own = 0.0
    for file in folder.iterdir():
        numbers = list(map(float, file.read_text().split()))
        seconds += sum(numbers[::2])
        own += sum(numbers[1::2])
        file.unlink()
    return seconds, own


class Clocks:
    """CPU seconds of this process and of Spark's Python workers, threads that have ended included; and of all of Spark,
    the JVM too.
    """

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._jvms: set[int] = set()

    def __call__(self) -> tuple[float, float]:
        import psutil

        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                if process is not me and not process.name().startswith("python"):
                    self._jvms.add(process.pid)
                # Another process's clock: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of linux/posix-timers.h
                self._seen[process.pid] = time.clock_gettime((~process.pid << 3) | 2)
        everything = sum(self._seen.values())
        return everything - sum(self._seen.get(pid, 0.0) for pid in self._jvms), everything


@pytest.mark.spark
def test_main_job_watched(benchmark: Any, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    import fastbuf_spark as fbs

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[1])
    path = [root, os.path.join(root, "bindings"), os.path.join(root, "benches")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    schema = "k long, id long, x double, name string"
    df = spark.range(0, SPARK_ROWS, 1, 2).selectExpr(
        "id % 1000 as k", "id", "cast(id as double) as x", "concat('user-', id % 100) as name"
    )
    df = df.cache()
    df.count()
    made = {
        watched: fbs.map_in_arrow(
            df, timed(str(tmp_path)), schema, keys="k", num_partitions=2, before=timed(str(tmp_path)),
            before_schema=schema, mode="pipelined", conf=fbs.ShuffleConf(monitor=watched),
        )
        for watched in (False, True)
    }  # fmt: skip
    found: dict[bool, list[tuple[float, float, float, float, float]]] = {False: [], True: []}

    clocks = Clocks()

    def once(watched: bool) -> tuple[float, float, float, float, float]:
        begin, before = time.perf_counter(), clocks()
        made[watched].write.format("noop").mode("overwrite").save()
        took, after = time.perf_counter() - begin, clocks()
        return took, after[0] - before[0], *taken(tmp_path), after[1] - before[1]

    def rounds() -> None:
        for _ in range(1 if SMOKE else 4):  # until the JVM has compiled what it compiles
            once(True), once(False)
        for pair in range(PAIRS):
            for watched in (False, True) if pair % 2 else (True, False):
                found[watched].append(once(watched))

    benchmark.pedantic(rounds, rounds=1)
    spark.stop()
    for k, name in {0: "wall", 4: "job_cpu", 1: "python_cpu", 2: "tasks_cpu"}.items():
        told(benchmark, name, [each[k] for each in found[False]], [each[k] for each in found[True]])
    tell_own(benchmark, "of the tasks' CPU seconds", *([each[k] for each in found[True]] for k in (3, 2)))
    tell_own(benchmark, "of the job's CPU seconds", *([each[k] for each in found[True]] for k in (3, 4)))
