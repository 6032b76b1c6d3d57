"""``fastbuf bench`` as a user types it: every layer, each beside its peers, at a tiny size."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from nights import nightly
from test_cli import fastbuf

LAYERS = ["pool", "rows", "columns", "partition", "exchange", "spark"]
SHORT = ["pool", "rows", "columns", "partition"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layers", [SHORT, pytest.param(LAYERS, marks=nightly)], ids=["short", "all"])
def test_every_layer_is_measured_beside_what_one_would_take_instead(layers: list[str], tmp_path: Path) -> None:
    only = [] if layers is LAYERS else [word for layer in layers for word in ("--only", layer)]
    first = fastbuf("bench", "--quick", *only, "--json", "first.json", cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    found = json.loads((tmp_path / "first.json").read_text())
    assert list(dict.fromkeys(case["layer"] for case in found["cases"])) == layers
    assert found["failed"] == []
    for case in found["cases"]:
        base, *others = case["ways"]
        assert base.startswith("fastbuf"), case["name"]
        assert any(not way.startswith("fastbuf") for way in others), case["name"]
        for way, figures in case["ways"].items():
            assert figures["ns"] >= figures["best_ns"] > 0
            assert figures["ratio"] == pytest.approx(figures["ns"] / case["ways"][base]["ns"]), way
    peers = {way for case in found["cases"] for way in case["ways"]}
    assert peers >= {"pickle 5", "pyarrow IPC", "msgspec, Structs"}
    if layers is LAYERS:
        assert peers >= {"queue.Queue", "multiprocessing.Queue", "Spark's own shuffle"}
    second = fastbuf(
        *("bench", "--quick", "--only", "rows", "--only", "pool"),
        *("--compare", "first.json", "--json", "first.json", "--svg", "plot.svg"),
        cwd=tmp_path,
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"beside {found['date']}" in " ".join(second.stdout.split())
    assert "these figures say nothing" in second.stdout
    assert {case["layer"] for case in json.loads((tmp_path / "first.json").read_text())["cases"]} == {"pool", "rows"}
    ET.parse(tmp_path / "plot.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "plot.svg"]


def test_what_cannot_be_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    for arguments, told in (
        (("--only", "colums"), "colums: it must be one of pool, rows, columns"),
        (("--compare", "nowhere.json"), "nowhere.json"),
        (("--json", "no/such/folder.json"), "there is no folder"),
    ):
        said = fastbuf("bench", *arguments, cwd=tmp_path, timeout=60)
        assert said.returncode != 0
        assert told in " ".join(said.stderr.split()), said.stderr
        assert "cases in" not in said.stdout
