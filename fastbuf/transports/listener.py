"""The listener: accepts connections and has each prove the secret before the I/O thread sees it.

One Python thread, asleep in ``select`` but while somebody connects.  Strangers cost little: a bound
on how many may be unauthenticated at once, and on their time.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from fastbuf.errors import ConfigError, ExchangeError, ResourceError
from fastbuf.transports import handshake as hs

MAX_UNPROVEN = 64  #: connections that have not proved the secret yet; more wait in the kernel's backlog
PROOF_TIME_S = 10.0
BACKLOG = 128
_PAUSE_S = 0.05


class _Stranger:
    """A connection that has not proved the secret yet."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.deadline = time.monotonic() + PROOF_TIME_S
        self.data = bytearray()
        self.wanted = hs.HELLO_BYTES
        self.hello: hs.Hello | None = None
        self.hello_bytes = b""
        self.nonce = b""
        self.gate: Any = None
        self.watched = True


class Listener:
    """Listens on one address.

    Parameters
    ----------
    find_gate
        The open gate of a number, or None.
    admit
        Called with socket, hello, gate, peer and offer once the secret is proved; raises to refuse, else it owns the
        socket.
    """

    def __init__(
        self,
        host: str,
        ports: tuple[int, int],
        find_gate: Callable[[int], Any],
        admit: Callable[[socket.socket, hs.Hello, Any, str, bytes], None],
    ) -> None:
        self._find_gate = find_gate
        self._admit = admit
        self._socket = self._bind(host, ports)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._wake_in, self._wake_out = socket.socketpair()
        self._closing = False
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="fastbuf-listener", daemon=True)
        self._thread.start()

    @staticmethod
    def _bind(host: str, ports: tuple[int, int]) -> socket.socket:
        low, high = ports
        if not 0 <= low <= high <= 65535:
            raise ConfigError(f"port range {low}..{high}: two ports between 0 and 65535, the lower first")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        error: OSError | None = None
        for port in range(low, high + 1):
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                sock.listen(BACKLOG)
                sock.setblocking(False)
                return sock
            except OSError as e:
                sock.close()
                error = e
        raise ResourceError(f"cannot listen on {host}, ports {low}..{high}: {error}; choose another port range")

    def close(self) -> None:
        """Stop listening; strangers are dropped."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")
        self._thread.join(5.0)
        for sock in (self._socket, self._wake_in, self._wake_out):
            sock.close()

    # ---- the thread

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ)
            strangers: dict[socket.socket, _Stranger] = {}
            listening = False
            while not self._closing:
                if not listening and len(strangers) < MAX_UNPROVEN:
                    selector.register(self._socket, selectors.EVENT_READ)
                    listening = True
                elif listening and len(strangers) >= MAX_UNPROVEN:
                    selector.unregister(self._socket)
                    listening = False
                soonest = min((s.deadline for s in strangers.values()), default=None)
                events = selector.select(None if soonest is None else max(0.0, soonest - time.monotonic()))
                for key, _ in events:
                    if key.fileobj is self._socket:
                        self._accept(selector, strangers)
                    elif key.fileobj is not self._wake_in:
                        stranger = strangers[key.fileobj]  # type: ignore[index]
                        if not self._advance(stranger, selector):
                            del strangers[stranger.sock]
                            if stranger.watched:
                                selector.unregister(stranger.sock)
                            if stranger.gate is None:
                                stranger.sock.close()
                now = time.monotonic()
                for stranger in [s for s in strangers.values() if s.deadline <= now]:
                    selector.unregister(stranger.sock)
                    del strangers[stranger.sock]
                    stranger.sock.close()
                    self.refused += 1
            for stranger in strangers.values():
                stranger.sock.close()

    def _accept(self, selector: selectors.BaseSelector, strangers: dict[socket.socket, _Stranger]) -> None:
        try:
            sock, address = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors, most likely: who knocks stays in the backlog, and select would say so at once again.
            time.sleep(_PAUSE_S)
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # gone again: reading says so
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        strangers[sock] = _Stranger(sock, f"{address[0]}:{address[1]}")
        selector.register(sock, selectors.EVENT_READ)

    def _advance(self, s: _Stranger, selector: selectors.BaseSelector) -> bool:
        """Take in what came. False: done with, admitted (gate is set) or to be closed (gate is None)."""
        try:
            part = s.sock.recv(s.wanted - len(s.data))
        except BlockingIOError:
            return True
        except OSError:
            part = b""
        if not part:
            s.gate = None
            return False
        s.data += part
        if len(s.data) < s.wanted:
            return True
        message = bytes(s.data)
        s.data.clear()
        try:
            return self._hello(s, message) if s.hello is None else self._proof(s, message, selector)
        except Exception:  # of whatever kind: one caller's trouble must not end the thread that serves all
            self.refused += 1
            s.gate = None
            return False

    def _hello(self, s: _Stranger, message: bytes) -> bool:
        s.hello = hs.Hello.unpack(message)
        s.hello_bytes = message
        s.gate = self._find_gate(s.hello.gate_id)
        if s.gate is None:
            s.sock.send(hs.pack_refusal(hs.REFUSED_GATE))
            return False
        s.nonce = hs.fresh_nonce()
        s.sock.send(hs.pack_challenge(s.gate.secret, message, s.nonce))
        s.wanted = hs.PROOF_BYTES + s.hello.offer_bytes
        return True

    def _proof(self, s: _Stranger, message: bytes, selector: selectors.BaseSelector) -> bool:
        assert s.hello is not None
        gate, s.gate = s.gate, None
        proof, offer = message[: hs.PROOF_BYTES], message[hs.PROOF_BYTES :]
        if not hmac.compare_digest(proof, hs.client_proof(gate.secret, s.hello_bytes, s.nonce, offer)):
            self.refused += 1
            s.sock.send(hs.pack_verdict(hs.REFUSED_SECRET, "the secret was not proved"))
            return False
        status, reason = hs.WELCOME, ""
        if s.hello.epoch != gate.epoch:
            status, reason = hs.REFUSED_EPOCH, f"its epoch {s.hello.epoch} is not this run's"
        elif s.hello.fingerprint != gate.serializer.fingerprint:
            status = hs.REFUSED_SCHEMA
            reason = f"schema {s.hello.fingerprint:016x} is not the consumer's {gate.serializer.fingerprint:016x}"
        elif s.hello.segment_size > gate.environment.pool.segment_size:
            status = hs.REFUSED_SIZE
            reason = (
                f"segments of {s.hello.segment_size} bytes; the consumer's are {gate.environment.pool.segment_size}"
            )
        if status != hs.WELCOME:
            s.sock.send(hs.pack_verdict(status, reason))
            return False
        # Ours no longer from here on: the I/O thread may close the descriptor at any moment.
        selector.unregister(s.sock)
        s.watched = False
        try:
            self._admit(s.sock, s.hello, gate, s.peer, offer)
        except ExchangeError as error:
            s.sock.send(hs.pack_verdict(hs.REFUSED_CHANNEL, str(error)))
            return False
        s.gate = gate
        return False
