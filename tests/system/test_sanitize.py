"""The sanitizer runs say what is missing; what they find, their own planted errors show at each run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "sanitize"


def sanitize(*given: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable, **environment}
    return subprocess.run([str(SCRIPT), *given], capture_output=True, text=True, timeout=60, check=False, env=env)


@pytest.mark.parametrize(("kind", "runtime"), [("thread", "libtsan"), ("address", "libasan")])
def test_a_compiler_without_the_runtime_is_said(kind: str, runtime: str, tmp_path: Path) -> None:
    bare = tmp_path / "cc"
    bare.write_text(f"#!/bin/sh\necho {runtime}.so\n")  # as gcc answers where it has no such file
    bare.chmod(0o755)
    done = sanitize("test", kind, CC=str(bare))
    assert done.returncode == 0
    assert f"skipped: {bare} has no {runtime}.so here" in done.stdout
    assert "dnf install" in done.stdout


def test_an_unknown_sanitizer() -> None:
    done = sanitize("test", "memory")
    assert done.returncode == 2
    assert "thread or address, not memory" in done.stderr


def test_a_python_that_is_not_there() -> None:
    done = sanitize("test", "thread", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "no /nowhere/python" in done.stderr
