"""TLS for connections between hosts, with the standard library's ``ssl``: contexts, and a relay to the I/O thread.

The I/O thread has no TLS.  It gets one end of a socket pair; a Python thread copies bytes between the other end and the
TLS connection.  The end of one stream is passed on as an end, after all bytes before it, so closing and peer loss work
as without TLS.  This costs a copy, one or two system calls and the GIL for every piece: use it for networks that need
it.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from fastbuf.config import TlsConfig
from fastbuf.errors import AuthenticationError, ConfigError, PeerLost
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.named_thread import start_thread
from fastbuf.fork_safe import child_closes, openssl, socket_pair

_PIECE = 1 << 16
_MOST = 1 << 18  # bytes waiting in one direction; when reached, its source is not read
_LAST_WORDS_S = 1.0


class ForkSafeSocket(ssl.SSLSocket):
    """A connection whose calls hold the lock that a fork waits for, and wait for the peer without it.

    Attributes
    ----------
    patience
        How long a call waits for the peer, in seconds; 0: not at all, as a socket that does not block. The socket
        itself never blocks.
    """

    patience: float = 0.0

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        deadline = monotonic() + self.patience
        while True:
            try:
                with openssl:
                    return method(*arguments)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not self.patience:
                    raise
                wanted = select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
            poll = select.poll()
            poll.register(self, wanted)
            if not poll.poll(max(0.0, deadline - monotonic()) * 1000):
                raise TimeoutError("the peer did not answer in time")

    def do_handshake(self, block: bool = False) -> None:
        self._call(super().do_handshake)

    def recv(self, *arguments: Any) -> bytes:
        return bytes(self._call(super().recv, *arguments))

    def send(self, *arguments: Any) -> int:
        return int(self._call(super().send, *arguments))

    def unwrap(self) -> socket.socket:
        sock: socket.socket = self._call(super().unwrap)
        return sock


class ForkSafeObject(ssl.SSLObject):
    """The same for asyncio, whose TLS never waits."""

    def do_handshake(self) -> None:
        with openssl:
            super().do_handshake()

    def read(self, *arguments: Any) -> Any:
        with openssl:
            return super().read(*arguments)

    def write(self, data: Any) -> int:
        with openssl:
            return super().write(data)

    def unwrap(self) -> None:
        with openssl:
            super().unwrap()


def empty_context(protocol: int, version: ssl.TLSVersion) -> ssl.SSLContext:
    """A context of connections that a fork does not catch half way, for that version of TLS or later."""
    ssl_context = ssl.SSLContext(protocol)
    ssl_context.minimum_version = version
    ssl_context.sslsocket_class = ForkSafeSocket
    ssl_context.sslobject_class = ForkSafeObject
    return ssl_context


def context(tls: TlsConfig, server: bool) -> ssl.SSLContext:
    """Requirements of both ends: TLS 1.3, and a certificate of the peer that the authority signed.

    Raises
    ------
    ConfigError
        A file is missing, or contains no certificate or key.
    """
    try:
        with openssl:
            ssl_context = empty_context(
                ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT, ssl.TLSVersion.TLSv1_3
            )
            ssl_context.load_cert_chain(tls.certificate, tls.key)
            ssl_context.load_verify_locations(tls.authority)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"TLS with certificate {tls.certificate}, key {tls.key}, authority {tls.authority}: {error}"
        ) from error
    ssl_context.check_hostname = not server and tls.check_hostname
    ssl_context.verify_mode = ssl.CERT_REQUIRED
    return ssl_context


class _Link:
    """A TLS connection and our end of the socket pair to the I/O thread."""

    def __init__(self, tls: ForkSafeSocket, plain: socket.socket) -> None:
        self.tls = tls
        self.plain = plain
        self.to_tls = bytearray()
        self.to_plain = bytearray()
        self.plain_ended = self.tls_ended = False  # no more bytes come from there
        self.told_plain = self.told_tls = False  # the other side was told so
        self.watched: dict[socket.socket, int] = {}

    def pump(self) -> bool:
        """Copy all bytes that need no waiting; False: both directions have ended."""
        moved = True
        while moved:
            moved = self._from_plain() | self._into_tls() | self._from_tls() | self._into_plain()
        return not (self.told_plain and self.told_tls)

    def _from_plain(self) -> bool:
        if self.plain_ended or len(self.to_tls) >= _MOST:
            return False
        try:
            piece = self.plain.recv(_PIECE)
        except BlockingIOError:
            return False
        self.to_tls += piece
        self.plain_ended = not piece
        return True

    def _into_tls(self) -> bool:
        if self.to_tls:
            try:
                sent = self.tls.send(self.to_tls)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            del self.to_tls[:sent]
            return sent > 0
        if self.plain_ended and not self.told_tls:
            # Send our close_notify, then shut down our half of TCP; further bytes of the peer are read.
            # SSLSocket.shutdown would end TLS in both directions.
            with contextlib.suppress(ssl.SSLError):
                self.tls.unwrap()
            socket.socket.shutdown(self.tls, socket.SHUT_WR)
            self.told_tls = True
            return True
        return False

    def _from_tls(self) -> bool:
        if self.tls_ended or len(self.to_plain) >= _MOST:
            return False
        try:
            piece = self.tls.recv(_PIECE)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            piece = b""
        self.to_plain += piece
        self.tls_ended = not piece
        return True

    def _into_plain(self) -> bool:
        if self.to_plain:
            try:
                sent = self.plain.send(self.to_plain)
            except BlockingIOError:
                return False
            del self.to_plain[:sent]
            return sent > 0
        if self.tls_ended and not self.told_plain:
            self.plain.shutdown(socket.SHUT_WR)
            self.told_plain = True
            return True
        return False

    def wanted(self) -> dict[socket.socket, int]:
        """The events to wait for, by socket."""
        masks: dict[socket.socket, int] = {}
        for sock, ended, to_it, from_it in (
            (self.plain, self.plain_ended, self.to_plain, self.to_tls),
            (self.tls, self.tls_ended, self.to_tls, self.to_plain),
        ):
            if not ended and len(from_it) < _MOST:
                masks[sock] = selectors.EVENT_READ
            if to_it:
                masks[sock] = masks.get(sock, 0) | selectors.EVENT_WRITE
        return masks

    def close(self) -> None:
        self.plain.close()
        socket.socket.close(self.tls)


class Relay:
    """A thread that relays the bytes of all TLS connections of an environment; starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: deque[_Link] = deque()
        self._links: set[_Link] = set()
        self._wake_in, self._wake_out = socket_pair()
        self._closing_at: float | None = None
        self._thread: threading.Thread | None = None

    def add(self, tls: ForkSafeSocket) -> socket.socket:
        """Take over a TLS connection after its handshake; returns the I/O thread's socket."""
        ours, theirs = socket_pair()
        ours.setblocking(False)
        theirs.setblocking(False)
        tls.patience = 0.0
        with self._lock:
            self._new.append(_Link(tls, ours))
            if self._thread is None:
                self._thread = start_thread(self._run, "fastbuf-tls")
        self._wake_out.send(b"x")
        return theirs

    def close(self) -> None:
        """The I/O thread has closed its ends: relay the remaining bytes for a limited time. Idempotent."""
        self._closing_at = monotonic() + _LAST_WORDS_S
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")
        # otherwise the garbage collector ended the environment in the relay's thread
        if self._thread is threading.current_thread():
            return
        if self._thread is not None:
            self._thread.join(2 * _LAST_WORDS_S)
        for sock in (self._wake_in, self._wake_out):
            sock.close()

    # ---- the thread

    def _run(self) -> None:
        with child_closes(selectors.DefaultSelector()) as selector:
            selector.register(self._wake_in, selectors.EVENT_READ)
            while True:
                wait = None
                if self._closing_at is not None:
                    wait = self._closing_at - monotonic()
                    if wait <= 0 or not (self._links or self._new):
                        break
                ready = {key.data for key, _ in selector.select(wait)}
                if None in ready:
                    self._wake_in.recv(64)
                    while self._new:
                        link = self._new.popleft()
                        self._links.add(link)
                        ready.add(link)
                for link in ready - {None}:
                    self._serve(link, selector)
            for link in [*self._links, *self._new]:
                link.close()

    def _serve(self, link: _Link, selector: selectors.BaseSelector) -> None:
        try:
            goes_on = link.pump()
        except OSError:  # TLS failed or ended early, or the I/O thread closed its end: pass the end on
            goes_on = False
        wanted = link.wanted() if goes_on else {}
        for sock in link.watched.keys() - wanted.keys():
            selector.unregister(sock)
        for sock, mask in wanted.items():
            if sock not in link.watched:
                selector.register(sock, mask, link)
            elif link.watched[sock] != mask:
                selector.modify(sock, mask, link)
        link.watched = wanted
        if not goes_on:
            self._links.discard(link)
            link.close()


