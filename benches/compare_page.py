"""Figures of ``compare.py``'s stories, the sentences that they bear out, and the page with its plots; no library."""

from __future__ import annotations

import os
import platform
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from textwrap import fill
from typing import Any

MB = 1e6
STEP_S = 0.1  # of the plots
BARRIER_S = 0.5
COLOURS = {
    "credit": "#1b7837",
    "watermark": "#d95f02",
    "on_off": "#7570b3",
    "stepwise": "#e7298a",
    "pid_rate": "#1f78b4",
}
Way = dict[str, Any]


# ---- figures


def at(rows: list[tuple[float, list[int]]], when: float, channels: slice) -> float:
    """Bytes that had moved by then, between two notes in proportion."""
    k = bisect_right(rows, when, key=lambda row: row[0])
    if k == 0:
        return 0.0
    if k == len(rows):
        return float(sum(rows[-1][1][channels]))
    (t0, before), (t1, after) = rows[k - 1], rows[k]
    low, high = sum(before[channels]), sum(after[channels])
    return low + (high - low) * (when - t0) / (t1 - t0)


def quantile(values: list[float], q: float) -> float | None:
    return sorted(values)[min(int(len(values) * q), len(values) - 1)] if values else None


def rates(rows: list[tuple[float, list[int]]], end: float, channels: slice) -> list[float]:
    """MB/s in each step."""
    times = [k * STEP_S for k in range(round(end / STEP_S) + 1)]
    return [(at(rows, b, channels) - at(rows, a, channels)) / STEP_S / MB for a, b in pairwise(times)]


