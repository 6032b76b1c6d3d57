"""A driver of Spark in a process of its own: runs cases on a cluster, and prints what came of each as a line of JSON.

What is shipped is pickled by value, this being ``__main__``: workers need nothing of the tests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

ANSWER = "answer of the driver: "
SETTLE_S = 40.0


class Slow:
    """The first attempt of partition 0 takes its time, so that Spark starts another."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 1 and context.partitionId() == 0 and context.attemptNumber() == 0:
                time.sleep(self.seconds)  # stands for work on a slow host
            yield batch


class KillsExecutor:
    """Kills the executor of partition ``partition`` once in all, after a batch; ``mark`` remembers it."""

    def __init__(self, mark: str, partition: int) -> None:
        self.mark = mark
        self.partition = partition

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import signal

        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == self.partition and not os.path.exists(self.mark):
                with open(self.mark, "w"), open(f"/proc/{os.getppid()}/stat") as daemon:
                    executor = int(daemon.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{executor}/cmdline") as java:
                    assert "CoarseGrainedExecutorBackend" in java.read()
                os.kill(executor, signal.SIGKILL)


class KillsServer:
    """Kills once the file server of its executor, before anything is read."""

    def __init__(self, mark: str, partition: int = 0) -> None:
        self.mark = mark
        self.partition = partition

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import contextlib
        import glob
        import signal

        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if context.partitionId() == self.partition and not os.path.exists(self.mark):
            (own,) = glob.glob(f"{os.environ['SPARK_LOCAL_DIRS'].split(',')[0]}/fastbuf-held/server-*")
            for folder in glob.glob("/proc/[0-9]*"):
                with contextlib.suppress(OSError):  # it is another user's, or has ended
                    if own in [os.readlink(fd) for fd in glob.glob(f"{folder}/fd/*")]:
                        os.kill(int(folder.removeprefix("/proc/")), signal.SIGKILL)
                        with open(self.mark, "w") as mark:
                            mark.write(own)
        yield from batches


class SpoilsRows:
    """Changes once, before anything is read, a byte of a file that a map task has written."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import glob

        if not os.path.exists(self.mark):
            folder = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
            path = glob.glob(f"{folder}/fastbuf-held/*/*/*")[0]
            with open(path, "r+b") as file:
                file.seek(100)
                byte = file.read(1)
                file.seek(100)
                file.write(bytes([byte[0] ^ 1]))
            with open(self.mark, "w") as mark:
                mark.write(path)
        yield from batches


class DeletesRows:
    """Removes once, before anything is read, the file that one map task has written."""

    def __init__(self, mark: str) -> None:
        from pyspark import SparkContext

        self.mark = mark
        self.folder = SparkContext._active_spark_context._temp_dir

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pathlib

        if not os.path.exists(self.mark):
            path = next(iter(pathlib.Path(self.folder).glob("fastbuf-held/*/*/*")))
            path.unlink()
            with open(self.mark, "w") as mark:
                mark.write(str(path))
        yield from batches


class Salts:
    """Other keys each time."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        for batch in batches:
            keys = [random.randrange(1000) for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), batch.column(1)], schema=batch.schema)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def stage(how: dict[str, Any] | None) -> Callable[[Any], Any]:
    """The function that a case asks for."""
    if how is None:
        return same
    kinds: dict[str, Callable[..., Any]] = {
        "slow": Slow,
        "kill": KillsExecutor,
        "server": KillsServer,
        "spoil": SpoilsRows,
        "delete": DeletesRows,
        "salt": Salts,
    }
    made: Callable[[Any], Any] = kinds[how["kind"]](**{k: v for k, v in how.items() if k != "kind"})
    return made


def placed(df: Any) -> pa.Table:
    """All rows with the partition each is in."""
    from pyspark.sql import functions as F

    table = df.select(F.spark_partition_id().alias("pid"), "k", "id").toArrow()
    return table.sort_by([("pid", "ascending"), ("k", "ascending"), ("id", "ascending")]).combine_chunks()


