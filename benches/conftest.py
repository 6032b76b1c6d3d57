"""What every bench shares: ways measured in turn, where it ran, and how long it will take."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import pytest

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
SHIPPED = Path(__file__).with_name("seconds.json")  #: what each bench takes on a machine of two cores
SO_FAR = Path(__file__).parents[1] / ".benchmarks" / "so-far.txt"  #: medians of each bench as it ends
LAST = Path(__file__).parents[1] / ".benchmarks" / "seconds.json"  #: what each took here, as far as it has run
_taken: dict[str, float] = {}
#: Where two_trees.py says what to run; None: pytest alone decides
_told_by = Connection(int(os.environ["FASTBUF_BENCH_TOLD"])) if "FASTBUF_BENCH_TOLD" in os.environ else None


def _seconds(path: Path) -> dict[str, float]:
    try:
        return json.loads(path.read_text())  # type: ignore[no-any-return]
    except (OSError, ValueError):
        return {}


def _long(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def pytest_configure(config: pytest.Config) -> None:
    """Tells two_trees.py which fastbuf is measured."""
    if _told_by is not None:
        import fastbuf

        _told_by.send(str(Path(fastbuf.__file__).parent))


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Before anything runs: which suites, and about how long each takes, as it took here or as it is shipped."""
    known = {**_seconds(SHIPPED), **_seconds(LAST)}
    suites: dict[str, list[str]] = {}
    for item in items:
        suites.setdefault(item.path.name, []).append(item.nodeid.rpartition("benches/")[2])
    every = [name for names in suites.values() for name in names]
    if SMOKE:
        return [f"{len(every)} benches of {len(suites)} suites, each once and tiny: some minutes, and no figures"]
    total = sum(known.get(name, 0.0) for name in every)
    lines = [f"{len(every)} benches of {len(suites)} suites, about {_long(total)}; all tables come at the end"]
    for suite, names in suites.items():
        took = [known[name] for name in names if name in known]
        about = _long(sum(took)) if took else "not known"
        new = f", and {len(names) - len(took)} that have not run yet" if 0 < len(took) < len(names) else ""
        lines.append(f"  {suite:<26} {len(names):>3}  about {about}{new}")
    load = os.getloadavg()[0]
    if load > 0.5:
        lines.append(f"The load is {load:.1f}: what else runs here falls on all ways alike, but figures will scatter")
    return lines


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("benches/")[2]
    _taken[name] = _taken.get(name, 0.0) + report.duration
    if report.outcome != "passed":
        _taken[name] = -1e9  # failed or skipped: says nothing of its time


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = {name: round(seconds, 1) for name, seconds in _taken.items() if seconds >= 0}
    if found and not SMOKE and not hasattr(session.config, "workerinput"):
        LAST.parent.mkdir(exist_ok=True)
        LAST.write_text(json.dumps({**_seconds(LAST), **found}, indent=1, sort_keys=True) + "\n")


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Adds what a ratio depends on: cores this process may use, load at the start, commit, build."""
    machine_info["cores_usable"] = len(os.sched_getaffinity(0))
    machine_info["load_1min"] = round(os.getloadavg()[0], 2)
    machine_info["smoke"] = SMOKE
    machine_info["debug_build"] = os.environ.get("FASTBUF_DEBUG") == "1"
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    machine_info["commit"] = described.stdout.strip() or "unknown"


def _as_told(told_by: Connection, name: str, ways: Iterable[str], run: Callable[[str], float]) -> NoReturn:
    """Runs a way whenever two_trees.py says so."""
    asked = os.environ["FASTBUF_BENCH_WAYS"].split("|")
    told_by.send((name, [way for way in ways if any(part in way for part in asked)]))
    while (way := told_by.recv()) is not None:
        told_by.send(run(way))
    pytest.skip("measured for two_trees.py")


@pytest.fixture
def in_turn(benchmark: Any) -> Callable[..., dict[str, float]]:
    """Measure several ways in one bench: one run of each in turn, every other round backwards.

    A slow spell of the machine then falls on all ways, and the ratios hold where absolute figures drift.  The benchmark
    itself records whole rounds; the ways' own seconds go to ``extra_info["ways"]``, which ``report.py`` reads::

        {"<way>": {"median_s": ..., "best_s": ..., "runs": ..., "ratio": {"<baseline>": median / baseline's median}}}
    """

    def measure(
        ways: Mapping[str, Callable[[], Any]],
        *,
        rounds: int = 5,
        warm_up: int = 1,
        baselines: tuple[str, ...] = (),
        **info: Any,
    ) -> dict[str, float]:
        """Run and record.

        Parameters
        ----------
        ways
            What to run, by name; each must do the same work, and check it.  One that returns a float has measured
            itself: these seconds count, not those of the call.
        rounds, warm_up
            Rounds that count, and rounds before them that do not.
        baselines
            Names of ways that the others are divided by.
        **info
            Further figures for ``extra_info``: rows, bytes, partitions ...

        Returns
        -------
        dict
            Median seconds by way.
        """
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        turn = 0

        def run(way: str) -> float:
            begin = time.perf_counter()
            measured = ways[way]()
            return measured if isinstance(measured, float) else time.perf_counter() - begin

        def one_round() -> None:
            nonlocal turn
            for way in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
                seconds[way].append(run(way))
            turn += 1

        if _told_by is not None:
            _as_told(_told_by, benchmark.group or benchmark.name, ways, run)
        benchmark.pedantic(
            one_round, rounds=1 if SMOKE else rounds, warmup_rounds=0 if SMOKE else warm_up, iterations=1
        )
        counted = {way: runs if SMOKE else runs[warm_up:] for way, runs in seconds.items()}
        medians = {way: median(runs) for way, runs in counted.items()}
        SO_FAR.parent.mkdir(exist_ok=True)
        with SO_FAR.open("a") as file:  # a run that is ended by hand leaves no table
            file.write(f"{time.strftime('%F %T')} {benchmark.group or benchmark.name} {medians}\n")
        benchmark.extra_info.update(info)
        benchmark.extra_info["ways"] = {
            way: {
                "median_s": medians[way],
                "best_s": min(runs),
                "runs": len(runs),
                "ratio": {base: medians[way] / medians[base] for base in baselines},
            }
            for way, runs in counted.items()
        }
        return medians

    return measure
