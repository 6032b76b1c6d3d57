"""Tables of one run, or of two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fastbuf.errors import ConfigError, text_of

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def human(ns: float) -> str:
    """Three digits and a unit."""
    size, unit = next(((size, unit) for size, unit in UNITS if ns >= size), UNITS[-1])
    return f"{ns / size:.3g} {unit}"


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """One table for each layer."""
    for layer in dict.fromkeys(case["layer"] for case in result["cases"]):
        table = Table(title=layer, title_justify="left")
        table.add_column("what, and how", overflow="fold")
        for heading in ("time for one", "a second", "time / fastbuf's"):
            table.add_column(heading, justify="right", no_wrap=True)
        for case in (case for case in result["cases"] if case["layer"] == layer):
            table.add_row(Text(f"{case['name']} (one: a {case['unit']})", style="bold"))
            for number, (way, figures) in enumerate(case["ways"].items()):
                ratio = "1" if number == 0 else f"{figures['ratio']:.2f}"
                table.add_row(Text(f"  {way}"), human(figures["ns"]), f"{1e9 / figures['ns']:,.0f}", ratio)
            table.add_section()
        yield table


def read(path: Path) -> dict[str, Any]:
    """Read the figures of an earlier run."""
    try:
        figures = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare {path}: {error}") from error
    if not isinstance(figures, dict) or figures.get("format") != 1:
        raise ConfigError(f"--compare {path}: not a file of fastbuf bench --json (format 1)")
    try:
        for _ in compared(figures, figures):  # what it lacks is told now, not after two minutes
            pass
    except (LookupError, TypeError, AttributeError, RuntimeError, ZeroDivisionError) as error:
        raise ConfigError(
            f"--compare {path}: not as fastbuf bench --json wrote it: {text_of(type(error), error)}"
        ) from error
    return figures


def compared(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Table | Text]:
    """The ratios of both runs: changes of the machine's own speed cancel out.

    If a peer's ratio has grown, fastbuf has become faster relative to that peer.
    """
    before = {(case["layer"], case["name"]): case["ways"] for case in old["cases"]}
    table = Table(title=f"time / fastbuf's, beside {old['date']}", title_justify="left")
    table.add_column("what, and how", overflow="fold")
    for heading in ("then", "now", "fastbuf has"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in new["cases"]:
        earlier = before.get((case["layer"], case["name"]), {})
        base = next(iter(case["ways"]))
        shared = [way for way in case["ways"] if way in earlier and way != base]
        if not shared or base != next(iter(earlier)):
            continue
        table.add_row(Text(f"{case['layer']}: {case['name']}", style="bold"))
        for way in shared:
            then, now = earlier[way]["ratio"], case["ways"][way]["ratio"]
            change = now / then - 1
            change_text = f"{'gained' if change >= 0 else 'lost'} {abs(change):.0%}"
            style = "red" if change < -0.1 else "green" if change > 0.1 else ""
            table.add_row(Text(f"  {way}"), f"{then:.2f}", f"{now:.2f}", Text(change_text, style=style))
        table.add_section()
    yield table
    differ = [
        f"{name}: {old.get(key)} then, {new.get(key)} now"
        for name, key in (("quick", "quick"), ("Python", "python"), ("machine", "machine"), ("versions", "versions"))
        if _steady(old.get(key)) != _steady(new.get(key))
    ]
    for line in differ:
        yield Text(f"Not the same: {line}", style="yellow")


def _steady(value: Any) -> Any:
    """Without the values that change from minute to minute."""
    return {k: v for k, v in value.items() if k != "load"} if isinstance(value, dict) else value
