"""The ratios of a run as bars in an SVG, on a logarithmic scale, since they range up to a hundred."""

from __future__ import annotations

import math
from html import escape
from typing import Any

LEFT, WIDTH, RIGHT, LINE = 260, 420, 90, 17
OURS, SLOWER, FASTER = "#1f77b4", "#c7c7c7", "#ff9d45"


def draw(result: dict[str, Any]) -> str:
    """The SVG's text: a bar for each way, from fastbuf's time to its own; a bar to the left is faster than fastbuf."""
    ratios = [figures["ratio"] for case in result["cases"] for figures in case["ways"].values()]
    low, high = math.floor(math.log10(min(ratios, default=1.0))), math.ceil(math.log10(max(ratios, default=1.0)))
    high = max(high, low + 1)

    def x(ratio: float) -> float:
        return LEFT + WIDTH * (math.log10(ratio) - low) / (high - low)

    body: list[str] = []

    def text(at: float, y: float, string: str, more: str = "") -> None:
        body.append(f'<text x="{at:.1f}" y="{y:.1f}"{more}>{escape(string)}</text>')

    y = 58
    for case in result["cases"]:
        text(8, y + 12, f"{case['layer']}: {case['name']}", ' font-weight="bold"')
        y += LINE + 4
        for number, (way, figures) in enumerate(case["ways"].items()):
            ratio = figures["ratio"]
            begin, end = sorted((x(1.0), x(ratio)))
            colour = OURS if number == 0 or way.startswith("fastbuf") else SLOWER if ratio >= 1 else FASTER
            text(LEFT - 8, y + 12, way, ' text-anchor="end"')
            wide = max(end - begin, 2.0)
            body.append(f'<rect x="{begin:.1f}" y="{y + 2}" width="{wide:.1f}" height="{LINE - 4}" fill="{colour}"/>')
            text(max(end, x(1.0)) + 6, y + 12, f"{ratio:.2f}")
            y += LINE
        y += 10
    grid = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        grid.append(f'<line x1="{at:.1f}" y1="50" x2="{at:.1f}" y2="{y}" stroke="{"#000" if power == 0 else "#ddd"}"/>')
        grid.append(f'<text x="{at:.1f}" y="46" text-anchor="middle" fill="#555">{10.0**power:g}</text>')
    width = LEFT + WIDTH + RIGHT
    title = f"fastbuf {result['versions'].get('fastbuf', '')}: time of each way / fastbuf's own"
    where = f"{result['machine']['processor']}, {result['machine']['cores']} cores, Python {result['python']}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 24}" viewBox="0 0 {width} {y + 24}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{y + 24}" fill="#fff"/>',
        f'<text x="8" y="20" font-size="15">{escape(title)}</text>',
    ]
    foot = [f'<text x="8" y="{y + 14}" fill="#555">{escape(where + ", " + result["date"])}</text>', "</svg>"]
    return "\n".join([*head, *grid, *body, *foot]) + "\n"
