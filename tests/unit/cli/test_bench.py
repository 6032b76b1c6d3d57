"""``fastbuf bench``: how ways are measured, compared and drawn, and that one that fails stops no other."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastbuf.cli import bench
from fastbuf.cli.bench import bars, between
from fastbuf.cli.bench.measure import QUICK, Case, LeftOut, Size, Suite, measure
from fastbuf.cli.bench.report import compared, read
from fastbuf.errors import ConfigError

THREE_ROUNDS = Size(divide=1, seconds=1e-9, rounds=3, least_s=0.0)


def result(peer: float, date: str = "2026-01-01") -> dict[str, Any]:
    ways = {
        way: {"ns": 10 * r, "best_ns": 9 * r, "rounds": 3, "ratio": r}
        for way, r in {"fastbuf": 1, "peer": peer}.items()
    }
    case = {"layer": "pool", "name": "a <case>", "unit": "segment", "items": 10, "ways": ways}
    where = {
        "machine": {"processor": "one", "cores": 2, "load": 0.1},
        "python": "3.11.0",
        "versions": {"fastbuf": "0.2.0"},
    }
    return {"format": 1, "quick": False, "date": date, **where, "cases": [case], "left_out": [], "failed": []}


def said(*shown: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    for one in shown:
        console.print(one)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_ways_are_measured_in_turn_and_every_other_round_backwards() -> None:
    calls: list[str] = []
    case = Case("a case", "call", 1, {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    seconds = measure(case, THREE_ROUNDS, 1.0, lambda part: None)
    assert "".join(calls) == "aabb" + "ab" + "ba" + "ab"
    assert {way: len(runs) for way, runs in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_of_medians_and_a_time_of_one_item() -> None:
    case = Case("a case", "row", 1000, {"ours": print, "theirs": print})
    figures = case.figures("rows", {"ours": [1e-3, 2e-3, 9e-3], "theirs": [8e-3, 4e-3, 1e-3]})["ways"]
    assert figures["ours"]["ratio"] == 1
    assert figures["theirs"]["ratio"] == 2
    assert figures["theirs"]["ns"] == pytest.approx(4000)
    assert figures["theirs"]["best_ns"] == pytest.approx(1000)


def test_two_runs_are_compared_by_their_ratios() -> None:
    text = said(*compared(result(2.0, "2025-12-24"), result(3.0)))
    assert "beside 2025-12-24" in text
    assert "gained 50%" in text
    assert "lost 33%" in said(*compared(result(3.0), result(2.0)))
    other = result(2.0) | {"python": "3.12.0", "machine": {"processor": "one", "cores": 2, "load": 7.0}}
    told = said(*compared(other, result(2.0)))
    assert "Not the same: Python: 3.12.0 then, 3.11.0 now" in told
    assert "machine" not in told  # its load is another every minute


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', "no json"])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(ConfigError, match=r"--compare .*old\.json"):
        read(tmp_path / "old.json")
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        read(tmp_path / "nowhere.json")


def test_a_file_without_what_is_compared_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    whole = result(2.0)
    for name in ("cases", "date"):
        (tmp_path / "old.json").write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        with pytest.raises(ConfigError, match=f"not as fastbuf bench --json wrote it: .*{name}"):
            read(tmp_path / "old.json")
    (tmp_path / "old.json").write_text(json.dumps(whole | {"cases": [{"layer": "pool", "name": "x", "ways": {}}]}))
    with pytest.raises(ConfigError, match="not as fastbuf bench --json wrote it"):
        read(tmp_path / "old.json")


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    bench._write(pipe, "figures")
    assert os.read(reader, 100) == b"figures"
    os.close(reader)
    assert pipe.is_fifo()
    link, behind = tmp_path / "link.json", tmp_path / "behind.json"
    link.symlink_to(behind)
    bench._write(link, "figures")
    assert link.is_symlink()
    assert behind.read_text() == "figures"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["behind.json", "link.json", "pipe"]


@pytest.mark.parametrize("ratio", [0.003, 0.5, 1.0, 250.0])
def test_the_plot_has_a_bar_for_each_way_and_is_well_formed(ratio: float) -> None:
    root = ET.fromstring(bars.draw(result(ratio)))
    name = "{http://www.w3.org/2000/svg}"
    background, ours, theirs = root.iter(f"{name}rect")
    assert background.get("width") == root.get("width")
    assert "a <case>" in "".join(text.text or "" for text in root.iter(f"{name}text"))
    right = float(theirs.get("x", 0)) + float(theirs.get("width", 0))
    assert 0 < float(theirs.get("x", 0)) < right < float(root.get("width", 0))
    one = float(ours.get("x", 0))
    assert (float(theirs.get("x", 0)) < one) == (ratio < 1)


def test_a_case_that_fails_stops_no_other_and_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextmanager
    def fails(size: Size) -> Iterator[Case]:
        yield Case("broken", "call", 1, {"ours": lambda: 1 // 0})

    @contextmanager
    def lacks(size: Size) -> Iterator[Case]:
        raise LeftOut("beta: nothing is installed")
        yield

    @contextmanager
    def works(size: Size) -> Iterator[Case]:
        yield Case("whole", "call", 1, {"ours": lambda: None, "theirs": lambda: None})

    monkeypatch.setattr(
        bench, "SUITES", (Suite("alpha", (fails,)), Suite("beta", (lacks, lacks)), Suite("gamma", (works,)))
    )
    console = Console(file=io.StringIO(), width=100)
    assert bench.run(console, quick=True, json_path=tmp_path / "out.json") == 1
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4 cases in alpha, beta, gamma" in text
    assert "Failed: alpha: ZeroDivisionError" in text
    assert text.count("Left out: beta: nothing is installed") == 1
    assert [case["name"] for case in json.loads((tmp_path / "out.json").read_text())["cases"]] == ["whole"]
    assert bench.run(console, quick=True, only=("gamma",)) == 0


def test_ctrl_c_ends_it_even_if_cleaning_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has got it too: its pipe is broken."""

    @contextmanager
    def stopped(size: Size) -> Iterator[Case]:
        try:
            raise KeyboardInterrupt
        finally:
            raise BrokenPipeError
        yield

    monkeypatch.setattr(bench, "SUITES", (Suite("alpha", (stopped, stopped)),))
    with pytest.raises(KeyboardInterrupt):
        bench.run(Console(file=io.StringIO()), quick=True)


def test_ctrl_c_waits_for_no_thread_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(lists: Any) -> tuple[int, int]:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with between.threads(QUICK) as case:
        monkeypatch.setattr(between, "count_tuples", stopped)
        with pytest.raises(KeyboardInterrupt):
            case.ways["queue.Queue"]()
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)


def test_ctrl_c_while_another_process_reads_ends_it_at_once_and_quietly() -> None:
    program = """
import os, signal, threading
from rich.console import Console
from fastbuf.cli import bench
from fastbuf.cli.bench import between

started = between.Peer.__init__

def start(self, stack, target, *arguments):
    started(self, stack, target, *arguments)
    if target is between.read_queue:
        self.way = lambda send, expected: lambda: (self.control.send(True), send(), os.killpg(0, signal.SIGINT))

between.Peer.__init__ = start
bench.run(Console(), quick=True, only=("exchange",))
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as done:
        _, err = done.communicate(timeout=60)
    assert done.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1  # that of the program
