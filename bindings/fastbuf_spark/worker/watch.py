"""Reports a task's activity to the driver once a second while it runs, even if it is blocked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

from fastbuf.monitor.figures import MOST_BYTES, Shares, bounded
from fastbuf.monitor.vitals import Vitals
from fastbuf_spark import protocol
from fastbuf_spark.spec import ExchangeSpec, plain
from fastbuf_spark.worker.control import Control, Unreached, words
from fastbuf_spark.worker.held import HeldRowsLost
from fastbuf_spark.worker.memory import addresses_left, one_heap_for_all_threads
from fastbuf_spark.worker.regularly import Regularly
from fastbuf_spark.worker.task_input import TaskInput, task_context

EVERY_S = 1.0
LOOKS = 4  #: samples per report
FIRST = 2  #: of these samples is the first one taken: a task that ends soon says all in its final figures
REACH_S = 2.0  #: that a task which needs the driver for nothing but its reports tries to reach it
LOST_S = 90.0  #: that a task which misses rows waits until Spark has given up the executor that had them
AROUND = 64  #: bytes of a report besides its figures


class TaskClock:
    """Time that a task spends waiting for Spark: for its input, and until its next rows are requested.

    Written by the task's thread; read by any thread, since each step is atomic under the GIL.
    """

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self._total = {"engine_in": 0.0, "engine_out": 0.0}
        self._now: tuple[str, float] | None = None
        #: Seconds until a consumer's first rows arrived, while its producers were starting
        self.starting = 0.0

    def reading(self, source: Iterable[Any]) -> Iterator[Any]:
        """The items of the task's input; the clock measures the wait for each."""
        items = iter(source)
        while True:
            self._enter("engine_in")
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._leave()
            yield item

    def giving(self, items: Iterable[Any]) -> Iterator[Any]:
        """The task's output; the clock runs until the next item is requested."""
        try:
            for item in items:
                self._enter("engine_out")
                try:
                    yield item
                finally:
                    self._leave()
        finally:
            close = getattr(items, "close", None)
            if close is not None:  # like ``yield from``
                close()

    def _enter(self, state: str) -> None:
        self._now = (state, time.monotonic())

    def _leave(self) -> None:
        if self._now is not None:
            state, since = self._now
            self._now = None
            self._total[state] += time.monotonic() - since

    def seconds(self) -> dict[str, float]:
        """Seconds by state, including the current one."""
        now, total = self._now, dict(self._total)
        if now is not None:
            total[now[0]] += time.monotonic() - now[1]
        return total

    @property
    def state(self) -> str | None:
        """The state of its current wait; None: it does not wait."""
        now = self._now
        return None if now is None else now[0]


class Outlet:
    """Counts the samples in which Spark was behind with reading a task's output."""

    def __init__(self, task_input: TaskInput) -> None:
        self._task_input = task_input
        self._looks = self._unread = 0

    def look(self) -> None:
        """Take a sample."""
        self._looks += 1
        self._unread += self._task_input.unread

    def figures(self) -> dict[str, int]:
        """``looks``: number of samples; ``unread``: those with unread output in the kernel."""
        return {"looks": self._looks, "unread": self._unread}


def state_of(clock: TaskClock, activity: dict[str, Any]) -> str:
    """What a task does now: what its writer or gate waits for, what it asks of Spark, or ``user``."""
    return str(activity["state"]) if activity["state"] != "runs" else clock.state or "user"


def times(clock: TaskClock, activity: dict[str, Any]) -> dict[str, Any]:
    """A task's current state and its seconds in each state: from its clock, and from its writer or gate.

    Returns
    -------
    dict
        ``state`` and, for a wait for one consumer, ``target``; ``seconds`` by state.  ``user`` is the remaining time:
        the user's function, encoding and decoding.
    """
    seconds = {name: took for name, took in activity["seconds"].items() if name != "runs"}
    seconds.update(clock.seconds())
    if clock.starting:
        seconds["starting"] = clock.starting
        seconds["input"] -= clock.starting
    seconds["user"] = max(0.0, time.monotonic() - clock.begin - sum(seconds.values()))
    target = activity["target"]
    return {"state": state_of(clock, activity), "seconds": seconds, **({} if target is None else {"target": target})}


