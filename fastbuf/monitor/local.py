"""Monitors the writers and gates of this process: samples them four times a second, and reports once a second."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from fastbuf.checks import flag, instance
from fastbuf.errors import AuthenticationError, ConfigError, ExchangeClosed, PeerLost, ProtocolError
from fastbuf.exchange.address import gate_key
from fastbuf.exchange.input_gate import InputGate
from fastbuf.exchange.named_thread import start_thread
from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.exchange.sampler import Sampler
from fastbuf.json_frames import FRAME_BYTES, Unpacker, pack, same
from fastbuf.monitor.collector import Monitor, MonitorAddress
from fastbuf.monitor.figures import MOST_BYTES, Lately, Shares, bounded, ended, hottest, longest
from fastbuf.monitor.links import Links
from fastbuf.monitor.server import Server, serve
from fastbuf.monitor.snapshot import Exchange
from fastbuf.monitor.ticker import REFRESH_S, SAMPLE_S, SAMPLES, samples_of
from fastbuf.monitor.vitals import Vitals
from fastbuf.monitor.wire import proof
from fastbuf.transports.addresses import connect

log = logging.getLogger("fastbuf")

EVERY_S = 1.0
LOOKS = 4  #: samples per report
AROUND = 256  #: bytes of a report besides its figures
CONNECT_S = 10.0
WAITS = ("credit", "link", "segment", "input", "codec")


Key = tuple[int, int | None]  #: a thread: its ident, which a later thread may have too, and the kernel's id


def _natives() -> dict[int, int | None]:
    """The kernel's id of each thread that is known to Python, by ident."""
    return {thread.ident: thread.native_id for thread in threading.enumerate() if thread.ident is not None}


class _Watched:
    """What is known of one writer or gate."""

    def __init__(self, endpoint: RecordWriter | InputGate) -> None:
        self.endpoint = weakref.ref(endpoint)
        self.is_writer = isinstance(endpoint, RecordWriter)
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.unused_s = 0.0  #: seconds before the first write or read
        self.starting_s = 0.0  #: seconds that a gate's reader waited for its first record
        self.links = Links()
        self.lately = {"blocked": Lately(), "linked": Lately()}
        self.samples: dict[str, Any] | None = None
        self.shares = Shares()
        self.figures: dict[str, Any] = {}
        self.last = False
        self.told_last = False
        self.told_gates: list[Any] | None = None  # the gates that were reported last
        self.key: Key = (0, None)  # the thread that wrote or read last
        self.vitals: Vitals | None = None  # that thread's ...
        self.since: dict[str, Any] = {}  # ... and what they were before its first use
        self._stale: int | None = None  # records when the thread was found to have ended

    def thread(self) -> int:
        """Ident of the thread that wrote or read last; 0: none has."""
        endpoint = self.endpoint()
        if endpoint is None:
            return 0
        return int(endpoint.partition.written_by if isinstance(endpoint, RecordWriter) else endpoint.read_by)

    def look(self, natives: Mapping[int, int | None]) -> None:
        """Find its thread. If a new one has the ident of one that has ended, it is that thread if it adds records."""
        ident, endpoint = self.thread(), self.endpoint()
        if endpoint is None or not ident:
            return
        native = natives.get(ident)
        if ident == self.key[0] and native in (None, self.key[1]):
            return
        if ident == self.key[0]:
            records = int(endpoint.stats()["records"])
            before, self._stale = self._stale, records
            if before is None or records == before:
                return
        self.key, self.vitals, self._stale = (ident, native), None, None

    def uses(self, vitals: Vitals | None, new: bool = False) -> None:
        """Its thread's vitals; new: they began with it."""
        if vitals is not None and self.vitals is not vitals:
            self.vitals, self.since = vitals, {} if new else vitals.mark()

    def waits(self) -> tuple[float, dict[str, float], dict[str, Any]]:
        """Seconds since its first use; the seconds in waits and in the codec, by state; its activity."""
        endpoint = self.endpoint()
        assert endpoint is not None
        activity = endpoint.activity()
        total = sum(activity["seconds"].values())
        if not self.thread():
            self.unused_s = total
        elif isinstance(endpoint, InputGate) and not endpoint.records_in:
            self.starting_s = activity["seconds"]["input"]
        waits = {name: activity["seconds"][name] for name in WAITS}
        waits["input"] = max(0.0, waits["input"] - self.starting_s)
        return total - self.unused_s - self.starting_s, waits, activity


