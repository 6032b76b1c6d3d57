"""Control connections between workers and the driver: sockets, secrets and reasons.  Both ends use this module.

:mod:`.protocol` has the messages.  Until the worker has proved the secret, no frame of its may be longer than
``GREETING_BYTES``; so a stranger can make the driver allocate next to nothing.
"""

from __future__ import annotations

import re
import socket

from fastbuf.fork_safe import hmac_sha256

VERSION = 5
#: TCP keepalive: seconds of silence before the first probe, seconds between probes, and probes without an answer after
#: which the connection ends.  A lost host sends nothing, so only this ends its connection.
QUIET_S, ASK_S, ASKS = 20, 5, 3
REASON_CHARS = 16_000  #: longest reason; the middle of a longer traceback is cut out
_LEFT_OUT = re.compile(r"\n\.\.\. (\d+) characters left out \.\.\.\n")


def prepare(sock: socket.socket) -> None:
    """Set up a control connection, at either end."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, QUIET_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKS)


def proof(secret: bytes, side: str, driver_nonce: str, worker_nonce: str, exchange: str) -> str:
    """What ``side`` ("worker" or "driver") says to prove that it has the secret; a nonce is what an end has drawn."""
    text = "|".join(("fastbuf-control", side, driver_nonce, worker_nonce, exchange))
    return hmac_sha256(secret, text.encode()).hex()


def data_secret(secret: bytes, epoch: int) -> bytes:
    """The secret of one epoch's data connections: an old epoch's peers cannot prove the new one's."""
    return hmac_sha256(secret, f"fastbuf-data|{epoch}".encode())


def clip(reason: str) -> str:
    """Bound a reason; the head names the place, the tail has the error.  What was cut out of it before counts too."""
    if len(reason) <= REASON_CHARS:
        return reason
    half = REASON_CHARS // 2
    middle = reason[half:-half]
    before = _LEFT_OUT.findall(middle)
    left = len(_LEFT_OUT.sub("", middle)) + sum(map(int, before))
    return f"{reason[:half]}\n... {left} characters left out ...\n{reason[-half:]}"


def producers_failed(exchange: str, partition: int | None = None) -> str:
    """The line before the cause when an exchange's producers, or that of one partition, failed."""
    who = "the producers' job" if partition is None else f"the producer of partition {partition}"
    return f"{who} of exchange '{exchange}' failed:"


def cause_of(reason: str, exchange: str) -> str:
    """A reason without that line: an exchange behind this one has its own."""
    line, _, cause = reason.partition("\n")
    return cause if line.endswith(f" of exchange '{exchange}' failed:") else reason
