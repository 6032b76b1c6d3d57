"""``fastbuf bench``: each layer against the installed alternatives, measured in turn in one run."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fastbuf.cli import stop
from fastbuf.cli.bench import bars, between, inside, spark
from fastbuf.cli.bench.measure import FULL, QUICK, LeftOut, Size, Suite, machine, measure
from fastbuf.cli.bench.report import compared, read, tables

SUITES: tuple[Suite, ...] = (*inside.SUITES, *between.SUITES, spark.SUITE)
LAYERS = tuple(suite.layer for suite in SUITES)


def run(
    console: Console,
    *,
    only: tuple[str, ...] = (),
    quick: bool = False,
    json_path: Path | None = None,
    compare: Path | None = None,
    svg: Path | None = None,
) -> int:
    """Measure and print.

    Parameters
    ----------
    console
        Where tables and the progress bar are printed.
    only
        Layers to measure; empty: all.
    quick
        Small sizes and three rounds: checks that it runs, not how fast.
    json_path, svg
        Files to write with the figures, and with a plot of the ratios.
    compare
        The ``json_path`` of an earlier run.

    Returns
    -------
    int
        The exit code: 1 if a case failed, or nothing could be measured.
    """
    old = read(compare) if compare else None  # report a missing file now, not after two minutes
    suites = [suite for suite in SUITES if not only or suite.layer in only]
    size = QUICK if quick else FULL
    cases = sum(len(suite.cases) for suite in suites)
    console.print(
        f"{cases} cases in {', '.join(suite.layer for suite in suites)}: about {_about(suites, size)}. "
        "Ways are measured in turn, every other round backwards; ratios are of medians.",
        style="dim",
    )
    result = {"format": 1, "quick": quick, **machine(), **_measured(console, suites, size)}
    for table in tables(result):
        console.print(table)
    for line in result["left_out"]:
        console.print(f"Left out: {line}", style="dim", markup=False)
    for line in result["failed"]:
        console.print(f"Failed: {line}", style="bold red", markup=False)
    if quick:
        console.print("A quick run: tiny sizes, three rounds; these figures say nothing.", style="bold yellow")
    if old is not None:
        for shown in compared(old, result):
            console.print(shown)
    if json_path:
        _write(json_path, json.dumps(result, indent=1) + "\n")
    if svg:
        _write(svg, bars.draw(result))
    return 0 if result["cases"] and not result["failed"] else 1


def _measured(console: Console, suites: list[Suite], size: Size) -> dict[str, list[Any]]:
    """Run all cases in turn: returns measured, impossible and failed ones (the others go on)."""
    results: dict[str, list[Any]] = {"cases": [], "left_out": [], "failed": []}
    columns = (SpinnerColumn(), TextColumn("{task.description:<46}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        every = [(suite, make) for suite in suites for make in suite.cases]
        bar = progress.add_task("", total=len(every))
        for done, (suite, make) in enumerate(every):
            progress.update(bar, completed=done, description=f"{suite.layer}: ...")

            def tick(part: float, done: int = done) -> None:
                progress.update(bar, completed=done + part)

            try:
                with make(size) as case:
                    progress.update(bar, description=f"{suite.layer}: {case.name}"[:46])
                    results["cases"].append(case.figures(suite.layer, measure(case, size, suite.share, tick)))
                    results["left_out"] += case.left_out
            except LeftOut as why:
                results["left_out"].append(str(why))
            except Exception as error:
                if stop.behind(error):
                    raise KeyboardInterrupt from error
                if os.environ.get("FASTBUF_TRACEBACK") == "1":
                    raise
                results["failed"].append(f"{suite.layer}: {type(error).__name__}: {error}")
    results["left_out"] = list(dict.fromkeys(results["left_out"]))
    return results


def _about(suites: list[Suite], size: Size) -> str:
    seconds = sum(suite.setup_s + len(suite.cases) * size.seconds * suite.share for suite in suites)
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _write(path: Path, text: str) -> None:
    """Write the file as a whole: an earlier file must not be lost when the disk is full.

    A device or a pipe, such as ``/dev/stdout``, is written to; a link stays, and what it points to is replaced.
    """
    if (path.exists() and not path.is_file()) or path.absolute().is_relative_to("/dev"):
        path.write_text(text)
        return
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
