"""The memfd transport: processes of one host read each other's segments in place.

Data, events, ends and returned segments go through shared memory (``exchange/shared_block.pxd``). Each channel has a
Unix socket as its control line: the secret is proved on it, the descriptors of the memory are passed over it, and its
EOF means that the peer died. One Python thread per environment watches these lines; it sleeps except for greetings,
ends and PINGs.

::

    producer                                             consumer
    HELLO                                     ---->
                                              <----      CHALLENGE
    PROOF                                     ---->
                                              <----      VERDICT; descriptors of the gate's doorbell and eventfd
    OFFER; descriptors of arena, block, bell  ---->
                                              <----      ANSWER: mapped and connected, or why not
    PING, and its answer                      <--->

If a step before the answer fails (no such socket, an address of another host, memory that cannot be mapped), the
producer connects through TCP instead.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import weakref
from collections.abc import Generator, Iterable
from typing import Any

from fastbuf.errors import ExchangeClosed, FastbufError, PeerLost, ResourceError, SequenceError, strerror
from fastbuf.exchange.blocking_partition import BlockingPartition
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.connection import (
    Credentials,
    NobodyListens,
    Refused,
    StillConnected,
    register_transport,
    warn_once,
)
from fastbuf.exchange.doorbell import Doorbell
from fastbuf.exchange.named_thread import named_thread
from fastbuf.exchange.shared_lender import SharedWriter
from fastbuf.exchange.shared_reader import SharedReader
from fastbuf.fork_safe import child_closes, socket_pair
from fastbuf.memory.arena import Arena
from fastbuf.transports import handshake as hs
from fastbuf.transports.addresses import host_of
from fastbuf.transports.applicant import Applicant
from fastbuf.transports.memfd_greeting import ANSWERED, CANNOT_MAP, ENDED, IS_THERE, NOT_YET, Fds, greet, receive, serve
from fastbuf.transports.memfd_lines import Line, Lines, pid_of
from fastbuf.transports.strangers import PROOF_TIME_S, Stranger, Strangers

COLLECT_S = 0.05  # how often returned segments are collected while no writer of this process requests one
_BACKLOG = 1024


def name_of(host: str, port: int) -> str:
    """Name of the Unix socket (in the network namespace's abstract sockets) that belongs to that TCP address."""
    return f"\0fastbuf/{host}/{port}"


def names_for(host: str, port: int) -> list[str]:
    """Names at which a consumer on this host would listen for that address; empty: the address is not of this host."""
    names = []
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address[0], 0, *address[2:]))  # fails unless the address is one of this host's
                known_by = host_of(address)
                wildcards = ("::",) if ":" in known_by else ("0.0.0.0", "::")  # :: is reached by IPv4 too
                names += [name_of(name, port) for name in (known_by, *wildcards)]
    return list(dict.fromkeys(names))


