"""The protocol by which processes report to a monitor: frames, and the proof that both sides know the secret.

::

    frame = u32 length (big endian, bytes of the JSON) | JSON, UTF-8

    monitor -> process   {"nonce": N1}
    process -> monitor   {"nonce": N2, "proof": P("process")}        P(side) = HMAC-SHA256(secret, side N1 N2)
    monitor -> process   {"proof": P("monitor")}
    process -> monitor   a list of tasks, once a second
"""

from __future__ import annotations

import hmac
import json
import struct
from typing import Any

from fastbuf.errors import ProtocolError

GREETING_BYTES = 512  #: longest frame before the secret is proved
FRAME_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


def pack(message: Any) -> bytes:
    """One message as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Parses received bytes into messages; refuses a frame longer than ``limit`` before it is complete."""

    def __init__(self) -> None:
        self.limit = GREETING_BYTES
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def next(self) -> Any:
        """The next complete message, or None; raises ProtocolError if a frame is not valid."""
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > self.limit:
            raise ProtocolError(f"a monitor's frame has {length} bytes, and at most {self.limit} are allowed here")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        try:
            return json.loads(body)
        except ValueError as error:
            raise ProtocolError(f"a monitor's frame is not valid JSON: {error}") from None


def proof(secret: bytes, side: str, monitors_nonce: str, processes_nonce: str) -> str:
    """The proof of ``side`` ("process" or "monitor") that it knows the secret."""
    text = "|".join(("fastbuf-monitor", side, monitors_nonce, processes_nonce))
    return hmac.digest(secret, text.encode(), "sha256").hex()


def same(a: object, b: str) -> bool:
    """Compare proofs in constant time."""
    return isinstance(a, str) and hmac.compare_digest(a.encode(), b.encode())
