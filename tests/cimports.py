"""The package of the page on Cython, built against a fastbuf that is installed somewhere, and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "howto" / "use-segments-from-cython.md"
TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path, path: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def build_and_use(folder: Path, installed: Path, python: str = sys.executable) -> None:
    """Build the page's files in `folder` with the fastbuf of the folder `installed`; `python` runs the result."""
    files = dict(TITLED.findall(PAGE.read_text()))
    assert set(files) == {"fill.pyx", "setup.py", "pyproject.toml", "use_fill.py"}
    for name, text in files.items():
        (folder / name).write_text(text)
    run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], folder, installed)
    assert str(installed / "fastbuf" / "_native") in (folder / "fill.c").read_text()[:2000]  # which headers it is of
    run([python, "use_fill.py"], folder, installed)
