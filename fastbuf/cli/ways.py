"""The demo's job with Spark alone and with fastbuf, run and measured in the same way."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from fastbuf.cli import delays
from fastbuf.cli.places import Folder
from fastbuf.cli.spark import Stage, TaskCounter, stages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SPARK, LIFTED, FASTBUF = "Spark's own", "Spark's own, lifted", "fastbuf"
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT = str(2**31 - 1)  # any other value makes Spark measure the batch after every row
STAGES = ("read, clean", "follow each aircraft", "each destination's day, write")
ORDER = [("dest", "ascending"), ("day", "ascending")]

Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """From Parquet files through a function, a shuffle by aircraft, a function and groups to Parquet files, in every
    way.

    ``conf``: fastbuf's settings; ``pause_s``: how long the second stage sleeps after each batch.
    """

    partitions: int
    conf: Any
    pause_s: float = 0.0

    def run(self, spark: SparkSession, way: str, source: Folder, target: Folder) -> None:
        """Run the job to its end."""
        follow = functools.update_wrapper(functools.partial(delays.follow, pause_s=self.pause_s), delays.follow)
        if way == FASTBUF:
            import fastbuf_spark as fbs

            read = fbs.pipeline(fbs.read_parquet(spark, str(source), delays.COLUMNS), conf=self.conf)
            cleaned = read.map_in_arrow(delays.clean, delays.CLEAN_SCHEMA)
            moved = cleaned.shuffle("tailnum", partitions=self.partitions, mode="pipelined")
            followed = moved.map_in_arrow(follow, delays.FOLLOWED_SCHEMA)
            groups = followed.group_by("dest", "day", partitions=self.partitions, mode="pipelined")
            groups.apply_in_arrow(delays.day, delays.RESULT_SCHEMA).write_parquet(str(target))
            return
        with _settings(spark, {BATCH_BYTES: NO_LIMIT} if way == LIFTED else {}):
            frame = spark.read.parquet(str(source)).select(*delays.COLUMNS)
            frame = frame.mapInArrow(delays.clean, delays.CLEAN_SCHEMA).repartition(self.partitions, "tailnum")
            grouped = frame.mapInArrow(follow, delays.FOLLOWED_SCHEMA).groupBy("dest", "day")
            grouped.applyInArrow(delays.day, delays.RESULT_SCHEMA).write.parquet(str(target))


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@dataclass(frozen=True)
class Span:
    """When a stage ran, in seconds since the job began; and when its first rows arrived, if it was ready before."""

    stage: str
    begin: float
    first: float
    end: float


@dataclass
class Measured:
    """The results of all runs of one way."""

    way: str
    seconds: list[float] = field(default_factory=list)
    spans: list[list[Span]] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    bytes_moved: int = 0
    rows_moved: int = 0
    runs: list[Any] = field(default_factory=list)  # fastbuf's summaries of the last run, by shuffle

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def typical(self) -> tuple[float, list[Span]]:
        """The median run: its seconds and its stages."""
        ordered = sorted(zip(self.seconds, self.spans, strict=True), key=lambda run: run[0])
        return ordered[(len(ordered) - 1) // 2]


def run_once(spark: SparkSession, job: Job, into: Measured, source: Folder, target: Folder, watch: Watch) -> None:
    """Run a way once to its end; add the figures, and the rows of its files, to ``into``.

    The job runs in a thread of its own, so that this one can report progress.  Bytes and rows are those of both
    shuffles: from Spark's shuffle files, or from the exchanges.
    """
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            job.run(spark, into.way, source, target)
        except BaseException as error:
            outcome["error"] = error
        outcome["end"] = time.perf_counter()

    earlier = stages(spark).keys()
    numbers = {run.number for run in _runs()}
    counter = TaskCounter(spark)
    thread = threading.Thread(target=work, name=f"fastbuf-{into.way}", daemon=True)
    since, begin = time.time(), time.perf_counter()
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
            watch(*counter.look())
    except KeyboardInterrupt:
        spark.sparkContext.cancelAllJobs()
        thread.join(10)
        raise
    if "error" in outcome:
        raise outcome["error"]
    seconds = outcome["end"] - begin
    into.seconds.append(seconds)
    ran = [stage for number, stage in sorted(stages(spark).items()) if number not in earlier and stage.begin]
    ran = ran[-len(STAGES) :]  # the first stages are Spark's reading of the files' schema
    if into.way == FASTBUF:
        ran.reverse()  # consumers are ready before there is anything to read
        into.runs = sorted((run for run in _runs() if run.number not in numbers), key=lambda run: -run.number)
        into.bytes_moved = sum(run.bytes_sent for run in into.runs)
        into.rows_moved = sum(run.records_sent for run in into.runs)
    else:
        into.bytes_moved, into.rows_moved = sum(stage.size for stage in ran), sum(stage.records for stage in ran)
    into.spans.append(_spans(ran, [0.0, *map(_starting, into.runs), 0.0, 0.0], since, since + seconds))
    into.tables.append(target.read().sort_by(ORDER))


def _spans(ran: list[Stage], ready: list[float], since: float, until: float) -> list[Span]:
    """When each stage ran, for a job from ``since`` to ``until``; ``ready``: how long it waited for its first rows."""
    spans = []
    for name, stage, waited in zip(STAGES, ran, ready, strict=False):
        end = min(stage.end or until, until)
        spans.append(Span(name, stage.begin - since, min(stage.begin + waited, end) - since, end - since))
    return spans


def _starting(run: Any) -> float:
    """Seconds from the first ready consumer of an exchange to its first rows."""
    return min((s.get("seconds", {}).get("starting", 0.0) for s in run.consumers.values()), default=0.0)


def _runs() -> list[Any]:
    """Summaries of the exchanges that have run."""
    from fastbuf_spark.driver import rendezvous

    return [run for server in rendezvous.servers() for run in server.summaries]


def difference(reference: pa.Table, table: pa.Table) -> str:
    """Why two results are not equal row for row, in order; empty if they are equal."""
    if table.schema.names != reference.schema.names:
        return f"columns {table.schema.names} instead of {reference.schema.names}"
    table = table.cast(reference.schema)
    if table.equals(reference):
        return ""
    if table.num_rows != reference.num_rows:
        return f"{table.num_rows:,} rows instead of {reference.num_rows:,}"
    for row, (ours, theirs) in enumerate(zip(table.to_pylist(), reference.to_pylist(), strict=True)):
        if ours != theirs:
            return f"row {row} is {ours} instead of {theirs}"
    return "the same values, but not the same to Arrow"
