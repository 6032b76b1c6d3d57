"""The errors of fastbuf.  Each is a :class:`FastbufError` and also a builtin that it resembles."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def text_of(kind: type[BaseException], value: BaseException | None) -> str:
    """Type and text of an exception; the type alone if it has no text, or if its ``__str__`` raises."""
    try:
        return f"{kind.__name__}: {value}".removesuffix(": ")
    except Exception:
        return kind.__name__


_ENDS = {
    "CancelledError": "was cancelled",  # asyncio's
    "Cancelled": "was cancelled",  # trio's; neither is imported for this
    "KeyboardInterrupt": "was interrupted",
    "SystemExit": "exited",
    "GeneratorExit": "stood in a generator that was closed before its end",
}


def left_by(who: str, kind: type[BaseException], value: BaseException | None) -> str:
    """Why `who`, as ``"the consumer"``, left its block by that exception: in words, if it is none of its errors."""
    names = {base.__name__ for base in kind.__mro__}
    for name, words in _ENDS.items():
        if name in names:
            return f"{who} {words} ({text_of(kind, value)})"
    return text_of(kind, value)


DENIALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)  #: what sandboxes answer


def strerror(number: int) -> str:
    """What the system says of an error; with the limit of descriptors, or the question of a sandbox, if it is that."""
    text = os.strerror(number)
    if number == errno.ENFILE:
        return f"{text}; the limit of descriptors is this machine's (sysctl fs.file-max)"
    if number == errno.EMFILE:
        with contextlib.suppress(OSError):  # a sandbox denies the question
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"{text}; the limit of this process is {soft} descriptors (ulimit -n, up to {hard})"
        return f"{text}; raise the limit of descriptors (ulimit -n)"
    if number in DENIALS:
        return f"{text}; does a sandbox deny it?"
    return text


@contextlib.contextmanager
def descriptors_for(what: str) -> Iterator[None]:
    """Within it, an error for want of a descriptor, or with such a cause, becomes a ResourceError with the limit."""
    try:
        yield
    except OSError as error:
        for met in (error, error.__cause__):
            if isinstance(met, OSError) and met.errno in (errno.EMFILE, errno.ENFILE):
                raise ResourceError(f"{what}: {strerror(met.errno)}") from error
        raise


class FastbufError(Exception):
    """Base of all errors of fastbuf."""


class ConfigError(FastbufError, ValueError):
    """A setting is out of range, or two settings contradict each other."""


class ResourceError(FastbufError, MemoryError):
    """Memory, descriptors or threads cannot be had: the message has the figures and the setting to change."""


class PoolTimeout(FastbufError, TimeoutError):
    """No segment came free in time."""


class PoolDestroyed(FastbufError, RuntimeError):
    """The pool was destroyed while, or before, a segment was requested."""


class SegmentStateError(FastbufError, RuntimeError):
    """A segment was recycled twice, or used after it was recycled."""


class SegmentExported(FastbufError, BufferError):
    """A segment was recycled while a view of it was still held."""


class SchemaError(FastbufError, ValueError):
    """A schema has a type that cannot be carried, or a wrong name."""


class RecordError(FastbufError, ValueError):
    """A record does not fit its schema; the message names field, value and record number."""


class RecordTooLong(RecordError):
    """A record is longer than ``max_record_bytes``."""


MOST_RECORD_BYTES = (1 << 31) - 1  #: what ``max_record_bytes`` can be at most


def shorter_or_raise(length: int, setting: str = "max_record_bytes", where: str = " on both sides") -> str:
    """What to do about a record of that length, which is longer than that setting allows."""
    if length > MOST_RECORD_BYTES:
        return f"{setting} cannot be above {MOST_RECORD_BYTES:,} (2 GiB): send the record in pieces, or leave it out"
    return f"raise {setting}{where}, or leave the record out"


class BlockError(FastbufError, ValueError):
    """A block cannot be decoded."""


class BlockTruncated(BlockError):
    """A block ends before its content does."""


class BlockCorrupt(BlockError):
    """A block was altered: wrong magic, impossible lengths, or another checksum."""


class SchemaMismatch(BlockError):
    """A block or a peer has another schema."""


class ExchangeError(FastbufError, ConnectionError):
    """An exchange cannot go on."""


class ExchangeAborted(ExchangeError):
    """A participant gave up and said why; the message has its reason."""


class PeerLost(ExchangeError):
    """A connection ended without its end of partition; the message names the peer."""


class SequenceError(ExchangeError):
    """A channel's buffers have a gap, a repeat or a stale epoch; the message names the channel."""


class ProtocolError(ExchangeError):
    """A peer sent a frame that is not of the protocol."""


class AuthenticationError(ExchangeError, PermissionError):
    """A peer could not prove the exchange's secret."""


class ExchangeClosed(ExchangeError):
    """The writer, gate or environment was closed."""


class StallTimeout(FastbufError, TimeoutError):
    """A participant that should move did not for ``stall_timeout_s``; one that is only quiet is no error."""


class PreflightError(FastbufError, RuntimeError):
    """Something on this Spark stops the mode that was asked for; the message says what to set."""
