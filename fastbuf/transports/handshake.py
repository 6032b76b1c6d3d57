"""Mutual proof of an exchange's secret, before any frame.

::

    client                                             server
    HELLO      magic, gate, channel, epoch,
               fingerprint, sizes, nonce c     ---->
                                               <----   CHALLENGE  status, nonce s, HMAC(secret, "server" hello s)
    PROOF      HMAC(secret, "client" hello s)  ---->
                                               <----   VERDICT    status, reason

HMAC-SHA256 and the constant-time comparison are the standard library's.  Every message has a fixed
length (the reason's is bounded), so nothing is allocated on a stranger's word.  Neither side learns the
secret from the other, and a recorded conversation proves nothing: both nonces are fresh.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from dataclasses import dataclass

from fastbuf.errors import AuthenticationError, ExchangeError, PeerLost, ProtocolError, SchemaMismatch, SequenceError

#: The last byte is the version of the wire; 2: events, streams, PING that is answered; 3: CROSSED
MAGIC = b"FASTBUF\x03"
NONCE_BYTES = 32
PROOF_BYTES = 32
REASON_BYTES = 1024  #: longest reason

_HELLO = struct.Struct("<8sIIQQIII32s")
HELLO_BYTES = _HELLO.size
CHALLENGE_BYTES = 1 + NONCE_BYTES + PROOF_BYTES
VERDICT_HEAD_BYTES = 3

WELCOME, REFUSED_SECRET, REFUSED_GATE, REFUSED_EPOCH, REFUSED_SCHEMA, REFUSED_CHANNEL = range(6)
REFUSED_SIZE, REFUSED_PLAIN, CROSSED = 6, 7, 8


class Crossed(ExchangeError):
    """The server dials us at this moment, and goes on with that: its connection is to be used for this channel too."""


_REFUSALS: dict[int, type[Exception]] = {
    REFUSED_SECRET: AuthenticationError,
    REFUSED_GATE: PeerLost,
    REFUSED_EPOCH: SequenceError,
    REFUSED_SCHEMA: SchemaMismatch,
    REFUSED_CHANNEL: SequenceError,
    REFUSED_SIZE: ProtocolError,
    REFUSED_PLAIN: AuthenticationError,
    CROSSED: Crossed,
}


@dataclass(frozen=True)
class Hello:
    """What a producer says first."""

    gate_id: int
    channel: int
    epoch: int
    fingerprint: int
    segment_size: int
    nonce: bytes
    stream: int = 0  #: the channel's number on this connection
    port: int = 0  #: where whoever speaks listens itself, at the address it speaks from; 0: nowhere

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
            self.nonce,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Read the message; raises ProtocolError when it is none."""
        magic, gate_id, channel, epoch, fingerprint, segment_size, stream, port, nonce = _HELLO.unpack(data)
        if magic != MAGIC:
            raise ProtocolError(f"a peer speaks another protocol or version: {magic!r}")
        return cls(gate_id, channel, epoch, fingerprint, segment_size, nonce, stream, port)


def server_proof(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What only a server with the secret can say."""
    return hmac.digest(secret, b"server" + hello + nonce, "sha256")


def client_proof(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What only a client with the secret can say."""
    return hmac.digest(secret, b"client" + hello + nonce, "sha256")


def pack_challenge(secret: bytes, hello: bytes, nonce: bytes) -> bytes:
    """CHALLENGE of a server that knows the gate."""
    return bytes([WELCOME]) + nonce + server_proof(secret, hello, nonce)


def pack_refusal(status: int) -> bytes:
    """CHALLENGE of a server that does not."""
    return bytes([status]) + bytes(NONCE_BYTES + PROOF_BYTES)


def pack_verdict(status: int, reason: str = "") -> bytes:
    """VERDICT; a reason is cut to REASON_BYTES."""
    text = reason.encode()[:REASON_BYTES]
    return struct.pack("<BH", status, len(text)) + text


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


def prove(challenge: bytes, message: bytes, hello: Hello, secret: bytes, where: str) -> bytes:
    """The client's PROOF, for a server whose CHALLENGE proves that it knows the secret.

    Raises
    ------
    AuthenticationError, ExchangeError
        It does not, or has no such gate.
    """
    if challenge[0] == REFUSED_PLAIN:
        raise AuthenticationError(
            f"{where} speaks TLS alone: give this environment its certificates (tls=TlsConfig(...))"
        )
    if challenge[0] != WELCOME:
        raise _REFUSALS.get(challenge[0], ExchangeError)(f"{where} has no gate {hello.gate_id} (any more)")
    nonce = challenge[1 : 1 + NONCE_BYTES]
    if not hmac.compare_digest(challenge[1 + NONCE_BYTES :], server_proof(secret, message, nonce)):
        raise AuthenticationError(f"{where} could not prove the exchange's secret")
    return client_proof(secret, message, nonce)


def verdict_length(head: bytes, where: str) -> int:
    """How many bytes follow the head of a VERDICT; raises ProtocolError when it is none."""
    status, length = struct.unpack("<BH", head)
    if length > REASON_BYTES or (status != WELCOME and status not in _REFUSALS) or (status == WELCOME and length):
        raise ProtocolError(f"{where} gave a verdict that there is not: status {status}, {length} bytes of reason")
    return int(length)


def take_verdict(status: int, rest: bytes, hello: Hello, where: str) -> None:
    """Raises what the server refuses with."""
    if status != WELCOME:
        reason = rest.decode("utf-8", "replace")
        raise _REFUSALS.get(status, ExchangeError)(f"{where} refused channel {hello.channel}: {reason}")


def greet(sock: socket.socket, hello: Hello, secret: bytes, where: str) -> None:
    """The client's side, on a blocking socket with a timeout.

    Raises
    ------
    AuthenticationError
        The server does not know the secret, or does not believe that we do.
    SequenceError, SchemaMismatch, ProtocolError
        It is of another epoch, schema or version.
    Crossed
        It dials us.
    """
    message = hello.pack()
    try:
        try:
            sock.sendall(message)
        except ConnectionError:  # reset: what the server said before, under TLS an alert, is the better reason
            _receive(sock, CHALLENGE_BYTES, where)
            raise
        challenge = _receive(sock, CHALLENGE_BYTES, where)
        sock.sendall(prove(challenge, message, hello, secret, where))
        head = _receive(sock, VERDICT_HEAD_BYTES, where)
        rest = _receive(sock, verdict_length(head, where), where)
    except TimeoutError as error:
        raise PeerLost(f"{where} did not answer the handshake in time") from error
    except OSError as error:
        if isinstance(error, ExchangeError):
            raise
        raise PeerLost(f"{where}: {error}") from error
    take_verdict(head[0], rest, hello, where)
