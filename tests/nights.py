"""What is left for the night: tests with the mark ``nightly``, which run with FASTBUF_LONG=1 (``make nightly``) alone.

``@nightly``
    The test.
``@nightly(mode="blocking")``
    The test with this value of its parameter, or with one of these if they are a list; of several names, all hold.
``@nightly(but_one="mode")``
    Of what this parameter is, with all others alike, one runs each time: in turn, so that each value has its share.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

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


def left_for_the_night(items: list[Any]) -> list[Any]:
    """Those of the tests that do not run by day."""
    left = []
    groups: dict[tuple[str, str], dict[tuple[Any, ...], list[Any]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        marks = list(item.iter_markers("nightly"))
        for mark in marks:
            if one_of := mark.kwargs.get("but_one"):
                named(item, one_of)
                others = tuple((name, id(value)) for name, value in parameters(item).items() if name != one_of)
                groups[item.nodeid.partition("[")[0], one_of][others].append(item)
        if any("but_one" not in mark.kwargs and fits(item, mark) for mark in marks):
            left.append(item)
    for alike in groups.values():
        for turn, those in enumerate(alike.values()):
            left += [item for place, item in enumerate(those) if place != turn % len(those)]
    return left
