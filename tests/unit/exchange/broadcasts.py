"""A broadcast to two gates, of which the second one is slow, over each transport."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
OBJECTS = fb.PickledSerializer()
SEGMENTS = 160
PATIENCE_S = 30.0


@contextlib.contextmanager
def broadcasts(transport: str, usual: fb.ExchangeConfig) -> Iterator[Any]:
    """A function that makes one by its policy: gives its writer and its gates; at the end all segments are home."""
    shared = transport == "memfd"
    far = fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=shared)
    near = fb.ShuffleEnvironment(segments=SEGMENTS, segment_size=1024, shared=shared)
    far.listen()

    def make(policy: str, serializer: Any = ROWS, writes: Any = usual, reads: Any = usual, **settings: Any) -> Any:
        gates = [far.create_input_gate(serializer, channels=1, config=reads, **settings) for _ in range(2)]
        env, targets = (far, gates) if transport == "local" else (near, [gate.address for gate in gates])
        writer = env.create_result_partition(
            serializer, targets, selector=fb.broadcast(), config=writes, on_slow_consumer=policy
        )
        assert set(writer.stats()["transports"]) == {transport}
        return writer, *gates

    yield make
    for env in (near, far):
        env.close()
        assert env.pool.available == SEGMENTS
        env.pool.audit()
