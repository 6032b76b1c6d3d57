"""Builds a flame graph, in Flink's format, from sampled stacks of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

KINDS = ("full", "on_cpu", "off_cpu")  #: as in Flink
_SIDES = {"full": ("on", "off"), "on_cpu": ("on",), "off_cpu": ("off",)}


def flamegraph(tasks: Iterable[Mapping[str, Any]], kind: str = "full") -> dict[str, Any]:
    """Add up the samples of some tasks.

    Parameters
    ----------
    tasks
        Their figures: ``stacks``, samples by stack ("outermost;...;innermost") on and off a CPU.  For a task without
        stacks, the sampled lines (``frames``) are used; it is not known whether they were on a CPU.
    kind
        One of `KINDS`.

    Returns
    -------
    dict
        A node: ``name``, ``value`` (samples, including those of its children) and ``children``, the largest first.
    """
    root: dict[str, Any] = {"value": 0, "below": {}}
    for figures in tasks:
        stacks = figures.get("stacks") or {}
        for side in _SIDES[kind]:
            for stack, samples in (stacks.get(side) or {}).items():
                _add(root, str(stack).split(";"), samples)
        if not stacks and kind == "full":
            for line, samples in (figures.get("frames") or {}).items():
                _add(root, [str(line)], samples)
    return _node("root", root)


def _add(root: dict[str, Any], stack: list[str], samples: float) -> None:
    root["value"] += samples
    at = root
    for name in stack:
        at = at["below"].setdefault(name, {"value": 0, "below": {}})
        at["value"] += samples


def _node(name: str, node: dict[str, Any]) -> dict[str, Any]:
    below = sorted(node["below"].items(), key=lambda pair: (-pair[1]["value"], pair[0]))
    return {"name": name, "value": node["value"], "children": [_node(*pair) for pair in below]}
