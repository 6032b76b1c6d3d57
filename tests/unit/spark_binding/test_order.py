"""Spark's ascending order as whole numbers, and rows sorted by it within a bound of memory."""

from __future__ import annotations

import decimal
import gc
import math
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nights import nightly

from fastbuf.errors import ResourceError, SchemaError
from fastbuf_spark.worker.groups import Group, Groups, Layout, Limits
from fastbuf_spark.worker.nameless import NamelessFile
from fastbuf_spark.worker.order import codes, codes_by, flags, group_starts, sorting, starts
from fastbuf_spark.worker.runs import FAN_IN, Run, Runs, in_order

NAN, INF = math.nan, math.inf
D = decimal.Decimal
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])

#: types with values in Spark's ascending order; a list stands for values that are equal
ORDERED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [None, -128, -1, 0, 127]),
    "int64": (pa.int64(), [None, -(1 << 63), -5, 0, 7, (1 << 63) - 1]),
    "boolean": (pa.bool_(), [None, False, True]),
    "float": (pa.float32(), [None, -INF, -1.5, [-0.0, 0.0], 2.0, INF, [NAN, -NAN]]),
    "double": (pa.float64(), [None, -INF, -1e300, -1e-300, [-0.0, 0.0], 1e-300, INF, [NAN, -NAN]]),
    "decimal": (pa.decimal128(38, 10), [None, D("-12345678901234567890.5"), D("-0.1"), D("0"), D("1e20")]),
    "string": (pa.string(), [None, "", "A", "B", "a", "aa", "é", "\U0001f600"]),
    "large string": (pa.large_string(), [None, "", "b", "ba"]),
    "binary": (pa.binary(), [None, b"", b"\x00", b"\x00\x01", b"\x7f", b"\xff"]),
    "date": (pa.date32(), [None, -400, 0, 20000]),
    "timestamp": (pa.timestamp("us", "UTC"), [None, -(10**15), 0, 10**15]),
    "duration": (pa.duration("us"), [None, -1, 0, 1]),
    "null": (pa.null(), [[None, None]]),
    "array": (pa.list_(pa.float64()), [None, [], [None], [-1.0, 5.0], [0.0], [0.0, None], [0.0, 1.0], [NAN]]),
    "array of arrays": (pa.list_(pa.list_(pa.string())), [None, [], [None], [[]], [["a"]], [["a"], ["b"]], [["aa"]]]),
    "struct": (
        POINT,
        [None, {"x": None, "y": "z"}, {"x": 1, "y": None}, {"x": 1, "y": "a"}, {"x": 1, "y": "b"}, {"x": 2, "y": "a"}],
    ),
}


