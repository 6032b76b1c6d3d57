"""What an environment is made of."""

from __future__ import annotations

import pytest
from pages import resident

import fastbuf as fb


@pytest.mark.parametrize("shared", [False, True])
def test_prefault_takes_every_page_of_its_segments(shared: bool) -> None:
    with fb.ShuffleEnvironment(segments=256, shared=shared, prefault=True) as env:
        assert resident(env.pool.arena.array) == 1
        writer, (gate,) = env.exchange(serializer=fb.PickledSerializer())
        writer.emit("it works")
        writer.close()
        assert list(gate) == ["it works"]
        assert env.pool.available == 256
    with fb.ShuffleEnvironment(segments=256, shared=shared) as env:
        assert resident(env.pool.arena.array) < 1  # else the above would tell nothing
