"""A group that a function which takes it whole cannot have: the error names key, bytes, and what can be done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.errors import ResourceError
from fastbuf_spark.worker.cogroups import Place
from fastbuf_spark.worker.groups import GroupStage, Layout, Limits
from fastbuf_spark.worker.verbs import ArrowVerb

ROWS, MEMORY = 100_000, 256 << 10
RESULT = pa.schema([("n", pa.int64())])
LIMITS = Limits(MEMORY, "", 1000, 64 << 10)


def rows(**more: Any) -> Iterator[pa.RecordBatch]:
    """One key has nearly all."""
    for start in range(0, ROWS, 1000):
        keys = [7 if i % 10 else i for i in range(start, start + 1000)]
        yield pa.record_batch({"k": keys, "v": range(start, start + 1000), **more})


def counted(*tables: pa.Table) -> pa.Table:
    return pa.table({"n": [sum(table.num_rows for table in tables)]})


def test_one_side_is_told_of_iterators() -> None:
    schema = next(rows()).schema
    stage = GroupStage(ArrowVerb(counted, False, False, RESULT, True), Layout(schema, (0,), (), ("k",)), LIMITS, "f")
    with pytest.raises(ResourceError) as found:
        list(stage(rows()))
    words = str(found.value)
    for part in (
        "k='7'",
        f"a task may hold ({MEMORY})",
        "Iterator[pyarrow.RecordBatch]",
        "spark.fastbuf.memoryBytes",
    ):
        assert part in words
    assert int(words.split(" bytes")[0].rsplit(" ", 1)[1]) > MEMORY


def test_two_sides_have_no_iterators_to_be_told_of() -> None:
    schema = next(rows(side=[False] * 1000)).schema
    place = Place(pa.schema([schema.field(0), schema.field(1)]), (0, 1))
    verb = ArrowVerb(counted, False, False, RESULT, True, (2, (place, place)))
    stage = GroupStage(verb, Layout(schema, (0,), (2,), ("k",)), LIMITS, "f")
    with pytest.raises(ResourceError) as found:
        list(stage(rows(side=[False] * 1000)))
    words = str(found.value)
    for part in ("k='7'", f"a task may hold ({MEMORY})", "Both sides of a key", "spark.fastbuf.memoryBytes"):
        assert part in words
    assert "Iterator[" not in words


def test_a_kept_iterator_of_a_groups_batches_ends_with_the_group() -> None:
    """As Spark's, however much of the group is in memory: read while the next group is handled, it has no rows."""
    kept: list[Iterator[pa.RecordBatch]] = []

    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches).num_rows
        yield pa.record_batch({"n": [first if not kept else sum(batch.num_rows for batch in kept[-1])]})
        kept.append(batches)

    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    for memory in (MEMORY, 64 << 20):  # in pieces, and in one
        kept.clear()
        source = (pa.record_batch({"k": [i % 4 for i in range(1000)], "v": range(1000)}) for _ in range(100))
        stage = GroupStage(
            ArrowVerb(late, False, True, RESULT, True),
            Layout(schema, (0,), (), ("k",)),
            Limits(memory, "", 1000, 64 << 10),
            "late",
        )
        (made,) = stage(source)
        assert made.column(0).to_pylist() == [1000, 0, 0, 0]


LIMITED = """
import resource, sys
import numpy as np, pyarrow as pa
from pathlib import Path
from fastbuf.errors import ResourceError
from fastbuf_spark.worker.groups import GroupStage, Layout, Limits
from fastbuf_spark.worker.memory import one_heap_for_all_threads
from fastbuf_spark.worker.verbs import ArrowVerb

one_heap_for_all_threads()
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20),) * 2)
zeros = np.zeros(1 << 16, np.int64)
wide = pa.record_batch({"k": zeros, **{f"v{i}": zeros for i in range(7)}})  # 4 MiB
result = pa.schema([("n", pa.int64())])
verb = ArrowVerb(lambda table: pa.table({"n": [table.num_rows]}), False, False, result, True)
stage = GroupStage(verb, Layout(wide.schema, (0,), (), ("k",)), Limits(512 << 20, "", 10_000, 64 << 10), "f")
try:
    print("rows", sum(made["n"][0].as_py() for made in stage(wide for _ in range(int(sys.argv[1])))))
except ResourceError as error:
    print(error)
"""


def limited(batches: int) -> str:
    """What becomes of a group of so many times 4 MiB in a process that may map 256 MiB more."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(batches)], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


def test_under_a_limit_of_addresses_it_is_told_by_the_setting() -> None:
    words = limited(100)
    assert words.startswith("the group of k='0' does not fit into the memory of this process")
    assert "Iterator[pyarrow.RecordBatch]" in words
    assert "or raise spark.executor.pyspark.memory" in words
    assert limited(10).split() == ["rows", str(10 << 16)]