class EnvironmentMonitor:
    """Monitors the writers and gates of an environment, and diagnoses what slows them down: ``env.monitor``.

    The first call starts a thread that samples them; it ends with the environment.

    Examples
    --------
    >>> import fastbuf as fb
    >>> rows = fb.RowSerializer(fb.Schema.of(id="int64"))
    >>> with fb.ShuffleEnvironment(segments=64) as env:
    ...     writer, gates = env.exchange(serializer=rows, consumers=2)
    ...     (found,) = env.monitor.snapshot()
    ...     writer.abort()
    >>> sorted(found["producers"]), sorted(found["consumers"]), found["diagnosis"].level
    ([0], [0, 1], 'OK')
    """

    def __init__(self, environment: Any) -> None:
        self._environment = weakref.ref(environment)
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}  # by id of the writer or gate
        self._vitals: dict[Key, Vitals] = {}  # by thread
        self._stage = ""
        self._key_values = False
        self._host = socket.gethostname()
        self._pid = os.getpid()
        self._own = Monitor()
        self._socket: socket.socket | None = None
        self._sampler = Sampler()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    # ---- what users call

    def start(self, stage: str = "", key_values: bool = False) -> EnvironmentMonitor:
        """Start to sample.

        Parameters
        ----------
        stage
            Name of this environment's tasks in diagnoses.
        key_values
            Show the value of a very frequent key: ``key 'LAX' has 61% of the rows``. By default only its hash is shown,
            since keys may be personal data.
        """
        instance("stage", stage, str)
        flag("key_values", key_values)
        self._check_process()
        with self._lock:
            self._stage = stage or self._stage
            if key_values and not self._key_values:
                self._key_values = True
                for endpoint in [watched.endpoint() for watched in self._watched.values()]:
                    if isinstance(endpoint, RecordWriter):
                        endpoint.watch_keys(True)
            if not self._threads and not self._over.is_set():
                self._threads = [
                    start_thread(_run, "fastbuf-monitor", weakref.ref(self), self._over),
                    start_thread(_tick, "fastbuf-ticker", weakref.ref(self), self._sampler, self._over),
                ]
        return self

    def report_to(self, address: MonitorAddress, stage: str = "", key_values: bool = False) -> None:
        """Report this process's tasks to a monitor in another process, once a second, over a connection of its own.

        Parameters
        ----------
        address
            The address of a :class:`Monitor` that listens.
        stage, key_values
            As for :meth:`start`.

        Raises
        ------
        PeerLost
            Nobody listens there.
        AuthenticationError
            The monitor has another secret.
        """
        instance("address", address, MonitorAddress)
        if self._socket is not None:
            raise ConfigError("this environment reports to a monitor already")
        self._check_process()
        sock = _introduced(address)
        with self._lock:
            for watched in self._watched.values():  # an earlier monitor knew these
                watched.told_last, watched.told_gates = False, None
            self._socket = sock
        self.start(stage, key_values)

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # the fork may have copied the lock while another thread held it
            raise ExchangeClosed("this ShuffleEnvironment belongs to the parent process: make a new one after the fork")

    def snapshot(self) -> list[dict[str, Any]]:
        """Current figures of the exchanges of this environment; see :meth:`Monitor.snapshot`."""
        self.start()
        self.look(tell=True)
        return self._own.snapshot()

    def exchanges(self) -> list[Exchange]:
        """The same as :class:`Exchange` objects: a source for :func:`fastbuf.monitor.serve`."""
        self.start()
        self.look(tell=True)
        return self._own.exchanges()

    def serve(self, **settings: Any) -> Server:
        """Serve the figures as a web page, by REST and for Prometheus; settings: :func:`fastbuf.monitor.serve`."""
        return serve(self.exchanges, **settings)

    def close(self) -> None:
        """Stop monitoring; called by the environment's ``close``."""
        self._over.set()
        self._sampler.stop()
        if self._pid == os.getpid():
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
            self._tell(all_of_them=True)
            if self._socket is not None:  # else the monitor has gone
                self._socket.close()
        for vitals in self._vitals.values():
            vitals.close()
        self._vitals.clear()

    # ---- sampling

    def look(self, tell: bool = False, due: float | None = None) -> None:
        """Sample each writer and gate once; tell: update the reports; due: when the sample was due (monotonic)."""
        environment = self._environment()
        if environment is None:
            return
        with self._lock:
            if self._over.is_set():
                return
            self._watch([*environment.writers(), *environment.gates()])
            self._look(time.monotonic() if due is None else due, environment.links())
            if tell:
                self._gather()

    def _watch(self, endpoints: list[RecordWriter | InputGate]) -> None:
        """Start to watch writers and gates that are new."""
        for each in endpoints:
            if id(each) not in self._watched or self._watched[id(each)].endpoint() is not each:
                self._watched[id(each)] = _Watched(each)
                if isinstance(each, RecordWriter):
                    each.watch_keys(self._key_values)

    def _live(self) -> list[_Watched]:
        return [watched for watched in self._watched.values() if not watched.last and watched.endpoint() is not None]

    def _look(self, due: float, links: dict[str, tuple[int, bytes]]) -> None:
        natives = _natives()
        threads: dict[Key, list[tuple[_Watched, str]]] = {}
        for watched in self._live():
            endpoint = watched.endpoint()
            if endpoint is None:
                continue
            _, _, activity = watched.waits()
            watched.look(natives)
            threads.setdefault(watched.key, []).append((watched, activity["state"]))
            if isinstance(endpoint, RecordWriter):
                watched.links.look(endpoint, links)
        for (ident, native), doing in threads.items():
            if native is None or natives.get(ident) != native:
                continue
            new = (ident, native) not in self._vitals
            if new:
                self._vitals[ident, native] = Vitals(ident, native)
            vitals = self._vitals[ident, native]
            for watched, _ in doing:
                watched.uses(vitals, new)
            vitals.look(due, all(state == "runs" for _, state in doing))
        for ident, native in [key for key in self._vitals if natives.get(key[0]) != key[1]]:
            self._vitals.pop((ident, native)).close()  # who has used it keeps its last figures

    def _gather(self) -> None:
        """Update the figures and reports of all."""
        threads: dict[object, list[_Watched]] = {}
        for watched in self._live():
            threads.setdefault(watched.key if watched.key[0] else id(watched), []).append(watched)
        for together in threads.values():
            self._gather_thread(together)
        for watched in self._live():
            endpoint = watched.endpoint()
            if isinstance(endpoint, InputGate) and endpoint.finished:
                watched.last, watched.figures = True, ended(watched.figures)
        self._own.take([self._report(watched) for watched in self._watched.values()])
        for key in [k for k, w in self._watched.items() if w.last and (w.told_last or self._socket is None)]:
            if self._watched[key].endpoint() is None:  # its last figures were taken
                del self._watched[key]

    def _gather_thread(self, together: list[_Watched]) -> None:
        looked = [(watched, *watched.waits()) for watched in together if watched.endpoint() is not None]
        if not looked:
            return
        # A thread that reads one exchange and writes to another is the same task in both
        seconds = {name: sum(waits[name] for _, _, waits, _ in looked) for name in WAITS}
        wall = max(total for _, total, _, _ in looked)
        seconds["user"] = max(0.0, wall - sum(seconds.values()))
        state = "user"
        for _, _, _, activity in looked:
            if activity["state"] != "runs":
                state = activity["state"]
        for watched, _, _, activity in looked:
            watched.uses(self._vitals.get(watched.key))
            vitals = watched.vitals.figures(watched.since) if watched.vitals is not None else {}
            ident = watched.key[0] or -id(watched)
            endpoint = watched.endpoint()
            if endpoint is None:
                continue
            own = {"target": activity["target"]} if activity["target"] is not None else {}
            figures = {**endpoint.stats(), **endpoint.gauges(), "seconds": seconds, "state": state, **own, **vitals}
            figures.update(watched.shares.of(seconds))
            figures.update(task="/".join(map(str, (self._host, self._pid, ident, watched.key[1]))), host=self._host)
            if watched.starting_s:
                figures["seconds"] = {**seconds, "starting": watched.starting_s}
            if isinstance(endpoint, RecordWriter):
                wanted = list(range(endpoint.partition.subpartitions))
                for name, lately in watched.lately.items():
                    waited = endpoint.blocked_s(name == "linked")
                    figures[name] = longest(waited, wanted, lately.of(waited))
                figures.update(watched.links.figures(wanted))
                figures.update(hottest(endpoint))
                if watched.samples is not None:
                    figures["samples"] = watched.samples
            watched.figures = figures

    def _report(self, watched: _Watched, again: bool = False) -> dict[str, Any]:
        """The report on one; again: without a list of gates that was reported before, as it may be long."""
        endpoint = watched.endpoint()
        report: dict[str, Any] = {"id": watched.name, "writer": watched.is_writer, "stage": self._stage}
        if endpoint is not None:
            if isinstance(endpoint, RecordWriter):
                keys = [[gate[0].hex(), gate[1]] if gate is not None else None for gate in endpoint.partition.gates]
                report.update(number=endpoint.partition.channel)
                if not again or keys != watched.told_gates:
                    report.update(gates=keys)
                    watched.told_gates = keys if again else watched.told_gates
            else:
                address = endpoint.environment.address
                where = f"{address[0]}:{address[1]}" if address is not None else ""
                report.update(
                    number=endpoint.gate_id,
                    gate=[gate_key(endpoint.secret, endpoint.epoch, endpoint.gate_id).hex(), where],
                )
        gone = watched.last or endpoint is None
        figures = ended(watched.figures) if gone else watched.figures
        return {**report, "figures": bounded(figures, MOST_BYTES - AROUND)}

    def last_look(self, ending: Any) -> None:
        """Take the last figures of a gate or partition that is being closed; errors here do not stop that."""
        try:
            self._last_look(ending)
        except Exception as error:
            log.debug("the last figures of %r could not be taken: %s", ending, error)

    def _last_look(self, ending: Any) -> None:
        environment = self._environment()
        with self._lock:
            if environment is not None:  # it may have been opened and closed between two samples
                writers = [w for w in environment.writers(closing=True) if w.partition is ending]
                self._watch(writers or [gate for gate in environment.gates() if gate is ending])
            natives = _natives()
            for watched in self._live():
                watched.look(natives)
            for watched in self._live():
                endpoint = watched.endpoint()
                if endpoint is ending or (isinstance(endpoint, RecordWriter) and endpoint.partition is ending):
                    key = watched.key
                    self._gather_thread([w for w in self._live() if w is watched or (key[0] and w.key == key)])
                    watched.figures["state"] = "ended"
                    report = self._report(watched)
                    watched.last = True
                    watched.figures = ended(watched.figures)
                    self._own.take([{**report, "figures": watched.figures}])

    # ---- reporting

    def _tell(self, all_of_them: bool = False) -> None:
        if self._socket is None:
            return
        with self._lock:
            due = [w for w in self._watched.values() if w.figures and (all_of_them or not w.told_last)]
            for watched in due:
                watched.told_last = watched.last
            message = pack([self._report(watched, again=True) for watched in due])
        try:
            self._socket.sendall(message)
        except OSError as error:  # the loss of the monitor must not end the task
            log.debug("the monitor is gone, nothing more is reported to it: %s", error)
            self._socket.close()
            self._socket = None


