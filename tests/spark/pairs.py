"""Classes of keys and values that the tests ship to Spark's workers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple


class Pair(NamedTuple):
    k: Any
    v: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Place:
    x: int
    name: str
