"""What a build lacks is named at once, with how to get it, before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("uname", "sed", "head", "printf", "cat", "env")  # what the script itself calls


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has a shell's helpers, and neither Python nor compiler nor Java."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / tool).symlink_to(found)
    return {"PATH": str(tmp_path)}


def need(environment: dict[str, str], *things: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(ROOT / ".ci" / "need"), *things],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def test_all_is_here() -> None:
    """These tests run: so there is a Python, and the extensions were built."""
    done = need({**os.environ, "PYTHON": sys.executable}, "python", "compiler", "java")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_everything_that_is_missing_is_named_at_once(bare: dict[str, str]) -> None:
    done = need(bare, "python", "compiler", "java")
    assert done.returncode == 1
    for expected in ("Python >= 3.11", "a C11 compiler", "Java >= 17", "apt-get", "dnf", "brew", "sdk install java"):
        assert expected in done.stderr
    assert "Nothing was installed or built" in done.stderr


def test_only_what_a_target_needs_is_asked_for(bare: dict[str, str]) -> None:
    done = need({**bare, "PYTHON": sys.executable}, "python")
    assert done.returncode == 0, done.stderr


def test_a_python_that_is_too_old(bare: dict[str, str], tmp_path: Path) -> None:
    script(tmp_path, "python3", 'case $1 in --version) echo "Python 3.8.1";; *) exit 1;; esac')
    done = need(bare, "python")
    assert done.returncode == 1
    assert "python3 is Python 3.8.1" in done.stderr


@pytest.mark.parametrize(
    ("said", "code"),
    [('openjdk version "17.0.15" 2025-04-15', 0), ('java version "1.8.0_402"', 1), ('openjdk version "11.0.2"', 1)],
)
def test_java_versions(said: str, code: int, bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home" / "bin").mkdir(parents=True)
    script(tmp_path / "home" / "bin", "java", f"echo '{said}' >&2")
    done = need({**bare, "JAVA_HOME": str(tmp_path / "home")}, "java")
    assert done.returncode == code, done.stderr
    assert ("Java >= 17" in done.stderr) == bool(code)


def test_make_stops_before_it_installs(bare: dict[str, str], tmp_path: Path) -> None:
    make, shell = shutil.which("make"), shutil.which("sh")
    assert make
    assert shell
    (tmp_path / "sh").symlink_to(shell)
    for tool in ("find", "getconf"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/true")
    venv = tmp_path / "venv"
    done = subprocess.run(
        [make, "-C", str(ROOT), "demo", f"VENV={venv}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=bare,
    )
    assert done.returncode != 0
    assert "missing: Java >= 17" in done.stderr
    assert not venv.exists()