def _introduced(address: MonitorAddress) -> socket.socket:
    """A connection to a monitor, after both sides have proved to know the secret."""
    where = f"{address.host}:{address.port}"
    try:
        sock = connect(address.host, address.port, CONNECT_S)
    except OSError as error:
        raise PeerLost(f"no monitor can be reached at {where}: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        unpacker, nonce = Unpacker(), secrets.token_hex(16)
        theirs = str(_heard(sock, unpacker, where)["nonce"])
        sock.sendall(pack({"nonce": nonce, "proof": proof(address.secret, "process", theirs, nonce)}))
        answer = _heard(sock, unpacker, where)
        if not same(answer.get("proof"), proof(address.secret, "monitor", theirs, nonce)):
            raise AuthenticationError(f"the monitor at {where} has another secret: use its monitor.address")
    except BaseException:
        sock.close()
        raise
    return sock


def _heard(sock: socket.socket, unpacker: Unpacker, where: str) -> dict[str, Any]:
    while True:
        message = unpacker.next()
        if isinstance(message, dict):
            return message
        if message is not None:
            raise ProtocolError(f"the server at {where} is not a fastbuf monitor")
        try:
            data = sock.recv(FRAME_BYTES)
        except OSError as error:
            raise PeerLost(f"the connection to the monitor at {where} was lost: {error}") from error
        if not data:
            raise AuthenticationError(
                f"the monitor at {where} closed the connection: probably it has another secret; use its monitor.address"
            )
        unpacker.feed(data)


def _run(reference: weakref.ref[EnvironmentMonitor], over: threading.Event) -> None:
    looks, due = 0, time.monotonic() + EVERY_S / LOOKS
    while not over.wait(max(0.0, due - time.monotonic())):
        monitor = reference()
        if monitor is None:
            return
        looks += 1
        try:
            monitor.look(tell=looks % LOOKS == 0, due=due)
            if looks % LOOKS == 0:
                monitor._tell()
        except Exception as error:  # a sample that fails must not end the task
            log.debug("the tasks of this environment could not be sampled: %s", error)
        del monitor
        due = time.monotonic() + EVERY_S / LOOKS


def _tick(reference: weakref.ref[EnvironmentMonitor], sampler: Sampler, over: threading.Event) -> None:
    """Flink's classic measure of back pressure: every minute a series of samples of the writers' states."""
    while not over.is_set():
        monitor = reference()
        if monitor is None:
            return
        with monitor._lock:
            watched = [w for w in monitor._live() if w.is_writer and w.thread()]
        del monitor
        writers = [endpoint for endpoint in (w.endpoint() for w in watched) if isinstance(endpoint, RecordWriter)]
        if len(writers) == len(watched) and writers:
            taken, blocked = sampler.blocked(writers, SAMPLES, SAMPLE_S)
            for each, k in zip(watched, blocked, strict=True):
                if taken:
                    each.samples = samples_of(taken, k)
        del writers
        over.wait(REFRESH_S if watched else EVERY_S)
