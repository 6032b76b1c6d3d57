"""Draws the pictures of docs/explanation/event-time.md as SVG, from what the code itself does; no library.

``python benches/plot_event_time.py docs/explanation/event-time``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fastbuf.event_time.watermarks import BoundedOutOfOrderness, SplitWatermarks
from fastbuf.event_time.windows import Session, Sliding, Tumbling, sessions

WIDTH, LEFT, RIGHT = 720, 90, 20
GREY, BLUE, RED, GREEN = "#999", "#1f78b4", "#d7301f", "#1b7837"
ARRIVALS = [(1, 2), (2, 3), (3, 1), (4, 6), (5, 5), (6, 9), (7, 7), (8, 12), (9, 11), (10, 4), (11, 14), (12, 16)]
TIMES = [1, 3, 4, 9, 12, 13, 17, 18, 23]


def svg(height: int, parts: list[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" font-size="12" font-family="sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#000") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GREY, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def bar(x1: float, x2: float, y: float, words: str, colour: str = BLUE) -> str:
    box = f'x="{x1 + 1:.1f}" y="{y - 9:.1f}" width="{x2 - x1 - 2:.1f}" height="18"'
    return f'<rect {box} fill="{colour}" fill-opacity="0.2" stroke="{colour}"/>' + text(
        (x1 + x2) / 2, y + 4, words, "middle"
    )


def watermarks() -> str:
    """Rows as they arrive, and the watermark behind them."""
    height, bottom, top = 340, 290, 30

    def x(arrival: float) -> float:
        return LEFT + arrival / 13 * (WIDTH - LEFT - RIGHT)

    def y(time: float) -> float:
        return bottom - time / 18 * (bottom - top)

    parts = [text(LEFT, 18, "A watermark with a delay of 3 s: rows below it are late")]
    parts += [
        line(LEFT, y(t), WIDTH - RIGHT, y(t), "#eee") + text(LEFT - 8, y(t) + 4, f"{t} s", "end")
        for t in range(0, 19, 3)
    ]
    parts += [text(LEFT, height - 14, "rows, in the order in which they arrive"), text(14, 44, "event time")]
    marks = SplitWatermarks(BoundedOutOfOrderness(3000))
    mark: float | None = None
    for arrival, time in ARRIVALS:
        late = mark is not None and time <= mark
        parts.append(dot(x(arrival), y(time), RED if late else BLUE))
        if late:
            parts.append(text(x(arrival) + 8, y(time) + 4, "late", colour=RED))
        marks.add("split", np.array([time * 1000], np.int64), 0.0)
        now = marks.current(0.0)[0]
        assert now is not None
        before, mark = mark, now / 1000
        if mark >= 0:
            parts.append(line(x(arrival), y(mark), x(arrival + 1), y(mark), GREEN, 2))
            parts.append(line(x(arrival), y(max(before or 0, 0)), x(arrival), y(mark), GREEN, 2))
    parts.append(text(x(12) - 4, y(mark or 0) + 18, "watermark", "end", GREEN))
    return svg(height, parts)


def windows() -> str:
    """The same rows in windows of each kind."""
    height = 330

    def x(time: float) -> float:
        return LEFT + time / 30 * (WIDTH - LEFT - RIGHT)

    times = np.array(TIMES, np.int64)
    parts = [text(LEFT, 18, "Rows of one key, and the windows that they are in")]
    parts += [
        line(x(t), 30, x(t), height - 30, "#eee") + text(x(t), height - 12, f"{t} s", "middle") for t in range(0, 31, 5)
    ]
    parts += [line(LEFT, 44, WIDTH - RIGHT, 44), text(14, 48, "rows")] + [dot(x(t), 44, BLUE) for t in TIMES]
    tumbling = Tumbling(10)
    labels, counts = np.unique(tumbling.panes(times), return_counts=True)
    parts.append(text(14, 88, "tumbling 10"))
    parts += [bar(x(s), x(e), 84, f"{n}") for s, e, n in zip(labels, tumbling.ends(labels), counts, strict=True)]
    sliding = Sliding(10, 5)
    panes, of_pane = np.unique(sliding.panes(times), return_counts=True)
    parts.append(text(14, 128, "panes of 5"))
    parts += [bar(x(p), x(p + sliding.pane), 124, f"{n}", GREY) for p, n in zip(panes, of_pane, strict=True)]
    rows, in_windows = sliding.windows(panes)
    parts += [text(14, 158, "sliding"), text(14, 174, "10 by 5")]
    for i, window in enumerate(np.unique(in_windows)):
        total = int(of_pane[rows[in_windows == window]].sum())
        parts.append(bar(max(x(window), LEFT - 20), x(window + 10), 154 + 26 * (i % 3), f"{total}"))
    session = Session(4)
    order, firsts, ends = sessions(np.zeros(len(times), np.int64), times, times + session.gap)
    sizes = np.diff(firsts, append=len(times))
    parts += [text(14, 244, "session,"), text(14, 260, "gap 4")]
    for start, end, size in zip(times[order[firsts]], ends, sizes, strict=True):
        parts.append(bar(x(start), x(end), 248, f"{size}", GREEN))
    return svg(height, parts)


def life() -> str:
    """One window from its first row to its end, by the watermark."""
    height = 190

    def x(mark: float) -> float:
        return LEFT + mark / 26 * (WIDTH - LEFT - RIGHT)

    parts = [text(LEFT, 18, "The window from 0 to 10 s, with a lateness of 8 s, as the watermark rises")]
    parts += [line(LEFT, 100, WIDTH - RIGHT, 100), bar(x(0), x(10), 100, "open"), bar(x(10), x(18), 100, "kept", GREEN)]
    parts += [bar(x(18), x(26), 100, "gone: rows are late", RED)]
    steps = [
        (4, "early result,", "if asked for"),
        (10, "result:", "end - 1 is reached"),
        (15.5, "again, for", "a row that is late"),
    ]
    for mark, first, second in steps:
        parts += [
            line(x(mark), 60, x(mark), 90, BLUE, 2),
            text(x(mark), 40, first, "middle"),
            text(x(mark), 55, second, "middle"),
        ]
    parts += [line(x(18), 110, x(18), 134, RED, 2), text(x(18), 148, "cleaned up;", "middle")]
    parts += [text(x(18), 163, "with append: the one result", "middle")]
    parts += [text(x(t), 183, f"{t} s", "middle") for t in (0, 10, 18)]
    return svg(height, parts)


PICTURES = {"watermark.svg": watermarks, "windows.svg": windows, "life.svg": life}


def main(target: Path) -> int:
    for name, drawn in PICTURES.items():
        (target / name).write_text(drawn())
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
