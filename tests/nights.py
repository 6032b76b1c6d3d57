"""What is left for the night: tests with the mark ``nightly``, which run with FASTBUF_LONG=1 (``make nightly``) alone.

``@nightly``
    The test.
``@nightly(mode="blocking")``
    The test with this value of its parameter, or with one of these if they are a list; of several names, all hold.
``@nightly(but_one="mode")``
    Of what this parameter is, with all others alike, one runs each time: in turn, so that each value has its share.

The tests of tests/models and tests/stress are left, too, where native code is as it was when ``make checked`` passed
(tests/native.py).

Without a mark a test of tests/spark runs in one of its modes by day, as if it had ``but_one="mode"``.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from typing import Any

import native
import pytest

LONG = os.environ.get("FASTBUF_LONG") == "1"
nightly = pytest.mark.nightly


def parameters(item: Any) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def named(item: Any, name: str) -> Any:
    """What a parameter is that a mark names."""
    found = parameters(item)
    if name not in found:
        raise pytest.UsageError(f"{item.nodeid} is nightly by {name!r}: its parameters are {sorted(found)}")
    return found[name]


def fits(item: Any, mark: pytest.Mark) -> bool:
    """Whether a test has the values that a mark names: all tests, if it names none."""
    return all(
        named(item, name) in wanted if isinstance(wanted, list) else named(item, name) == wanted
        for name, wanted in mark.kwargs.items()
    )


def but_one(items: list[Any], name: str) -> list[Any]:
    """All but one of those that differ in nothing but this parameter: another one for each of the others' values."""
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for item in items:
        named(item, name)
        others = tuple((key, id(value)) for key, value in parameters(item).items() if key != name)
        groups[item.nodeid.partition("[")[0], others].append(item)
    left = []
    turns: dict[str, int] = {}
    for (test, _), those in groups.items():
        turn = turns[test] = turns.get(test, zlib.crc32(test.encode())) + 1  # tests of one parameter alone differ, too
        left += [item for place, item in enumerate(those) if place != turn % len(those)]
    return left


def left_for_the_night(items: list[Any]) -> list[Any]:
    """Those of the tests that do not run by day."""
    left = []
    groups: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if native.LEFT and item.path.parent.name in ("models", "stress"):
            left.append(item)
            continue
        marks = list(item.iter_markers("nightly"))
        names = [mark.kwargs["but_one"] for mark in marks if "but_one" in mark.kwargs]
        for name in names:
            groups[name].append(item)
        if any("but_one" not in mark.kwargs and fits(item, mark) for mark in marks):
            left.append(item)
        elif not names and item.path.parent.name == "spark" and "mode" in parameters(item):
            groups["mode"].append(item)
    for name, alike in groups.items():
        left += but_one(alike, name)
    return left
