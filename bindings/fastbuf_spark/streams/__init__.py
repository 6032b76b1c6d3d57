"""Streams: pipelines whose sources do not end, with checkpoints by barriers (see docs/explanation/streams.md)."""
