"""Used by all layers: a case is one piece of work; the ways to do it are measured in turn."""

from __future__ import annotations

import datetime
import importlib.util
import math
import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import fastbuf

Way = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    """How much work is done.

    Parameters
    ----------
    divide
        Divisor for the cases' numbers of items.
    seconds
        Measuring time of a case; at least ``rounds`` rounds are done.
    least_s
        A faster way runs several times per round, so that the clock's resolution does not matter.
    """

    divide: int
    seconds: float
    rounds: int
    least_s: float


FULL = Size(divide=1, seconds=5.0, rounds=5, least_s=0.02)
QUICK = Size(divide=20, seconds=0.1, rounds=3, least_s=0.001)


class LeftOut(Exception):
    """A case, or a layer, that cannot be measured here; the text has the reason and the remedy."""


@dataclass(frozen=True)
class Case:
    """One piece of work and every way to do it; the first way is fastbuf's, the reference of the ratios.

    Every way does all of the work, and checks it at the same cost for all.
    """

    name: str
    unit: str
    items: int
    ways: dict[str, Way]
    left_out: list[str] = field(default_factory=list)

    def figures(self, layer: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
        """The case's part of the JSON file."""
        medians = {way: median(runs) for way, runs in seconds.items()}
        base = next(iter(medians.values()))
        ways = {
            way: {
                "ns": medians[way] / self.items * 1e9,
                "best_ns": min(runs) / self.items * 1e9,
                "rounds": len(runs),
                "ratio": medians[way] / base,
            }
            for way, runs in seconds.items()
        }
        return {"layer": layer, "name": self.name, "unit": self.unit, "items": self.items, "ways": ways}


MakeCase = Callable[[Size], AbstractContextManager[Case]]


@dataclass(frozen=True)
class Suite:
    """The cases of a layer; each gets ``share`` of the usual seconds; ``setup_s`` is the time before the first case."""

    layer: str
    cases: tuple[MakeCase, ...]
    share: float = 1.0
    setup_s: float = 0.0


def measure(case: Case, size: Size, share: float, tick: Callable[[float], None]) -> dict[str, list[float]]:
    """Seconds of each call of each way: the ways run in turn, every other round backwards.

    So a slow period of the machine affects all ways.  The first run of each is not counted (pages, caches, workers);
    the second decides how often a way is called per round.
    """
    order = list(case.ways)
    repeats: dict[str, int] = {}
    for way in order:
        case.ways[way]()
        began = time.perf_counter()
        case.ways[way]()
        repeats[way] = max(1, math.ceil(size.least_s / max(time.perf_counter() - began, 1e-9)))
    seconds: dict[str, list[float]] = {way: [] for way in order}
    whole = size.seconds * share
    start = time.perf_counter()
    rounds = 0
    while rounds < size.rounds or time.perf_counter() - start < whole:
        for way in order if rounds % 2 == 0 else order[::-1]:
            work, again = case.ways[way], range(repeats[way])
            began = time.perf_counter()
            for _ in again:
                work()
            seconds[way].append((time.perf_counter() - began) / len(again))
        rounds += 1
        tick(min(1.0, (time.perf_counter() - start) / whole))
    return seconds


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def need(package: str, layer: str, extra: str) -> None:
    if not installed(package):
        raise LeftOut(f"{layer}: {package} is not installed (pip install 'fastbuf[{extra}]')")


def machine() -> dict[str, Any]:
    """The machine and the versions: a ratio depends on both."""
    versions = {"fastbuf": fastbuf.__version__}
    for package in ("numpy", "pyarrow", "msgspec", "msgpack", "polars", "pyspark"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[0], 2),
            "kernel": platform.release(),
        },
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
