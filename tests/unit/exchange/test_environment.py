"""What an environment is made of."""

from __future__ import annotations

import threading

import pytest
from left_behind import nothing_left
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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("shared", [False, True])
def test_listening_that_is_interrupted_leaves_nothing(shared: bool, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as each of its threads starts: ``close`` ends them all."""
    start = threading.Thread.start
    for number in range(2 if shared else 1):
        began = 0

        def interrupted(thread: threading.Thread, number: int = number) -> None:
            nonlocal began
            began += 1
            if began - 1 != number:
                start(thread)
                return
            if when == "after":
                start(thread)
            raise KeyboardInterrupt

        with nothing_left():
            env = fb.ShuffleEnvironment(segments=64, shared=shared)
            monkeypatch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                env.listen()
            monkeypatch.undo()
            env.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_close_that_is_interrupted_is_continued_by_the_next(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as it waits for each of its threads."""
    join, interrupts = threading.Thread.join, []

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread not in interrupts:
            interrupts.append(thread)
            raise KeyboardInterrupt
        join(thread, timeout)

    with nothing_left():
        env = fb.ShuffleEnvironment(segments=64, shared=shared)
        env.listen()
        monkeypatch.setattr(threading.Thread, "join", interrupted)
        for _ in range(1 + shared):
            with pytest.raises(KeyboardInterrupt):
                env.close()
        env.close()
        assert len(interrupts) == 1 + shared
        interrupts.clear()
