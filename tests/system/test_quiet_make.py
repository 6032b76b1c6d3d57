"""``make`` says what it does in a few lines; the compiler's and pip's go to files, whose ends are shown on failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = """#!/bin/sh
# Stands for Python: is fit for a build, makes environments of itself, and talks a lot.
case "$*" in
"-c "*) exit 0 ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/fastbuf" ;;
esac
i=0
while [ $i -lt 60 ]; do
    echo "noise $i of $*"
    echo "warning: noise $i" >&2
    i=$((i + 1))
done
case "$*" in *"$FAILS"*) exit 3 ;; esac
"""


def make(folder: Path, target: str, fails: str = "nothing") -> subprocess.CompletedProcess[str]:
    stub = folder / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return subprocess.run(
        ["make", "--no-print-directory", target, f"VENV={folder / 'venv'}", f"LOGS={folder / 'logs'}"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": str(stub), "FAILS": fails, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@needs_make
def test_a_build_is_told_in_a_few_lines(tmp_path: Path) -> None:
    """What pip and the compiler say goes to a file."""
    done = make(tmp_path, "build")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    assert 3 <= len(lines) <= 6, lines
    assert not any("noise" in line for line in lines)
    assert "compiles the extensions" in done.stdout
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert "noise 59 of setup.py" in logs["install.log"]
    assert "noise 59 of -m pip" in logs["install.log"]
    again = make(tmp_path, "build")
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) <= 1  # nothing is to be done


@needs_make
@pytest.mark.parametrize("fails", ["pip install --quiet setuptools", "setup.py", "-e .[benches"])
def test_a_build_that_fails_shows_why(fails: str, tmp_path: Path) -> None:
    """The end of what the failing command said is shown, with the file's name."""
    done = make(tmp_path, "build", fails)
    assert done.returncode != 0
    assert "failed with exit code 3" in done.stdout
    assert "warning: noise 59" in done.stdout
    assert str(tmp_path / "logs") in done.stdout
    assert not (tmp_path / "venv" / ".fastbuf-built").exists()


def test_quiet_hands_on_arguments_and_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "x.log"
    for code in (0, 7):
        done = subprocess.run(
            [
                "sh",
                str(ROOT / ".ci" / "quiet"),
                "does it",
                str(log),
                "sh",
                "-c",
                'echo "$0|$1"; exit $2',
                "a b",
                "c",
                str(code),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code
        assert log.read_text() == "a b|c\n"
        assert done.stdout.startswith("does it ... ")
        assert ("a b|c" in done.stdout) == (code != 0)
