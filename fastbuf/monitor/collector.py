"""The collector: receives reports on tasks from the processes of an exchange, and combines them."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastbuf.checks import instance
from fastbuf.checks import port as checked_port
from fastbuf.errors import ConfigError, ExchangeClosed, FastbufError
from fastbuf.exchange.named_thread import start_thread
from fastbuf.fork_safe import child_closes, socket_pair
from fastbuf.json_frames import FRAME_BYTES, Unpacker, pack, same
from fastbuf.monitor.figures import ended
from fastbuf.monitor.server import Server, serve
from fastbuf.monitor.snapshot import PLAIN, Exchange
from fastbuf.monitor.verdict import Reports, Sides, over_all, verdicts
from fastbuf.monitor.wire import proof
from fastbuf.transports.addresses import listen

log = logging.getLogger("fastbuf")

PROOF_S = 10.0  #: time that a connection has to prove the secret
MOST_STRANGERS = 64  #: most connections that have not proved it yet
FORGET_S = 600.0  #: a task without reports for this long is not shown any more


class MonitorAddress(NamedTuple):
    """What a process needs to report its tasks to a monitor: ``monitor.address``. It can be pickled."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"MonitorAddress({self.host!r}, {self.port}, secret=<{len(self.secret)} bytes>)"


@dataclass
class _Task:
    """The reports of one writer or gate."""

    report: dict[str, Any]
    reports: Reports = field(default_factory=Reports)
    heard: float = 0.0


