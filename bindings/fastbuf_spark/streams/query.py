"""A stream that runs: its runs one after the other, each from the last checkpoint, until it is over or given up."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import re
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from fastbuf.checkpoint.coordinator import CheckpointCoordinator
from fastbuf.checkpoint.store import CheckpointError, CheckpointStore
from fastbuf.checks import seconds, whole
from fastbuf.errors import ConfigError, FastbufError, StallTimeout
from fastbuf_spark.driver.checks import slots_of
from fastbuf_spark.driver.file_systems import shared_folder
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.pyspark_private import is_stopped, setting
from fastbuf_spark.streams import fail_points
from fastbuf_spark.streams.compatible import committed_rows_of, rows_of
from fastbuf_spark.streams.drafts import Duration, seconds_of
from fastbuf_spark.streams.run import Command, Outcome, StreamRun
from fastbuf_spark.streams.spec import StreamSpec

log = logging.getLogger("fastbuf_spark")

SAME_ERROR = 3  #: a task's own error that comes so often in a row ends the query; of one that is drained, any error
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
STEADY_S = 60.0  #: a run that takes checkpoints for so long has left such an error behind
MOST_LOSSES = 20  #: lost tasks in a row without a checkpoint between that has more rows of the sources
LEAST_WAIT_S, MOST_WAIT_S = 0.1, 30.0  #: before a restart; doubled after each failure in a row
SLOTS_TICK_S = 0.1
KILL_IDLE = "spark.python.worker.killOnIdleTimeout"
GONE_S = 60.0  #: a directory of checkpoints that is away for longer ends the query; a mount may come back
STOPPED = (
    "Spark was stopped while the stream ran: call stop() of the query before spark.stop(), if that is what you want; "
    "with another Spark and the same checkpoint= it goes on from its last checkpoint"
)
KEPT_QUERIES = 8  #: ended ones of which figures are kept

_active: weakref.WeakSet[StreamingQuery] = weakref.WeakSet()
_ended: deque[dict[str, Any]] = deque(maxlen=KEPT_QUERIES)
_lock = threading.Lock()


def queries() -> list[dict[str, Any]]:
    """Figures of this driver's streams, as :meth:`StreamingQuery.progress` gives them: the last ended ones first."""
    with _lock:
        ended, active = list(_ended), list(_active)
    return ended + sorted((query.progress() for query in active), key=lambda progress: progress["began"])


class StreamFailed(FastbufError):
    """A stream has ended by an error, and is not started again; the text has the error."""


@dataclasses.dataclass(frozen=True)
class CheckpointConf:
    """When checkpoints are taken, and how failures of them are taken."""

    every_s: float
    timeout_s: float = 600.0
    min_pause_s: float = 0.0
    tolerated: int = 3

    def __post_init__(self) -> None:
        seconds("timeout", self.timeout_s, 0.001)
        whole("tolerated_failures", self.tolerated, 0)