def _unix_socket() -> socket.socket:
    """A Unix socket; raises Refused where a sandbox denies them."""
    try:
        return child_closes(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
    except OSError as error:
        raise Refused(f"no Unix socket can be made here ({strerror(error.errno or 0)})") from error


class _Stranger(Stranger):
    """A line that is not connected yet."""

    def __init__(self, sock: socket.socket, applicant: Applicant) -> None:
        super().__init__(applicant.peer)
        self.sock = sock
        self.applicant = applicant
        self.talk: Generator[int, tuple[bytes, Fds], tuple[Any, ...]] = serve(sock, applicant)
        self.data = b""
        self.fds = Fds()
        self.wanted = next(self.talk)


class MemfdTransport:
    """Connects subpartitions to gates of other processes of this host."""

    def __init__(self, environment: Any) -> None:
        self._environment = weakref.ref(environment)  # weak: the thread must not keep an unused environment alive
        self._pool = environment.pool
        self._lock = threading.RLock()
        self._arenas: weakref.WeakValueDictionary[tuple[int, int], Arena] = weakref.WeakValueDictionary()
        self._listening: socket.socket | None = None
        with contextlib.ExitStack() as opened:  # closed if the next one cannot be had
            self._wake_in, self._wake_out = map(opened.enter_context, socket_pair())
            self._selector = child_closes(opened.enter_context(selectors.DefaultSelector()))
            opened.pop_all()
        self._lines = Lines(self._selector)
        self._collect_at = monotonic()
        for sock in (self._wake_in, self._wake_out):
            sock.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self.strangers: Strangers[_Stranger] = Strangers("shared memory")
        self._closed = False
        self._thread: threading.Thread | None = None

    # ---- any thread

    def _start(self) -> None:
        if self._closed:
            raise ExchangeClosed("the environment was closed while it connected")
        if self._thread is None:
            # The thread holds only weak references: an environment that nobody uses is collected, which ends the
            # thread.
            arguments = (weakref.ref(self), self._selector)
            self._thread = named_thread(_watch_lines, "fastbuf-memfd", *arguments)
            try:
                self._thread.start()
            except ResourceError:
                self._thread = None  # the next one that needs it tries again
                raise
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")

    def listen(self, host: str, ports: tuple[int, int]) -> tuple[str, int]:
        """Let producers of this host connect, besides TCP at that address; port 0: the name is taken, so TCP only."""
        port = ports[0]
        try:
            sock = _unix_socket()
        except Refused as error:
            warn_once(f"{error}: processes of this host reach this one through TCP")
            return host, 0
        try:
            sock.bind(name_of(host, port))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            return host, 0
        with self._lock:
            try:
                self._start()
            except BaseException:  # nobody would answer callers
                sock.close()
                raise
            self._listening = sock
            self.strangers = Strangers(f"the listener for shared memory beside {host}:{port}")
            self._selector.register(sock, selectors.EVENT_READ)
        return host, port

    def connect(self, partition: Any, index: int, target: tuple[str, int, int], credentials: Credentials) -> None:
        """Connect one subpartition.

        Raises
        ------
        Refused
            This way is not possible: TCP may be.
        PeerLost, SequenceError
            The consumer was connected and then lost, or it has this channel already.
        """
        deadline = monotonic() + partition.config.connect_timeout_s
        hs.patiently(lambda: self._connect(partition, index, target, credentials), deadline, partition.check)

    def _connect(self, partition: Any, index: int, target: tuple[str, int, int], credentials: Credentials) -> None:
        host, port, gate_id = target
        where = f"consumer {host}:{port}"
        hello = hs.Hello.of(partition, gate_id, credentials)
        for name in names_for(host, port):
            sock = _unix_socket()
            sock.settimeout(partition.config.connect_timeout_s)
            try:
                sock.connect(name)
            except OSError:
                sock.close()
                continue
            try:
                self._introduce(sock, hello, partition, index, credentials, where)
            except BaseException:
                sock.close()
                raise
            partition.set_transport(index, "memfd", f"{host}:{port} gate {gate_id}")
            return
        raise NobodyListens(f"{where} does not listen on this host")

    def _introduce(
        self, sock: socket.socket, hello: hs.Hello, partition: Any, index: int, credentials: Credentials, where: str
    ) -> None:
        # Take all memory and descriptors before the offer, since nothing may fail after it: the channel then exists.
        fds = greet(sock, hello, credentials.secret, where)
        with fds:
            try:
                bell = Doorbell.attach(fds[0])
                writer = SharedWriter(partition, index)
                arena = self._pool.arena.fileno()
            except (FastbufError, OSError, MemoryError) as error:
                raise Refused(f"the doorbell of {where} cannot be mapped: {error}") from error
            try:
                socket.send_fds(sock, [ANSWERED], [arena, writer.fd, partition.bell.fd])
                answer = hs._receive(sock, 1, where)
            except TimeoutError as error:
                raise PeerLost(f"{where} was lost while it connected: {error}") from error
            except OSError as error:  # the peer has just gone; TCP finds out whether it still wants data
                raise Refused(f"{where} closed the control line while it connected: {error}") from error
            if answer == IS_THERE:
                raise SequenceError(
                    f"{where} refused the channel: channel {hello.channel} is connected already, or its gate has all "
                    "its channels; give each producer a number of its own, as channel="
                )
            if answer == NOT_YET:
                raise hs.Busy(f"{where} has not read channel {hello.channel} of the producer before to its end")
            if answer == ENDED:
                raise Refused(f"{where} refused the channel: its gate has ended")
            if answer != ANSWERED:
                raise Refused(f"{where} could not map this process's memory")
            sock.setblocking(False)
            # let_go_partition and close take the same lock: the partition may have been closed during the handshake.
            with self._lock:
                partition.check()
                self._start()
                writer.connect(partition, bell, fds.take(1), where, credentials.loss_is_cancel)
                self._lines.add(Line(sock, writer, partition, hello.channel, partition.config.ping_interval_s))
                self._wake()

    def _find_gate(self, gate_id: int) -> Any:
        environment = self._environment()
        return environment.gate(gate_id) if environment is not None else None

    def stats(self) -> dict[str, int]:
        """Number of channels, and the listener's figures of unauthenticated connections."""
        out = self.strangers.stats() if self._listening is not None else {}
        return {**out, "shared_channels": len(self._lines)}

    def let_go_gate(self, gate: Any) -> None:
        """The gate has sent its end on every channel; its memory is about to be freed."""
        with self._lock:
            for line in self._lines.of(gate):
                self._end(line)
        self._wake()

    def let_go_partition(self, partition: Any) -> None:
        """The partition is about to end; its finished data may still be read, and its segments return when it was."""
        with self._lock:
            lines = self._lines.of(partition)
            for line in lines:
                assert isinstance(line.end, SharedWriter)
                line.end.release()
            self._collect(lines)
        self._wake()

    def close(self) -> None:
        """Partitions and gates were detached before: end the thread, take back segments that are still being read."""
        # All of it each time, as an interrupt may have ended an earlier call; what is done already does nothing.
        with self._lock:
            self._closed = True
        self._wake()
        if self._thread is not None and self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        with self._lock:
            self._pool.leave_to_readers()
            for line in self._lines:
                self._end(line)
            for stranger in self.strangers:
                self._forget(stranger)
            if self._listening is not None:
                with contextlib.suppress(OSError):  # closing is not enough: a forked child may have a duplicate
                    self._listening.shutdown(socket.SHUT_RDWR)
                self._listening.close()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()

    # ---- with the lock held

    def _end(self, line: Line) -> None:
        """Remove it and take back a writer's segments (all if its pool ends or the reader is dead)."""
        if isinstance(line.end, SharedWriter):
            line.end.drop()
        self._lines.remove(line)

    def _collect(self, lines: Iterable[Line]) -> None:
        for line in list(lines):
            if isinstance(line.end, SharedWriter) and line.end.collect():
                self._end(line)

    def _forget(self, stranger: _Stranger) -> None:
        self.strangers.leave(stranger)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stranger.sock)
        stranger.talk.close()
        stranger.fds.close()
        stranger.sock.close()

    # ---- the thread

    def prepare(self) -> float | None:
        """Register the descriptors to watch; returns how long to wait."""
        with self._lock:
            if self._closed:
                return 0.0
            self._lines.watch_new()
            return self._timeout()

    def carry_on(self, events: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Handle the events; False: the end."""
        with self._lock:
            if self._closed:
                return False
            for key, _ in events:
                self._on(key)
            # Only after existing lines were handled: new ones may need their places.
            self.strangers.next_round()
            if any(key.fileobj is self._listening for key, _ in events):
                self._accept()
            for stranger in self.strangers.overdue():
                self._drop(stranger, f"it proved no secret within {PROOF_TIME_S:g} s")
            now = monotonic()
            self._lines.check(now)
            if now >= self._collect_at:
                self._collect_at = now + COLLECT_S
                self._collect(self._lines.lenders)
            return True

    def _timeout(self) -> float | None:
        places = self.strangers.soonest()
        soonest = min(self._lines.next_check(), math.inf if places is None else places)
        if self._lines.lenders:
            soonest = min(soonest, self._collect_at)
        return None if soonest == math.inf else max(0.0, soonest - monotonic())

    def _on(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._wake_in:
            with contextlib.suppress(OSError):
                self._wake_in.recv(4096)
        elif key.data in self.strangers:
            self._advance(key.data)
        elif (line := self._lines.watched(key.fd)) is not None:
            died = key.fd == line.pidfd
            if not died and line.hear():
                return
            line.lost("the process has ended" if died else "the connection was closed")
            self._lines.hang_up(line)
            if line.lends:  # its line stays until its partition is detached: the partition points into the block
                self._collect([line])
            else:
                self._lines.remove(line)

    def _accept(self) -> None:
        assert self._listening is not None
        for sock, _ in self.strangers.newcomers(self._listening):
            stranger = _Stranger(sock, Applicant(self._find_gate, 0, f"process {pid_of(sock)}"))
            loser = self.strangers.enter(stranger)
            self._selector.register(sock, selectors.EVENT_READ, stranger)
            if loser is not None:
                self._drop(loser, "its place was needed")

    def _drop(self, stranger: _Stranger, why: str) -> None:
        """Drop it after its time.  A producer may just be slow: the reply that is due tells it to try again."""
        with contextlib.suppress(OSError):
            if not stranger.applicant.proved:
                stranger.sock.send(hs.pack_verdict(hs.BUSY) if stranger.heard else hs.pack_refusal(hs.BUSY))
        self._forget(stranger)
        self.strangers.drop(stranger, why)

    def _advance(self, stranger: _Stranger) -> None:
        try:
            data, fds = receive(stranger.sock, stranger.wanted - len(stranger.data))
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        stranger.fds.extend(fds)
        stranger.data += data
        if data and len(stranger.data) < stranger.wanted:
            return
        try:
            if not data:
                self._forget(stranger)
                return
            message, stranger.data = stranger.data, b""
            stranger.wanted = stranger.talk.send((message, stranger.fds))
            stranger.heard = True
            if stranger.applicant.proved:
                self.strangers.believe(stranger)
        except StopIteration as finished:
            hello, gate = finished.value
            self._admit(stranger, hello, gate)
        except Exception as error:  # any error: one peer's failure must not end the thread that serves all
            self._forget(stranger)
            if not stranger.proved:
                self.strangers.refuse(stranger, str(error))

    def _admit(self, stranger: _Stranger, hello: hs.Hello, gate: Any) -> None:
        """It has proved the secret, and offers its memory."""
        sock = stranger.sock
        answer = ANSWERED
        peer = stranger.applicant.peer
        try:
            reader = SharedReader(stranger.fds[1], self._arena(stranger.fds[0]), Doorbell.attach(stranger.fds[2]), peer)
        except Exception:
            answer = CANNOT_MAP
        else:
            try:
                gate.add_shared(reader, hello.channel, hello.flush_ns)
            except ExchangeClosed:
                answer = ENDED
            except StillConnected:
                answer = NOT_YET
            except SequenceError:
                answer = IS_THERE
        if answer == ANSWERED:
            self.strangers.leave(stranger)
            self._selector.unregister(sock)
            stranger.fds.close()
            self._lines.add(Line(sock, reader, gate, hello.channel, gate.config.ping_interval_s))
        with contextlib.suppress(OSError):  # if the peer has gone, the EOF shows it
            sock.send(answer)
        if answer != ANSWERED:
            self._forget(stranger)

    def _arena(self, fd: int) -> Arena:
        """The arena, mapped once for all channels of its process."""
        status = os.fstat(fd)
        key = status.st_dev, status.st_ino
        arena = self._arenas.get(key)
        if arena is None:
            arena = self._arenas[key] = Arena.attach(fd)
        return arena


def _watch_lines(transport: weakref.ref[MemfdTransport], selector: selectors.BaseSelector) -> None:
    going = True
    while going:
        strong = transport()
        if strong is None:
            return
        timeout = strong.prepare()
        del strong  # keep no reference while this thread sleeps
        try:
            events = selector.select(timeout)
        except ValueError:  # it was closed: the garbage collector ended the environment in this thread
            return
        strong = transport()
        going = strong is not None and strong.carry_on(events)
        del strong, events


def _lacks(environment: Any, partition: Any) -> str:
    fits = partition is None or (
        partition.config.flow_control == "credit" and not isinstance(partition, BlockingPartition)
    )
    if environment.unshared:
        return f"memory that other processes can map, which cannot be had here ({environment.unshared})"
    return "" if environment.shared and fits else "a pipelined partition and a ShuffleEnvironment(shared=True)"


register_transport("memfd", MemfdTransport, _lacks)
