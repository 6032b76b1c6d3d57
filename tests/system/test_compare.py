"""``make compare``: it runs, and the page in the docs says what its figures say and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from nights import nightly

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "flow-controls.md"
FOLDER = PAGE.with_suffix("")
STORIES = ["slow", "eight", "burst", "stops", "speed", "barrier"]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    import compare_page

    return compare_page


@pytest.fixture
def figures() -> Any:
    return json.loads((FOLDER / "figures.json").read_text())


@nightly
def test_it_runs(tmp_path: Path) -> None:
    """Every story under every flow control, a twentieth as long."""
    command = [sys.executable, str(ROOT / "benches" / "compare.py"), "--quick", "--to", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "flow-controls" / "figures.json").read_text())
    assert list(made["stories"]) == STORIES
    text = (tmp_path / "flow-controls.md").read_text()
    for name, story in made["stories"].items():
        assert all(way["throughput"] > 0 for way in story["ways"].values())
        assert f"flow-controls/{name}.svg" in text
        ElementTree.parse(tmp_path / "flow-controls" / f"{name}.svg")


def test_the_page_says_what_its_figures_say(page: Any, figures: Any) -> None:
    assert page.untrue(figures) == []
    assert PAGE.read_text() == page.written(figures)
    for name, story in figures["stories"].items():
        assert (FOLDER / f"{name}.svg").read_text() == page.drawn(story)


@pytest.mark.parametrize("story", STORIES)
def test_a_sentence_that_its_figures_do_not_bear_out_is_found(page: Any, figures: Any, story: str) -> None:
    ways = figures["stories"][story]["ways"]
    ways["credit"], ways["watermark"] = ways["watermark"], ways["credit"]
    assert [wrong.partition(":")[0] for wrong in page.untrue(figures)] == [story]


def test_bytes_between_two_notes_are_in_proportion(page: Any) -> None:
    rows = [(1.0, [10, 1]), (2.0, [30, 1])]
    everything = slice(None)
    assert [page.at(rows, when, everything) for when in (0.5, 1.0, 1.5, 2.5)] == [0, 11, 21, 31]
    assert page.at(rows, 1.5, slice(0, 1)) == 20
