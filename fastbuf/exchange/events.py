"""Events: sent between records, in order with them, and without credit.

::

    barrier    1 | checkpoint u64 | timestamp_ms i64
    watermark  2 | time_ms i64
    user       3 | payload, at most USER_EVENT_BYTES
    cancel     4 | checkpoint u64
    end        5
    status     6 | idle u8: 0 or 1

Other bytes are another version of the wire: ``MAGIC`` of ``transports/handshake.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from fastbuf.checks import flag, instance, whole
from fastbuf.errors import ConfigError, ProtocolError

EVENT_BYTES = 4096  #: most bytes of an encoded event; messages.pxd has the same bound
USER_EVENT_BYTES = EVENT_BYTES - 1
_BARRIER = struct.Struct("<BQq")
_WATERMARK = struct.Struct("<Bq")
_CANCEL = struct.Struct("<BQ")


@dataclass(frozen=True)
class Event:
    """Base of all events. The gate sets `channel`, the number of the producer that sent it."""

    channel: int = field(default=-1, kw_only=True, compare=False)


@dataclass(frozen=True)
class Barrier(Event):
    """Checkpoint barrier: records before it belong to `checkpoint`, those after it to a later one."""

    checkpoint: int
    timestamp_ms: int = 0

    def __post_init__(self) -> None:
        whole("checkpoint", self.checkpoint, 0, (1 << 64) - 1)
        whole("timestamp_ms", self.timestamp_ms, -(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Watermark(Event):
    """No later record is older than `time_ms`."""

    time_ms: int

    def __post_init__(self) -> None:
        whole("time_ms", self.time_ms, -(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class UserEvent(Event):
    """A user-defined event of at most ``USER_EVENT_BYTES`` (4095) bytes; the payload is copied."""

    payload: bytes

    def __post_init__(self) -> None:
        # An item of a memoryview may be longer than a byte.
        size = memoryview(instance("payload", self.payload, bytes, bytearray, memoryview)).nbytes
        if size > USER_EVENT_BYTES:
            raise ConfigError(f"a user event of {size} bytes: at most {USER_EVENT_BYTES}, send it as a record")
        object.__setattr__(self, "payload", bytes(self.payload))


@dataclass(frozen=True)
class CancelCheckpoint(Event):
    """No barrier of `checkpoint` comes: whoever waits for it gives that checkpoint up, and tells its consumers so."""

    checkpoint: int

    def __post_init__(self) -> None:
        whole("checkpoint", self.checkpoint, 0, (1 << 64) - 1)


@dataclass(frozen=True)
class EndOfData(Event):
    """All records of a bounded input are sent; barriers may follow, records do not."""


@dataclass(frozen=True)
class WatermarkStatus(Event):
    """Whether the producer is idle: while it is, its consumers' event time does not wait for its watermarks."""

    idle: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "idle", flag("idle", self.idle))


def encode_event(event: Event) -> bytes:
    """The bytes of `event`.

    Raises
    ------
    TypeError
        It is not an event.
    """
    match event:
        case Barrier():
            return _BARRIER.pack(1, event.checkpoint, event.timestamp_ms)
        case Watermark():
            return _WATERMARK.pack(2, event.time_ms)
        case UserEvent():
            return b"\x03" + event.payload
        case CancelCheckpoint():
            return _CANCEL.pack(4, event.checkpoint)
        case EndOfData():
            return b"\x05"
        case WatermarkStatus():
            return bytes((6, event.idle))
    raise TypeError(f"an event is wanted, as Barrier or UserEvent, not {event!r:.200}")


def decode_event(data: bytes, channel: int) -> Event:
    """The event of these bytes.

    Raises
    ------
    ProtocolError
        The bytes are not an event; the message names the channel.
    """
    match data[:1], len(data):
        case b"\x01", _BARRIER.size:
            return Barrier(*_BARRIER.unpack(data)[1:], channel=channel)
        case b"\x02", _WATERMARK.size:
            return Watermark(*_WATERMARK.unpack(data)[1:], channel=channel)
        case b"\x03", _:
            return UserEvent(data[1:], channel=channel)
        case b"\x04", _CANCEL.size:
            return CancelCheckpoint(*_CANCEL.unpack(data)[1:], channel=channel)
        case b"\x05", 1:
            return EndOfData(channel=channel)
        case b"\x06", 2 if data[1] <= 1:
            return WatermarkStatus(data[1] == 1, channel=channel)
    raise ProtocolError(f"channel {channel} sent {len(data)} bytes that are not a valid event: {data[:32]!r}")
