"""Frames of JSON on a control connection, and the comparison of proofs that both ends know a secret.

::

    frame = u32 length (big endian, bytes of the JSON) | JSON, UTF-8
"""

from __future__ import annotations

import hmac
import json
import struct
from typing import Any

from fastbuf.errors import ProtocolError

GREETING_BYTES = 2048  #: longest frame before the secret is proved, so that a stranger can make us allocate little
FRAME_BYTES = 32 << 20  #: longest frame; the totals of 100,000 producers fit
_LENGTH = struct.Struct(">I")


def pack(message: Any) -> bytes:
    """One message as a frame.

    Raises
    ------
    ProtocolError
        It is longer than ``FRAME_BYTES``.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES:
        raise ProtocolError(f"a control message of {len(body)} bytes is longer than {FRAME_BYTES}")
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
        """The next complete message, or None.

        Raises
        ------
        ProtocolError
            A frame that is too long, or is not JSON.
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
            return json.loads(body)
        except (ValueError, RecursionError) as error:  # the latter of a thousand brackets, from whoever connects
            raise ProtocolError(f"a control frame is not valid JSON: {error}") from None


def same(a: object, b: str) -> bool:
    """Compare proofs in constant time."""
    return isinstance(a, str) and hmac.compare_digest(a.encode(), b.encode())
