"""Draws latency against throughput as SVG from ``bench_timeouts.py``'s figures: both axes logarithmic, no library.

``python benches/plot_timeouts.py .benchmarks/last.json timeouts.svg``
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 400, 80, 60, 40, 60


def bounds(values: list[float]) -> tuple[int, int]:
    """Powers of ten around all of them."""
    return math.floor(math.log10(min(values))), max(
        math.ceil(math.log10(max(values))), math.floor(math.log10(min(values))) + 1
    )


def human(power: int, unit: str) -> str:
    steps = {0: "", 3: "k", 6: "M", 9: "G"} if unit == "records/s" else {0: " us", 3: " ms", 6: " s"}
    step = max(s for s in steps if s <= max(power, 0))
    return f"{10 ** (power - step):g}{steps[step]}"


def drawn(points: dict[str, tuple[float, float, float]], machine: str) -> str:
    """The SVG of {timeout: (records/s, p50 us, p99 us)}."""
    x_low, x_high = bounds([p[0] for p in points.values()])
    y_low, y_high = bounds([y for p in points.values() for y in p[1:]])

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - y_low) / (y_high - y_low) * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20">Buffer timeouts: latency against throughput ({escape(machine)})</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">records/s as fast as they go</text>',
        f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">'
        "latency of one record in 200 us: p50 (dot) to p99 (bar)</text>",
    ]
    for power in range(x_low, x_high + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{human(power, "records/s")}</text>'
        )
    for power in range(y_low, y_high + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{human(power, "us")}</text>')
    for timeout, (rate, p50, p99) in points.items():
        at = x(rate)
        parts.append(
            f'<line x1="{at:.1f}" y1="{y(p50):.1f}" x2="{at:.1f}" y2="{y(p99):.1f}" stroke="#06c" stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{at:.1f}" cy="{y(p50):.1f}" r="4" fill="#06c"/>')
        parts.append(f'<text x="{at + 8:.1f}" y="{y(p50) + 4:.1f}">{escape(timeout)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(source: Path, target: Path) -> int:
    data = json.loads(source.read_text())
    for bench in data["benchmarks"]:
        info = bench["extra_info"]
        if bench["name"] == "test_timeouts":
            points = {w: (info["records_per_s"][w], info["p50_us"][w], info["p99_us"][w]) for w in info["p50_us"]}
            target.write_text(drawn(points, data["machine_info"]["cpu"].get("brand_raw", "unknown CPU")))
            return 0
    print(f"{source} has no figures of bench_timeouts.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
