"""The memfd transport: processes of one host read each other's segments in place.

Data, events, ends and the return of segments go through shared memory (``exchange/shared_block.pxd``). A Unix socket
per channel is the control line: the secret is proved on it, the descriptors of the memory are passed, and its end is
the peer's death. One Python thread per environment, asleep but for greetings and ends, watches these lines.

::

    producer                                             consumer
    HELLO                                     ---->
                                              <----      CHALLENGE
    PROOF                                     ---->
                                              <----      VERDICT; descriptors of the gate's doorbell and eventfd
    OFFER; descriptors of arena, block, bell  ---->
                                              <----      ANSWER: mapped and connected, or why not

Whatever does not succeed before the answer (no such socket, another host's address, memory that cannot be mapped) is
found out by trying; the producer then connects through TCP.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Generator
from typing import Any

from fastbuf.errors import ExchangeClosed, FastbufError, PeerLost, SequenceError
from fastbuf.exchange.connection import Refused, register_transport
from fastbuf.exchange.doorbell import Doorbell
from fastbuf.exchange.named_thread import start_thread
from fastbuf.exchange.shared_lender import SharedWriter
from fastbuf.exchange.shared_reader import SharedReader
from fastbuf.memory.arena import Arena
from fastbuf.transports import handshake as hs
from fastbuf.transports.memfd_greeting import ANSWERED, CANNOT_MAP, IS_THERE, Fds, greet, serve

MAX_UNPROVEN = 64  #: lines that are not connected yet; more wait in the kernel's backlog
GREETING_S = 10.0
COLLECT_S = 0.05  # how often what readers gave back is taken home though no writer of this process asks for a segment
_BACKLOG = 128


def name_of(host: str, port: int) -> str:
    """Name of the Unix socket (in the abstract namespace, which is the network's) beside that TCP address."""
    return f"\0fastbuf/{host}/{port}"


def names_for(host: str, port: int) -> list[str]:
    """Where a consumer of this host would listen for that address; empty: the address is not this host's."""
    names = []
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address[0], 0))  # refused unless the address is one of this host's
                names += [name_of(str(address[0]), port), name_of("::" if ":" in str(address[0]) else "0.0.0.0", port)]
    return list(dict.fromkeys(names))


def _pidfd(sock: socket.socket) -> int:
    """The process at the other end, watched; -1: it is not to be seen from here.

    The socket's end alone would not do: a forked child of the peer has a duplicate of it.
    """
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid > 0 and pid != os.getpid() and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return -1


class _Line:
    """A control line: of one channel that is connected."""

    def __init__(self, sock: socket.socket, end: SharedWriter | SharedReader, gate: Any, channel: int) -> None:
        self.sock = sock
        self.end = end
        self.gate = gate  # the reader's
        self.channel = channel
        self.pidfd = _pidfd(sock)
        self.open = True

    def close(self) -> None:
        if self.open:
            self.open = False
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # a forked child may hold a duplicate
            self.sock.close()
            if self.pidfd >= 0:
                os.close(self.pidfd)

    def lost(self, why: str) -> None:
        """The peer is dead, or has let go."""
        if isinstance(self.end, SharedWriter):
            self.end.lost(why)
        elif not self.end.has_ended():
            self.gate.lose(
                f"producer {self.end.peer} (channel {self.channel}) was lost without its end of partition, after "
                f"{self.end.received_so_far()} buffers: {why}"
            )


class _Stranger:
    """A line that is not connected yet."""

    def __init__(self, sock: socket.socket, talk: Generator[int, tuple[bytes, Fds], tuple[Any, ...]]) -> None:
        self.sock = sock
        self.talk = talk
        self.deadline = time.monotonic() + GREETING_S
        self.data = b""
        self.fds = Fds()
        self.wanted = next(talk)


