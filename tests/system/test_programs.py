"""What a newcomer writes in the first hour: each program runs, and runs clean under ``-X dev -W error``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nights import nightly

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def test_there_are_twenty() -> None:
    assert len(PROGRAMS) >= 20


@nightly(but_one="flags")
@pytest.mark.parametrize("flags", [[], ["-X", "dev", "-W", "error"]], ids=["plain", "strict"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_runs(program: Path, flags: list[str], tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *flags, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr == ""
