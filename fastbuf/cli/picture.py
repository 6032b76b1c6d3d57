"""The demo's picture: when each stage of each way ran, on one axis of seconds, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from fastbuf.cli.ways import Span

WIDTH, LEFT, RIGHT, LANE = 800, 208, 24, 24
HEAD = 74  #: height of the title and the line below it
COLOURS = ("#4c78a8", "#e8913a", "#3d9970")
PALE = ("#cbd9e8", "#f8dfc4", "#c5e3d6")


class Row(NamedTuple):
    """One way: its name, seconds, stages and caption."""

    way: str
    seconds: float
    spans: Sequence[Span]
    caption: str


def draw(title: str, below: str, rows: Sequence[Row], foot: Sequence[str]) -> str:
    """The SVG's text; a pale part of a bar shows a stage that is ready and waits for its first rows."""
    body: list[str] = []
    axis = max((row.seconds for row in rows), default=0.0) or 1.0

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(seconds, 0.0), axis) / axis

    def text(at: float, y: float, string: str, more: str = "") -> None:
        body.append(f'<text x="{at:.1f}" y="{y:.1f}"{more}>{escape(string)}</text>')

    def bar(begin: float, end: float, y: float, fill: str) -> None:
        wide = max(x(end) - x(begin), 1.0)
        body.append(f'<rect x="{x(begin):.1f}" y="{y}" width="{wide:.1f}" height="{LANE - 7}" rx="2" fill="{fill}"/>')

    y = HEAD
    for row in rows:
        text(16, y + 17, row.way, ' font-size="15" font-weight="bold"')
        text(LEFT, y + 17, row.caption, ' font-size="15"')
        y += LANE + 4
        for span, colour, pale in zip(row.spans, COLOURS, PALE, strict=False):
            text(LEFT - 10, y + 13, span.stage, ' text-anchor="end" fill="#333"')
            bar(span.begin, span.end, y, pale)
            if span.first < span.end:
                bar(span.first, span.end, y, colour)
            y += LANE
        y += 16
    grid = []
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if axis / s <= 10), 200)
    for number in range(int(axis / step) + 1):
        at = x(number * step)
        grid.append(f'<line x1="{at:.1f}" y1="{HEAD - 4}" x2="{at:.1f}" y2="{y}" stroke="#e6e6e6"/>')
        text(at, y + 14, f"{number * step:g} s", ' text-anchor="middle" fill="#555"')
    y += 40
    for line in foot:
        text(16, y, line, ' fill="#555"')
        y += 17
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" role="img" '
        'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" font-size="12.5" fill="#111">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>',
        f'<text x="16" y="30" font-size="18" font-weight="bold">{escape(title)}</text>',
        f'<text x="16" y="52" fill="#333">{escape(below)}</text>',
    ]
    return "\n".join([*head, *grid, *body, "</svg>"]) + "\n"