class MemfdTransport:
    """Connects subpartitions to gates of other processes of this host."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._lock = threading.RLock()
        self._lines: list[_Line] = []
        self._arenas: weakref.WeakValueDictionary[tuple[int, int], Arena] = weakref.WeakValueDictionary()
        self._listening: socket.socket | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        for sock in (self._wake_in, self._wake_out):
            sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._closed = False
        self._accepting = False
        self._thread: threading.Thread | None = None
        self.refused = 0

    # ---- any thread

    def _start(self) -> None:
        if self._closed:
            raise ExchangeClosed("the environment was closed while it connected")
        if self._thread is None:
            # The thread keeps nothing alive: an environment that is forgotten is collected, and ends it.
            arguments = (weakref.ref(self), self._selector)
            self._thread = start_thread(_watch_lines, "fastbuf-memfd", *arguments)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")

    def listen(self, host: str, ports: tuple[int, int]) -> tuple[str, int]:
        """Let producers of this host connect, beside TCP on that address; port 0: the name is taken, TCP must do."""
        port = ports[0]
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.bind(name_of(host, port))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            return host, 0
        with self._lock:
            self._listening = sock
            self._start()
        return host, port

    def register_gate(self, gate: Any) -> None:
        """Gates are found through the environment: nothing to do."""

    def connect(self, partition: Any, index: int, target: tuple[str, int, int], channel: dict[str, Any]) -> None:
        """Connect one subpartition.

        Raises
        ------
        Refused
            It is not to be had this way: TCP may do.
        PeerLost, SequenceError
            The consumer had connected it, and was lost; or has this channel already.
        """
        host, port, gate_id = target
        where = f"consumer {host}:{port}"
        hello = hs.Hello(
            gate_id=gate_id,
            channel=partition.channel,
            epoch=channel["epoch"],
            fingerprint=channel["fingerprint"],
            segment_size=partition.segment_size,
            nonce=hs.fresh_nonce(),
        )
        for name in names_for(host, port):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            sock.settimeout(partition.config.connect_timeout_s)
            try:
                sock.connect(name)
            except OSError:
                sock.close()
                continue
            try:
                self._introduce(sock, hello, partition, index, channel, where)
            except BaseException:
                sock.close()
                raise
            partition.set_transport(index, "memfd", f"{host}:{port} gate {gate_id}")
            return
        raise Refused(f"{where} does not listen on this host")

    def _introduce(
        self, sock: socket.socket, hello: hs.Hello, partition: Any, index: int, channel: dict[str, Any], where: str
    ) -> None:
        # All that can fail for want of memory or descriptors is done before the offer: after it the channel is there.
        fds = greet(sock, hello, channel["secret"], where)
        with fds:
            try:
                bell = Doorbell.attach(fds[0])
                writer = SharedWriter(partition, index)
                arena = self._environment.pool.arena.fileno()
            except (FastbufError, OSError, MemoryError) as error:
                raise Refused(f"the doorbell of {where} cannot be mapped: {error}") from error
            try:
                socket.send_fds(sock, [ANSWERED], [arena, writer.fd, partition.bell.fd])
                answer = hs._receive(sock, 1, where)
            except OSError as error:
                raise PeerLost(f"{where} was lost as it connected: {error}") from error
            if answer == IS_THERE:
                raise SequenceError(
                    f"{where} refused it: channel {hello.channel} is connected already, or its gate has ended"
                )
            if answer != ANSWERED:
                raise Refused(f"{where} could not map this process's memory")
            sock.setblocking(False)
            # Under the lock that let_go_partition and close take: the partition may have been ended while we talked.
            with self._lock:
                partition.check()
                self._start()
                writer.connect(partition, bell, fds.take(1), where, channel["loss_is_cancel"])
                self._lines.append(_Line(sock, writer, None, hello.channel))
                self._wake()

    def let_go_gate(self, gate: Any) -> None:
        """The gate has said its last word on every channel: its memory is about to go."""
        with self._lock:
            for line in [line for line in self._lines if line.gate is gate]:
                self._end(line)
        self._wake()

    def let_go_partition(self, partition: Any) -> None:
        """The partition is about to end; what was finished may still be read, and comes home as it is."""
        with self._lock:
            for line in self._lines:
                if isinstance(line.end, SharedWriter) and line.end.is_of(partition):
                    line.end.release()
            self._collect()
        self._wake()

    def close(self) -> None:
        """Partitions and gates were let go of before: end the thread, take back what was still read."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        with self._lock:
            self._environment.pool.leave_to_readers()
            for line in list(self._lines):
                self._end(line)
            for stranger in list(self._strangers.values()):
                self._forget(stranger)
            if self._listening is not None:
                self._listening.close()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()

    # ---- with the lock held

    def _end(self, line: _Line) -> None:
        """Off the list: a writer's segments come home (those of a pool that ends, or of a dead reader, or all are)."""
        if isinstance(line.end, SharedWriter):
            line.end.drop()
        for descriptor in (line.sock, line.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(descriptor)
        line.close()
        line.gate = None
        if line in self._lines:
            self._lines.remove(line)

    def _collect(self) -> None:
        for line in list(self._lines):
            if isinstance(line.end, SharedWriter) and line.end.collect():
                self._end(line)

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.pop(stranger.sock, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stranger.sock)
        stranger.talk.close()
        stranger.fds.close()
        stranger.sock.close()

    # ---- the thread

    def prepare(self) -> float | None:
        """What is to be watched is, and for how long."""
        with self._lock:
            if self._closed:
                return 0.0
            if self._listening is not None and self._accepting != (len(self._strangers) < MAX_UNPROVEN):
                self._accepting = not self._accepting
                if self._accepting:
                    self._selector.register(self._listening, selectors.EVENT_READ)
                else:
                    self._selector.unregister(self._listening)
            for line in self._lines:
                self._watch(line)
            return self._timeout()

    def carry_on(self, events: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """What has come is seen to; False: the end."""
        with self._lock:
            if self._closed:
                return False
            for key, _ in events:
                self._on(key.fileobj)
            now = time.monotonic()
            for stranger in [s for s in self._strangers.values() if s.deadline <= now]:
                self.refused += 1
                self._forget(stranger)
            self._collect()
            return True

    def _timeout(self) -> float | None:
        soonest = min((s.deadline for s in self._strangers.values()), default=None)
        timeout = None if soonest is None else max(0.0, soonest - time.monotonic())
        if any(isinstance(line.end, SharedWriter) for line in self._lines):
            timeout = COLLECT_S if timeout is None else min(timeout, COLLECT_S)
        return timeout

    def _watch(self, line: _Line) -> None:
        registered = self._selector.get_map()
        for descriptor in (line.sock, line.pidfd):
            if descriptor != -1 and line.open and descriptor not in registered:
                self._selector.register(descriptor, selectors.EVENT_READ)

    def _on(self, descriptor: Any) -> None:
        if descriptor is self._wake_in:
            with contextlib.suppress(OSError):
                self._wake_in.recv(4096)
        elif descriptor is self._listening:
            self._accept()
        elif descriptor in self._strangers:
            self._advance(self._strangers[descriptor])
        else:
            for line in [line for line in self._lines if line.open and descriptor in (line.sock, line.pidfd)]:
                line.lost("the process has ended" if descriptor == line.pidfd else "the connection was closed")
                self._line_ended(line)

    def _line_ended(self, line: _Line) -> None:
        # A writer stays on the list till its partition has let go: it points into the block.
        for descriptor in (line.sock, line.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(descriptor)
        line.close()
        if not isinstance(line.end, SharedWriter):
            self._lines.remove(line)

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors, most likely: who knocks stays in the backlog, and select would say so at once again.
            time.sleep(COLLECT_S)
            return
        sock.setblocking(False)
        stranger = _Stranger(sock, serve(sock, self._environment.gate))
        self._strangers[sock] = stranger
        self._selector.register(sock, selectors.EVENT_READ)

    def _advance(self, stranger: _Stranger) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                stranger.sock, stranger.wanted - len(stranger.data), 4, socket.MSG_CMSG_CLOEXEC
            )
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
                raise PeerLost("the line was closed")
            message, stranger.data = stranger.data, b""
            stranger.wanted = stranger.talk.send((message, stranger.fds))
        except StopIteration as finished:
            hello, gate = finished.value
            self._admit(stranger, hello, gate)
        except Exception:  # of whatever kind: one caller's trouble must not end the thread that serves all
            self.refused += 1
            self._forget(stranger)

    def _admit(self, stranger: _Stranger, hello: hs.Hello, gate: Any) -> None:
        """It has proved the secret, and offers its memory."""
        sock = stranger.sock
        answer = ANSWERED
        peer = f"process {struct.unpack('3i', sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]}"
        try:
            reader = SharedReader(stranger.fds[1], self._arena(stranger.fds[0]), Doorbell.attach(stranger.fds[2]), peer)
        except Exception:
            answer = CANNOT_MAP
        else:
            try:
                gate.add_shared(reader, hello.channel)
            except (SequenceError, ExchangeClosed):
                answer = IS_THERE
        if answer == ANSWERED:
            del self._strangers[sock]
            self._selector.unregister(sock)
            stranger.fds.close()
            line = _Line(sock, reader, gate, hello.channel)
            self._lines.append(line)
            self._watch(line)
        with contextlib.suppress(OSError):  # gone again: its end says so
            sock.send(answer)
        if answer != ANSWERED:
            self.refused += 1
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
        found = transport()
        if found is None:
            return
        timeout = found.prepare()
        del found  # nothing is kept alive while this thread sleeps
        events = selector.select(timeout)
        found = transport()
        going = found is not None and found.carry_on(events)
        del found, events


register_transport("memfd", MemfdTransport)
