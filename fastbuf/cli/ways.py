"""The ways from one Python stage to the next, run and measured one like the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from fastbuf.cli.spark import TaskCounter, stages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SPARK = "Spark's own shuffle"
Stage = Callable[[Any], Any]
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Pipeline:
    """Stage, shuffle by key, stage: the same for every way."""

    source: DataFrame
    before: Stage
    before_schema: str
    keys: list[str]
    partitions: int
    func: Stage
    schema: str
    conf: Any

    def plan(self, way: str) -> DataFrame:
        """The pipeline as a DataFrame that has not run yet; ``way`` is :data:`SPARK` or a mode of the binding."""
        if way == SPARK:
            cleaned = self.source.mapInArrow(self.before, self.before_schema)
            return cleaned.repartition(self.partitions, *self.keys).mapInArrow(self.func, self.schema)
        import fastbuf_spark as fbs

        return fbs.map_in_arrow(
            self.source,
            self.func,
            self.schema,
            keys=self.keys,
            num_partitions=self.partitions,
            before=self.before,
            before_schema=self.before_schema,
            mode=way,
            conf=self.conf,
        )


@dataclass
class Measured:
    """What the runs of one way gave."""

    way: str
    seconds: list[float] = field(default_factory=list)
    table: pa.Table | None = None
    bytes_moved: int = 0
    rows_moved: int | None = None
    peak_segments: int | None = None
    segments: int | None = None
    wait_s: float | None = None

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def run_once(spark: SparkSession, pipeline: Pipeline, into: Measured, watch: Watch) -> None:
    """Run a way once to the end, its result collected as Arrow, and add what was measured to ``into``.

    The job runs in a thread of its own, so that this one can report progress.  Bytes are those of Spark's shuffle
    files, or of the exchange where there are none; waiting time is all producers' together.
    """
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["table"] = pipeline.plan(into.way).toArrow()
        except BaseException as error:
            outcome["error"] = error
        outcome["end"] = time.perf_counter()

    known = stages(spark)
    counter = TaskCounter(spark)
    thread = threading.Thread(target=work, name=f"fastbuf-{into.way}", daemon=True)
    begin = time.perf_counter()
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
    into.seconds.append(outcome["end"] - begin)
    into.table = outcome["table"]
    written = [w for stage, w in stages(spark).items() if stage not in known]
    into.bytes_moved = sum(w.size for w in written)
    if into.way == SPARK:
        into.rows_moved = sum(w.records for w in written)
        return
    import fastbuf_spark as fbs

    run = fbs.last_run()
    if run is not None and run.mode == into.way:
        into.bytes_moved = run.bytes_sent or into.bytes_moved
        into.rows_moved = run.records_sent or None
        if run.segments:
            into.peak_segments = max(into.peak_segments or 0, run.peak_segments)
            into.segments = run.segments
            into.wait_s = run.credit_wait_s


def difference(reference: pa.Table, table: pa.Table, key: str) -> str:
    """Why two results are not equal row for row, in order; the empty string if they are."""
    if table.schema.names != reference.schema.names:
        return f"columns {table.schema.names} instead of {reference.schema.names}"
    table = table.cast(reference.schema)
    if table.equals(reference):
        return ""
    if table.num_rows != reference.num_rows:
        return f"{table.num_rows:,} rows instead of {reference.num_rows:,}"
    if table.sort_by(key).equals(reference.sort_by(key)):
        return "the same rows, but in other partitions"
    for row, (ours, theirs) in enumerate(
        zip(table.sort_by(key).to_pylist(), reference.sort_by(key).to_pylist(), strict=True)
    ):
        if ours != theirs:
            return f"row {row} by {key} is {ours} instead of {theirs}"
    return "the same values, but not the same to Arrow"
