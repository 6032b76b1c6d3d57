"""The description that a memfd arena carries, so that another process can map it without being told its shape.

::

    offset 0                  stride                 2 * stride                           length         length + page
    ┌───────────────────────┬───────────────────────┬──────────────────── ... ──────────┬──────────────┐
    │ segment 0   (guard)   │ segment 1   (guard)   │                       (padding)   │ description  │
    └───────────────────────┴───────────────────────┴──────────────────── ... ──────────┴──────────────┘

`stride` is the segment size, plus a guard in a debug build.  `length` is a multiple of the page size.  The description
is in the last page, so that segments start at page boundaries: magic, version, segment size, segments, stride, length
and the CRC-32 of these, little-endian.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from dataclasses import dataclass

from fastbuf.errors import DENIALS, ConfigError

PAGE = os.sysconf("SC_PAGESIZE")
MAGIC = b"fbArena\0"
VERSION = 1
_FIELDS = struct.Struct("<8sIIQQQ")
_CHECKSUM = struct.Struct("<I")
_F_GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)
_F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
_F_SEAL_SHRINK = 0x0002


def require_sealed(fd: int, source: str) -> None:
    """Check that the file cannot be truncated while it is mapped: a read past its end would raise SIGBUS.

    Raises
    ------
    ConfigError
        The file is not a memfd sealed against shrinking; the message says to pass what `source` returns.
    """
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        seals = 0
    if not seals & _F_SEAL_SHRINK:
        raise ConfigError(
            f"descriptor {fd} is not a memfd that is sealed against shrinking, so a read could end in SIGBUS: pass the "
            f"descriptor that {source} gives"
        )


def memfd_denied(segments: int, segment_size: int) -> str:
    """Why this process cannot make a sealed memfd for these segments, as in a sandbox; empty: it can."""
    try:
        fd = os.memfd_create("fastbuf-try", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return f"memfd_create: {error.strerror}" if error.errno in DENIALS else ""  # else the real one tells
    length = ArenaLayout.of(segments, segment_size, 0).file_length
    try:
        os.ftruncate(fd, length)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
    except OSError as error:
        if error.errno == errno.EFBIG:
            return f"a memfd of {length} bytes: {error.strerror} (ulimit -f)"
        return f"fcntl(F_ADD_SEALS): {error.strerror}"
    finally:
        os.close(fd)
    return ""


@dataclass(frozen=True)
class ArenaLayout:
    """Where the segments of an arena lie; sizes in bytes.

    Parameters
    ----------
    segments
        Number of segments.
    segment_size
        Bytes of a segment.
    stride
        Bytes from the start of one segment to the start of the next.
    length
        Bytes to map.
    """

    segments: int
    segment_size: int
    stride: int
    length: int

    @classmethod
    def of(cls, segments: int, segment_size: int, guard: int) -> ArenaLayout:
        """The layout of that many segments, each followed by `guard` bytes."""
        stride = segment_size + guard
        return cls(segments, segment_size, stride, (segments * stride + PAGE - 1) // PAGE * PAGE)

    @property
    def file_length(self) -> int:
        """Bytes of the memfd."""
        return self.length + PAGE

    def write(self, fd: int) -> None:
        """Write the description."""
        fields = _FIELDS.pack(MAGIC, VERSION, self.segment_size, self.segments, self.stride, self.length)
        os.pwrite(fd, fields + _CHECKSUM.pack(zlib.crc32(fields)), self.length)

    @classmethod
    def read(cls, fd: int) -> ArenaLayout:
        """Read and check the description; no field is used before the check.

        Raises
        ------
        ConfigError
            The file is no arena, has another version, or could be truncated while it is mapped.
        """
        require_sealed(fd, "Arena.fileno()")
        size = os.fstat(fd).st_size
        whole = _FIELDS.size + _CHECKSUM.size
        data = os.pread(fd, whole, size - PAGE) if size >= PAGE else b""
        if len(data) < whole or data[:8] != MAGIC:
            raise ConfigError(f"descriptor {fd} is no arena: {size} bytes, and no description at their end")
        _, version, segment_size, segments, stride, length = _FIELDS.unpack_from(data)
        if version != VERSION:
            raise ConfigError(f"the arena has layout version {version}, and this fastbuf reads version {VERSION}")
        (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
        layout = cls(segments, segment_size, stride, length)
        if (
            checksum != zlib.crc32(data[: _FIELDS.size])
            or not 1 <= segments < 1 << 31
            or not 64 <= segment_size <= stride < 1 << 32
            or segment_size % 64
            or stride % 64
            or segments * stride > length
            or layout.file_length != size
        ):
            raise ConfigError(
                f"the arena's description was altered: {segments} segments of {segment_size} bytes, {stride} apart, "
                f"{length} bytes in all, in a file of {size} bytes"
            )
        return layout
