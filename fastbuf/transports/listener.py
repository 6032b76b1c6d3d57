"""The listener accepts connections; each proves the secret before the I/O thread gets it.

One Python thread, which sleeps in ``select`` until a peer connects.  The number of unauthenticated connections and
their time are bounded (``strangers``).  Channels that join an existing connection prove their secret to the same
thread, by messages that the I/O thread passes on.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from typing import Any, Protocol

from fastbuf.errors import ConfigError, ExchangeError, PeerLost, ResourceError, descriptors_for
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.connection import StillConnected
from fastbuf.exchange.named_thread import named_thread
from fastbuf.fork_safe import child_closes, openssl, socket_pair
from fastbuf.transports import handshake as hs
from fastbuf.transports.addresses import host_of, listen
from fastbuf.transports.applicant import Applicant, Refused
from fastbuf.transports.socket_options import tune
from fastbuf.transports.strangers import PROOF_TIME_S, Stranger, Strangers

_WANT_READ, _WANT_WRITE = (ssl.SSLWantReadError,), (ssl.SSLWantWriteError,)


class Desk(Protocol):
    """The owner of gates and connections: the transport."""

    def find_gate(self, gate_id: int) -> Any:
        """The open gate with that number, or None."""

    def admit(self, sock: socket.socket, applicant: Applicant) -> None:
        """The secret is proved: take over the socket, or raise ExchangeError to refuse."""

    def messages_fd(self) -> int:
        """A descriptor that is readable when there are handshake messages."""

    def messages(self) -> list[tuple[int, int, bytes, str]]:
        """Messages of joining channels: connection, stream, message, peer."""

    def reply(self, connection: int, stream: int, message: bytes, last: bool) -> None:
        """Answer one of them; `last`: it is refused (an empty message: by timeout)."""

    def admit_stream(self, connection: int, applicant: Applicant) -> None:
        """As `admit`, for a joining channel; sends the welcome."""


def _refusal(error: Exception) -> bytes:
    """The refusal for a producer that proved the secret but was not admitted."""
    if isinstance(error, hs.Crossed):
        return hs.pack_verdict(hs.CROSSED)
    status = hs.REFUSED_GATE if isinstance(error, PeerLost) else hs.REFUSED_CHANNEL
    if isinstance(error, StillConnected):
        status = hs.BUSY
    return hs.pack_verdict(status, str(error) if isinstance(error, ExchangeError) else "")


class _Stranger(Stranger):
    """A connection that has not proved the secret yet."""

    def __init__(self, sock: socket.socket, applicant: Applicant) -> None:
        super().__init__(applicant.peer.rpartition(":")[0])
        self.sock = sock
        self.applicant = applicant
        self.shaken = True  # False during TLS's handshake
        self.data = bytearray()


class Listener:
    """Listens on one address.

    Parameters
    ----------
    host, ports
        The address, and the first and last port to try.
    desk
        The transport that admits producers.
    tls
        If given, every connection must use TLS; ``None``: none may.
    """

    def __init__(self, host: str, ports: tuple[int, int], desk: Desk, tls: ssl.SSLContext | None = None) -> None:
        self._desk = desk
        self._tls = tls
        with contextlib.ExitStack() as opened:  # closed if the next one cannot be had
            self._socket = opened.enter_context(self._bind(host, ports))
            name = self._socket.getsockname()
            self.address: tuple[str, int] = host_of(name), int(name[1])
            self._wake_in, self._wake_out = map(opened.enter_context, socket_pair())
            self._messages_fd = desk.messages_fd()
            self._selector = child_closes(opened.enter_context(selectors.DefaultSelector()))
            opened.pop_all()
        self._closing = False
        self.strangers: Strangers[_Stranger] = Strangers(f"the listener on {self.address[0]}:{self.address[1]}")
        self._joining: dict[tuple[int, int], tuple[Applicant, float]] = {}
        self._thread = named_thread(self._run, "fastbuf-listener")

    def start(self) -> None:
        """Begin to accept; the owner has the listener already, and closes it if this is interrupted."""
        self._thread.start()

    @staticmethod
    def _bind(host: str, ports: tuple[int, int]) -> socket.socket:
        low, high = ports
        if not 0 <= low <= high <= 65535:
            raise ConfigError(f"port range {low}..{high}: two ports between 0 and 65535, the lower first")
        try:
            with descriptors_for(f"cannot listen on {host}"):
                sock = listen(host, ports)
        except OSError as error:
            raise ResourceError(f"cannot listen on {host}, ports {low}..{high}: {error}; choose other ones") from error
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        """Stop listening and drop unauthenticated connections."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")
        # otherwise the garbage collector runs this in the listener's thread
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        with contextlib.suppress(OSError):  # closing is not enough: a forked child may have a duplicate
            self._socket.shutdown(socket.SHUT_RDWR)
        for ours in (self._socket, self._wake_in, self._wake_out, self._selector):
            ours.close()

    # ---- the thread

    def _run(self) -> None:
        with self._selector as selector:
            try:
                for ours in (self._wake_in, self._messages_fd, self._socket):
                    selector.register(ours, selectors.EVENT_READ)
                while not self._closing:
                    self._look(selector)
            except Exception:
                if not self._closing:  # otherwise the garbage collector closed the environment in this thread
                    raise
            for stranger in self.strangers:
                stranger.sock.close()

    def _look(self, selector: selectors.BaseSelector) -> None:
        """Wait for events and handle them.  While it waits, no variable refers to a gate, and so to an environment."""
        deadlines = [deadline for _, deadline in self._joining.values()]
        soonest = min(filter(None, [self.strangers.soonest(), *deadlines]), default=None)
        events = selector.select(None if soonest is None else max(0.0, soonest - monotonic()))
        # Handle existing connections before accepting new ones, which may need their places.
        for key, _ in events:
            if key.fileobj == self._messages_fd:
                self._read_messages()
            elif key.data in self.strangers:
                self._advance(key.data, selector)
        self.strangers.next_round()
        if any(key.fileobj is self._socket for key, _ in events):
            self._accept(selector)
        if soonest is not None:
            self._expire(selector)

    def _expire(self, selector: selectors.BaseSelector) -> None:
        for stranger in self.strangers.overdue():
            self._drop(stranger, selector, f"it proved no secret within {PROOF_TIME_S:g} s")
        now = monotonic()
        for key in [key for key, (_, deadline) in self._joining.items() if deadline <= now]:
            del self._joining[key]
            self.strangers.idle += 1
            self._desk.reply(*key, b"", True)

    # ---- connections

    def _accept(self, selector: selectors.BaseSelector) -> None:
        for sock, address in self.strangers.newcomers(self._socket):
            tune(sock)  # if the peer has closed it already, reading finds out
            stranger = _Stranger(sock, Applicant(self._desk.find_gate, 0, f"{host_of(address)}:{address[1]}"))
            stranger.shaken = self._tls is None
            loser = self.strangers.enter(stranger)
            selector.register(sock, selectors.EVENT_READ, stranger)
            if loser is not None:
                self._drop(loser, selector, "its place was needed")

    def _shake(self, s: _Stranger, selector: selectors.BaseSelector) -> bool:
        """One step of TLS's handshake; False: more is to come, or the connection was refused."""
        assert self._tls is not None
        try:
            if not hasattr(s.sock, "do_handshake"):
                if hs.MAGIC.startswith(s.sock.recv(len(hs.MAGIC), socket.MSG_PEEK)[: len(hs.MAGIC) - 1]):
                    self._send_away(s, selector, "it does not use TLS", hs.pack_refusal(hs.REFUSED_PLAIN))
                    return False
                s.heard = True
                selector.unregister(s.sock)
                with openssl:
                    s.sock = child_closes(
                        self._tls.wrap_socket(s.sock, server_side=True, do_handshake_on_connect=False)
                    )
                selector.register(s.sock, selectors.EVENT_READ, s)
            s.sock.do_handshake()
            s.shaken = True
            selector.modify(s.sock, selectors.EVENT_READ, s)
        except (BlockingIOError, *_WANT_READ):
            selector.modify(s.sock, selectors.EVENT_READ, s)
        except _WANT_WRITE:
            selector.modify(s.sock, selectors.EVENT_WRITE, s)
        except OSError as error:  # the peer does not speak TLS, or has no certificate signed by the authority
            self._send_away(s, selector, f"TLS's handshake failed: {error}")
        return s.shaken

    def _advance(self, s: _Stranger, selector: selectors.BaseSelector) -> None:
        """Handle the bytes that arrived."""
        if not s.shaken and not self._shake(s, selector):
            return
        while s in self.strangers and self._take_in(s, selector):
            pass  # TLS may hold several messages that select does not report

    def _take_in(self, s: _Stranger, selector: selectors.BaseSelector) -> bool:
        """Read once; False: nothing more has arrived."""
        try:
            part = s.sock.recv(s.applicant.wanted - len(s.data))
        except (BlockingIOError, *_WANT_READ):
            return False
        except OSError:
            part = b""
        if not part:
            self._leave(s, selector)
            s.sock.close()
            return False
        s.data += part
        if len(s.data) == s.applicant.wanted:
            self._hear(s, selector)
        return True

    def _hear(self, s: _Stranger, selector: selectors.BaseSelector) -> None:
        """Handle a whole message."""
        message = bytes(s.data)
        s.data.clear()
        try:
            reply = s.applicant.hear(message)
            if not s.applicant.proved:
                s.heard = True
                s.sock.send(reply)
                return
        except Refused as refusal:
            self._send_away(s, selector, str(refusal), refusal.reply)
            return
        except Exception as error:  # any error: one peer's failure must not end the thread that serves all
            self._send_away(s, selector, str(error))
            return
        # The socket is no longer ours from here on: the I/O thread may close the descriptor at any moment.
        self._leave(s, selector)
        self.strangers.believe(s)
        try:
            self._desk.admit(s.sock, s.applicant)
        except Exception as error:
            if s.applicant.taken:
                return
            with contextlib.suppress(OSError):
                s.sock.send(_refusal(error))
            s.sock.close()

    def _leave(self, s: _Stranger, selector: selectors.BaseSelector) -> None:
        selector.unregister(s.sock)
        self.strangers.leave(s)

    def _send_away(self, s: _Stranger, selector: selectors.BaseSelector, why: str, reply: bytes = b"") -> None:
        """Refuse it because of a message it sent."""
        self._leave(s, selector)
        with contextlib.suppress(OSError):
            if reply:
                s.sock.send(reply)
        s.sock.close()
        self.strangers.refuse(s, why)

    def _drop(self, s: _Stranger, selector: selectors.BaseSelector, why: str) -> None:
        """Drop it after its time.  A producer may just be slow: the reply that is due tells it to try again."""
        self._leave(s, selector)
        with contextlib.suppress(OSError):
            if s.shaken:
                s.sock.send(hs.pack_verdict(hs.BUSY) if s.applicant.hello else hs.pack_refusal(hs.BUSY))
        s.sock.close()
        self.strangers.drop(s, why)

    # ---- channels that join a connection

    def _read_messages(self) -> None:
        for connection, stream, message, peer in self._desk.messages():
            applicant, deadline = self._joining.pop((connection, stream), (None, 0.0))
            if applicant is None:
                applicant = Applicant(self._desk.find_gate, stream, peer)
                deadline = monotonic() + PROOF_TIME_S
            try:
                reply = applicant.hear(message)
                if applicant.proved:
                    self._desk.admit_stream(connection, applicant)
                    continue
            except Exception as error:  # any error, as above
                self.strangers.refused += not applicant.proved
                reply = error.reply if isinstance(error, Refused) else b""
                if applicant.proved:
                    reply = _refusal(error)
                self._desk.reply(connection, stream, reply, True)
                continue
            self._joining[connection, stream] = applicant, deadline
            self._desk.reply(connection, stream, reply, False)