class _Caller:
    """A connection from a reporting process."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.nonce = secrets.token_hex(16)
        self.unpacker = Unpacker()
        self.proved = False
        self.deadline = time.monotonic() + PROOF_S
        self.tasks: set[str] = set()  # ids of the tasks that it has reported


class Monitor:
    """Collects the reports of processes on their exchanges, and diagnoses which task is slow.

    Examples
    --------
    >>> import fastbuf as fb
    >>> with fb.Monitor.listen() as monitor, fb.ShuffleEnvironment(segments=64) as env:
    ...     env.monitor.report_to(monitor.address)  # the same in every process of the exchange
    ...     monitor.snapshot()
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._tasks: dict[str, _Task] = {}
        self._order: dict[str, int] = {}  # numbers of exchanges, by the names of their gates
        self._next = 0
        self._above: dict[int, set[int]] = {}  # by exchange: the exchanges whose consumers write to it
        self._spans: dict[int, tuple[float, float | None]] = {}  # by exchange: when it was first seen, and ended
        self._listener: socket.socket | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None
        #: The address that processes report to; None: it does not listen.
        self.address: MonitorAddress | None = None

    @classmethod
    def listen(cls, host: str = "127.0.0.1", port: int = 0, secret: bytes | None = None) -> Monitor:
        """A monitor to which processes can report: ``env.monitor.report_to(monitor.address)``.

        Parameters
        ----------
        host, port
            The address to listen on; port 0: any.
        secret
            What processes must prove to know; default: 32 random bytes.
        """
        instance("host", host, str)
        port = checked_port("port", port)
        if secret is not None and not isinstance(secret, (bytes, bytearray)):  # the message must not show its value
            raise ConfigError(f"secret is of type {type(secret).__name__}: it must be bytes")
        monitor = cls()
        monitor._listener = listen(host, (port, port))
        monitor._wake = socket_pair()
        secret = secrets.token_bytes(32) if secret is None else secret
        monitor.address = MonitorAddress(host, int(monitor._listener.getsockname()[1]), secret)
        monitor._thread = start_thread(monitor._serve, "fastbuf-collect")
        return monitor

    # ---- figures

    def take(self, reports: Iterable[dict[str, Any]]) -> None:
        """Add the reports of a process on its writers and gates."""
        now = time.monotonic()
        with self._lock:
            for report in reports:
                if not report.get("figures") or not isinstance(report.get("id"), str):
                    continue
                task = self._tasks.get(report["id"])
                if task is None:
                    task = self._tasks[report["id"]] = _Task(report)
                task.report = {**task.report, **report}  # later reports leave out what has not changed
                task.reports.add(report["figures"], now)
                task.heard = now
            for name in [n for n, task in self._tasks.items() if now - task.heard > FORGET_S]:
                del self._tasks[name]

    def _gone(self, tasks: Iterable[str]) -> None:
        """Mark tasks as ended, since the connection of their process has ended."""
        with self._lock:
            for name in tasks:
                if name in self._tasks:
                    self._tasks[name].reports.last = ended(self._tasks[name].reports.last)

    def snapshot(self) -> list[dict[str, Any]]:
        """Current figures, by exchange.

        Returns
        -------
        list of dict
            ``exchange``: its number, in the order in which they were first seen. ``producers``, ``consumers``: the
            figures of each task, by subtask (a producer's channel, a consumer's place among the producers' targets):
            ``records``, ``bytes``, ``seconds`` by state, ``blocked`` by consumer, ``state``, the shares
            ``backPressured``, ``idle`` and ``busy`` of its last five seconds, and Flink's ``outPoolUsage`` and others.
            ``diagnosis``: which task is slow, by the last five seconds, of an exchange that has ended over all of it
            (:class:`Diagnosis`).
        """
        if self._pid != os.getpid():  # the fork may have copied the lock while another thread held it
            raise ExchangeClosed("this Monitor belongs to the parent process: give monitor.address to the others")
        now = time.monotonic()
        with self._lock:
            exchanges = self._exchanges()
            diagnoses = verdicts({str(n): sides for n, sides in exchanges.items()}, now)
            diagnoses |= over_all({str(n): sides for n, sides in exchanges.items() if not sides.running})
            return [
                {
                    "exchange": n,
                    "stages": (sides.producing, sides.consuming),
                    "producers": {k: dict(reports.last) for k, reports in sorted(sides.producers.items())},
                    "consumers": {k: dict(reports.last) for k, reports in sorted(sides.consumers.items())},
                    "diagnosis": diagnoses[str(n)],
                }
                for n, sides in exchanges.items()
            ]

    def exchanges(self) -> list[Exchange]:
        """The same as :class:`Exchange` objects: a source for :func:`fastbuf.monitor.serve`."""
        now = time.time()
        shown = []
        every = self.snapshot()
        with self._lock:
            self._chain(every)
        for exchange in every:
            number, tasks = exchange["exchange"], [*exchange["producers"].values(), *exchange["consumers"].values()]
            began, ended_at = self._spans.get(number, (now, None))
            over = not any("state" in task for task in tasks)
            ended_at = (ended_at or now) if over else None
            self._spans[number] = began, ended_at
            shown.append(
                Exchange(
                    id=str(number),
                    name=exchange["stages"][1],
                    mode=PLAIN,
                    outcome="ok" if over else "running",
                    began=began,
                    seconds=(ended_at or now) - began,
                    upstream=tuple(str(before) for before in sorted(self._above.get(number, ()))),
                    producers=exchange["producers"],
                    consumers=exchange["consumers"],
                    diagnosis=exchange["diagnosis"],
                )
            )
        return shown

    def serve(self, **settings: Any) -> Server:
        """Serve the figures as a web page, by REST and for Prometheus; settings: :func:`fastbuf.monitor.serve`."""
        return serve(self.exchanges, **settings)

    def _chain(self, exchanges: list[dict[str, Any]]) -> None:
        """Find exchanges whose consumers write to another one; of running tasks only, as thread names are reused."""
        reads: dict[str, set[int]] = {}
        for exchange in exchanges:
            for figures in exchange["consumers"].values():
                if "state" in figures and figures.get("task"):
                    reads.setdefault(figures["task"], set()).add(exchange["exchange"])
        links = {
            (before > exchange["exchange"], exchange["exchange"], before)
            for exchange in exchanges
            for figures in exchange["producers"].values()
            for before in (reads.get(figures.get("task", ""), ()) if "state" in figures else ())
        }
        for _, number, before in sorted(links):  # if two exchanges feed each other, the older one comes first
            if not self._is_above(number, before):
                self._above.setdefault(number, set()).add(before)
        numbers = {exchange["exchange"] for exchange in exchanges}
        self._above = {number: above & numbers for number, above in self._above.items() if number in numbers}

    def _is_above(self, number: int, other: int) -> bool:
        """Whether `other` is that exchange, or reads from it through others."""
        seen: set[int] = set()
        ahead = {other}
        while ahead and number not in ahead:
            seen |= ahead
            ahead = {above for each in ahead for above in self._above.get(each, ())} - seen
        return number in ahead

    def _exchanges(self) -> dict[int, Sides]:
        """Group writers and gates into exchanges: writers with a common gate are in the same exchange."""
        gates: dict[str, list[_Task]] = {}
        for task in self._tasks.values():
            if "gate" in task.report:
                gates.setdefault(task.report["gate"][0], []).append(task)
        groups: list[tuple[set[str], list[_Task], dict[str, tuple[int, _Task]]]] = []
        for task in self._tasks.values():
            keys = task.report.get("gates")
            if not keys:
                continue
            mine = {}
            for index, key in enumerate(keys):
                gate = _meant(gates.get(key[0], []), key[1]) if key is not None else None
                if gate is not None:
                    mine[gate.report["id"]] = (index, gate)
            # A gate without reports still joins its writers
            names = set(mine) | {f"{key[0]} {key[1]}" for key in keys if key is not None}
            writers, consumers = [task], mine
            for group in [group for group in groups if group[0] & names]:
                groups.remove(group)
                names, writers, consumers = group[0] | names, group[1] + writers, {**consumers, **group[2]}
            groups.append((names, writers, consumers))
        taken = {name for names, _, _ in groups for name in names}
        groups += [
            ({task.report["id"]}, [], {task.report["id"]: (0, task)})
            for tasks in gates.values()
            for task in tasks
            if task.report["id"] not in taken
        ]
        sides: dict[int, Sides] = {}
        order: dict[str, int] = {}
        for names, writers, consumers in groups:
            numbers = [self._order[name] for name in names if name in self._order]
            number = min(numbers, default=self._next)
            self._next = max(self._next, number + 1)
            order.update(dict.fromkeys(names, number))
            producing = next((str(task.report["stage"]) for task in writers if task.report.get("stage")), "producers")
            consuming = next(
                (str(task.report["stage"]) for _, task in consumers.values() if task.report.get("stage")), "consumers"
            )
            sides[number] = Sides(
                {int(task.report["number"]): task.reports for task in writers},
                {index: task.reports for index, task in consumers.values()},
                f"producers of {consuming}" if producing == consuming else producing,  # both in one process
                consuming,
            )
        self._order = order  # only of exchanges that are still known
        return dict(sorted(sides.items()))

    # ---- connections

    def _serve(self) -> None:
        assert self._listener is not None
        assert self._wake is not None
        callers: dict[socket.socket, _Caller] = {}
        with child_closes(selectors.DefaultSelector()) as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake[1], selectors.EVENT_READ)

            def drop(caller: _Caller) -> None:
                selector.unregister(caller.sock)
                callers.pop(caller.sock).sock.close()
                self._gone(caller.tasks)

            while True:
                for key, _ in selector.select(1.0):
                    if key.fileobj is self._wake[1]:
                        for caller in list(callers.values()):
                            drop(caller)
                        return
                    if key.fileobj is self._listener:
                        with contextlib.suppress(OSError):
                            sock = child_closes(self._listener.accept()[0])
                            sock.setblocking(False)
                            strangers = [c for c in callers.values() if not c.proved]
                            if len(strangers) >= MOST_STRANGERS:
                                drop(strangers[0])
                            callers[sock] = caller = _Caller(sock)
                            selector.register(sock, selectors.EVENT_READ)
                            sock.send(pack({"nonce": caller.nonce}))
                        continue
                    caller = callers.get(key.fileobj)  # type: ignore[call-overload]
                    if caller is not None and not self._hears(caller):
                        drop(caller)
                for caller in [c for c in callers.values() if not c.proved and c.deadline < time.monotonic()]:
                    drop(caller)

    def _hears(self, caller: _Caller) -> bool:
        """Read what has arrived; False: close the connection."""
        try:
            data = caller.sock.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        caller.unpacker.feed(data)
        try:
            while (message := caller.unpacker.next()) is not None:
                if caller.proved:
                    reports = [report for report in message if isinstance(report, dict)]
                    caller.tasks.update(str(report.get("id")) for report in reports)
                    self.take(reports)
                elif not self._believes(caller, message):
                    return False
        except (FastbufError, TypeError, ValueError, KeyError) as error:
            log.warning("a process sent the monitor a report that cannot be read: %s", error)
            return False
        return bool(data)

    def _believes(self, caller: _Caller, message: Any) -> bool:
        assert self.address is not None
        nonce = message.get("nonce") if isinstance(message, dict) else None
        if not isinstance(nonce, str):
            return False
        if not same(message.get("proof"), proof(self.address.secret, "process", caller.nonce, nonce)):
            return False
        with contextlib.suppress(OSError):
            caller.sock.send(pack({"proof": proof(self.address.secret, "monitor", caller.nonce, nonce)}))
        caller.proved = True
        caller.unpacker.limit = FRAME_BYTES
        return True

    def close(self) -> None:
        """Stop listening; the reports so far can still be read."""
        if self._thread is not None and self._wake is not None and self._listener is not None:
            if self._pid == os.getpid():  # a forked child has its parent's sockets, but not its thread
                self._wake[0].send(b"x")
                self._thread.join()
                with contextlib.suppress(OSError):  # closing is not enough: a forked child may have a duplicate
                    self._listener.shutdown(socket.SHUT_RDWR)
            for sock in (self._listener, *self._wake):
                sock.close()
            self._thread = None

    def __reduce__(self) -> Any:
        raise TypeError("a Monitor belongs to its process and cannot be copied: give monitor.address to the others")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _meant(gates: list[_Task], where: str) -> _Task | None:
    """The gate that a writer writes to; gates with the same secret are told apart by address."""
    if len(gates) == 1:
        return gates[0]
    return next((gate for gate in gates if gate.report["gate"][1] == where), None)
