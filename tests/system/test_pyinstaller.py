"""A program that PyInstaller makes has all that fastbuf imports and reads."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from nights import nightly

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    import fastbuf as fb
    from fastbuf.monitor.routes import page_files

    rows = fb.RowSerializer(fb.Schema.of(id="int64", name="string"))
    with fb.ShuffleEnvironment(segments=64, shared=True) as a, fb.ShuffleEnvironment(segments=64, shared=True) as b:
        a.listen()
        gate = a.create_input_gate(rows, channels=1)
        with b.create_result_partition(rows, [gate.address]) as writer:
            writer.emit((1, "one"))
        print(list(gate), len(page_files()) > 3)
"""


def entry_point() -> str:
    return str(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pyinstaller40"]["hook-dirs"]
    )


def test_the_entry_point_names_the_folder_of_the_hook() -> None:
    module, _, name = entry_point().partition(":")
    (folder,) = getattr(importlib.import_module(module), name)()
    assert (Path(folder) / "hook-fastbuf.py").is_file()


@nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("PyInstaller") is None, reason="PyInstaller is not installed: pip install 'fastbuf[test]'"
)
def test_a_frozen_program_runs(tmp_path: Path) -> None:
    """It lacked fastbuf._cyutility, which extensions alone import."""
    installed = tmp_path / "site" / "fastbuf-0.dist-info"  # what pip writes of the entry point
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: fastbuf\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[pyinstaller40]\nhook-dirs = {entry_point()}\n")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    path = os.pathsep.join(filter(None, [str(installed.parent), str(ROOT), os.environ.get("PYTHONPATH")]))
    others = ("pyarrow", "pandas", "pyspark", "polars", "uvicorn", "IPython", "matplotlib", "scipy", "tkinter")
    made = subprocess.run(
        [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", str(program)]
        + [word for name in others for word in ("--exclude-module", name)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYINSTALLER_CONFIG_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-4000:]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [tmp_path / "dist/program/program"],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(1, 'one')] True\n"
