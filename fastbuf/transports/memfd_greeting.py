"""How the ends of a memfd channel greet each other on their control line (drawn in ``memfd.py``)."""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Callable, Generator
from typing import Any

from fastbuf.errors import ExchangeError
from fastbuf.exchange.connection import Refused
from fastbuf.transports import handshake as hs

ANSWERED, CANNOT_MAP, IS_THERE = b"\x01", b"\x02", b"\x03"


class Fds(list[int]):
    """Descriptors that came with a message; those that nobody has taken are closed."""

    def take(self, index: int) -> int:
        """The caller owns it from here on."""
        fd, self[index] = self[index], -1
        return fd

    def close(self) -> None:
        """Close them."""
        for fd in self:
            if fd >= 0:
                os.close(fd)
        self.clear()

    def __enter__(self) -> Fds:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def greet(sock: socket.socket, hello: hs.Hello, secret: bytes, where: str) -> Fds:
    """The producer's side up to the offer; -> descriptors of the gate's doorbell and eventfd.

    Raises
    ------
    Refused
        Whatever went wrong: TCP may do, or says in the usual words why not.
    """
    fds = Fds()
    try:
        message = hello.pack()
        sock.sendall(message)
        challenge = hs._receive(sock, hs.CHALLENGE_BYTES, where)
        if challenge[0] != hs.WELCOME:
            raise Refused(f"{where} has no gate {hello.gate_id}")
        nonce = challenge[1 : 1 + hs.NONCE_BYTES]
        if not hmac.compare_digest(challenge[1 + hs.NONCE_BYTES :], hs.server_proof(secret, message, nonce)):
            raise Refused(f"{where} could not prove the exchange's secret")
        sock.sendall(hs.client_proof(secret, message, nonce))
        verdict, got, _, _ = socket.recv_fds(sock, hs.VERDICT_HEAD_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
        fds.extend(got)
        if len(verdict) < hs.VERDICT_HEAD_BYTES or struct.unpack("<BH", verdict) != (hs.WELCOME, 0) or len(fds) != 2:
            raise Refused(f"{where} refused channel {hello.channel}")
        return fds
    except BaseException as error:
        fds.close()
        if isinstance(error, (OSError, ExchangeError)) and not isinstance(error, Refused):
            raise Refused(f"{where}: {error}") from error
        raise


def serve(
    sock: socket.socket, find_gate: Callable[[int], Any]
) -> Generator[int, tuple[bytes, Fds], tuple[hs.Hello, Any]]:
    """The consumer's side up to the offer: yields how many bytes it wants, is sent them; -> (hello, gate)."""
    message, _ = yield hs.HELLO_BYTES
    hello = hs.Hello.unpack(message)
    gate = find_gate(hello.gate_id)
    if gate is None:
        sock.send(hs.pack_refusal(hs.REFUSED_GATE))
        raise Refused("no such gate")
    nonce = hs.fresh_nonce()
    sock.send(hs.pack_challenge(gate.secret, message, nonce))
    proof, _ = yield hs.PROOF_BYTES
    if not hmac.compare_digest(proof, hs.client_proof(gate.secret, message, nonce)):
        sock.send(hs.pack_verdict(hs.REFUSED_SECRET))
        raise Refused("the secret was not proved")
    status = hs.WELCOME
    if hello.epoch != gate.epoch:
        status = hs.REFUSED_EPOCH
    elif hello.fingerprint != gate.serializer.fingerprint:
        status = hs.REFUSED_SCHEMA
    elif hello.segment_size > gate.environment.pool.segment_size:
        status = hs.REFUSED_SIZE
    if status != hs.WELCOME or gate.bell.fd < 0:
        sock.send(hs.pack_verdict(status or hs.REFUSED_GATE))
        raise Refused("another epoch, schema or segment size, or memory that is not shared")
    socket.send_fds(sock, [hs.pack_verdict(hs.WELCOME)], [gate.bell.fd, gate.wake_descriptor()])
    _, fds = yield 1
    if len(fds) != 3:
        raise Refused("an offer without its descriptors")
    return hello, gate
