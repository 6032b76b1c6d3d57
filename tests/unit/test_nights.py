"""What CI leaves out is run by ``make nightly``, and what is left out is what the marks say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import native
import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from nights import LONG, left_for_the_night

def pytest_collection_modifyitems(items):
    if not LONG:
        left = left_for_the_night(items)
        items[:] = [item for item in items if item not in left]
"""
TESTS = """
import pytest
from nights import nightly

def test_by_day():
    pass

@nightly
def test_by_night():
    pass

@pytest.mark.parametrize("mode", ["a", "b"])
@nightly(mode="b")
def test_value(mode):
    pass

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("mode", ["a", "b"])
@nightly(mode="b", size=[2, 3])
def test_values(size, mode):
    pass

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("mode", ["a", "b"])
@nightly(but_one="mode")
def test_in_turn(size, mode):
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=nightly)])
def test_marked_value(size):
    pass
"""
BY_DAY = [
    "test_by_day",
    *("test_value[a]", "test_values[a-1]", "test_values[a-2]", "test_values[a-3]", "test_values[b-1]"),
    *("test_in_turn[a-2]", "test_in_turn[b-1]", "test_in_turn[b-3]"),
    "test_marked_value[1]",
]


def collected(
    folder: Path, tests: str, long: str, name: str = "test_it.py", start: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(start + CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: at night\n")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": "", "FASTBUF_LONG": long},
    )


@pytest.mark.parametrize(("long", "count"), [("0", len(BY_DAY)), ("1", 18)])
def test_what_runs(tmp_path: Path, long: str, count: int) -> None:
    done = collected(tmp_path, TESTS, long)
    names = re.findall(r"^test_it.py::(\S+)$", done.stdout, re.MULTILINE)
    assert len(names) == count, done.stdout + done.stderr
    if long == "0":
        assert sorted(names) == sorted(BY_DAY)


def test_a_mode_of_each_test_of_spark_runs_by_day(tmp_path: Path) -> None:
    """Where nothing is said; and of many tests each mode has its share."""
    unmarked = '@pytest.mark.parametrize("mode", ["a", "b"])\ndef test_number_{}(mode):\n    pass\n\n'
    many = TESTS.replace("test_values", "test_sizes") + "".join(unmarked.format(n) for n in range(10))
    done = collected(tmp_path, many, "0", "spark/test_it.py")
    names = re.findall(r"^spark/test_it.py::(\S+)$", done.stdout, re.MULTILINE)
    numbered = [name for name in names if "number" in name]
    assert sorted(name[:13] for name in numbered) == [f"test_number_{n}" for n in range(10)]
    assert {name[-2:] for name in numbered} == {"a]", "b]"}
    assert "test_value[a]" in names
    assert len([name for name in names if "test_in_turn" in name]) == 3


def test_a_parameter_that_a_test_has_not_is_refused(tmp_path: Path) -> None:
    done = collected(tmp_path, TESTS + '@nightly(mod="a")\ndef test_wrong():\n    pass\n', "0")
    assert done.returncode == 4
    assert "test_wrong is nightly by 'mod': its parameters are []" in done.stderr + done.stdout


@pytest.mark.parametrize("folder", ["models", "stress"])
def test_models_are_left_while_native_code_is_as_it_was_checked(tmp_path: Path, folder: str) -> None:
    """And run by day from its next change on, and where nothing is recorded."""
    record = tmp_path / "record"
    start = (
        f"import native, pathlib; native.RECORD = pathlib.Path({str(record)!r}); native.LEFT = native.is_checked()\n"
    )

    def runs(recorded: str) -> bool:
        record.write_text(recorded)
        done = collected(tmp_path, "def test_model():\n    pass\n", "0", f"{folder}/test_it.py", start)
        return "test_model" in done.stdout

    assert runs("")
    assert not runs(native.digest())
    assert runs("0" * 64)


def test_what_native_code_is() -> None:
    """Each source of an extension, its tests and its build, none of what Cython makes of it."""
    names = {str(path.relative_to(ROOT)) for path in native.files()}
    rooms = [str(path.relative_to(ROOT)) for path in (ROOT / "fastbuf").rglob("*.p[yx][xd]")]
    assert {name for name in rooms if name.endswith(".pyx")} <= names
    assert {"setup.py", ".ci/sanitize", "tests/models/checker/pool.c", "fastbuf/_native/fb_sort.h"} <= names
    assert not [name for name in names if name.startswith("fastbuf") and name.endswith((".c", ".so"))]


def test_the_night_runs_what_the_day_leaves_out() -> None:
    """The mark is known, some tests have it, and both ways to a nightly run take them all."""
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    assert [text for text in markers if text.startswith("nightly:")]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "import nightly" in path.read_text()]
    assert len(marked) > 20
    (recipe,) = re.findall(r"^nightly:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "FASTBUF_LONG=1 $(MAKE) test\n" in recipe
    assert "FASTBUF_LONG=1 $(MAKE) debug-test tsan-test asan-test\n" in recipe
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert workflow.count('FASTBUF_LONG: "1"') == workflow.count("- run: make")
