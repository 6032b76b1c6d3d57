"""Draws the pictures of the docs about streams, as SVG, without a library.

``python benches/plot_barriers.py docs/explanation`` draws ``barriers.svg``, how a checkpoint goes through a stream, and
from ``pressure.json``, the figures of ``checkpoint_pressure.py``, ``pressure.svg``.
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

FONT = 'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" font-size="12.5" fill="#111"'
OLD, NEW, BARRIER, BLOCKED = "#9db8d9", "#f0c48a", "#b3261e", "#f8e3e1"
COLOURS = {"credit": "#3d9970", "watermark": "#c2570c"}


def svg(width: int, height: int, title: str, body: list[str]) -> str:
    """A document with a title, on white."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {FONT}>'
    return (
        "\n".join(
            [
                head,
                f"<title>{escape(title)}</title>",
                f'<rect width="{width}" height="{height}" fill="#fff"/>',
                *body,
                "</svg>",
            ]
        )
        + "\n"
    )


def text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(said)}</text>'


def box(x: float, y: float, wide: float, high: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="3" fill="{fill}"{more}/>'


def task(x: float, y: float, name: str, doing: str) -> list[str]:
    frame = box(x, y, 150, 46, "#f4f6f8", ' stroke="#57606a"')
    return [
        frame,
        text(x + 75, y + 20, name, ' text-anchor="middle" font-weight="bold"'),
        text(x + 75, y + 37, doing, ' text-anchor="middle" font-size="11"'),
    ]


def channel(x: float, y: float, queue: str, blocked: bool = False) -> list[str]:
    """What is under way, the next to be read at the right: ``o`` rows before the barrier, ``n`` behind it, ``|``."""
    body = [box(x - 4, y - 4, 16 * len(queue) + 8, 22, BLOCKED if blocked else "#fff", ' stroke="#c8ccd1"')]
    for i, kind in enumerate(queue):
        at = x + 16 * i
        body.append(
            box(at + 5, y - 6, 4, 26, BARRIER) if kind == "|" else box(at + 1, y, 12, 14, OLD if kind == "o" else NEW)
        )
    return body


def barriers() -> str:
    """Three moments of a checkpoint in a stream of two sources, a task with state, and a sink."""
    body: list[str] = []
    moments = [
        (
            "1  The sources send barrier 7 behind the rows that they have read, and keep their offsets.",
            ("source 0", "offsets kept"),
            ("source 1", "offsets kept"),
            "nn|oo",
            "|oooo",
            "ooo",
            ("counts", "reads both channels"),
            ("sink", "writes hidden files"),
            False,
        ),
        (
            "2  Barrier 7 of source 0 is there: its channel is blocked (aligned), the other is read on.",
            ("source 0", "sends on"),
            ("source 1", "sends on"),
            "nnnnn",
            "nn|oo",
            "ooo",
            ("counts", "aligns: waits for source 1"),
            ("sink", "writes hidden files"),
            True,
        ),
        (
            "3  Both are there: counts sends barrier 7 on, freezes its state, reads on; a second thread writes it.",
            ("source 0", "sends on"),
            ("source 1", "sends on"),
            "nnnnn",
            "nnnnn",
            "nn|oo",
            ("counts", "state frozen, being written"),
            ("sink", "prepares at the barrier"),
            False,
        ),
    ]
    y = 16
    for title, first, second, above, below, behind, counts, sink, blocked in moments:
        body.append(text(16, y + 6, title, ' font-size="14"'))
        body += task(16, y + 22, *first) + task(16, y + 84, *second)
        body += channel(186, y + 38, above, blocked) + channel(186, y + 100, below)
        body += task(290, y + 53, *counts) + channel(460, y + 69, behind) + task(560, y + 53, *sink)
        y += 156
    last = (
        "4  All tasks have acknowledged: the driver writes the metadata, and with them checkpoint 7 exists.",
        "    Then the sinks commit: hidden files get their names. Whatever dies before that: the next run",
        "    begins from checkpoint 6, and the hidden files are removed.",
    )
    for number, words in enumerate(last):
        body.append(text(16, y + 2 + 20 * number, words, ' font-size="14" xml:space="preserve"'))
    y += 20
    y += 44
    for at, fill, words in (
        (16, OLD, "rows before the barrier"),
        (220, NEW, "rows behind it"),
        (370, BARRIER, "the barrier"),
        (500, BLOCKED, "a blocked channel"),
    ):
        body += [box(at, y, 14, 14, fill, ' stroke="#c8ccd1"'), text(at + 20, y + 12, words)]
    return svg(880, y + 30, "How a checkpoint goes through a stream", body)


def pressure(figures: list[dict[str, Any]]) -> str:
    """Start delay and alignment, as bars on a logarithmic axis, by rate and flow control."""
    left, right, top, low, high = 190, 790, 40, -3, 1

    def x(value: float) -> float:
        return left + (math.log10(max(value, 10.0**low)) - low) / (high - low) * (right - left)

    body = [
        text(
            16,
            22,
            "From the trigger to the last barrier, by what the slow consumer takes",
            ' font-size="15" font-weight="bold"',
        )
    ]
    bottom = top + 64 * len(figures) / 2 + 6
    for power in range(low, high + 1):
        body.append(
            f'<line x1="{x(10.0**power):.1f}" y1="{top}" x2="{x(10.0**power):.1f}" y2="{bottom}" stroke="#e3e5e8"/>'
        )
        body.append(
            text(
                x(10.0**power),
                bottom + 16,
                {-3: "1 ms", -2: "10 ms", -1: "0.1 s", 0: "1 s", 1: "10 s"}[power],
                ' text-anchor="middle" fill="#555"',
            )
        )
    y = top + 8
    for number, each in enumerate(figures):
        if number % 2 == 0:
            rate = "all that comes" if each["rate"] == 8 else f"{each['rate']:g} MB/s"
            body.append(text(16, y + 26, rate, ' font-weight="bold"'))
        delay, whole = each["start_delay_s"]["median"], each["start_delay_s"]["median"] + each["alignment_s"]["median"]
        body.append(text(left - 8, y + 15, each["way"], ' text-anchor="end"'))
        body.append(box(left, y, x(delay) - left, 20, COLOURS[each["way"]]))
        body.append(box(x(delay), y, max(1.0, x(whole) - x(delay)), 20, COLOURS[each["way"]], ' fill-opacity="0.45"'))
        body.append(text(x(whole) + 6, y + 15, f"{whole:.2g} s" if whole >= 0.1 else f"{1000 * whole:.2g} ms"))
        y += 26 if number % 2 == 0 else 38
    words = "Dark: start delay, until the first barrier is read. Pale: alignment, until the last. Medians; logarithmic."
    body.append(text(16, bottom + 40, words, ' fill="#555"'))
    return svg(880, int(bottom + 54), "Start delay and alignment under credit and under watermarks", body)


def main(folder: Path) -> None:
    (folder / "barriers.svg").write_text(barriers())
    figures = json.loads((folder / "pressure.json").read_text())
    (folder / "pressure.svg").write_text(pressure(figures["core"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
