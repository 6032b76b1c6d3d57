"""A small exhaustive explorer: every interleaving of a few processes, each state visited once.

A process is a generator that yields *before* each access to shared state, so that one step is one atomic access and the
private work after it.  It yields None, or a function that says whether the step can be taken (a sleeper's wake-up).

A state is the shared state together with where each generator stands and its local variables: numbers, strings and
tuples, so that a loop has to keep its position in one of those, not in an iterator.  Generators cannot be copied, so a
branch is taken by running its schedule again.

Steps are sequentially consistent.  That is what the shipped code asks of every access that the models rely on (the
``seq_cst`` operations); the two relaxed ones (``link``, ``refs``) are argued where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, Protocol

Process = Generator[Any, None, Any]


class World(Protocol):
    processes: list[Process]

    def key(self) -> Hashable: ...
    def check(self) -> None: ...
    def check_end(self, asleep: list[int]) -> None: ...


class Violation(AssertionError):
    """A forbidden outcome; the message ends with the schedule that leads to it."""


_PLAIN = (int, tuple, str, type(None))


def _place(process: Any) -> Hashable:
    """Where a process stands: of each frame its code, instruction and plain local variables."""
    place = []
    while process is not None and process.gi_frame is not None:
        frame = process.gi_frame
        place.append(frame.f_code.co_name)
        place.append(frame.f_lasti)
        place += [item for item in frame.f_locals.items() if isinstance(item[1], _PLAIN)]
        process = process.gi_yieldfrom
    return tuple(place)


class _Run:
    """One execution: the processes, and what each waits for."""

    def __init__(self, make: Callable[[], World]) -> None:
        self.world = make()
        self.waits: list[Any] = []
        for process in self.world.processes:
            self.waits.append(next(process, StopIteration))
        self.places: list[Hashable] = [None] * len(self.waits)  # None: to be looked up

    def step(self, k: int) -> None:
        self.waits[k] = next(self.world.processes[k], StopIteration)
        self.places[k] = None

    def enabled(self) -> list[int]:
        return [k for k, w in enumerate(self.waits) if w is not StopIteration and (w is None or w())]

    def asleep(self) -> list[int]:
        return [k for k, w in enumerate(self.waits) if w is not StopIteration]

    def key(self) -> Hashable:
        for k, place in enumerate(self.places):
            if place is None:
                self.places[k] = _place(self.world.processes[k])
        return self.world.key(), tuple(self.places)


def explore(make: Callable[[], World], most: int = 2_000_000) -> int:
    """Visit every state that can be reached; returns how many there are.

    Raises
    ------
    Violation
        ``check`` failed in some state, or ``check_end`` in one where nobody can move.
    """
    seen: set[int] = set()
    branches: list[tuple[int, ...]] = [()]
    while branches:
        schedule = branches.pop()
        run = _Run(make)
        for k in schedule:
            run.step(k)
        while True:
            key = hash(run.key())
            if key in seen:
                break
            seen.add(key)
            if len(seen) > most:
                raise RuntimeError(f"more than {most} states: make the scenario smaller")
            try:
                run.world.check()
                enabled = run.enabled()
                if not enabled:
                    run.world.check_end(run.asleep())
                    break
            except AssertionError as error:
                raise Violation(f"{error}\nschedule: {schedule}") from None
            branches += [(*schedule, k) for k in enabled[1:]]
            schedule = (*schedule, enabled[0])
            run.step(enabled[0])
    return len(seen)