def summary(change: float, end: float, slows: bool, noted: dict[str, Any]) -> Way:
    """What the page says of one story under one flow control; slows: a source does not make up for what it waited."""
    sent, came = noted["sent"], noted["came"]
    every, first, rest = slice(None), slice(0, 1), slice(1, None)
    channels = len(came[0][1])
    flight = [
        max(0.0, at(sent, k * STEP_S, every) - at(came, k * STEP_S, every)) / MB for k in range(round(end / STEP_S) + 1)
    ]
    offered = rates(sent, end, every)
    taken = rates(came, end, every)
    k = round(change / STEP_S)
    latencies = [late for when, late, _ in noted["seen"][0] if late is not None and when >= change]
    out: Way = {
        "throughput": fmean(taken[k:]),
        "in_flight": max(flight[k:]),
        "latency_p50": quantile(latencies, 0.5),
        "latency_p99": quantile(latencies, 0.99),
        "swing": pstdev(offered[-30:]) / max(fmean(offered[-30:]), 1e-9),
        "segments": max(noted["peaks"]),
        "series": {"source": offered, "in_flight": flight},
    }
    if slows and k:
        before = rates(sent, end, first)
        usual = fmean(before[:k])
        # The first of two steps in a row in which the source had less than two thirds of what it had before.
        felt = [j for j in range(k, len(before) - 1) if max(before[j], before[j + 1]) < usual * 2 / 3]
        out["felt"] = (felt[0] + 1) * STEP_S - change if felt else None
    if channels > 1:
        others = rates(came, end, rest)
        late = [x for seen in noted["seen"][1:] for when, x, _ in seen if x is not None and when >= change]
        out |= {
            "others": fmean(others[k:]),
            "others_before": fmean(others[k // 2 : k]) if k else None,
            "others_p99": quantile(late, 0.99),
        }
        out["series"]["others"] = others
    if noted["barriers"]:
        got = [{n: when for when, _, n in seen if n is not None} for seen in noted["seen"]]
        # One that has not come by the end has taken as long at the least.
        delays = [max(g.get(n, end) for g in got) - due for n, due in enumerate(noted["barriers"])]
        out |= {"barrier_p50": quantile(delays, 0.5), "barrier_most": max(delays)}
        out["series"]["barrier"] = delays
    return rounded(out)  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


# ---- what is to be seen


@dataclass(frozen=True)
class Said:
    """Of a story: what happens, what is to be seen with its figures, and what must hold for that to be true."""

    happens: str
    sentence: Callable[[dict[str, Way]], str]
    holds: Callable[[dict[str, Way]], list[bool]]


def cell(value: Any) -> str:
    return "-" if value is None else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def of(ways: dict[str, Way], flow_control: str, name: str) -> str:
    return cell(ways[flow_control][name])


WITHOUT_CREDIT = [name for name in COLOURS if name != "credit"]
SAID = {
    "slow": Said(
        "The source offers 8 MB/s. After a second its consumer takes 1 MB/s, which was quicker than the source before.",
        lambda w: (
            f"By watermarks {of(w, 'watermark', 'in_flight')} MB pile up before the source feels anything, and a "
            f"record is up to {of(w, 'watermark', 'latency_p99')} s old; by credit it feels it after "
            f"{of(w, 'credit', 'felt')} s, {of(w, 'credit', 'in_flight')} MB are under way and a record is "
            f"{of(w, 'credit', 'latency_p99')} s old; on and off bounds it as well, but the source swings "
            f"{w['on_off']['swing'] / w['credit']['swing']:.1f} times as much."
        ),
        lambda w: [
            w["watermark"]["in_flight"] > 5 * w["credit"]["in_flight"],
            w["watermark"]["latency_p99"] > 4 * w["credit"]["latency_p99"],
            w["credit"]["felt"] <= min(w[name]["felt"] or 9 for name in WITHOUT_CREDIT),
            w["on_off"]["in_flight"] < 2 * w["credit"]["in_flight"],
            w["on_off"]["swing"] > 1.5 * w["credit"]["swing"],
        ],
    ),
    "eight": Said(
        "Eight sources offer 2 MB/s each. After a second one of the eight consumers takes 0.25 MB/s.",
        lambda w: (
            f"By credit the other seven go on as before ({of(w, 'credit', 'others')} MB/s in all, 99 of 100 records "
            f"within {1000 * w['credit']['others_p99']:.0f} ms); by watermarks they are left with "
            f"{of(w, 'watermark', 'others')} and by on and off with {of(w, 'on_off', 'others')} MB/s; by steps and by "
            f"the PID rate they come back, but have been held up by {of(w, 'stepwise', 'others_p99')} and "
            f"{of(w, 'pid_rate', 'others_p99')} s."
        ),
        lambda w: [
            w["credit"]["others"] > 0.97 * w["credit"]["others_before"],
            w["credit"]["others_p99"] < 0.1,
            w["watermark"]["others"] < 0.4 * w["credit"]["others"],
            w["on_off"]["others"] < 0.4 * w["credit"]["others"],
            w["stepwise"]["others"] > 1.5 * w["watermark"]["others"],
            w["pid_rate"]["others"] > 1.5 * w["watermark"]["others"],
            all(w[name]["others_p99"] > 5 * w["credit"]["others_p99"] for name in WITHOUT_CREDIT),
        ],
    ),
    "burst": Said(
        "The source has 0.5 MB/s, but 20 MB/s for 0.3 s; its consumer takes 3 MB/s. What has to wait, waits.",
        lambda w: (
            f"The burst is over no sooner for being let in: by credit and by watermarks 99 of 100 records are within "
            f"{of(w, 'credit', 'latency_p99')} and {of(w, 'watermark', 'latency_p99')} s, but by credit "
            f"{of(w, 'credit', 'in_flight')} MB of it are under way and the rest is still the source's, by watermarks "
            f"{of(w, 'watermark', 'in_flight')} MB."
        ),
        lambda w: [
            w["credit"]["latency_p99"] < 1.1 * min(w[name]["latency_p99"] for name in WITHOUT_CREDIT),
            w["watermark"]["latency_p99"] > 0.9 * w["credit"]["latency_p99"],
            w["watermark"]["in_flight"] > 4 * w["credit"]["in_flight"],
        ],
    ),
    "stops": Said(
        "The source has 3 MB/s. Its consumer takes 9 MB/s, and stands still from second 1 to 2 and from 3 to 4.",
        lambda w: (
            f"As much gets through by credit as by anything else ({of(w, 'credit', 'throughput')} MB/s), with the "
            f"least under way: {of(w, 'credit', 'in_flight')} MB, where the kernel's buffers take in a whole stop by "
            f"watermarks ({of(w, 'watermark', 'in_flight')} MB) and by the PID rate "
            f"({of(w, 'pid_rate', 'in_flight')}), which hears nothing of a consumer that gets nothing done."
        ),
        lambda w: [
            w["credit"]["throughput"] > 0.97 * max(w[name]["throughput"] for name in WITHOUT_CREDIT),
            w["credit"]["in_flight"] < min(w[name]["in_flight"] for name in WITHOUT_CREDIT),
            w["watermark"]["in_flight"] > 4 * w["credit"]["in_flight"],
            w["pid_rate"]["in_flight"] > 4 * w["credit"]["in_flight"],
        ],
    ),
    "speed": Said(
        "The source offers 8 MB/s. Its consumer takes 4 MB/s, from the first second on 1, from the third 6, and 2 in "
        "the end.",
        lambda w: (
            f"By credit the source follows every change, and the consumer is never idle "
            f"({of(w, 'credit', 'throughput')} MB/s, a record {of(w, 'credit', 'latency_p50')} s old as a rule); by "
            f"watermarks it is as busy with what is {of(w, 'watermark', 'latency_p50')} s old; steps "
            f"come too late down and up, and leave it {of(w, 'stepwise', 'throughput')} MB/s."
        ),
        lambda w: [
            w["credit"]["throughput"] > 0.97 * max(w[name]["throughput"] for name in WITHOUT_CREDIT),
            w["credit"]["throughput"] > 0.97 * 2.8,  # what the consumer can take from the first second on
            w["watermark"]["throughput"] > 0.95 * w["credit"]["throughput"],
            w["watermark"]["latency_p50"] > 4 * w["credit"]["latency_p50"],
            w["stepwise"]["throughput"] < 0.9 * w["credit"]["throughput"],
        ],
    ),
    "barrier": Said(
        "Two sources offer 4 MB/s each; one consumer takes 1 MB/s and the other 8. Every half second a barrier goes to "
        "both, in order with the records, and is through when both have it.",
        lambda w: (
            f"By credit a barrier is through within {of(w, 'credit', 'barrier_most')} s, and the quick channel has its "
            f"{of(w, 'credit', 'others')} MB/s; by watermarks it takes up to {of(w, 'watermark', 'barrier_most')} s, "
            f"and by the PID rate {of(w, 'pid_rate', 'barrier_p50')} s as a rule and up to "
            f"{of(w, 'pid_rate', 'barrier_most')}; on and off is as quick with it as credit, and leaves the quick "
            f"channel {of(w, 'on_off', 'others')} MB/s."
        ),
        lambda w: [
            w["watermark"]["barrier_most"] > 3 * w["credit"]["barrier_most"],
            w["credit"]["others"] > 3.8,
            w["pid_rate"]["barrier_p50"] < w["credit"]["barrier_p50"],
            w["pid_rate"]["barrier_most"] > 1.3 * w["credit"]["barrier_most"],
            w["on_off"]["barrier_most"] < 2 * w["credit"]["barrier_most"],
            w["on_off"]["others"] < 0.5 * w["credit"]["others"],
        ],
    ),
}


# ---- plots


WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 720, 150, 56, 12, 34, 44


def nice(value: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below it."""
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1
    return next((k * power for k in (1, 2, 5, 10) if k * power >= value), value) if value > 0 else 1.0


def panel(top: float, title: str, lines: dict[str, list[float]], first: float, step: float, end: float) -> list[str]:
    """One plot; the first value is that of second `first`, and the next ones follow in steps."""
    high = nice(max((max(values, default=0.0) for values in lines.values()), default=0.0))
    out = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title}</text>']

    def x(second: float) -> float:
        return LEFT + second / end * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return top + PANEL - min(value, high) / high * PANEL

    for part in (0, 0.5, 1):
        out.append(
            f'<line x1="{LEFT}" y1="{y(high * part):.0f}" x2="{WIDTH - RIGHT}" y2="{y(high * part):.0f}" '
            'stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(high * part) + 4:.0f}" text-anchor="end">{high * part:g}</text>'
        )
    for second in range(int(end) + 1):
        out.append(f'<text x="{x(second):.0f}" y="{top + PANEL + 15}" text-anchor="middle">{second}</text>')
    for name, values in lines.items():
        points = " ".join(f"{x(first + k * step):.0f},{y(value):.0f}" for k, value in enumerate(values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
    return out


def drawn(story: dict[str, Any]) -> str:
    """One story's plots, one below the other, over the seconds of the story."""
    ways: dict[str, Way] = story["ways"]
    end = len(ways["credit"]["series"]["source"]) * STEP_S
    panels = [("what the sources send, MB/s", "source", STEP_S / 2), ("under way, MB", "in_flight", 0.0)]
    if "barrier" in ways["credit"]["series"]:
        panels.append(("until a barrier has come through all channels, s", "barrier", BARRIER_S))
    elif "others" in ways["credit"]["series"]:
        panels.append(("what the other channels' consumers get, MB/s", "others", STEP_S / 2))
    height = TOP + len(panels) * (PANEL + GAP) + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="12" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for k, (name, colour) in enumerate(COLOURS.items()):
        at_x = LEFT + k * 120
        out.append(f'<line x1="{at_x}" y1="10" x2="{at_x + 20}" y2="10" stroke="{colour}" stroke-width="3"/>')
        out.append(f'<text x="{at_x + 26}" y="14">{name}</text>')
    for k, (title, series, first) in enumerate(panels):
        step = BARRIER_S if series == "barrier" else STEP_S
        lines = {name: ways[name]["series"][series] for name in COLOURS}
        out += panel(TOP + 16 + k * (PANEL + GAP), title, lines, first, step, end)
    return "\n".join([*out, "</svg>"]) + "\n"


# ---- the page


COLUMNS = {
    "throughput": "MB/s",
    "others": "the others' MB/s",
    "in_flight": "under way, most, MB",
    "latency_p50": "latency p50, s",
    "latency_p99": "p99, s",
    "others_p99": "the others' p99, s",
    "barrier_p50": "barrier p50, s",
    "barrier_most": "barrier, most, s",
    "felt": "source feels it after, s",
    "swing": "swing",
}
HEAD = """# Five flow controls compared

Made by `make compare` on {machine}.
The figures of another machine differ, what is to be seen does not: a sentence that its figures do not bear out is not
written.

All five run over the same sender, receiver and wire ([how](flow-control.md#seen-beside-what-others-have)). Sources in
one process and consumers in another, a thread each, share one TCP connection of the loopback; records of 2 kB, segments
of 8 KiB, 2 exclusive and 30 floating to a gate, and everything else as it comes. Each story takes six seconds.

*Under way* is what a source has written and its consumer has not got: in the writer's queue, in the kernel's buffers
at both ends and at the gate. *Latency* is from the source's having a record to the consumer's being done with it; of
the first channel, which is the slow one, from the change on. *The source feels it* when it sends less than two thirds
of what it did before the change. *Swing* is the standard deviation of what the sources send in a tenth of a second,
over its mean, in the last three seconds.
"""


def written(figures: dict[str, Any]) -> str:
    parts = [HEAD.format(machine=figures["machine"])]
    for name, story in figures["stories"].items():
        ways = story["ways"]
        said = SAID[name]
        columns = [column for column in COLUMNS if any(column in way for way in ways.values())]
        rows = [f"| `{way}` | " + " | ".join(cell(ways[way].get(c)) for c in columns) + " |" for way in ways]
        parts.append(
            "\n".join(
                [
                    f"## {story['title']}",
                    "",
                    fill(said.happens, 120),
                    "",
                    fill(f"**{said.sentence(ways)}**", 120),
                    "",
                    f"![{story['title']}: plots over the seconds of the story](flow-controls/{name}.svg)",
                    "",
                    "| | " + " | ".join(COLUMNS[column] for column in columns) + " |",
                    "| --- |" + " ---: |" * len(columns),
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


def untrue(figures: dict[str, Any]) -> list[str]:
    """Stories whose sentence the figures do not bear out, and which part of it."""
    out = []
    for name, story in figures["stories"].items():
        wrong = [str(k + 1) for k, holds in enumerate(SAID[name].holds(story["ways"])) if not holds]
        if wrong:
            out.append(f"{name}: {', '.join(wrong)}")
    return out


def machine() -> str:
    return f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}, {os.cpu_count()} cores"


def write(figures: dict[str, Any], to: Path) -> None:
    """The page, and beside it its plots."""
    folder = to / "flow-controls"
    folder.mkdir(parents=True, exist_ok=True)
    for name, story in figures["stories"].items():
        (folder / f"{name}.svg").write_text(drawn(story))
    (to / "flow-controls.md").write_text(written(figures))
