"""Callers at a door of the exchange's who prove nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest


def hurry(monkeypatch: pytest.MonkeyPatch, door: Any, first: int) -> None:
    """The ``first`` callers of the module ``door`` have little time; an honest one behind them has what is usual."""
    met: list[Any] = []

    class Stranger(door._Stranger):  # type: ignore[misc]  # the class is not known before
        def __init__(self, *caller: Any) -> None:
            super().__init__(*caller)
            met.append(self)
            if len(met) <= first:
                self.deadline = time.monotonic() + 0.3

    monkeypatch.setattr(door, "_Stranger", Stranger)
