"""``make bench`` tells before it begins what will run and how long about, and runs to its end in one go."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import time
import pytest

@pytest.mark.parametrize("way", ["a", "b"])
def test_works(in_turn, way):
    in_turn({"ours": lambda: time.sleep(0.001)}, rounds=2, baselines=("ours",))

def test_fails(in_turn):
    in_turn({"ours": lambda: 1 // 0})

def test_is_left_out():
    pytest.skip("not here")

def test_comes_last(in_turn):
    in_turn({"ours": lambda: None}, rounds=2, baselines=("ours",))
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # A worker of pytest-xdist names itself in the environment, and pytest-benchmark then refuses to measure.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=folder,
        env={**inherited, **environment},
    )


def test_it_names_every_suite_and_about_how_long_it_takes() -> None:
    said = run(ROOT, "benches", "--benchmark-only", "--collect-only").stdout
    suites = sorted(path.name for path in (ROOT / "benches").glob("bench_*.py"))
    told = re.findall(r"^  (bench_\w+\.py) +(\d+)  about (.*)$", said, re.MULTILINE)
    assert [name for name, _, _ in told] == suites
    shipped = json.loads((ROOT / "benches" / "seconds.json").read_text())
    assert [name for name in suites if name != "bench_flink.py" and not any(n.startswith(name) for n in shipped)] == []
    total = re.search(
        r"^(\d+) benches of (\d+) suites, about (\d+) min; all tables come at the end", said, re.MULTILINE
    )
    assert total
    assert int(total[1]) == sum(int(number) for _, number, _ in told)
    assert int(total[3]) > 1


def test_one_that_fails_stops_no_other_and_the_next_plan_knows_more(tmp_path: Path) -> None:
    (tmp_path / "benches").mkdir()
    shutil.copy(ROOT / "benches" / "conftest.py", tmp_path / "benches")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "benches" / "bench_some.py").write_text(SUITE)
    arguments = ("benches", "--benchmark-only", "--benchmark-json=last.json")
    first = run(tmp_path, *arguments, FASTBUF_BENCH_SMOKE="0")
    assert first.returncode == 1
    assert "5 benches of 1 suites, about 0 s" in first.stdout
    assert re.search(r"bench_some.py +5  about not known", first.stdout)
    assert "1 failed, 3 passed, 1 skipped" in first.stdout
    known = json.loads((tmp_path / ".benchmarks" / "seconds.json").read_text())
    assert sorted(known) == [f"bench_some.py::test_{name}" for name in ("comes_last", "works[a]", "works[b]")]
    known["bench_some.py::test_comes_last"] = 600.0
    (tmp_path / ".benchmarks" / "seconds.json").write_text(json.dumps(known))
    second = run(tmp_path, *arguments, "--collect-only")
    assert re.search(r"bench_some.py +5  about 10 min, and 2 that have not run yet", second.stdout)


def test_the_tables_come_when_a_bench_has_failed_and_the_exit_code_tells() -> None:
    recipe = subprocess.run(["make", "-n", "bench"], capture_output=True, text=True, check=False, cwd=ROOT).stdout
    assert re.search(r"pytest benches .*; \\?\n?\s*code=\$\?; .*report\.py .* && exit \$code", recipe), recipe
