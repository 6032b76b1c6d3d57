"""Groups of several times ``memory_bytes`` in bounded memory: against the same shuffle without groups behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nights import nightly

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = 1 << 20


@nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_peak_memory_of_a_worker_with_groups_longer_than_its_memory(tmp_path: Path) -> None:
    memory, rows = (24 * MIB, 4_000_000) if os.environ.get("FASTBUF_LONG") == "1" else (16 * MIB, 650_000)
    path = os.pathsep.join([str(ROOT), str(ROOT / "bindings"), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "groups_probe.py"), str(rows), str(memory)],
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_DIRS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    refused = found.pop("refused")
    for part in ("ResourceError", "k='7'", f"more than a task may hold ({memory})", "Iterator[pyarrow.RecordBatch]"):
        assert part in refused
    for mode in ("pipelined", "blocking"):
        ours = found[mode]
        assert ours["rows"] == rows
        assert ours["bytes"] > 5 * memory
        assert ours["heaviest"] > 4 * memory
        assert ours["keys"]
        assert ours["sorted"]
        alone = found[f"{mode} alone"]["peak"]
        # Sorting holds up the senders, so that segments fill which a stage that only reads leaves empty
        cap = memory * (2 if mode == "pipelined" else 1)
        assert ours["peak"] <= alone * 1.1 + cap, f"{mode}: {ours['peak']} bytes, without groups {alone}"


@nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_peak_memory_of_all_workers_of_groups_and_of_two_shuffles(tmp_path: Path) -> None:
    """A hundred groups of four times the memory; and one key with nine rows of ten behind two shuffles of files."""
    is_long = os.environ.get("FASTBUF_LONG") == "1"
    memory, rows = (8 * MIB, 8_000_000) if is_long else (MIB, 1_000_000)
    spills, files = tmp_path / "spills", tmp_path / "files"
    spills.mkdir()
    files.mkdir()
    path = os.pathsep.join([str(ROOT), str(ROOT / "bindings"), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "peaks_probe.py"), str(memory), str(rows), str(files)],
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_DIRS": str(spills)},
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    for mode in ("pipelined", "blocking"):
        hundred, two = found[f"hundred groups, {mode}"], found[f"two shuffles, {mode}"]
        assert hundred["groups"] == 100
        assert hundred["rows"] == found["of rows"]["rows"]
        assert hundred["least"] > 4 * memory
        assert two["rows"] == rows
        assert two["heaviest"] > 4 * memory
        # Rows that are sorted; in the pipelined mode as many bytes of segments, and in the blocking one two of the
        # batches that blocks come in
        most = memory + (memory if mode == "pipelined" else 2 * MIB)
        assert hundred["peak"] <= found["rows alone"]["peak"] * 1.1 + most, mode
        # A task gives the exchange before it and the one behind it half of its memory each
        assert two["peak"] <= found["files alone"]["peak"] * 1.1 + memory, mode