class StreamingQuery:
    """A running stream, made by :meth:`Stream.write_stream`; its methods may be called from any thread."""

    def __init__(
        self,
        sc: Any,
        server: Rendezvous,
        spec: StreamSpec,
        store: CheckpointStore,
        checkpoints: CheckpointConf,
        discover_s: float,
    ) -> None:
        self._sc = sc
        self._server = server
        self._spec = spec
        self._store = store
        self._checkpoints = checkpoints
        self._discover_s = discover_s
        self.began = time.time()  #: in seconds since 1970
        self._state = "starting"
        self._message = ""
        self._error: StreamFailed | None = None
        self._run: StreamRun | None = None
        self._last_run: StreamRun | None = None  # of which figures are left
        self._stopping = threading.Event()
        self._draining = False
        self._ended = threading.Event()
        self._commands: list[Callable[[StreamRun], None]] = []
        self._lock = threading.Lock()
        self._restarts = 0
        self._failures = 0  # in a row, since a checkpoint was complete that has read on
        self._last_errors: list[str] = []
        self._began = 0.0  # the run of now
        self._gone_since: float | None = None
        self._coordinator: CheckpointCoordinator | None = None
        with _lock:
            _active.add(self)
        self._thread = threading.Thread(target=self._loop, name="fastbuf-stream", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """Name of the query."""
        return self._spec.name

    @property
    def id(self) -> str:
        """Of the checkpoints: the same when the query is started again."""
        return self._spec.job

    @property
    def is_active(self) -> bool:
        """Whether it runs, or is about to run again."""
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """``state``: starting, running, restarting, draining, stopped, finished or failed; and a ``message``."""
        state, message, run = self._state, self._message, self._run
        if state in ("running", "draining") and run is not None and not run.running:
            state, message = "starting" if state == "running" else state, run.what_it_awaits()
        return {"state": state, "message": message, "restarts": self._restarts}

    def exception(self) -> StreamFailed | None:
        """The error that ended the query; None if there is none."""
        return self._error

    def await_termination(self, timeout_s: Duration | None = None) -> bool:
        """Wait for its end; whether it has ended.

        Raises
        ------
        StreamFailed
            It has ended by an error.
        """
        done = self._ended.wait(_timeout("timeout_s", timeout_s))
        if self._error is not None:
            raise self._error
        return done

    def stop(self, drain: bool = False, timeout: Duration | None = 120.0) -> None:
        """End the query; the next start goes on from its last checkpoint.

        Parameters
        ----------
        drain
            End the sources first, have windows give what they hold, and take a last checkpoint behind the last row.
        timeout
            How long to wait for the end; None: for as long as it takes.

        Raises
        ------
        StreamFailed
            With ``drain``: it has ended by an error, and not all rows that were read are written.
        StallTimeout
            It has not ended within that time, and goes on to.
        """
        timeout_s = _timeout("timeout", timeout)
        if drain:
            self._draining = True
            self._state = "draining" if self.is_active else self._state
            self._command(lambda run: run.drain())
        else:
            self._stopping.set()
            self._command(lambda run: run.stop())
        if not self._ended.wait(timeout_s):
            message = self.status["message"]
            why = f" ({message})" if message else ""
            raise StallTimeout(
                f"stream '{self.name}' has not ended within {timeout_s:g} s: it is {self._state}{why}; wait with "
                f"await_termination(){', or end it where it is: stop()' if drain else ''}"
            )
        if drain and self._error is not None:
            raise self._error

    def savepoint(self, path: str, timeout: Duration | None = 120.0) -> None:
        """Take a checkpoint now, and copy it to a directory of its own, which stays until you remove it.

        It is taken when the rows of the checkpoint are committed: a stream that begins with it goes on behind them.

        Raises
        ------
        CheckpointError
            It could not be taken or copied, or its rows could not be committed, within that time.
        """
        folder, timeout_s = shared_folder("path", path), _timeout("timeout", timeout)
        answered, answers = threading.Event(), [""]

        def answer(error: str) -> None:
            answers[0] = error
            answered.set()

        self._command(lambda run: run.savepoint(folder, answer))
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not answered.wait(min(0.1, max(0.0, deadline - time.monotonic()))):
            if self._ended.is_set() and not answered.is_set():
                raise CheckpointError(f"no savepoint was taken: the stream has ended, it is {self._state}")
            if time.monotonic() >= deadline:
                raise CheckpointError(f"no savepoint was taken within {timeout_s:g} s: {self._message or self._state}")
        if answers[0]:
            raise CheckpointError(f"the savepoint failed: {answers[0]}")

    def progress(self) -> dict[str, Any]:
        """Figures of the run: stages with their tasks, checkpoints, what the one in progress waits for."""
        from fastbuf_spark.streams.progress import progress_of

        return progress_of(self, self._spec, self._last_run)

    # ---- the query's thread

    def _command(self, call: Callable[[StreamRun], None]) -> None:
        with self._lock:
            run = self._run
            if run is None:
                self._commands.append(call)
            else:
                run.inbox.put((None, Command(call)))

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                outcome = self._execute()
                if outcome.kind == "finished":
                    self._state = "finished" if not self._draining else "stopped"
                    return
                if outcome.kind == "stopped":
                    break
                if is_stopped(self._sc):
                    raise StreamFailed(STOPPED)
                if not self._may_restart(outcome):
                    raise StreamFailed(outcome.reason)
                self._restarts += 1
                wait = wait_after(self._failures)
                self._state = "restarting"
                self._message = f"in {wait:.1f} s, after: {first_line(outcome.reason)}"
                log.warning("stream '%s' starts again in %.1f s: %s", self.name, wait, outcome.reason)
                self._stopping.wait(wait)
            self._state = "stopped"
        except StreamFailed as error:
            self._state, self._message, self._error = "failed", first_line(str(error)), error
        except BaseException as error:
            failure = StreamFailed(STOPPED if is_stopped(self._sc) else f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self._state, self._message, self._error = "failed", str(failure), failure
        finally:
            self._store.unlock()
            self._ended.set()
            with _lock:
                _active.discard(self)
                _ended.append(self.progress())
            if self._error is not None:
                log.error("stream '%s' has failed: %s", self.name, self._error)

    def _may_restart(self, outcome: Outcome) -> bool:
        self._failures += 1
        if not outcome.by_task or (outcome.outage and not self._draining) or self._failures >= MOST_LOSSES:
            return self._failures < MOST_LOSSES
        line = NUMBERS.sub("#", first_line(outcome.reason))  # addresses and places differ where the error does not
        self._last_errors = [*self._last_errors, line][-SAME_ERROR:]
        # A drained stream ends at the third error, whatever that is: somebody waits for the end
        return len(self._last_errors) < SAME_ERROR or (len(set(self._last_errors)) > 1 and not self._draining)

    def _completed(self, has_read: bool) -> None:
        """A checkpoint is complete; whether more of the sources is read than when the run began."""
        is_steady = time.monotonic() - self._began > STEADY_S
        if has_read or is_steady:  # a row that kills its worker may have a checkpoint in front of it, again and again
            self._failures = 0
        if is_steady:  # the first checkpoint may be in front of the row that is bad
            self._last_errors.clear()

    def _execute(self) -> Outcome:
        try:
            spec, restored, last = self._prepare()
        except (CheckpointError, ConfigError):
            raise
        except Exception as error:  # a disk that is full, a sink that does not answer: later it may
            self._check_checkpoints(error)
            return Outcome("failed", f"the run could not begin: {type(error).__name__}: {error}")
        self._gone_since = None
        self._wait_for_slots(spec.tasks)
        if self._stopping.is_set():
            return Outcome("stopped")
        return self._run_once(spec, restored, last)

    def _check_checkpoints(self, error: Exception) -> None:
        """StreamFailed if their directory has not been there for long; the error is that of the last try."""
        if self._store.is_there():
            self._gone_since = None
            return
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since > GONE_S:
            raise StreamFailed(
                f"the checkpoints in {self._store.path} are gone, or cannot be read ({error}), and what the stream "
                "knew with them: put them back and start it again, or give it a new directory, where it begins anew"
            ) from error

    def _prepare(self) -> tuple[StreamSpec, dict[str, Any] | None, int]:
        """A new generation, the checkpoint that it begins from, and the greatest number that one ever had."""
        store = self._store
        if store.generation:
            store.check_generation()
        generation = store.open_generation()
        restored = store.latest()
        if restored is not None:
            store.drop_after(restored["checkpoint"])
        last = store.last()
        store.sweep()
        spec = dataclasses.replace(
            self._spec,
            exchange=secrets.token_hex(8),
            secret=secrets.token_bytes(32),
            generation=generation,
            fail_point=fail_points.asked,
        )
        checkpoints = []
        for number in store.numbers():
            with contextlib.suppress(CheckpointError):
                checkpoints.append(store.read(number))
        for output in spec.outputs:
            rows = [each for checkpoint in checkpoints for _, some in rows_of(output, checkpoint) for each in some]
            output.sink.restore(output.context(spec, 0), rows)
            if restored is not None:
                rows_by_output = restored.setdefault("committed_rows", {})
                rows_by_output[output.name] = committed_rows_of(output, checkpoints)
        return spec, restored, last

    def _run_once(self, spec: StreamSpec, restored: dict[str, Any] | None, last: int) -> Outcome:
        store, settings = self._store, self._checkpoints
        self._coordinator = CheckpointCoordinator(
            range(spec.tasks),
            settings.every_s,
            timeout_s=settings.timeout_s,
            min_pause_s=settings.min_pause_s,
            tolerated=settings.tolerated,
            last=last,
            now=time.monotonic(),
        )
        run = StreamRun(
            self._sc, self._server, spec, store, self._coordinator, restored, self._discover_s, self._completed
        )
        with self._lock:
            self._run = self._last_run = run
            commands, self._commands = self._commands, []
        for call in commands:
            run.inbox.put((None, Command(call)))
        if self._draining:
            run.inbox.put((None, Command(lambda each: each.drain())))
        self._state, self._message, self._began = "draining" if self._draining else "running", "", time.monotonic()
        try:
            return run.execute()
        finally:
            with self._lock:
                self._run = None
                self._commands += run.unheard()

    def _wait_for_slots(self, tasks: int) -> None:
        """Until Spark can start all tasks at once: it looks itself only every 15 s."""
        began, has_warned = time.monotonic(), False
        while not self._stopping.is_set():
            slots = slots_of(self._sc)
            if slots is None or slots >= tasks:
                return
            if not has_warned and time.monotonic() - began > 5:
                has_warned = True
                log.warning("stream '%s' waits for slots: it needs %d, Spark has %d", self.name, tasks, slots)
            self._state, self._message = "restarting", f"waits for slots: {tasks} are needed, Spark has {slots}"
            self._stopping.wait(SLOTS_TICK_S)

    def __reduce__(self) -> Any:
        raise TypeError("a StreamingQuery is of the driver: no function of a stream or a sink may hold one")

    def __repr__(self) -> str:
        return f"StreamingQuery({self.name!r}, {self._state})"


def check_tasks(sc: Any, spec: StreamSpec) -> None:
    """ConfigError if the stream's tasks can never run at the same time, or Spark would end them again and again."""
    limit = str(setting(sc, "spark.python.worker.idleTimeoutSeconds", "0"))
    if str(setting(sc, KILL_IDLE, "false")).lower() == "true" and limit.strip("0s") != "":
        raise ConfigError(
            f"{KILL_IDLE} is set, with idleTimeoutSeconds={limit}: the tasks of a stream write nothing to Spark, which "
            "would end them after so many seconds, each time: leave one of the two out"
        )
    slots = slots_of(sc)
    if slots is None or slots >= spec.tasks or not str(sc.master).startswith("local["):
        return
    shape = " + ".join(f"{stage.tasks} of {stage.name!r}" for stage in spec.stages)
    raise ConfigError(
        f"the stream has {spec.tasks} tasks ({shape}), which hold a slot each for as long as it runs, and Spark has "
        f"{slots}: give its shuffles fewer partitions, or the source fewer tasks, or Spark more slots"
    )


def wait_after(failures: int) -> float:
    """Seconds before the next run, after so many failures in a row."""
    return float(min(MOST_WAIT_S, LEAST_WAIT_S * 2.0 ** min(failures - 1, 12)))


def first_line(reason: str) -> str:
    """What a reason says before its traceback."""
    return reason.strip().partition("\n")[0][:500]


def _timeout(name: str, value: Duration | None) -> float | None:
    return None if value is None or value == math.inf else seconds_of(name, value)
