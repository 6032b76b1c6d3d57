"""The rendezvous: a TCP server in the driver through which the workers of pipelined exchanges find each other.

One daemon thread owns every run and every connection; other threads only post calls to it.  It sleeps without a timeout
while no run is live.  Workers first prove the exchange's secret (see :mod:`fastbuf_spark.protocol`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import secrets
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from fastbuf import __version__
from fastbuf.errors import ConfigError, ProtocolError
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.named_thread import start_thread
from fastbuf.fork_safe import child_closes, socket_pair
from fastbuf.json_frames import FRAME_BYTES, same
from fastbuf.transports.addresses import listen
from fastbuf_spark import protocol
from fastbuf_spark.driver.agreement import Agreement
from fastbuf_spark.driver.barrier_run import BarrierRun
from fastbuf_spark.driver.held import HeldRuns
from fastbuf_spark.driver.reported import Figures, Reported
from fastbuf_spark.driver.run import Run, RunPlan
from fastbuf_spark.driver.slots import Slots
from fastbuf_spark.driver.summary import RunSummary
from fastbuf_spark.messages import Unpacker
from fastbuf_spark.wire import VERSION, clip, prepare, proof

log = logging.getLogger("fastbuf_spark")

TICK_S = 0.25
JOIN_TICK_S = 0.01  #: poll interval while requests arrive: Spark knows after some milliseconds how many there will be
GREETING_S = 10.0  #: an unauthenticated peer is dropped after this time
BACKLOG = 512  #: connections that the kernel keeps until they are accepted
FULL_S = 60.0  #: so often it is told that workers wait for a descriptor
REPLACED_S = 60.0  #: so long a task that misses rows waits for the end of the executor that had them
KEPT_SUMMARIES = 32
KEPT_REFUSALS = 256  #: stages whose tasks cannot succeed, but which Spark may still retry


class StreamSide(Protocol):
    """What takes all messages of an exchange's connections: a run of a stream."""

    def heard(self, connection: Any, message: protocol.FromWorker[Any]) -> None:
        """A message of a task."""

    def lost(self, connection: Any) -> None:
        """A task's connection has ended."""


@dataclass
class _Exchange:
    secret: bytes
    plan: RunPlan | None
    reported: Reported | None = None  # of modes without rendezvous, which have no plan
    slots: Slots | None = None
    held: Callable[[int, int, Figures], None] = lambda stage, partition, stats: None
    lost: Callable[[int, int, int, str], str] = lambda run, partition, stage, reason: ""
    active: Callable[[str], bool] = lambda executor: False
    agreement: Agreement = field(default_factory=Agreement)
    stream: StreamSide | None = None


@dataclass(eq=False)
class _Connection:
    """A worker's connection; its run sees it as :class:`fastbuf_spark.driver.run.Peer`."""

    sock: socket.socket
    server: Rendezvous
    since: float
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    unpacker: Unpacker[protocol.FromWorker[Any]] = field(default_factory=lambda: Unpacker(protocol.FromWorker))
    out: deque[memoryview] = field(default_factory=deque)  # what tasks are told in the same words stands once
    exchange: str = ""
    run: Run | None = None
    reported: Reported | None = None
    closed: bool = False

    def send(self, message: protocol.FromDriver) -> None:
        if not self.closed:
            self.out.append(memoryview(message.encode()))
            self.server.flush(self)


