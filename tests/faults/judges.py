"""Who others would have named: Flink's rule, and the table of pool usage."""

from __future__ import annotations

from typing import Any

from fastbuf.monitor.pools import read_pools

PRESSED = 0.5  #: of a vertex, from which Flink shows it as held back

Named = set[tuple[str, int | None]]


def _vertices(
    exchanges: list[dict[str, Any]],
) -> list[tuple[str, dict[int, dict[str, Any]], str, dict[int, dict[str, Any]]]]:
    return [(e["stages"][0], e["producers"], e["stages"][1], e["consumers"]) for e in exchanges]


def flinks_rule(exchanges: list[dict[str, Any]]) -> Named:
    """The busiest vertex behind one that is held back; of it the busiest subtask."""
    named: Named = set()
    for _, producers, stage, consumers in _vertices(exchanges):
        pressed = max((f.get("backPressured", 0.0) for f in producers.values()), default=0.0)
        busy = {k: f.get("busy", 0.0) for k, f in consumers.items()}
        held = max((f.get("backPressured", 0.0) for f in consumers.values()), default=0.0)
        if pressed >= PRESSED and busy and held < PRESSED:
            named.add((stage, max(busy, key=busy.__getitem__)))
    return named


def pool_table(exchanges: list[dict[str, Any]]) -> Named:
    """Each task that the table calls the cause."""
    named: Named = set()
    out = {(f.get("task")): f.get("outPoolUsage", 0.0) for e in exchanges for f in e["producers"].values()}
    for _, producers, stage, consumers in _vertices(exchanges):
        upstream = max((f.get("outPoolUsage", 0.0) for f in producers.values()), default=0.0)
        for k, f in consumers.items():
            figures = [f.get(name, 0.0) for name in ("exclusiveBuffersUsage", "floatingBuffersUsage")]
            found = read_pools(f.get("inPoolUsage", 0.0), out.get(f.get("task")), *figures, upstream)
            if found.startswith("cause"):
                named.add((stage, k))
    return named
