"""Stubs are kept true by ``stubtest``: as ``make lint`` calls it, it passes, and it sees a stub that is not true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nights import nightly

pytest.importorskip("mypy", reason="stubtest is mypy's: pip install 'fastbuf[lint]'")
ROOT = Path(__file__).resolve().parents[2]


def stubtest(folder: Path, modules: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """What the recipe of ``make lint`` runs, in a folder."""
    recipe = subprocess.run(["make", "-n", "lint"], capture_output=True, text=True, check=False, cwd=ROOT).stdout
    (command,) = re.findall(r"^\S*/stubtest (.*?[^\\])$", recipe, re.DOTALL | re.MULTILINE)
    arguments = shlex.split(command.replace("\\\n", " "))
    named = [argument for argument in arguments if argument.startswith("fastbuf.")]
    assert len(named) > 20
    if modules is not None:
        arguments = [argument for argument in arguments if argument not in named] + modules
    return subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'bindings'}"},
    )


@nightly
def test_stubs_say_what_the_extensions_have() -> None:
    done = stubtest(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@nightly
def test_a_stub_that_is_not_true_is_seen(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.c", "__pycache__")
    for folder in ("fastbuf", "bindings", ".ci"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    stub = tmp_path / "fastbuf" / "serializers" / "lazy.pyi"
    text = stub.read_text()
    assert "def release(self)" in text
    stub.write_text(text.replace("def release(self)", "def release_all(self, at_once: bool)"))
    done = stubtest(tmp_path, ["fastbuf.serializers.lazy"])
    assert done.returncode == 1
    assert "fastbuf.serializers.lazy.LazyRows.release_all is not present at runtime" in done.stdout