class Rendezvous:
    """A rendezvous for one bind address.

    Parameters
    ----------
    bind
        Address to listen on.
    advertise
        Address given to workers.
    port
        0: any free port.
    """

    def __init__(self, bind: str = "127.0.0.1", advertise: str = "", port: int = 0) -> None:
        try:
            self._listener = listen(bind, (port, port), BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"the rendezvous cannot listen on {bind}:{port}: {error}; set spark.driver.bindAddress or "
                "spark.fastbuf.driverPort"
            ) from error
        self._listener.setblocking(False)
        self.address: tuple[str, int] = (advertise or bind, self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket_pair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._posted: deque[Callable[[], None]] = deque()
        self._exchanges: dict[str, _Exchange] = {}
        self._runs: list[Run] = []  # in the order of their start, until they are over
        self._refused: dict[tuple[str, int], str] = {}  # by exchange and stage
        self._connections: set[_Connection] = set()
        self._strangers: set[_Connection] = set()  # of these, those that have not proved a secret
        self._is_full = False  # no descriptor is free: until the next tick nobody is accepted
        self._told_full = -FULL_S
        # By executor: until when it is waited for, whether it is active still, and who waits
        self._replaced: dict[str, tuple[float, Callable[[str], bool], list[_Connection]]] = {}
        self._closing = False
        self.held = HeldRuns()
        self.summaries: deque[RunSummary] = deque(maxlen=KEPT_SUMMARIES)
        self._thread = start_thread(self._loop, "fastbuf-rendezvous")

    # called by any thread

    def register(
        self,
        exchange: str,
        secret: bytes,
        plan: RunPlan,
        slots: Slots | None = None,
        unsteady: str = "",
    ) -> None:
        """Register an exchange, whose runs begin when consumers ask for partitions."""
        self._exchanges[exchange] = _Exchange(secret, plan, slots=slots, agreement=Agreement(plan.name, unsteady))

    def register_reports(
        self,
        exchange: str,
        secret: bytes,
        reported: Reported,
        held: Callable[[int, int, Figures], None] = lambda stage, partition, stats: None,
        lost: Callable[[int, int, int, str], str] = lambda run, partition, stage, reason: "",
        active: Callable[[str], bool] = lambda executor: False,
    ) -> None:
        """Register a blocking exchange, whose runs are what its tasks tell."""
        self._exchanges[exchange] = _Exchange(secret, None, reported, held=held, lost=lost, active=active)

    def register_servers(self, service: str, secret: bytes) -> None:
        """Register the name under which an application's file servers meet."""
        self._exchanges[service] = _Exchange(secret, None)

    def register_stream(self, exchange: str, secret: bytes, stream: StreamSide) -> None:
        """Register a run of a stream, until it is forgotten."""
        self._exchanges[exchange] = _Exchange(secret, None, stream=stream)

    def forget(self, exchanges: list[str]) -> None:
        """Remove exchanges that cannot run any more."""
        for exchange in exchanges:
            self._exchanges.pop(exchange, None)

    def post(self, call: Callable[[], None]) -> None:
        """Have the server's thread call a function."""
        self._posted.append(call)
        with contextlib.suppress(OSError):  # full: the thread is awake anyway; closed: the call is no longer needed
            self._wake.send(b"x")

    def job_finished(self, run: Run, error: str) -> None:
        """Called by a job's thread: tells its run that the job has ended."""
        self.post(lambda: run.job_finished(error, monotonic()))

    def live_runs(self) -> list[Run]:
        """Runs that are not over."""
        return [run for run in list(self._runs) if not run.over]

    def progress(self) -> list[RunSummary]:
        """Figures of the live runs."""
        now = monotonic()
        reported = [each.reported for each in list(self._exchanges.values()) if each.reported is not None]
        live = [run.progress(now) for run in self.live_runs()]
        return live + [summary for each in reported for summary in each.progress(now)]

    def close(self, timeout: float = 5.0) -> None:
        """Stop the thread and abort live runs."""
        if self._thread.is_alive():
            self.post(self._shut)
            self._thread.join(timeout)

    # called by the server's thread

    def _waiting(self) -> list[Reported]:
        """Blocking exchanges with tasks of which Spark has not said yet how they ended."""
        reported = [each.reported for each in list(self._exchanges.values()) if each.reported is not None]
        return [each for each in reported if each.waiting]

    def _shut(self) -> None:
        self.held.clear()
        for run in self.live_runs():
            run.drop("the driver is shutting down", monotonic())
        self._closing = True

    def _loop(self) -> None:
        ticked = 0.0
        try:
            while not self._closing:
                for key, mask in self._selector.select(self._interval() if self._is_busy() else None):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    elif not key.data.closed:
                        if mask & selectors.EVENT_WRITE:
                            self.flush(key.data)
                        if mask & selectors.EVENT_READ:
                            self._read(key.data)
                while self._posted:
                    self._guarded(self._posted.popleft())
                # Not for every message: it looks at all that goes on
                if (now := monotonic()) - ticked >= self._interval():
                    ticked = now
                    self._tick()
        finally:
            for connection in list(self._connections):
                self._drop(connection)
            self._selector.close()
            for sock in (self._listener, self._woken, self._wake):
                sock.close()

    def _is_busy(self) -> bool:
        """Whether something goes on that needs a look now and then."""
        return bool(self._runs or self._replaced or self._strangers or self._is_full or self._waiting())

    def _interval(self) -> float:
        return JOIN_TICK_S if any(run.state == "joining" for run in self._runs) else TICK_S

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("an error in the rendezvous; it continues")

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                sock = child_closes(self._listener.accept()[0])
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._no_room()
                return
            with contextlib.suppress(OSError):
                sock.setblocking(False)
                prepare(sock)
                connection = _Connection(sock, self, monotonic())
                self._connections.add(connection)
                self._strangers.add(connection)
                self._selector.register(sock, selectors.EVENT_READ, connection)
                connection.send(protocol.Hello(VERSION, connection.nonce, __version__))

    def _no_room(self) -> None:
        """Let those who call wait until the next tick: their calls would wake this thread again and again."""
        self._is_full = True
        self._selector.unregister(self._listener)
        if monotonic() - self._told_full >= FULL_S:
            self._told_full = monotonic()
            log.warning(
                "workers cannot reach the driver: it has connections of %d, and may open %d descriptors in all; raise "
                "its limit (ulimit -n) before Spark starts, or let fewer tasks run at once",
                len(self._connections),
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )

    def flush(self, connection: _Connection) -> None:
        """Write as much as the socket takes; the rest is written when it is writable."""
        if connection.closed:
            return
        try:
            while connection.out:
                left = connection.out[0][connection.sock.send(connection.out[0]) :]
                if left:
                    connection.out[0] = left
                else:
                    connection.out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            # The next read fails as well, and ends the connection; here a loop over the runs may be going on
            connection.out.clear()
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        self._selector.modify(connection.sock, mask, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.unpacker.feed(data)
        try:
            while not connection.closed and (message := connection.unpacker.next()) is not None:
                self._handle(connection, message)
        except ProtocolError as error:
            log.warning("a control connection was dropped: %s", error)
            self._drop(connection)
        except Exception:
            log.exception("a control connection was dropped")
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._connections.discard(connection)
        self._strangers.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        self.held.gone(connection)
        if connection.run is not None:
            run = connection.run
            self._guarded(lambda: run.lost(connection, monotonic()))
        if connection.reported is not None:
            connection.reported.lost(connection, monotonic())
        if (stream := self._stream_of(connection)) is not None:
            stream.lost(connection)

    def _stream_of(self, connection: _Connection) -> StreamSide | None:
        exchange = self._exchanges.get(connection.exchange)
        return None if exchange is None else exchange.stream

    def _handle(self, connection: _Connection, message: protocol.FromWorker[Any]) -> None:
        now = monotonic()
        run = connection.run
        if not connection.exchange:
            self._greet(connection, message)
        elif (stream := self._stream_of(connection)) is not None:
            stream.heard(connection, message)
        elif isinstance(message, protocol.Join):
            self._join(connection, message, now)
        elif isinstance(message, protocol.Lease):
            self._lease(connection, message)
        elif isinstance(message, protocol.Report):
            self._report(connection, message, now)
        elif isinstance(message, protocol.Where):
            connection.send(self.held.where(connection.exchange, message.run))
        elif isinstance(message, protocol.Serves):
            self.held.serves(message, connection)
            connection.send(protocol.Heard())
        elif run is None and connection.exchange not in self._exchanges:
            self._drop(connection)  # a task of a stream's run that is over
        elif run is None:
            raise ProtocolError(f"{message.op} before join or lease")
        else:
            match message:
                case protocol.Ready(host, port, gate):
                    run.ready(connection, host, port, gate, now)
                case protocol.Watch(stats, sent):
                    run.watched(connection, stats, sent)
                case protocol.Begin():
                    run.begin(connection)
                case protocol.Seen(partitions, of, tasks):
                    run.seen(connection, set(partitions), of, tasks)
                case protocol.ProducerDone(totals, stats, unreached):
                    run.producer_done(connection, totals, stats, now, unreached)
                case protocol.ConsumerDone(stats, sent):
                    run.consumer_done(connection, stats, now, sent)
                case protocol.ConsumerFailed(reason):
                    run.consumer_failed(connection, reason, now)
                case protocol.ProducerFailed(reason):
                    run.producer_failed(connection, reason, now)
                case protocol.RunFailed(reason):
                    run.abort(reason, now)
                case _:
                    raise ProtocolError(f"{message.op} a second time")

    def _greet(self, connection: _Connection, message: protocol.FromWorker[Any]) -> None:
        if not isinstance(message, protocol.Proof):
            raise ProtocolError(f"{message.op} before a proof of the secret")
        exchange, nonces = self._exchanges.get(message.exchange), (connection.nonce, message.nonce, message.exchange)
        if exchange is None or not same(message.proof, proof(exchange.secret, "worker", *nonces)):
            # The same answer for both cases: an unauthenticated peer must not learn which exchanges exist
            raise ProtocolError("a worker knows the secret of no exchange here: perhaps a late task of an ended run")
        connection.exchange = message.exchange
        self._strangers.discard(connection)
        connection.unpacker.limit = FRAME_BYTES
        connection.send(protocol.Welcome(proof(exchange.secret, "driver", *nonces)))

    def _join(self, connection: _Connection, message: protocol.Join, now: float) -> None:
        exchange = self._exchanges.get(connection.exchange)
        if exchange is None or exchange.plan is None or connection.run is not None:
            raise ProtocolError("a worker joined an exchange that has no consumers, or joined twice")
        stage, partition, attempt = message.stage, message.partition, message.attempt
        same_stage = [run for run in self._runs if run.plan is exchange.plan and run.stage == stage]
        if exchange.plan.submit is None and not self._newest(connection, same_stage, attempt, now):
            return
        if (connection.exchange, stage) in self._refused:
            connection.send(protocol.Abort(self._refused[connection.exchange, stage]))
            return
        run = next((run for run in same_stage if run.wants(partition)), None)
        if run is None:
            # Tasks of one stage serve one action, also where Spark has no name for it
            scopes: tuple[str, ...] = (message.scope, f"stage {stage}")
            if exchange.slots is not None:
                scopes += exchange.slots.caches(stage)
            kind = Run if exchange.plan.submit is not None else BarrierRun
            run = kind(exchange.plan, stage, now, exchange.agreement, scopes, message.parent)
            run.properties = message.properties
            run.elsewhere = self._counter_elsewhere(run)
            run.crowded = partial(self._others_wait, run)
            run.refuse = partial(self._refuse, connection.exchange, stage)
            self._runs.append(run)
            self.summaries.append(run.summary)
        connection.run = run
        run.join(connection, partition, attempt, now)

    def _counter_elsewhere(self, run: Run) -> Callable[[], int]:
        def elsewhere() -> int:
            others = [o for o in self._runs if o is not run and o.plan is run.plan and o.stage == run.stage]
            return sum(other.held_slots for other in others)

        return elsewhere

    def _others_wait(self, run: Run) -> bool:
        """Whether other runs wait for a slot, besides those that wait for this one's result."""
        readers, epoch = set(), run.parent
        while epoch:
            readers.add(epoch)
            epoch = next((other.parent for other in self._runs if other.epoch == epoch), 0)
        return any(other.without_producers and other.epoch not in readers for other in self._runs if other is not run)

    def _refuse(self, exchange: str, stage: int, reason: str) -> None:
        self._refused[exchange, stage] = reason
        while len(self._refused) > KEPT_REFUSALS:
            del self._refused[next(iter(self._refused))]

    def _newest(self, connection: _Connection, runs: list[Run], attempt: int, now: float) -> bool:
        """Spark reruns a barrier stage with the same stage id and attempt number; only the task ids are new."""
        for run in runs:
            if isinstance(run, BarrierRun) and run.state not in ("joining", "ended"):
                if attempt <= run.newest_attempt():
                    reason = f"task {attempt} of stage {run.stage} is outdated: Spark has started the stage again"
                    connection.send(protocol.Abort(reason))
                    return False
                run.drop(f"Spark has started stage {run.stage} again (task {attempt})", now)
        return True

    def _lease(self, connection: _Connection, message: protocol.Lease) -> None:
        for run in self._runs:
            if run.plan.exchange == connection.exchange and run.epoch == message.epoch:
                connection.run = run
                run.lease(connection, message.partition, message.attempt, message.stage)
                return
        connection.send(protocol.Stop())

    def _report(self, connection: _Connection, message: protocol.Report, now: float) -> None:
        """Figures of a task in blocking mode."""
        exchange = self._exchanges.get(connection.exchange)
        if exchange is None or exchange.reported is None:
            raise ProtocolError("figures of an exchange that has a rendezvous")
        connection.reported = exchange.reported
        if message.side == "producer":
            exchange.held(message.stage, message.partition, message.stats)
        exchange.reported.tells(
            connection, message.side, message.partition, message.stage, message.attempt, message.stats, now
        )
        executor = ""
        if message.lost is not None:
            executor = exchange.lost(*message.lost, message.stage, str(message.stats.get("failed", "")))
        if message.asks and executor:
            self._replaced.setdefault(executor, (now + REPLACED_S, exchange.active, []))[2].append(connection)
        elif message.asks:
            connection.send(protocol.Heard())

    def _executors_gone(self, now: float) -> None:
        """Answers those that miss rows of an executor, once Spark has given it up: before, they would fail again."""
        for executor, (deadline, active, waiting) in list(self._replaced.items()):
            if now >= deadline or not active(executor):
                del self._replaced[executor]
                for connection in waiting:
                    connection.send(protocol.Heard())

    def _tick(self) -> None:
        now = monotonic()
        if self._is_full:
            self._is_full = False
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        for connection in [c for c in self._strangers if now - c.since > GREETING_S]:
            self._drop(connection)
        for run in list(self._runs):
            self._guarded(lambda run=run: run.tick(now))  # type: ignore[misc]
        self._guarded(lambda: self._look_for_slots(now))
        self._guarded(lambda: self._executors_gone(now))
        for reported in self._waiting():
            self._guarded(lambda reported=reported: reported.tick(now))  # type: ignore[misc]
        self._guarded(lambda: self.held.sweep(now))
        for run in [run for run in self._runs if run.over]:
            if run.summary.reason:
                log.info("exchange '%s' ended: %s", run.plan.name, clip(run.summary.reason))
        self._runs = [run for run in self._runs if not run.over]

    def _look_for_slots(self, now: float) -> None:
        """End a run whose producers can never get a slot; a run that only has to wait its turn goes on."""
        for run in [run for run in self._runs if run.without_producers]:
            slots = self._exchanges[run.plan.exchange].slots if run.plan.exchange in self._exchanges else None
            if slots is not None and (verdict := slots.verdict(run, self.live_runs(), now)):
                self._end_all(run, verdict, now)
                return  # the slots it frees may be enough for the others

    def _end_all(self, run: Run, verdict: str, now: float) -> None:
        """End a run for lack of slots, and those that read its result if all together can never have enough."""
        readers = [run]
        while above := next((r for r in self._runs if r.epoch and r.epoch == readers[-1].parent), None):
            readers.append(above)
        exchange = self._exchanges.get(run.plan.exchange)
        slots = exchange.slots.total() if exchange is not None and exchange.slots is not None else None
        for each in readers if slots is not None and sum(r.held_slots for r in readers) >= slots else [run]:
            each.abort(verdict, now, final=True)


_servers: dict[tuple[str, str, int], Rendezvous] = {}
_lock = threading.Lock()
_pid = os.getpid()


def serve(bind: str, advertise: str, port: int = 0) -> Rendezvous:
    """The driver's rendezvous for an address, started at the first request."""
    global _pid
    with _lock:
        if _pid != os.getpid():  # a forked driver has the sockets, but not the thread
            _servers.clear()
            _pid = os.getpid()
        key = (bind, advertise, port)
        if key not in _servers:
            _servers[key] = Rendezvous(bind, advertise, port)
        return _servers[key]


def servers() -> list[Rendezvous]:
    """All rendezvous of this process."""
    with _lock:
        return list(_servers.values()) if _pid == os.getpid() else []


def shutdown() -> None:
    """Stop every rendezvous of this process; exchanges planned so far can no longer run."""
    for server in servers():
        server.close()
    with _lock:
        _servers.clear()
