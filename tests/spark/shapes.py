"""The table of shapes: all of them, those of one master together, so that a session serves many."""

from __future__ import annotations

import shapes_actions
import shapes_rdds
import shapes_relations
from shapes_base import SIX, Shape

SHAPES: list[Shape] = sorted(
    [*shapes_actions.TABLE.shapes, *shapes_relations.TABLE.shapes, *shapes_rdds.TABLE.shapes],
    key=lambda each: each.master == SIX,
)
CHEAP = [each for each in SHAPES if each.cheap and each.master != SIX]
