"""The page about checkpoints under back pressure has the figures that were measured, and pictures drawn of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "explanation"
PAGE = (FOLDER / "checkpoints-and-pressure.md").read_text()
FIGURES = json.loads((FOLDER / "pressure.json").read_text())


def test_pictures_are_those_that_the_code_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    import plot_barriers

    shutil.copy(FOLDER / "pressure.json", tmp_path)
    plot_barriers.main(tmp_path)
    for name in ("barriers.svg", "pressure.svg"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), "python benches/plot_barriers.py FOLDER"


def test_the_tables_have_the_figures_that_were_measured() -> None:
    def both(part: dict[str, Any]) -> str:
        return f"{part['median']:.2g} ({part['most']:.2g})"

    for each in FIGURES["core"]:
        row = f"| `{each['way']}` | {both(each['start_delay_s'])} | {both(each['alignment_s'])} | "
        assert f"{row}{each['complete']} of {each['of']} |" in PAGE
    for each in FIGURES["spark"]:
        parts = [f"{each[f'{name}_s']:.2g}" for name in ("duration", "start_delay", "alignment", "sync", "async")]
        assert f"| {' | '.join(parts)} |" in PAGE


def test_credit_keeps_a_barrier_short() -> None:
    """What the page says of its figures."""
    ways = {(each["way"], each["rate"]): each["start_delay_s"]["median"] for each in FIGURES["core"]}
    for rate in (2.0, 1.0, 0.5):
        assert ways["watermark", rate] > 10 * ways["credit", rate]


def test_alignment_is_of_channels_that_differ() -> None:
    """With state on Spark: nothing where both are held back alike, much where one task before is slow."""
    *alike, uneven = FIGURES["spark"]
    assert all(each["alignment_s"] < 0.05 for each in alike)
    assert uneven["alignment_s"] > 0.3 * uneven["start_delay_s"]
