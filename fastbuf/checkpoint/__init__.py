"""Checkpoints: alignment of barriers, their coordinator, key-grouped state, and the store of what is complete."""

from fastbuf.checkpoint.alignment import Alignment, Step
from fastbuf.checkpoint.coordinator import Abort, Attempt, CheckpointCoordinator, Complete, Fail, Store, Trigger
from fastbuf.checkpoint.key_groups import DEFAULT_KEY_GROUPS, key_group_range, owner, owners

__all__ = [
    "DEFAULT_KEY_GROUPS",
    "Abort",
    "Alignment",
    "Attempt",
    "CheckpointCoordinator",
    "Complete",
    "Fail",
    "Step",
    "Store",
    "Trigger",
    "key_group_range",
    "owner",
    "owners",
]
