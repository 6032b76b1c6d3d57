"""The control connection's frames and its proof of the secret.  Both ends use this module.

::

    frame = u32 length (big endian, bytes of the JSON) | JSON object, UTF-8

    driver -> worker   {"op": "hello", "version": 2, "fastbuf": "0.2.0", "nonce": N1}
    worker -> driver   {"op": "hello", "version": 2, "exchange": X, "nonce": N2, "proof": P("worker")}
    driver -> worker   {"op": "welcome", "proof": P("driver")}          P(side) = HMAC(secret, side N1 N2 X)

Until the worker has proved the secret, no frame of its may be longer than ``GREETING_BYTES``; so a stranger
can make the driver allocate next to nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
from typing import Any

from fastbuf.errors import ProtocolError

VERSION = 2
#: TCP keepalive: seconds of silence before the first probe, seconds between probes, and probes without an answer after
#: which the connection ends.  A lost host sends nothing, so only this ends its connection.
QUIET_S, ASK_S, ASKS = 20, 5, 3
GREETING_BYTES = 2048
FRAME_BYTES = 32 << 20  #: longest frame; the totals of 100,000 producers fit
REASON_CHARS = 16_000  #: longest reason; the middle of a longer traceback is cut out
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


def prepare(sock: socket.socket) -> None:
    """Set up a control connection, at either end."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, QUIET_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKS)


def pack(message: Message) -> bytes:
    """One message as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES:
        raise ProtocolError(f"a control message of {len(body)} bytes is longer than {FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Bytes in, messages out; refuses a frame longer than ``limit`` before it holds it."""

    def __init__(self) -> None:
        self.limit = GREETING_BYTES
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what a socket gave."""
        self._data += data

    def next(self) -> Message | None:
        """The next whole message, or None.

        Raises
        ------
        ProtocolError
            A frame that is too long, or no JSON object with an ``op``.
        """
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > self.limit:
            raise ProtocolError(f"a control frame of {length} bytes; at most {self.limit} are allowed here")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise ProtocolError(f"a control frame is not valid JSON: {error}") from None
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise ProtocolError("a control frame is not a message with an op")
        return message


def proof(secret: bytes, side: str, driver_nonce: str, worker_nonce: str, exchange: str) -> str:
    """What ``side`` ("worker" or "driver") says to prove that it has the secret."""
    text = "|".join(("fastbuf-control", side, driver_nonce, worker_nonce, exchange))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def same(a: object, b: str) -> bool:
    """Compare proofs in constant time."""
    return isinstance(a, str) and hmac.compare_digest(a.encode(), b.encode())


def data_secret(secret: bytes, epoch: int) -> bytes:
    """The secret of one epoch's data connections: an old epoch's peers cannot prove the new one's."""
    return hmac.new(secret, f"fastbuf-data|{epoch}".encode(), hashlib.sha256).digest()


def clip(reason: str) -> str:
    """Bound a reason; the head names the place, the tail has the error."""
    if len(reason) <= REASON_CHARS:
        return reason
    half = REASON_CHARS // 2
    return f"{reason[:half]}\n... {len(reason) - 2 * half} characters left out ...\n{reason[-half:]}"


def producers_failed(exchange: str) -> str:
    """The words before the cause when an exchange's producers failed; an exchange behind it leaves them out."""
    return f"the producers' job of exchange '{exchange}' failed:"
