"""What every bench shares: ways measured in turn, and where it ran."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"


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

        def one_round() -> None:
            nonlocal turn
            for way in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
                begin = time.perf_counter()
                measured = ways[way]()
                seconds[way].append(measured if isinstance(measured, float) else time.perf_counter() - begin)
            turn += 1

        benchmark.pedantic(
            one_round, rounds=1 if SMOKE else rounds, warmup_rounds=0 if SMOKE else warm_up, iterations=1
        )
        counted = {way: runs if SMOKE else runs[warm_up:] for way, runs in seconds.items()}
        medians = {way: median(runs) for way, runs in counted.items()}
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
