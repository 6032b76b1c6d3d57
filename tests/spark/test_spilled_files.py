"""What does not fit into memory leaves no file behind: after success, an error, a kill, and what nobody reads on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import failure, in_the_end, in_time, no_run_left
from nights import nightly

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
ROWS = 200_000
SOON_S = 60.0


def holders(directory: str) -> list[str]:
    """Open files in a directory, of every process that may be looked at; named ones or not."""
    found = []
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has been closed meanwhile, or its process is somebody else's
            target = os.readlink(fd)
            if target.startswith(directory):
                found.append(f"{fd.parts[2]}: {target}")
    return found


def spilled(directory: str, then: str) -> None:
    """To be called in a task whose files are open: what happens to it."""
    mine = f"{os.getpid()}: "
    if not any(line.startswith(mine) for line in holders(directory)):
        raise AssertionError(f"nothing is spilled into {directory}")
    if then == "fail":
        raise ValueError("on purpose")
    if then == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def of_rows(directory: str, then: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in batches:
        if not count:
            spilled(directory, then)
        count += batch.num_rows
    yield pa.record_batch({"n": [count]})


def of_pairs(directory: str, then: str, pairs: Iterable[tuple[Any, Any]]) -> Iterator[int]:
    for number, (_, values) in enumerate(pairs):
        if not number:
            spilled(directory, then)
        yield sum(1 for _ in values)


@nightly(but_one="mode")
@nightly(but_one="kind")
@pytest.mark.parametrize("then", ["succeed", "fail", "kill", "stop"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["rows", "pairs", "pipeline"])
def test_no_file_is_left(spark: Any, tmp_path: Path, kind: str, mode: str, then: str) -> None:
    conf = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=4096, spill_directory=str(tmp_path))
    df = spark.range(0, ROWS, 1, 2).selectExpr("id % 7 as k", "id", "id * 0.5D as x")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return of_rows(str(tmp_path), then, batches)

    if kind == "rows":
        groups = fbs.group_by(df, "k", num_partitions=2, mode=mode, conf=conf)
        made: Any = groups.apply_in_arrow(read, "n long").rdd.map(lambda row: row.n)
    elif kind == "pipeline":
        # Spilled behind both shuffles
        moved = fbs.pipeline(df, conf=conf).random_shuffle(1, partitions=1, mode=mode)
        counts = moved.group_by("k", partitions=1, mode=mode).apply_in_arrow(read, "n long")
        made = counts._staged(shared=False).to_df().rdd.map(lambda row: row.n)
    else:
        rdd = spark.sparkContext.range(0, ROWS, 1, 2).map(lambda i: (i % 7 if i % 2 else i, i))
        made = fbs.group_by_key(rdd, 2, mode=mode, conf=conf).mapPartitions(partial(of_pairs, str(tmp_path), then))
    if then == "succeed":
        assert made.sum() == ROWS
    elif then == "stop":
        assert made.first() > 0  # whose task has more, and is told that nobody wants it
    else:
        text = in_time(SOON_S, lambda: failure(made.count))
        assert "on purpose" in text if then == "fail" else text
    no_run_left()
    assert in_the_end(lambda: holders(str(tmp_path)), lambda found: not found) == []
    assert list(tmp_path.iterdir()) == []