class Watch(Regularly):
    """Sends a task's figures to the driver once a second, until the block ends.

    Parameters
    ----------
    figures
        Those of now; they have ``seconds`` by state.  Called from the thread, when it is about to tell.
    look
        Called from it four times in a second, from half a second on: what the task does.
    vitals
        Of the task's thread; looked at as often.
    """

    def __init__(
        self,
        control: Control,
        figures: Callable[[], dict[str, Any]],
        look: Callable[[], str],
        vitals: Vitals,
    ) -> None:
        super().__init__(self._watch, FIRST * EVERY_S / LOOKS, EVERY_S / LOOKS)
        self._control = control
        self._figures = figures
        self._vitals = vitals
        self._look = look
        self._looks = FIRST - 1
        self._shares = Shares()

    def _watch(self, due: float) -> None:
        self._looks += 1
        self._vitals.look(due, self._look() == "user")
        if self._looks % LOOKS == 0:
            figures = self._figures()
            figures = plain({**figures, **self._shares.of(figures["seconds"])})
            self._control.tell(protocol.Watch(bounded(figures, MOST_BYTES - AROUND)))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._vitals.close()


_unreached: set[tuple[str, int]] = set()  # addresses that this process has tried in vain, as behind a firewall


def _lost_rows(error: BaseException | None) -> tuple[int, int] | None:
    """The map task whose rows a task has not found, if that is why it failed: run and number."""
    while error is not None:
        if isinstance(error, HeldRowsLost):
            return error.run, error.number
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def reported(
    spec: ExchangeSpec,
    side: Literal["producer", "consumer"],
    figures: Callable[[], dict[str, Any]],
    needed: bool = False,
) -> Iterator[Callable[[], None]]:
    """Tells the driver a task's figures once a second while the block runs, and at its end; of an error, what it says.

    For tasks that need the driver for nothing else: one that ends within a second connects once, at its end.  That the
    driver cannot be told is no failure of the task, unless its last words are ``needed``; and it is tried once in a
    process.  The block gets a function that tells the figures at once.  A map task waits at its end until the driver
    has heard it, since the driver compares it with earlier attempts.
    """
    context = task_context()
    report = partial(protocol.Report, side, context.partitionId(), context.stageId(), context.taskAttemptId())
    address = spec.address
    if address is None:
        yield lambda: None
        return
    if addresses_left() is not None:
        one_heap_for_all_threads()
    with contextlib.ExitStack() as stack:
        control: Control | None = None

        def connected() -> Control:
            nonlocal control
            if control is None:
                if address in _unreached and not needed:
                    raise Unreached("the driver was not reached before")
                try:
                    control = stack.enter_context(spec.connect(None if needed else REACH_S))
                except Unreached:
                    _unreached.add(address)
                    raise
            return control

        def tell(due: float = 0.0) -> None:
            connected().tell(report({**plain(figures()), "state": "runs"}))

        def tell_now() -> None:
            with contextlib.suppress(Exception):
                tell()

        try:
            with Regularly(tell, EVERY_S, EVERY_S) if spec.conf.monitor else contextlib.nullcontext():
                yield tell_now
        except GeneratorExit:  # nobody needs the rest; of a task without this message it would be asked how it died
            if control is not None:
                with contextlib.suppress(Exception):
                    control.send(report(plain(figures())))
            raise
        except Exception as error:
            with contextlib.suppress(Exception):
                if lost := _lost_rows(error):  # tried again before Spark knows it, the task would fail again
                    connected().ask(report({"failed": words(error)}, lost, asks=True), LOST_S)
                else:
                    connected().send(report({"failed": words(error)}))
            raise
        with contextlib.suppress(*(() if needed else (Exception,))):
            if side == "producer":
                connected().ask(report(plain(figures()), asks=True), spec.conf.stall_timeout if needed else REACH_S)
            else:
                connected().send(report(plain(figures())))