class TlsEnds:
    """TLS contexts and relay of an environment, for both roles."""

    def __init__(self, tls: TlsConfig) -> None:
        self.server = context(tls, server=True)
        self.client = context(tls, server=False)
        self.relay = Relay()

    @staticmethod
    def refused(error: BaseException | None) -> bool:
        """Whether the peer ended TLS with an alert: it does so after our side of the handshake has finished."""
        return isinstance(error, ssl.SSLError)

    def shake(self, sock: socket.socket, host: str, where: str) -> ForkSafeSocket:
        """See :func:`shake`."""
        return shake(self.client, sock, host, where)


def shake(client: ssl.SSLContext, sock: socket.socket, host: str, where: str) -> ForkSafeSocket:
    """The client's handshake on a blocking socket with a timeout; closes the socket if it fails.

    Raises
    ------
    AuthenticationError
        The peer does not speak TLS, or shows no valid certificate.
    PeerLost
        The peer does not answer in time.
    """
    patience = sock.gettimeout() or 0.0
    sock.setblocking(False)
    try:
        with openssl:
            tls_sock = child_closes(
                client.wrap_socket(sock, server_hostname=host.partition("%")[0], do_handshake_on_connect=False)
            )
        assert isinstance(tls_sock, ForkSafeSocket)
        sock = tls_sock
        tls_sock.patience = patience
        tls_sock.do_handshake()
        return tls_sock
    except TimeoutError as error:
        sock.close()
        raise PeerLost(f"{where} did not answer TLS's handshake in time") from error
    except (OSError, ValueError) as error:
        sock.close()
        raise AuthenticationError(
            f"{where} did not pass TLS's handshake ({error}): a consumer without TLS, or whose certificate is of "
            "another authority or name, is refused"
        ) from error
