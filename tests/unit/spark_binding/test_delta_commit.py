"""Writes of Delta tables by drivers that are killed at every step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
pytest.importorskip("pyspark", reason="pip install 'fastbuf[spark]'")


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("append", [1, 2], [1, 2, 3]),
        pytest.param("overwrite", [1, 2], [3], marks=pytest.mark.nightly),
        pytest.param("create", [], [3], marks=pytest.mark.nightly),
    ],
)
def test_a_write_that_is_killed(tmp_path: Path, mode: str, old: list[int], new: list[int]) -> None:
    """Is seen whole or not at all; the next one is as ever, and takes away what no version has."""
    program = Path(__file__).with_name("delta_killed.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), mode], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [later for _, later, _ in seen] == [[*rows, 4] for rows, _, _ in seen]
    assert [remains for _, _, remains in seen] == [[]] * len(seen)
    first = [rows for rows, _, _ in seen].index(new)
    assert [rows for rows, _, _ in seen] == [old] * first + [new] * (len(seen) - first)
    assert first >= 9, "before and behind the directories, the note, the files, and before the log"
    assert len(seen) - first >= 4, "behind the log, before and behind the note's end, and not at all"
