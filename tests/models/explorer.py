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
        # sorted: the frame lists them in the order in which it met them
        place += sorted(item for item in frame.f_locals.items() if isinstance(item[1], _PLAIN))
        process = process.gi_yieldfrom
    return tuple(place)


class _Run:
    """One execution: the processes, and what each waits for."""

    def __init__(self, make: Callable[[], World]) -> None:
        self.world = make()
        self.waits: list[Any] = []
        for process in self.world.processes:
            self.waits.append(next(process, StopIteration))
        self.places = [-1] * len(self.waits)  # -1: to be looked up

    def step(self, k: int) -> None:
        self.waits[k] = next(self.world.processes[k], StopIteration)
        self.places[k] = -1

    def enabled(self) -> list[int]:
        return [k for k, w in enumerate(self.waits) if w is not StopIteration and (w is None or w())]

    def asleep(self) -> list[int]:
        return [k for k, w in enumerate(self.waits) if w is not StopIteration]

    def state(self, ids: dict[Hashable, int]) -> tuple[int, ...]:
        """The shared state, and the place of each process, as the numbers that `ids` has for them."""
        for k, place in enumerate(self.places):
            if place < 0:
                self.places[k] = ids.setdefault(_place(self.world.processes[k]), len(ids))
        return (ids.setdefault((self.world.key(),), len(ids)), *self.places)


def explore(make: Callable[[], World], most: int = 2_000_000) -> int:
    """Visit every state that can be reached; returns how many there are.

    What a step does follows from the shared state and the place of the process that takes it.  So where a step leads is
    known when it was taken once, wherever the other processes stood, and no schedule is run again only to arrive at a
    state that was visited, or will be.

    Raises
    ------
    Violation
        ``check`` failed in some state, or ``check_end`` in one where nobody can move.
    """
    ids: dict[Hashable, int] = {}
    seen: set[tuple[int, ...]] = set()
    leads: dict[tuple[int, int, int], tuple[int, int]] = {}  # shared state, process, its place -> both afterwards
    # Schedules to run, whether it is known that they lead to a new state, which is in `seen` then, and the last step.
    branches: list[tuple[tuple[int, ...], bool, tuple[int, int, int] | None]] = [((), False, None)]
    while branches:
        schedule, new, step = branches.pop()
        run = _Run(make)
        for k in schedule:
            run.step(k)
        while True:
            state = run.state(ids)
            if step is not None:
                leads[step] = (state[0], state[1 + step[1]])
            if new and state not in seen:
                raise RuntimeError(f"{schedule} leads elsewhere than that step did before: key() leaves something out")
            if not new:
                if state in seen:
                    break
                seen.add(state)
            if len(seen) > most:
                raise RuntimeError(f"more than {most} states: make the scenario smaller")
            try:
                run.world.check()
                enabled = run.enabled()
                if not enabled:
                    run.world.check_end(run.asleep())
            except AssertionError as error:
                raise Violation(f"{error}\nschedule: {schedule}") from None
            onward = []
            for k in enabled:
                step = (state[0], k, state[1 + k])
                if (after := leads.get(step)) is None:
                    onward.append(((*schedule, k), False, step))
                elif (there := (after[0], *state[1 : 1 + k], after[1], *state[2 + k :])) not in seen:
                    seen.add(there)
                    onward.append(((*schedule, k), True, step))
            if not onward:
                break
            branches += onward[1:]
            schedule, new, step = onward[0]
            run.step(schedule[-1])
    return len(seen)
