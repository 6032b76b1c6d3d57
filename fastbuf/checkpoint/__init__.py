"""Checkpoints: alignment of barriers, their coordinator, key-grouped state, and the store of what is complete."""