def shuffle(
    spark: Any,
    mode: str,
    partitions: int,
    rows: int = 20_000,
    tasks: int = 2,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    cores: int | None = None,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A shuffle between two Python stages, and whether it placed each row as Spark does."""
    import fastbuf_spark as fbs

    df = spark.range(0, rows, 1, tasks).selectExpr("id % 101 as k", "id")
    answer: dict[str, Any] = {"slots": fbs.preflight(spark, partitions).slots}
    begin = time.monotonic()
    try:
        made = fbs.map_in_arrow(
            df,
            stage(after),
            df.schema,
            keys="k",
            num_partitions=partitions,
            before=stage(before),
            before_schema=df.schema,
            mode=mode,
            conf=fbs.ShuffleConf(**settings) if settings else None,
        )
        got = placed(made)
        answer["seconds"] = time.monotonic() - begin
        answer["run"] = figures()
        answer["rows"] = got.num_rows
        answer["as_spark"] = got.equals(placed(df.repartition(partitions, "k")))
    except Exception as error:
        answer["seconds"] = time.monotonic() - begin
        answer["error"] = str(error)
    return answer


def figures() -> dict[str, Any]:
    """The last run, once every consumer has told its figures."""
    import fastbuf_spark as fbs

    deadline = time.monotonic() + SETTLE_S
    while True:
        run = fbs.last_run()
        assert run is not None
        if run.outcome == "ok" or time.monotonic() > deadline:
            return dataclasses.asdict(run)
        time.sleep(0.05)  # between two looks: workers tell their figures after their last rows


def warm(spark: Any, tasks: int, executors: int = 0) -> dict[str, Any]:
    """Starts Python workers, once there are so many executors; -> how many tasks ran."""
    deadline = time.monotonic() + 2 * SETTLE_S
    # The driver is counted too
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= executors and time.monotonic() < deadline:
        time.sleep(0.1)  # between two looks

    def one(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(0.5)  # long enough for every slot to have one of the tasks
        yield pa.record_batch({"n": [1]})

    return {"tasks": len(spark.range(0, tasks, 1, tasks).mapInArrow(one, "n long").collect())}


def wait(spark: Any, seconds: float) -> dict[str, Any]:
    """Does nothing, so that idle executors go; -> how many are left."""
    time.sleep(seconds)  # the setting under test is a time after which an idle executor goes
    return {"executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1}


def again(spark: Any, rows: int, seconds: float) -> dict[str, Any]:
    """Reads a shuffle's rows, does nothing so that idle executors go with them, and reads them again."""
    import fastbuf_spark as fbs

    made = fbs.repartition(spark.range(0, rows, 1, 4).selectExpr("id % 101 as k", "id"), 3, "k", mode="blocking").rdd
    found = [made.map(lambda row: row.id).sum()]
    left = wait(spark, seconds)["executors"]
    found.append(made.map(lambda row: row.id).sum())
    return {"right": found == [rows * (rows - 1) // 2] * 2, "executors": left}


def pairs(spark: Any, mode: str, partitions: int) -> dict[str, Any]:
    """An RDD of pairs, against Spark's own partitionBy."""
    import fastbuf_spark as fbs

    rdd = spark.sparkContext.parallelize([(i % 101, i) for i in range(5_000)], 2)
    own = sorted(sorted(part) for part in rdd.partitionBy(partitions).glom().collect())
    made = sorted(sorted(part) for part in fbs.partition_by(rdd, partitions, mode=mode).glom().collect())
    return {"as_spark": own == made, "rows": sum(len(part) for part in made)}


def main() -> None:
    job, tree = json.loads(sys.argv[1]), sys.argv[2]
    sys.path[:0] = tree.split(os.pathsep)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(job["master"]).appName("fastbuf clusters")
    for name, value in job["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = []
    for case in job["cases"]:
        answers.append(globals()[case.pop("case")](spark, **case))
        print("so far:", answers[-1], flush=True)
    print(ANSWER + json.dumps(answers), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
