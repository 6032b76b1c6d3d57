"""What the system refuses is told in a line, of every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["--help"], ["bench", "--help"], ["bench", "--quick", "--only", "pool"]]
)
def test_an_output_that_is_full_is_told_in_a_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fastbuf", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [["bench", "--json", "x.json"], ["shuffle", "/", "out", "--key", "k", "--partitions", "1", "--func", "m:f"]],
)
def test_a_current_directory_that_has_gone_is_told(arguments: list[str], tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), str(root / "bindings")])
    done = subprocess.run(
        [
            "sh",
            "-c",
            'mkdir gone && cd gone && rmdir ../gone && "$@"',
            "sh",
            sys.executable,
            "-m",
            "fastbuf",
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 1
    assert done.stderr == "Error: the current directory has been deleted: change to one that is there\n"


def test_a_terminal_that_is_not_utf_8_has_no_arrows() -> None:
    """A character that it lacks ended a command with a traceback."""
    code = "from fastbuf.cli import app, main; app.cli = lambda: print('a \\u2192 b'); main()"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **plain}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "a ? b\n"), done.stderr
