"""The second part of ``fastbuf demo``: a stream whose worker is killed with -9 on its way, and that loses nothing."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

KEYS = 1000
RATE = 10_000.0
SECONDS = 6.0
EVERY_S = 0.5
LOOK_S = 0.1
WAIT_S = 120.0  #: for its end


class Numbered:
    """Counts the rows of each key: what it holds is the state that the kill takes away."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def init(self, handle: Any) -> None:
        """Called when a task begins: it leaves its number, for who wants to kill it."""
        self._count = handle.getValueState("count", "n long")
        Path(self.folder, "worker").write_text(str(os.getpid()))

    def handleInputRows(self, key: tuple[int], rows: Iterator[pa.RecordBatch], times: Any) -> Iterable[pa.RecordBatch]:
        """To each row the number of rows of its key so far."""
        import pyarrow as pa

        (n,) = self._count.get() or (0,)
        for batch in rows:
            numbers = pa.array(range(n + 1, n + 1 + batch.num_rows), pa.int64())
            n += batch.num_rows
            yield pa.RecordBatch.from_arrays([batch.column("value"), numbers], names=["value", "n"])
        self._count.update((n,))

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterable[pa.RecordBatch]:
        """It has no timers."""
        return ()

    def close(self) -> None:
        """Nothing to do."""


def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The key of each value."""
    import numpy as np
    import pyarrow as pa

    for batch in batches:
        values = batch.column("value")
        keys = pa.array(np.asarray(values) % KEYS)
        yield pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


def run(console: Console, spark: SparkSession, folder: Path, stop: threading.Event, seconds: float = SECONDS) -> int:
    """Run it; the exit code is 1 if a row was lost or doubled, or a count is wrong.

    Parameters
    ----------
    stop
        Set when the demo is to end early.
    seconds
        How long rows come.
    """
    import fastbuf_spark as fbs

    rows = int(RATE * seconds)
    console.print(
        f"[b]Stream[/]  {rows:,} numbered rows, {RATE:,.0f} a second, counted by key in Python, to Parquet files.\n"
        f"      A checkpoint each {EVERY_S:g} s. The worker that holds the counts is killed on the way.",
        highlight=False,
        soft_wrap=True,
    )
    (folder / "stream").mkdir()
    stream = (
        fbs.stream_rate(spark, RATE, rows=rows, tasks=1)
        .map_in_arrow(keyed, "key long, value long")
        .group_by("key", partitions=1)
        .transform_with_state(Numbered(str(folder / "stream")), "value long, n long", arrow=True, name="counts")
    )
    query = stream.write_stream(
        fbs.to_parquet(folder / "stream" / "out"), str(folder / "stream" / "checkpoints"), EVERY_S, name="demo"
    )
    log = logging.getLogger("fastbuf_spark")
    level = log.level
    log.setLevel(logging.ERROR)  # a restart is told below
    try:
        _watch(console, query, folder / "stream", rows, stop)
    finally:
        query.stop(timeout=30)
        log.setLevel(level)
    return verdict(console, folder / "stream" / "out", rows)


def _watch(console: Console, query: Any, folder: Path, rows: int, stop: threading.Event) -> None:
    """Kill the worker once a third of the rows is in, and tell what happens until the end."""
    began, killed, victim, last = time.monotonic(), 0.0, 0, 0.0

    def tell(words: str, style: str = "dim") -> None:
        console.print(f"      {time.monotonic() - began:5.1f} s  {words}", style=style, highlight=False, markup=False)

    while not query.await_termination(LOOK_S):
        if stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() - began > WAIT_S:
            return  # the verdict counts what is lost
        now, seen = time.monotonic(), query.progress()
        rows_out = seen["stages"][-1]["rows_out"] if seen.get("stages") else 0
        newest = max((each["id"] for each in seen.get("checkpoints", ()) if each["state"] == "completed"), default=0)
        if not victim and newest and rows_out > rows / 3:
            victim = int((folder / "worker").read_text())
            os.kill(victim, signal.SIGKILL)
            killed = now
            tell(f"kill -9 {victim}: the counts of {KEYS:,} keys are gone, {rows_out:,} rows had come", "bold yellow")
        elif killed and seen["generation"] > 1 and rows_out:
            last = now
            after = f"{now - killed:.1f} s after the kill"
            tell(f"run {seen['generation']} gives rows again, from the last checkpoint on; {after}")
            killed = 0.0
        elif now - last > 1 and rows_out and not killed:
            last = now
            tell(f"run {seen['generation']}, checkpoint {newest}, {rows_out:,} rows counted in this run")


def verdict(console: Console, path: Path, rows: int) -> int:
    """Whether each row is in the files once, with the right count."""
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    values, counts = (np.asarray(table[name]) for name in ("value", "n"))
    often = np.bincount(values, minlength=rows)
    lost, doubled = int((often == 0).sum()), int((often > 1).sum())
    wrong = int((counts != values // KEYS + 1).sum())
    good = not lost and not doubled and not wrong
    console.print(
        f"{len(values):,} rows in the files: {lost:,} lost, {doubled:,} doubled, {wrong:,} with a wrong count.",
        style="bold green" if good else "bold red",
        highlight=False,
    )
    return 0 if good else 1
