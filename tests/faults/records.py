"""What the tasks of a run told, kept in a file and judged again: rules are compared on the very same runs."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fastbuf as fb
from fastbuf.monitor import collector

Kept = list[tuple[float, list[dict[str, Any]]]]


class Recorded(fb.Monitor):
    """A monitor that keeps all that it is told, with the second in which it was."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Kept = []

    def take(self, reports: Iterable[dict[str, Any]]) -> None:
        told = list(reports)
        self.kept.append((time.monotonic(), told))
        super().take(told)


@contextlib.contextmanager
def recorded_in_spark(kept: Kept) -> Iterator[None]:
    """While this holds, what Spark's driver is told is kept as well."""
    from fastbuf_spark.driver.summary import RunSummary

    tells = RunSummary.tells

    def keep(summary: RunSummary, side: str, partition: int, stats: dict[str, Any]) -> None:
        told = {"name": summary.name, "number": summary.number, "side": side, "partition": partition, "figures": stats}
        kept.append((time.monotonic(), [told]))
        tells(summary, side, partition, stats)

    with mock.patch.object(RunSummary, "tells", keep):
        yield


def write(path: Path, kept: Kept, ticks: list[float], header: dict[str, Any]) -> None:
    """The reports of a run, and when verdicts were taken."""
    with gzip.open(path, "wt") as file:
        file.write(json.dumps({**header, "ticks": ticks}) + "\n")
        for moment, told in kept:
            file.write(json.dumps([moment, told]) + "\n")


def again(path: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """The header of a record, and what is said now at each of its ticks."""
    with gzip.open(path, "rt") as file:
        header = json.loads(file.readline())
        kept = [json.loads(line) for line in file]
    now = [0.0]
    said = []
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    if "runs" in header:
        return header, _again_in_spark(header, kept, now, clock)
    with mock.patch.object(collector, "time", clock):
        monitor = fb.Monitor()
        for tick in header["ticks"]:
            while kept and kept[0][0] <= tick:
                now[0], told = kept.pop(0)
                monitor.take(told)
            now[0] = tick
            said.append(monitor.snapshot())
    return header, said


def in_spark(runs: Iterable[Any]) -> list[dict[str, Any]]:
    """Runs as a monitor's snapshot has them."""
    return [
        {
            "stages": ("producers", run.name),
            "producers": dict(run.producers),
            "consumers": dict(run.consumers),
            "diagnosis": run.diagnosis,
        }
        for run in runs
    ]


def _again_in_spark(header: dict[str, Any], kept: Kept, now: list[float], clock: Any) -> list[list[dict[str, Any]]]:
    from fastbuf_spark.driver import summary

    runs: dict[int, Any] = {}
    said = []
    with mock.patch.object(summary, "time", clock):
        for tick, numbers in zip(header["ticks"], header["runs"], strict=True):
            while kept and kept[0][0] <= tick:
                now[0], (told,) = kept.pop(0)
                run = runs.setdefault(told["number"], summary.RunSummary("", told["name"], "pipelined"))
                run.tells(told["side"], told["partition"], told["figures"])
            now[0] = tick
            said.append(in_spark(runs[number] for number in numbers if number in runs))
    return said
