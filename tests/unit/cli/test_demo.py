"""What the demo says fits a terminal of 80 characters."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from fastbuf.cli.demo import show_times
from fastbuf.cli.ways import FASTBUF, LIFTED, SPARK, Measured


def test_figures_are_shown_in_full_on_a_narrow_terminal() -> None:
    run = SimpleNamespace(producers={0: {"transports": {"memfd": 1}}, 1: {"transports": {"tcp": 2}}})
    results = {
        way: Measured(way, [seconds], bytes_moved=120_000_000, rows_moved=5_256_336, runs=[run] * (way == FASTBUF))
        for way, seconds in ((FASTBUF, 3.07), (SPARK, 12.08), (LIFTED, 10.19))
    }
    said = Console(file=io.StringIO(), width=80)
    show_times(said, results, 2_694_208, "title")
    shown = said.file.getvalue()  # type: ignore[attr-defined]
    for expected in (
        "seconds",
        "times Spark",
        "3.07",
        "12.08",
        "877,592",
        "3.93 x",
        "5,256,336 rows",
        "120 MB",
        "files",
    ):
        assert expected in shown, shown
    for expected in ("shared", "memory", "sockets"):
        assert expected in shown, shown
    assert max(map(len, shown.splitlines())) <= 80
