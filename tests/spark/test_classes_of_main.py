"""Classes of ``__main__`` stay the classes that they are: those of a script, and those of a notebook's cells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nights import nightly

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent
PROGRAM = str(HERE / "classes_of_main.py")


@nightly(cases=11)
@pytest.mark.parametrize(
    ("program", "cases"), [((PROGRAM, "spark"), 23), ((str(HERE / "cells.py"), PROGRAM, "fastbuf"), 11)]
)
def test_every_verb_gives_what_spark_gives(program: tuple[str, ...], cases: int) -> None:
    root = HERE.parents[1]
    path = [str(root), str(root / "bindings"), str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run([sys.executable, *program], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout == f"{cases} cases\n", run.stdout + run.stderr
