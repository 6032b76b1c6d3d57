"""``fastbuf top``: the page's verdict, stages and subtasks in a terminal."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fastbuf.errors import ConfigError
from fastbuf.monitor.rest import Unknown, find_job
from fastbuf.monitor.snapshot import IDLE, seconds_of
from fastbuf.monitor.task import LOSSES, PRESSED

WAIT_S = 10.0  #: longest wait for an answer
BAR = 24
CHECKPOINTS = 6  #: of a stream that are shown
NARROW = 110  #: columns of a terminal from which on all figures have room
LEVELS = {"OK": "green", "LOW": "yellow", "HIGH": "bold red"}
NOW = {
    "user": "busy",
    "credit": "waits for credit",
    "link": "waits for the network",
    "segment": "waits for memory",
    "engine_out": "waits for its reader",
    "input": "waits for rows",
    "engine_in": "waits for its input",
    "starting": "waits for producers",
}


class Page:
    """The page that ``fastbuf top`` reads.

    Parameters
    ----------
    url
        The page's address, with the token after ``#``.
    authority
        Path of a PEM file with the authority's certificate.

    Raises
    ------
    ConfigError
        The URL is not that of a page, or the certificate cannot be read.
    """

    def __init__(self, url: str, authority: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # the port is not a number, or brackets hold no IPv6 address
            valid = False
        token = parse_qs(parts.fragment).get("token", [""])[0] if valid else ""
        if not token:
            raise ConfigError(
                f"{url!r} is not the address of a page: it must be the whole URL that was printed, in quotes, "
                "with #token=... at its end"
            )
        self.address = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Authorization": f"Bearer {token}"}
        try:
            tls = ssl.create_default_context(cafile=authority) if parts.scheme == "https" else None
        except OSError as error:
            raise ConfigError(f"{authority} cannot be used as the authority's certificate: {error}") from error
        # Never by a proxy of the environment: it cannot reach this machine's addresses, and would be told the token.
        direct = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)]
        self._open = urllib.request.build_opener(*direct).open

    def snapshot(self) -> dict[str, Any]:
        """The current snapshot.

        Raises
        ------
        ConfigError
            Nobody answers, or the token is wrong.
        """
        request = urllib.request.Request(self.address + "/snapshot", headers=self._headers)
        try:
            with self._open(request, timeout=WAIT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            why = "the token is another page's" if error.code == 401 else f"it answers {error.code} {error.reason}"
            raise ConfigError(f"{self.address} refuses access: {why}; take the URL that its driver printed") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ConfigError(f"no page answers at {self.address}: {error}; does its driver still run?") from error


def run(
    console: Console,
    url: str,
    *,
    once: bool = False,
    job: str | None = None,
    stage: str | None = None,
    every: float = 1.0,
    authority: Path | None = None,
) -> int:
    """Show it until interrupted, or until the page is closed."""
    page = Page(url, authority)
    snapshot = page.snapshot()
    if once or not console.is_terminal:
        console.print(view(snapshot, job, stage, 1000, console.width))
        return 0
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        try:
            while True:
                live.update(view(snapshot, job, stage, max(3, console.height - 16), console.width), refresh=True)
                time.sleep(every)
                snapshot = page.snapshot()
        except KeyboardInterrupt:
            return 0
        except ConfigError as gone:
            live.console.print(Text(str(gone), style="yellow"))
            return 1


def view(
    snapshot: dict[str, Any], job: str | None, stage: str | None, rows: int, width: int = NARROW
) -> RenderableType:
    """Render a snapshot, with at most ``rows`` subtasks, for a terminal of that width."""
    if job is not None:
        try:
            entry = find_job(snapshot, job)
        except Unknown as error:
            raise ConfigError(
                f"{error}; there are: {', '.join(j['id'] for j in snapshot['jobs']) or 'none'}"
            ) from error
    else:
        queries = snapshot.get("queries", [])
        streams = [_query(query, width < NARROW) for query in queries if query["running"]] or [
            _query(query, width < NARROW) for query in queries[-1:]
        ]
        jobs = [j for j in snapshot["jobs"] if j["state"] == "RUNNING"] or snapshot["jobs"]
        if streams and not (jobs and jobs[-1]["state"] == "RUNNING"):
            return Padding(Group(*streams), (0, 1))
        if not jobs:
            return Text("Nothing has run yet.")
        if streams:
            return Group(Padding(Group(*streams), (0, 1)), view(snapshot, jobs[-1]["id"], stage, rows, width))
        entry = jobs[-1]
    failed = [exchange for exchange in entry["exchanges"] if exchange["outcome"] == "aborted"]
    roots = (
        [] if failed else (entry["diagnosis"] or {}).get("roots", [])
    )  # of one that failed nobody asks who held it up
    vertex = _vertex(entry, stage, roots)
    head = Text.assemble((entry["name"], "bold"), f"   {entry['state'].lower()}   {entry['seconds']:.0f} s")
    words = _failure(failed) if failed else _verdict(entry["diagnosis"])
    without = [line for each in entry["vertices"] for line in _losses(each)]
    parts: list[RenderableType] = [head, Text(), *words, *without, Text(), _stages(entry, roots), Text()]
    return Padding(Group(*parts, _subtasks(vertex, roots, rows, width < NARROW)), (0, 1))


def _query(query: dict[str, Any], narrow: bool) -> RenderableType:
    """A stream: its stages, what they say of event time, why its checkpoint waits, its last checkpoints."""
    about = f"   {query['state']}   generation {query['generation']}   restarts {query['restarts']}"
    stages = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("stage", "tasks", "rows in/s", "rows out/s", "held back", "lag"):
        stages.add_column(name, justify="left" if name == "stage" else "right", no_wrap=name != "stage")
    for entry in query["stages"]:
        lag = entry.get("watermark_lag_s")
        stages.add_row(
            Text(entry["name"]),
            f"{entry['running']} of {entry['tasks']}",
            f"{entry['rowsInPerSecond']:,.0f}",
            f"{entry['rowsOutPerSecond']:,.0f}",
            Text(f"{entry['backPressured']:.0%}", style=LEVELS[entry["level"]]),
            "-" if lag is None else f"{lag:.1f} s",
        )
    checkpoints = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    parts = {"took": "duration_s", "start delay": "start_delay_s", "alignment": "alignment_s"}
    if not narrow:
        parts |= {"sync": "sync_s", "async": "async_s"}
    for name in ("checkpoint", *parts, "written", "slowest, or why it failed"):
        left = name == "slowest, or why it failed"
        checkpoints.add_column(name, justify="left" if left else "right", no_wrap=not left)
    for checkpoint in reversed(query["checkpoints"][-CHECKPOINTS:]):
        state = {"completed": "", "failed": " failed"}.get(checkpoint["state"], " ...")
        took = [f"{checkpoint[name]:.3f} s" if checkpoint.get(name) is not None else "-" for name in parts.values()]
        written = f"{checkpoint.get('bytes', 0):,}"
        checkpoints.add_row(
            f"{checkpoint['id']}{state}", *took, written, Text(checkpoint["reason"] or checkpoint.get("slowest", "-"))
        )
    times = [Text(said) for said in query["times"]]
    waiting = [Text(f"The checkpoint in progress {query['waiting']}")] if query.get("waiting") else []
    head = Text.assemble((query["name"], "bold"), about)
    words = Text(query["sentence"], style="bold red" if query["state"] == "failed" else "")
    return Group(head, Text(), words, Text(), stages, Text(), *times, *waiting, checkpoints, Text())


def _vertex(job: dict[str, Any], stage: str | None, roots: list[dict[str, Any]]) -> dict[str, Any]:
    vertices = {vertex["name"]: vertex for vertex in job["vertices"]}
    if stage is not None:
        if stage not in vertices:
            raise ConfigError(f"there is no stage {stage!r}; there are: {', '.join(vertices)}")
        return vertices[stage]
    blamed = roots[0]["vertex"] if roots else None
    return next((vertex for vertex in job["vertices"] if vertex["id"] == blamed), job["vertices"][-1])


def _failure(failed: list[dict[str, Any]]) -> list[RenderableType]:
    """The failure with the shortest text: the others contain it."""
    first = min(failed, key=lambda exchange: len(exchange["reason"]))
    return [Text(f"{first['name']} failed: {first['reason'].partition(chr(10))[0]}", style="bold red")]


def _verdict(diagnosis: dict[str, Any] | None) -> list[RenderableType]:
    if diagnosis is None:
        return [Text("Its tasks report no waits while they run.")]
    level = Text.assemble(
        (diagnosis["level"], LEVELS[diagnosis["level"]]), f"  producers held back {diagnosis['blocked']:.0%}"
    )
    sentences = [root["sentence"] for root in diagnosis["roots"]] or [diagnosis["sentence"]]
    return [*(Text(sentence) for sentence in sentences), level]


def _stages(job: dict[str, Any], roots: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "stage", "subtasks", "busiest", "mean", "held back", "rows", "rows/s"):
        table.add_column(name, justify="left" if name in ("", "stage") else "right", no_wrap=True)
    blamed = {root["vertex"] for root in roots}
    for vertex in job["vertices"]:
        pressure = vertex["backPressured"]["max"]
        timed = not vertex["subtasks"] or any(map(seconds_of, vertex["subtasks"]))  # else only rows are told
        table.add_row(
            Text("►" if vertex["id"] in blamed else " ", style="bold red"),
            Text(vertex["name"], overflow="ellipsis"),  # as text: the user chose the name, and it may look like markup
            str(vertex["parallelism"]),
            f"{vertex['busy']['max']:.0%}" if timed else "-",
            f"{vertex['busy']['mean']:.0%}" if timed else "-",
            Text(f"{pressure:.0%}", style=LEVELS[vertex["level"]]) if timed else "-",
            f"{vertex['records']:,}",
            f"{vertex['recordsPerSecond']:,.0f}",
        )
    return table


def _subtasks(vertex: dict[str, Any], roots: list[dict[str, Any]], rows: int, narrow: bool) -> Table:
    bar = "busy █ held back ▒ idle ░"
    title = Text.assemble("subtasks of ", (vertex["name"], "bold"), ", by lost time", f"; {bar}" if narrow else "")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left", title_style="")
    lost = "held back" if vertex["side"] == "producers" else "waited for" if narrow else "waited for, in all"
    names = ["", "#", "now", "" if narrow else bar, lost, "rows", "rows/s", "pauses"]
    if narrow:
        names.remove("rows/s")
    for name in names:
        right = name in ("#", lost, "rows", "rows/s")
        table.add_column(name, justify="right" if right else "left", no_wrap=not narrow or name != "pauses")
    blamed = {root["subtask"] for root in roots if root["vertex"] == vertex["id"]}
    order = sorted(vertex["subtasks"], key=lambda task: (-task["lost"], -task["busy"], task["subtask"]))
    for task in order[:rows]:
        mark = "►" if blamed & {task["subtask"], None} else " "
        rate = f"{task['recordsPerSecond']:,.0f}" if "recordsPerSecond" in task else "-"
        table.add_row(
            Text(mark, style="bold red"),
            str(task["subtask"]),
            Text(_now(task), overflow="ellipsis"),
            _bar(task, BAR // 2 if narrow else BAR),
            f"{task['lost']:.1f} s" if task["lost"] >= 0.05 else "-",
            f"{task.get('records') or 0:,}",
            *([] if narrow else [rate]),
            _pauses(task),
        )
    if len(order) > rows:
        table.caption = Text(f"and {len(order) - rows} more")
        table.caption_justify = "left"
    return table


def _now(task: dict[str, Any]) -> str:
    state = task.get("state")
    if not state:
        return "ended"
    target = task.get("target")
    return NOW.get(state, state) + ("" if target is None else f" of {target}")


def _bar(task: dict[str, Any], width: int) -> Text:
    seconds = seconds_of(task)
    total = sum(seconds.values())
    if total <= 0:
        return Text(width * " ")
    pressed, idle = (round(width * sum(seconds.get(name, 0.0) for name in names) / total) for names in (PRESSED, IDLE))
    busy = max(0, width - pressed - idle)
    return Text.assemble((busy * "█", "blue"), (pressed * "▒", "red"), (idle * "░", "dim"))


def _pauses(task: dict[str, Any]) -> str:
    named = (("gc", "gc_s"), ("stopped", "stopped_s"), ("no CPU", "queued_s"), ("throttled", "throttled_s"))
    return ", ".join(f"{name} {task[figure]:.1f} s" for name, figure in named if (task.get(figure) or 0) >= 0.05)


def _losses(vertex: dict[str, Any]) -> list[RenderableType]:
    """What its subtasks have done without, as they were told to."""
    lost = {figure: sum(task.get(figure) or 0 for task in vertex["subtasks"]) for figure in LOSSES}
    losses = ", ".join(words.format(f"{lost[figure]:,}") for figure, words in LOSSES.items() if lost[figure])
    return [Text(f"{vertex['name']}: {losses}", style="yellow")] if losses else []
