"""State of windows beyond its memory: in files, which leave nothing, and whose errors say what to change."""

from __future__ import annotations

import errno
import gc
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from nights import LONG, nightly

from fastbuf.errors import ConfigError, ResourceError
from fastbuf.event_time import spill
from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.rules import Trigger
from fastbuf.event_time.watermarks import MAX
from fastbuf.event_time.windows import Session, Sliding, Tumbling
from fastbuf.event_time.work import agg_arrow, apply_in_arrow

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.int64())])


def operator(assigner: Any = None, work: Any = None, **more: Any) -> WindowOperator:
    work = work or agg_arrow([("v", "sum"), ("", "count_all")])
    return WindowOperator(["k"], "t", SCHEMA, assigner or Tumbling(10), work, **more)


def batch(keys: Any, times: Any, values: Any) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.int64()), pa.array(times, pa.int64()).cast(pa.timestamp("us")), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def random_batches(count: int, rows: int, keys: int, span: int) -> Any:
    random = np.random.default_rng(7)
    for _ in range(count):
        yield batch(random.integers(0, keys, rows), random.integers(0, span, rows), random.integers(0, 100, rows))


# Rows of some windows each; peak memory is that of the process, so it is one of its own
PROBE = """
import sys
sys.path.insert(0, {folder!r})
from test_spill import MAX, Sliding, Tumbling, operator, random_batches
peak = lambda: next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
one = operator({assigner}, memory_bytes={memory})
list(one.rows(next(random_batches(1, 10, 10, 10))))
before, fired, sums = peak(), 0, 0
for each in random_batches({batches}, 1 << 16, {keys}, 100):
    list(one.rows(each))
files = one.figures()["file_bytes"]
frozen = one.freeze()
assert all(frozen.group(group) for group in range(128))
for mark in (49, MAX):
    for each in one.watermark(mark):
        fired += each.column("count_all").to_numpy().sum()
        sums += each.column("v_sum").to_numpy().sum()
print(peak() - before, files, fired, sums)
"""


def peak_mib(assigner: str, memory: int | None, batches: int, keys: int) -> tuple[int, ...]:
    """Most MiB that it took besides what a process takes; bytes of files; rows and sum of the results."""
    code = PROBE.format(folder=str(Path(__file__).parent), assigner=assigner, memory=memory, batches=batches, keys=keys)
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


@nightly(assigner=["Tumbling(10)", "Sliding(20, 10)"])
@pytest.mark.parametrize("assigner", ["Tumbling(10)", "Tumbling(100)", "Sliding(20, 10)"])
def test_memory_is_bounded_whatever_the_number_of_windows(assigner: str) -> None:
    """Also where all rows are in one window."""
    batches, keys = (1200, 10_000_000) if LONG else (60, 1_000_000)
    without = peak_mib(assigner, None, batches, keys)
    bounded = peak_mib(assigner, 8 << 20, batches, keys)
    print(assigner, without, bounded)
    assert bounded[2:] == without[2:]
    assert without[1] == 0
    assert bounded[1] > 0
    assert bounded[0] < (400 if LONG else 200)
    assert bounded[0] < without[0] * (0.25 if LONG else 0.8)


def deleted_maps(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_files_go_with_the_windows(tmp_path: Path) -> None:
    one = operator(memory_bytes=1000, spill_directory=str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd"))
    for each in random_batches(40, 100, 50, 200):
        list(one.rows(each))
        assert list(tmp_path.iterdir()) == []
    assert one.figures()["file_bytes"] > 0
    assert deleted_maps(tmp_path) > 0
    assert sum(each.column("count_all").to_numpy().sum() for each in one.watermark(MAX)) == 4000
    assert one.figures()["file_bytes"] == 0
    gc.collect()
    assert deleted_maps(tmp_path) == 0
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_rows_of_a_function_are_in_the_order_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "PART_ROWS", 20)
    seen: dict[tuple[int, int], list[int]] = {}

    def function(key: Any, window: Any, table: pa.Table) -> pa.Table:
        seen[key[0].as_py(), window.start] = table.column("v").to_pylist()
        return table.select(["v"])

    one = operator(Tumbling(50), apply_in_arrow(function, pa.schema([("v", pa.int64())])), memory_bytes=1)
    wanted: dict[tuple[int, int], list[int]] = {}
    for number, each in enumerate(random_batches(30, 40, 7, 100)):
        each = batch(each.column("k"), each.column("t").cast(pa.int64()), np.arange(40) + 40 * number)
        list(one.rows(each))
        for row in each.to_pylist():
            start = row["t"].microsecond // 50 * 50
            wanted.setdefault((row["k"], start), []).append(row["v"])
    assert one.figures()["file_bytes"] > 0
    list(one.watermark(MAX))
    assert seen == wanted


def test_rows_of_sessions_are_in_files(tmp_path: Path) -> None:
    """All rows of a session for a function, and in the order they came."""
    seen: dict[int, list[int]] = {}

    def function(key: Any, window: Any, table: pa.Table) -> pa.Table:
        seen[key[0].as_py()] = table.column("v").to_pylist()
        return table.select(["v"])

    work = apply_in_arrow(function, pa.schema([("v", pa.int64())]))
    one = operator(Session(1000), work, memory_bytes=1000, spill_directory=str(tmp_path))
    for number in range(50):
        list(one.rows(batch(np.arange(100), np.full(100, 10 * number), np.full(100, number))))
        list(one.watermark(10 * number - 5))
        if number % 10 == 9:
            assert list(one.rows(batch([number], [10 * number], [number]))) == []
            one.freeze()  # puts what is pending among the sessions
    assert one.figures()["file_bytes"] > 50 * 100 * 3 * 8
    assert list(tmp_path.iterdir()) == []
    list(one.watermark(MAX))
    assert one.figures()["file_bytes"] == one.figures()["rows"] == 0
    assert len(seen) == 100
    assert seen[5] == list(range(50))
    assert seen[9] == [*range(10), 9, *range(10, 50)]


def test_where_there_is_no_room_it_is_told_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="memory_bytes is 0"):
        operator(memory_bytes=0)
    gone = operator(memory_bytes=1, spill_directory=str(tmp_path / "none"))
    with pytest.raises(ResourceError, match=r"beyond 1 bytes cannot be written to .*none: .*spill_directory.*memory_b"):
        fill(gone)

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill.tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.raises(ResourceError, match="No space left on device"):
        fill(operator(memory_bytes=1))


def fill(one: WindowOperator) -> None:
    list(one.rows(next(random_batches(1, 100, 50, 200))))


def test_what_changes_with_each_row_stays_in_memory() -> None:
    one = operator(memory_bytes=1, trigger=Trigger(rows=2), output_mode="update")
    for each in random_batches(20, 100, 50, 200):
        list(one.rows(each))
    assert one.figures()["file_bytes"] == 0


def test_sliding_windows_share_panes_again_once_all_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with_files, without = (operator(Sliding(100, 10), memory_bytes=memory) for memory in (2000, None))
    in_files = []
    for step in range(30):
        keys = range(300 if step == 3 else 5)
        given = batch(keys, [step * 10 + 1] * len(keys), [step] * len(keys))
        results = []
        for one in (with_files, without):
            list(one.rows(given))
            made = pa.Table.from_batches(one.watermark(step * 10), one.schema)
            results.append(sorted(made.to_pylist(), key=lambda row: (row["window_end"], row["k"])))
        assert results[0] == results[1]
        in_files.append(with_files.figures()["file_bytes"] > 0)
    assert True in in_files[:10]
    assert not any(in_files[20:])
    assert with_files._windows.stacked_bytes() > 0
