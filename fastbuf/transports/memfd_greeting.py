"""The handshake of a memfd channel on its control line (drawn in ``memfd.py``)."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Generator
from typing import Any

from fastbuf.errors import ExchangeError
from fastbuf.exchange.connection import Refused
from fastbuf.transports import handshake as hs
from fastbuf.transports.applicant import Applicant
from fastbuf.transports.applicant import Refused as SentAway

MOST_FDS = 4  #: taken with one message
ANSWERED, CANNOT_MAP, IS_THERE, ENDED, NOT_YET = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"


class Fds(list[int]):
    """File descriptors that came with a message; those not taken are closed."""

    def take(self, index: int) -> int:
        """Take over one descriptor."""
        fd, self[index] = self[index], -1
        return fd

    def close(self) -> None:
        """Close the descriptors that were not taken."""
        for fd in self:
            if fd >= 0:
                os.close(fd)
        self.clear()

    def __enter__(self) -> Fds:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def receive(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Bytes, and the descriptors that came with them; programs that this process starts do not inherit these.

    ``socket.recv_fds`` leaves out its flags.
    """
    fds = array("i")
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_LEN(MOST_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(value[: len(value) - len(value) % fds.itemsize])
    return data, list(fds)


def greet(sock: socket.socket, hello: hs.Hello, secret: bytes, where: str) -> Fds:
    """The producer's side up to the offer; returns the descriptors of the gate's doorbell and eventfd.

    Raises
    ------
    Refused
        Anything failed: TCP may work, or reports the usual error.
    Busy
        The consumer has no place for us now.
    """
    fds = Fds()
    greeting = hs.Greeting(hello, secret, where)
    try:
        hs.say(sock, greeting.message)
        hs.say(sock, greeting.prove(hs._receive(sock, hs.CHALLENGE_BYTES, where)))
        wanted = hs.VERDICT_HEAD_BYTES + hs.PROOF_BYTES  # a refusal may be longer
        verdict, got = receive(sock, wanted)
        fds.extend(got)
        head = verdict[: hs.VERDICT_HEAD_BYTES]
        if len(head) < hs.VERDICT_HEAD_BYTES:
            raise Refused(f"{where} closed the control line during the handshake")
        rest = len(head) + hs.verdict_length(head, where) - len(verdict)
        greeting.conclude(verdict + hs._receive(sock, rest, where))
        if len(fds) != 2:
            raise Refused(f"{where} did not pass its doorbell")
        return fds
    except BaseException as error:
        fds.close()
        if isinstance(error, (OSError, ExchangeError)) and not isinstance(error, (Refused, hs.Busy)):
            raise Refused(f"{where}: {error}") from error
        raise


def serve(sock: socket.socket, applicant: Applicant) -> Generator[int, tuple[bytes, Fds], tuple[hs.Hello, Any]]:
    """The consumer's side up to the offer: yields how many bytes it needs and is sent them; returns (hello, gate)."""
    while not applicant.proved:
        message, _ = yield applicant.wanted
        try:
            reply = applicant.hear(message)
        except SentAway as refusal:
            sock.send(refusal.reply)
            raise
        if not applicant.proved:
            sock.send(reply)
    hello, gate = applicant.hello, applicant.gate
    assert hello is not None
    if gate.bell.fd < 0:
        sock.send(hs.pack_verdict(hs.REFUSED_GATE))
        raise Refused("memory that is not shared")
    socket.send_fds(sock, [applicant.welcome()], [gate.bell.fd, gate.wake_descriptor()])
    _, fds = yield 1
    if len(fds) != 3:
        raise Refused("an offer without descriptors")
    return hello, gate
