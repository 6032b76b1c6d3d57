"""Mutual proof of an exchange's secret, before any frame.

::

    client                                             server
    HELLO      magic, gate, channel, epoch,
               fingerprint, sizes, nonce c     ---->
                                               <----   CHALLENGE  status, nonce s
    PROOF      HMAC(secret, "client" hello s)  ---->
                                               <----   VERDICT    status, HMAC(secret, "server" hello s) or a reason

The side that connects proves the secret first, so a stranger gets nothing from the listener to test guessed secrets
offline.  HMAC-SHA256 and the constant-time comparison are the standard library's.  Every message has a fixed length (a
reason has a bounded one), so a stranger's data never sets how much is allocated.  Neither side learns the secret from
the other, and a recorded conversation proves nothing: both nonces are fresh.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastbuf.config import FLOW_CONTROLS
from fastbuf.errors import AuthenticationError, ExchangeError, PeerLost, ProtocolError, SchemaMismatch, SequenceError
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.connection import Credentials
from fastbuf.fork_safe import hmac_sha256

#: The last byte is the version of the wire; 2: events, streams, answered PING; 3: CROSSED; 4: the side that connects
#: proves first, BUSY; the writer's buffer timeout; 5: the flow control
MAGIC = b"FASTBUF\x05"
NONCE_BYTES = 32
PROOF_BYTES = 32
REASON_BYTES = 1024  #: longest reason

_HELLO = struct.Struct("<8sIIQQIIIqB32s")
HELLO_BYTES = _HELLO.size
CHALLENGE_BYTES = 1 + NONCE_BYTES
VERDICT_HEAD_BYTES = 3

WELCOME, REFUSED_SECRET, REFUSED_GATE, REFUSED_EPOCH, REFUSED_SCHEMA, REFUSED_CHANNEL = range(6)
REFUSED_SIZE, REFUSED_PLAIN, CROSSED, BUSY = 6, 7, 8, 9

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25  #: pause before the next try after BUSY

T = TypeVar("T")


class Crossed(ExchangeError):
    """The server is connecting to us at this moment; this channel must use the server's connection too."""


class Busy(PeerLost):
    """The server has no place for another unauthenticated connection now: try again."""


_REFUSALS: dict[int, type[Exception]] = {
    REFUSED_SECRET: AuthenticationError,
    REFUSED_GATE: PeerLost,
    REFUSED_EPOCH: SequenceError,
    REFUSED_SCHEMA: SchemaMismatch,
    REFUSED_CHANNEL: SequenceError,
    REFUSED_SIZE: ProtocolError,
    REFUSED_PLAIN: AuthenticationError,
    CROSSED: Crossed,
    BUSY: Busy,
}


