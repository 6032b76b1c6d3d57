"""Prints pytest-benchmark's JSON as tables of seconds and ratios: ``python benches/report.py .benchmarks/last.json``.

A bench that measures several ways in turn has them in ``extra_info["ways"]`` (see ``in_turn`` in conftest.py); the
others are put side by side by their group, and divided by the one that says ``extra_info["baseline"] = True``, or the
fastest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def human(seconds: float) -> str:
    """Three digits and a unit."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def ways_table(bench: dict[str, Any]) -> Table:
    """One bench that measured several ways."""
    ways = bench["extra_info"]["ways"]
    rows = bench["extra_info"].get("rows")
    cpu = bench["extra_info"].get("cpu_s", {})  # seconds of all cores, by way
    baselines = list(next(iter(ways.values()))["ratio"])
    title = bench["group"] or bench["name"]
    if bench["param"] and bench["param"] not in title:
        title += f" [{bench['param']}]"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("way", no_wrap=True)
    headings = ["median", "best", *(["M rows/s"] if rows else []), *(["M rows/core s"] if rows and cpu else [])]
    headings += [f"time / {base}" for base in baselines]
    faster = bench["extra_info"].get("speed_up_over")
    headings += [f"faster than {faster}"] if faster else []
    for heading in headings:
        table.add_column(heading, justify="right")
    for way, figures in ways.items():
        cells = [human(figures["median_s"]), human(figures["best_s"])]
        if rows:
            cells.append(f"{rows / figures['median_s'] / 1e6:.2f}")
        if rows and cpu:
            cells.append(f"{rows / cpu[way] / 1e6:.2f}" if way in cpu else "")
        cells += [f"{figures['ratio'][base]:.2f}" for base in baselines]
        if faster:
            cells.append(f"{1 / figures['ratio'][faster]:.2f} x")
        table.add_row(way, *cells)
    return table


def group_table(name: str, benches: list[dict[str, Any]]) -> Table:
    """Benches of one group, each beside its peers.  ``extra_info["per"]`` divides: items that one call handles."""

    def each(bench: dict[str, Any]) -> float:
        return float(bench["stats"]["median"]) / bench["extra_info"].get("per", 1)

    marked = [b for b in benches if b["extra_info"].get("baseline")]
    base = each(marked[0] if marked else min(benches, key=each))
    table = Table(title=name, title_justify="left")
    table.add_column("bench")
    for heading in ("median", "best", "rounds", f"x {'baseline' if marked else 'fastest'}"):
        table.add_column(heading, justify="right")
    for bench in sorted(benches, key=each):
        per = bench["extra_info"].get("per", 1)
        table.add_row(
            bench["name"],
            human(each(bench)),
            human(bench["stats"]["min"] / per),
            str(bench["stats"]["rounds"]),
            f"{each(bench) / base:.2f}",
        )
    return table


def report(path: Path, console: Console) -> int:
    """Print all tables; the exit code is 1 if the file has no bench."""
    data = json.loads(path.read_text())
    machine = data["machine_info"]
    cpu = machine.get("cpu", {}).get("brand_raw", "unknown processor")
    console.print(
        f"{cpu}, {machine.get('cores_usable', '?')} cores, load {machine.get('load_1min', '?')}, "
        f"Python {machine.get('python_version')}, commit {machine.get('commit', 'unknown')}, {data['datetime'][:19]}",
        markup=False,
        highlight=False,
    )
    if machine.get("smoke"):
        console.print("SMOKE RUN: tiny sizes, one round; these figures say nothing.", style="bold yellow")
    if machine.get("debug_build"):
        console.print("DEBUG BUILD: these figures say nothing.", style="bold yellow")
    groups: dict[str, list[dict[str, Any]]] = {}
    for bench in data["benchmarks"]:
        if "ways" in bench["extra_info"]:
            console.print(ways_table(bench))
        else:
            groups.setdefault(bench["group"] or "other", []).append(bench)
    for name, benches in groups.items():
        console.print(group_table(name, benches))
    return 0 if data["benchmarks"] else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(report(Path(sys.argv[1]), Console(width=120 if not sys.stdout.isatty() else None)))