@pytest.mark.parametrize("kind", ORDERED)
def test_values_of_every_type_compare_as_sparks(kind: str) -> None:
    arrow, values = ORDERED[kind]
    nested = pa.types.is_list(arrow)
    ranked = [
        (rank, value)
        for rank, group in enumerate(values)
        for value in (group if isinstance(group, list) and not nested else [group])
    ] * 3
    random.Random(kind).shuffle(ranked)
    column = pa.array([value for _, value in ranked], arrow)
    found, bound = codes([column], len(column))
    assert found.min() >= 0
    assert found.max() < bound
    want = [rank for rank, _ in ranked]
    for a, code in zip(want, found.tolist(), strict=True):
        for b, other in zip(want, found.tolist(), strict=True):
            assert (a < b) == (code < other)
            assert (a == b) == (code == other)
    down, bound = codes_by([pa.record_batch([column, column], ["a", "b"])], (~1,))
    assert down.min() >= 0
    assert down.max() < bound
    assert (found[1:] < found[:-1]).tolist() == (down[1:] > down[:-1]).tolist(), "descending, all is the other way"
    assert (found[1:] == found[:-1]).tolist() == (down[1:] == down[:-1]).tolist()
    part, _ = codes([column[2:]], len(column) - 2)
    assert (part[1:] < part[:-1]).tolist() == [b < a for a, b in pairwise(want[2:])], "a slice has an offset"


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("nulls", [True, False], ids=["with nulls", "without"])
def test_groups_of_sorted_rows_begin_where_values_differ(kind: str, nulls: bool) -> None:
    arrow, values = ORDERED[kind]
    nested = pa.types.is_list(arrow)
    ranked = [
        (rank, value)
        for rank, group in enumerate(values)
        for value in (group if isinstance(group, list) and not nested else [group]) * (rank % 3 + 1)
        if nulls or value is not None
    ]
    column = pa.array([value for _, value in ranked], arrow)
    number = pa.array([i // 2 for i in range(len(ranked))])  # another column, whose groups overlap
    for cut in range(min(3, len(ranked))):
        rows = [(rank, i // 2) for i, (rank, _) in enumerate(ranked)][cut:]
        for columns, keys in (([column], [(rank,) for rank, _ in rows]), ([column, number], rows)):
            want = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
            assert group_starts([one[cut:] for one in columns], len(rows)) == want
    assert group_starts([column[:0]], 0) == []
    assert group_starts([], 4) == [0], "no keys: all rows are one group"


def test_booleans_as_bytes() -> None:
    drawn = [bool(bit) for bit in np.random.default_rng(3).integers(0, 2, 100)]
    column = pa.array(drawn)
    for start in range(20):
        for stop in (start, start + 1, 60, 100):
            assert flags(column[start:stop]).tolist() == drawn[start:stop]
    assert flags(pa.array([None, True]).is_valid()).tolist() == [0, 1]


def test_several_columns_and_a_stable_sort() -> None:
    rng = random.Random(5)
    rows = [(rng.choice([None, "a", "b"]), rng.randrange(1 << 62), rng.randrange(1 << 39), i) for i in range(3000)]
    rows += [(a, b, c, i + 3000) for a, b, c, i in rows]
    columns = [pa.array(part) for part in zip(*rows, strict=True)][:3]
    order = sorting(*codes(columns, len(rows)))
    assert order is not None
    assert [rows[i] for i in order] == sorted(rows, key=lambda row: (row[0] is not None, row[0] or "", *row[1:]))
    found, bound = codes([pa.array([1, 1, 2])], 3)
    assert sorting(found, bound) is None, "in order already"
    assert starts(found) == [0, 2]
    assert codes([pa.array([], pa.int64())], 0)[0].tolist() == starts(codes([], 0)[0]) == []


def test_a_type_without_an_order_is_refused() -> None:
    with pytest.raises(SchemaError, match="map<string, int64>"):
        codes([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], 1)


def batches(rows: int, keys: int, size: int = 100, seed: int = 1) -> Iterator[pa.RecordBatch]:
    rng = random.Random(seed)
    for start in range(0, rows, size):
        numbers = range(start, min(rows, start + size))
        yield pa.record_batch(
            {
                "k": pa.array([f"key-{rng.randrange(keys)}" for _ in numbers]),
                "t": pa.array([rng.choice([None, 1.5, -0.0, NAN, 7.0]) for _ in numbers], pa.float64()),
                "n": pa.array(numbers, pa.int64()),
            }
        )


def as_spark(row: dict[str, Any]) -> tuple[Any, ...]:
    t = row["t"]
    return row["k"], t is not None, t is not None and math.isnan(t), t if t is not None and t == t else 0.0


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("memory", [4 << 10, 40 << 10, 1 << 30])
@pytest.mark.parametrize("by", [(0, 1), (~0, ~1)], ids=["ascending", "descending"])
def test_rows_come_in_order_however_little_fits(memory: int, by: tuple[int, ...], tmp_path: Path) -> None:
    before = descriptors()
    rows = [r for piece in in_order(batches(4000, 50), by, memory, str(tmp_path)) for r in piece.to_pylist()]
    assert [as_spark(row) for row in rows] == sorted(map(as_spark, rows), reverse=by[0] < 0)
    assert sorted(row["n"] for row in rows) == list(range(4000))
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_runs_are_few_and_gone_when_nobody_reads_on(tmp_path: Path) -> None:
    before = descriptors()
    spill = Runs((2,), 1 << 20, str(tmp_path))
    assert spill.fan_in < FAN_IN, "of less memory there are fewer pieces"
    for batch in batches(4 * spill.fan_in**2 + 50, 10, size=4):
        spill.add(batch)
        assert len(os.listdir("/proc/self/fd")) - before <= 2 * spill.fan_in + 3
    merged = spill.merged()
    assert next(merged).column("n")[0].as_py() == 0
    assert list(tmp_path.iterdir()) == [], "nameless"
    spill.close()
    reader = in_order(batches(2000, 10), (0,), 8 << 10, str(tmp_path))
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert descriptors() == before


def test_no_row_of_a_hundred_runs_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def counted(file: NamelessFile, data: memoryview) -> tuple[int, int]:
        nonlocal written
        written += len(data)
        return append(file, data)

    append = NamelessFile.append
    monkeypatch.setattr(NamelessFile, "append", counted)
    memory, rows, rng = 8 << 20, 10_000, np.random.default_rng(1)
    source = (pa.record_batch({"n": rng.permutation(rows), "text": ["x" * 250] * rows}) for _ in range(100))
    made = list(in_order(source, (0,), memory, str(tmp_path)))
    total = sum(batch.nbytes for batch in made)
    assert total > 30 * memory, "some eighty runs"
    assert written < 1.2 * total


def test_of_long_rows_fewer_are_held_at_once(tmp_path: Path) -> None:
    """A merge had a row of each run at once: of 50 MiB each that is more than 32 bits count, and the worker crashed."""
    memory, size = 4 << 20, 400 << 10

    def long_rows() -> Iterator[pa.RecordBatch]:
        for i in range(60):
            yield pa.record_batch({"k": [i * 7 % 60], "s": [chr(65 + i % 26) * size]})

    made = list(in_order(long_rows(), (0,), memory, str(tmp_path)))
    assert max(batch.nbytes for batch in made) <= memory // 2
    table = pa.Table.from_batches(made)
    assert table["k"].to_pylist() == list(range(60))
    assert [text[0] for text in table["s"].to_pylist()] == [chr(65 + k * 43 % 60 % 26) for k in range(60)]
    assert set(pc.binary_length(table["s"]).to_pylist()) == {size}


def test_rows_of_short_numbers_are_sorted_where_they_are(tmp_path: Path) -> None:
    """Half of the memory are rows; it was a third, as codes of all kinds were thought to be the longest."""
    opened = descriptors()
    source = (pa.record_batch({"n": np.arange(i, i + 10_000) % 77, "v": np.arange(1e4)}) for i in range(120))
    reader = in_order(source, (0,), 48 << 20, str(tmp_path))
    assert next(reader).num_rows == 1_200_000
    assert descriptors() == opened, "no file"


def test_what_is_kept_of_a_run_hardly_grows_with_its_rows(tmp_path: Path) -> None:
    """Of each piece in the file a few bytes are in memory: else runs of many pieces would not be within a bound."""
    batch = pa.record_batch({"n": np.arange(20_000)})
    run = Run(str(tmp_path), 100)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run.write(batch)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(run) > 1500
    assert kept < 20 * len(run)
    assert [n for i in range(len(run)) for n in run.piece(i)["n"].to_pylist()] == list(range(20_000))
    run.close()


SORTS = """
import sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from fastbuf.serializers.assemble import BatchAssembler
from fastbuf.serializers.columnar import ColumnarSerializer
from fastbuf_spark.worker.runs import in_order

directory, memory, columns, rows, keys, size = sys.argv[1], *map(eval, sys.argv[2:])

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def batch(at):
    ns = np.arange(at, at + size)
    key, halves = ns * 7919 % keys, ns * 0.5
    made = {"n": key, "side": pa.array(ns % 3 == 0), "v": ns, "x": halves}
    made |= columns(ns, pa.array(ns % 10_007), halves)
    return pa.record_batch(made)

def source(rows):  # as they come from a channel
    for at in range(0, rows, size):
        assembler.add_elements(serializer.dumps(batch(at))[32:])
        yield assembler.batch()

by = (0, 1)
serializer = ColumnarSerializer(batch(0).schema)
assembler = BatchAssembler(serializer.arrow_schema)
list(in_order(source(1000), by, 1 << 20, directory))  # what it takes of code
before = peak()
total = sum(batch.num_rows for batch in in_order(source(rows), by, memory, directory))
print(total, peak() - before)
"""


@nightly(rows=[2_000_000, 3_000_000])
@pytest.mark.parametrize(
    ("columns", "rows", "keys", "size"),
    [
        ("{}", 900_000, 10, 10_000),  # all rows are sorted where they are
        ("{}", 5_000_000, 10, 10_000),
        ("{}", 3_000_000, 1 << 20, 10_000),  # as many numbers are counted as there are rows
        ("{}", 3_000_000, 1 << 40, 10_000),  # nothing is counted
        ("{}", 2_000_000, 10, 1_000),  # short batches
        ("{'n': halves}", 3_000_000, 1, 10_000),
        ("{'n': pc.binary_join_element_wise(key.cast(pa.string()), 'y' * 90, '')}", 700_000, 1, 10_000),
        ("{'name': ['x' * 200] * size}", 700_000, 10_007, 10_000),
        ("{'l': pa.FixedSizeListArray.from_arrays(np.repeat(halves, 4), 4)}", 1_000_000, 10, 10_000),  # left to Arrow
    ],
    ids=["few", "many", "as many keys", "wide keys", "short", "floats", "long keys", "texts", "lists"],
)
def test_the_process_has_no_more_than_the_memory_of_a_sort(
    columns: str, rows: int, keys: int, size: int, tmp_path: Path
) -> None:
    """What it has is looked at, not what it has asked for: allocators keep what was given back."""
    memory = 48 << 20
    arguments = [str(memory), f"lambda ns, key, halves: {columns}", str(rows), str(keys), str(size)]
    done = subprocess.run([sys.executable, "-c", SORTS, str(tmp_path), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    total, more = map(int, done.stdout.split())
    assert total == rows
    assert more <= memory * 1.1 + (4 << 20), f"{more} bytes more: {more / memory:.2f} of it"


SPILLS = """
import sys, pyarrow as pa
from fastbuf_spark.worker.runs import in_order
source = (pa.record_batch({"n": list(range(i, 0, -1))}) for i in range(400, 500))
for piece in in_order(source, (0,), 64 << 10, sys.argv[1]):
    print("spilled", flush=True)
    sys.stdin.read()
"""


def test_files_of_a_process_that_is_killed_are_gone(tmp_path: Path) -> None:
    """Its runs have no names, and no room once it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", SPILLS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spilled\n"
        held = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert any(name.startswith(str(tmp_path)) for name in held)
        assert list(tmp_path.iterdir()) == []
        process.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"absent.*spark\.fastbuf\.spillDirectory"):
        Run(str(tmp_path / "absent"), 100)


def grouped(memory: int, rows: int, keys: int, budget: int = 1 << 30) -> Groups:
    shown = next(batches(1, 1)).schema
    layout, limits = Layout(shown, (0,), (1,), ("k",)), Limits(budget, "", 64, 1 << 20)
    return Groups(in_order(batches(rows, keys), (0, 1), memory, ""), layout, limits)


@pytest.mark.parametrize("memory", [20 << 10, 1 << 30])
@pytest.mark.parametrize("keys", [1, 3, 700])
@pytest.mark.parametrize("form", ["table", "batches", "unread", "key alone"])
def test_each_group_comes_once_whole_and_in_order(memory: int, keys: int, form: str) -> None:
    want: dict[str, list[Any]] = {}
    for batch in batches(6000, keys):
        for row in batch.to_pylist():
            want.setdefault(row["k"], []).append(row)
    seen = []
    for i, group in enumerate(grouped(memory, 6000, keys)):
        (key,) = group.key()
        seen.append(key.as_py())
        if form == "key alone" or (form == "unread" and i % 2):
            continue
        if form == "table":
            rows = group.table().to_pylist()
        else:
            parts = group.batches()
            if form == "unread":
                assert next(parts).num_rows <= 64
                continue
            rows = []
            for part in parts:
                assert part.num_rows <= 64
                rows += part.to_pylist()
        assert {row["k"] for row in rows} == {key.as_py()}
        assert [as_spark(row) for row in rows] == sorted(map(as_spark, rows))
        assert sorted(row["n"] for row in rows) == sorted(row["n"] for row in want[key.as_py()])
    assert seen == sorted(want)


def test_a_group_that_a_table_cannot_hold_is_named() -> None:
    groups = iter(grouped(20 << 10, 6000, 1, budget=40 << 10))
    with pytest.raises(ResourceError) as caught:
        next(groups).table()
    for part in ("k='key-0'", "bytes, more than a task may hold (40960)", "Iterator[pyarrow.RecordBatch]"):
        assert part in str(caught.value)


def test_a_group_that_is_over_gives_nothing_of_the_next() -> None:
    groups = iter(grouped(20 << 10, 6000, 2))
    first: Group = next(groups)
    parts = first.batches()
    keys = set(next(parts).column("k").to_pylist())
    next(groups)
    assert {key for part in parts for key in part.column("k").to_pylist()} <= keys