@dataclass(frozen=True)
class Hello:
    """A producer's first message."""

    gate_id: int
    channel: int
    epoch: int
    fingerprint: int
    segment_size: int
    nonce: bytes
    stream: int = 0  #: the channel's number on this connection
    port: int = 0  #: where the sender itself listens, at the address it connects from; 0: nowhere
    flush_ns: int = 0  #: buffer timeout; 0: the writer flushes after every record, negative: never
    flow_control: str = "credit"

    @classmethod
    def of(cls, partition: Any, gate_id: int, credentials: Credentials, stream: int = 0, port: int = 0) -> Hello:
        """What a partition says to that gate."""
        return cls(
            gate_id=gate_id,
            channel=partition.channel,
            epoch=credentials.epoch,
            fingerprint=credentials.fingerprint,
            segment_size=partition.segment_size,
            nonce=fresh_nonce(),
            stream=stream,
            port=port,
            flush_ns=partition.flush_ns,
            flow_control=partition.config.flow_control,
        )

    def pack(self) -> bytes:
        """The message's bytes."""
        return _HELLO.pack(
            MAGIC,
            self.gate_id,
            self.channel,
            self.epoch,
            self.fingerprint,
            self.segment_size,
            self.stream,
            self.port,
            self.flush_ns,
            FLOW_CONTROLS.index(self.flow_control),
            self.nonce,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Read the message; raises ProtocolError if the bytes are none."""
        magic, *numbers, flow, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise ProtocolError(f"a peer speaks another protocol or version: {magic!r}")
        if flow >= len(FLOW_CONTROLS):
            raise ProtocolError(f"a peer announced an unknown flow control: {flow}")
        gate_id, channel, epoch, fingerprint, segment_size, stream, port, flush_ns = numbers
        return cls(
            gate_id, channel, epoch, fingerprint, segment_size, nonce, stream, port, flush_ns, FLOW_CONTROLS[flow]
        )


def server_proof(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """Proof that the server knows the secret."""
    return hmac_sha256(secret, b"server" + hello + nonce)


def client_proof(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """Proof that the client knows the secret."""
    return hmac_sha256(secret, b"client" + hello + nonce)


def pack_challenge(nonce: bytes) -> bytes:
    """CHALLENGE of a server that has the gate."""
    return bytes([WELCOME]) + nonce


def pack_refusal(status: int) -> bytes:
    """CHALLENGE of a server that lacks the gate, or has no place."""
    return bytes([status]) + bytes(NONCE_BYTES)


def pack_verdict(status: int, reason: str = "") -> bytes:
    """VERDICT that refuses; a reason longer than REASON_BYTES is cut."""
    text = reason.encode()[:REASON_BYTES]
    return struct.pack("<BH", status, len(text)) + text


def pack_welcome(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """VERDICT for a client that has proved the secret: the server's own proof."""
    return struct.pack("<BH", WELCOME, PROOF_BYTES) + server_proof(secret, hello, nonce)


def fresh_nonce() -> bytes:
    """32 random bytes."""
    return os.urandom(NONCE_BYTES)


def _receive(sock: socket.socket, n: int, where: str) -> bytes:
    data = bytearray()
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise PeerLost(f"{where} closed the connection during the handshake")
        data += part
    return bytes(data)


def verdict_length(head: bytes, where: str) -> int:
    """Bytes that follow the head of a VERDICT; raises ProtocolError if it is none."""
    status, length = struct.unpack("<BH", head)
    fits = length == PROOF_BYTES if status == WELCOME else status in _REFUSALS and length <= REASON_BYTES
    if not fits:
        raise ProtocolError(f"{where} sent an unknown verdict: status {status}, followed by {length} bytes")
    return int(length)


class Greeting:
    """The client's side of one handshake, message by message, however the messages are sent.

    Parameters
    ----------
    hello, secret
        The first message, and the secret to prove.
    where
        The server's name, for error messages.
    """

    def __init__(self, hello: Hello, secret: bytes, where: str) -> None:
        self._hello = hello
        self._secret = secret
        self._where = where
        self._nonce = b""
        self.message = hello.pack()  #: HELLO

    def prove(self, challenge: bytes) -> bytes:
        """PROOF, for a server that has the gate; raises AuthenticationError or ExchangeError if it refuses."""
        if challenge[0] == REFUSED_PLAIN:
            raise AuthenticationError(
                f"{self._where} accepts only TLS: give this environment its certificates (tls=TlsConfig(...))"
            )
        if challenge[0] == BUSY:
            raise self._busy()
        if challenge[0] != WELCOME:
            if challenge[0] != REFUSED_GATE:
                raise ProtocolError(f"{self._where} is no gate of fastbuf: it answered {bytes(challenge[:16])!r}")
            raise PeerLost(f"{self._where} has no gate {self._hello.gate_id} (any more)")
        self._nonce = challenge[1:]
        return client_proof(self._secret, self.message, self._nonce)

    def conclude(self, verdict: bytes) -> None:
        """Raises the server's refusal, or AuthenticationError if the server does not know the secret itself."""
        status, rest = verdict[0], verdict[VERDICT_HEAD_BYTES:]
        if status == WELCOME:
            if not hmac.compare_digest(rest, server_proof(self._secret, self.message, self._nonce)):
                raise AuthenticationError(f"{self._where} could not prove the exchange's secret")
            return
        reason = rest.decode("utf-8", "replace")
        if status == BUSY:
            raise Busy(f"{self._where} does not take it yet: {reason}") if reason else self._busy()
        if status == REFUSED_SECRET:
            reason += "; give the gate's address as the target, or secret=gate.secret"
        raise _REFUSALS[status](f"{self._where} refused channel {self._hello.channel}: {reason}")

    def _busy(self) -> Busy:
        return Busy(f"{self._where} has no place for one more connection that has not proved its secret yet")


def greet(sock: socket.socket, hello: Hello, secret: bytes, where: str) -> None:
    """The client's side of the handshake, on a blocking socket with a timeout.

    Raises
    ------
    AuthenticationError
        The server does not know the secret, or rejects our proof.
    SequenceError, SchemaMismatch, ProtocolError
        The server has another epoch, schema or version.
    Crossed
        The server is connecting to us.
    Busy
        The server has no place for us now.
    """
    greeting = Greeting(hello, secret, where)
    try:
        say(sock, greeting.message)
        challenge = _receive(sock, CHALLENGE_BYTES, where)
        say(sock, greeting.prove(challenge))
        head = _receive(sock, VERDICT_HEAD_BYTES, where)
        rest = _receive(sock, verdict_length(head, where), where)
    except TimeoutError as error:
        raise PeerLost(f"{where} did not answer the handshake in time") from error
    except OSError as error:
        if isinstance(error, ExchangeError):
            raise
        raise PeerLost(f"{where}: {error}") from error
    greeting.conclude(head + rest)


def say(sock: socket.socket, message: bytes) -> None:
    """Send the message, or as much as the server takes: a client that is refused early must still read the reason."""
    with contextlib.suppress(ConnectionError):
        sock.sendall(message)


def patiently(attempt: Callable[[], T], deadline: float, check: Callable[[], object]) -> T:
    """Repeats `attempt` until the server is not busy; returns its result.  `check` raises if the result is no longer
    needed.

    Raises
    ------
    PeerLost
        The server was busy until the deadline (monotonic).
    """
    pause = FIRST_PAUSE_S
    while True:
        try:
            return attempt()
        except Busy as error:
            if monotonic() + pause >= deadline:
                raise PeerLost(f"{error}, until connect_timeout_s had passed") from TimeoutError()
        time.sleep(pause)
        check()
        pause = min(2 * pause, LONGEST_PAUSE_S)
