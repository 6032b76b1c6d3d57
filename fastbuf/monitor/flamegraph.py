"""Stacks of tasks, added up to a tree: a flame graph, in Flink's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

KINDS = ("full", "on_cpu", "off_cpu")  #: Flink's
_SIDES = {"full": ("on", "off"), "on_cpu": ("on",), "off_cpu": ("off",)}


def flamegraph(tasks: Iterable[Mapping[str, Any]], kind: str = "full") -> dict[str, Any]:
    """Add up what was sampled of some tasks.

    Parameters
    ----------
    tasks
        Their figures: ``stacks``, samples by stack ("outermost;...;innermost") on and off a CPU.  Of a task without
        them the lines that it was found at (``frames``), of which nobody knows whether they were on a CPU.
    kind
        One of `KINDS`.

    Returns
    -------
    dict
        A node: ``name``, ``value`` (samples, those of its children included) and ``children``, the largest first.
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


def _node(name: str, made: dict[str, Any]) -> dict[str, Any]:
    below = sorted(made["below"].items(), key=lambda pair: (-pair[1]["value"], pair[0]))
    return {"name": name, "value": made["value"], "children": [_node(*pair) for pair in below]}
