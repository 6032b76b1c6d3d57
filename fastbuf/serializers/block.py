"""The 32-byte header of a block, the same for every serializer; docs/format.md draws it.

0        4         6      7       8                     16           24        28      32
| "FBUF" | version | kind | flags | schema fingerprint  | body bytes | records | crc32c |
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from fastbuf.errors import BlockCorrupt, BlockTruncated, SchemaMismatch
from fastbuf.serializers.checksum import crc32c

if TYPE_CHECKING:
    from fastbuf.serializers.schema import Schema

MAGIC = b"FBUF"
HEADER_BYTES = 32
KIND_ROW, KIND_COLUMNAR, KIND_PICKLED = 1, 2, 3
VERSIONS = {KIND_ROW: 1, KIND_COLUMNAR: 2, KIND_PICKLED: 1}  #: version of each kind's layout
KIND_NAMES = {KIND_ROW: "row", KIND_COLUMNAR: "columnar", KIND_PICKLED: "pickled"}
#: Of the fingerprint that both ends of a channel compare, by which bytes of another kind are refused
KIND_BITS = {"row": 0, "columnar": 1, "pickled": 0}
FLAG_CRC = 1
FLAG_GROUPS = 2  #: pickles: each one is a list of records
MAX_RECORDS = 0xFFFFFFFF

_HEADER = struct.Struct("<4sHBBQQII")
assert _HEADER.size == HEADER_BYTES


def encode_header(kind: int, flags: int, fingerprint: int, body_bytes: int, records: int, crc: int) -> bytes:
    """Header of a block.

    Parameters
    ----------
    kind
        One of ``KIND_ROW``, ``KIND_COLUMNAR``, ``KIND_PICKLED``.
    flags
        ``FLAG_CRC`` when `crc` is the CRC32C of the body; ``FLAG_GROUPS`` when a pickle is a list of records.
    fingerprint
        64-bit fingerprint of the schema; 0 without one.
    body_bytes
        Bytes that follow the header.
    records
        Records (rows) in the body, at most 2**32 - 1.
    crc
        32 bits; 0 without ``FLAG_CRC``.

    Returns
    -------
    bytes
        32 bytes.
    """
    return _HEADER.pack(MAGIC, VERSIONS[kind], kind, flags, fingerprint, body_bytes, records, crc)


def check_block(buf: Any, kind: int, fingerprint: int, schema: Schema | None = None) -> tuple[int, memoryview]:
    """Check all fields of a header.

    Parameters
    ----------
    buf
        A contiguous bytes-like block.
    kind
        The expected kind.
    fingerprint
        The expected fingerprint.
    schema
        The expected schema, for the message.

    Returns
    -------
    records : int
        Record count in the header; the caller checks that the body has as many (:func:`count_mismatch`).
    body : memoryview
        uint8, read-only if `buf` is; it keeps `buf` alive.

    Raises
    ------
    BlockTruncated
        `buf` is shorter than the header, or than the header says.
    BlockCorrupt
        Wrong magic, version, kind, length or checksum.
    SchemaMismatch
        The fingerprint is another schema's.
    """
    view = memoryview(buf).cast("B")
    if view.nbytes < HEADER_BYTES:
        raise BlockTruncated(f"a block of {view.nbytes} bytes: its header needs {HEADER_BYTES}")
    magic, version, found_kind, flags, found_print, body_bytes, records, crc = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise BlockCorrupt(f"a block begins with {magic!r}, not {MAGIC!r}: these bytes are not a block")
    if found_kind != kind:
        kind_name = KIND_NAMES.get(found_kind, str(found_kind))
        raise BlockCorrupt(f"a block of kind {kind_name} was given to the {KIND_NAMES[kind]} serializer")
    if version != VERSIONS[kind]:
        raise BlockCorrupt(
            f"a {KIND_NAMES[kind]} block of format version {version}; this fastbuf reads version {VERSIONS[kind]}"
        )
    valid_flags = FLAG_CRC | (FLAG_GROUPS if kind == KIND_PICKLED else 0)
    if flags & ~valid_flags:
        raise BlockCorrupt(f"a block has the flags {flags:#04x}; only {valid_flags:#04x} are known")
    if found_print != fingerprint:
        text = f", {schema.text}" if schema is not None else ""
        raise SchemaMismatch(
            f"a block of schema {found_print:016x} was given to a serializer of {fingerprint:016x}{text}: read it with "
            "the schema that wrote it"
        )
    have = view.nbytes - HEADER_BYTES
    if have < body_bytes:
        raise BlockTruncated(f"a block announces {body_bytes:,} bytes of body and has {have:,}")
    if have > body_bytes:
        raise BlockCorrupt(
            f"a block announces {body_bytes:,} bytes of body and has {have:,}: {have - body_bytes} too many"
        )
    body = view[HEADER_BYTES:]
    if flags & FLAG_CRC:
        actual = crc32c(body)
        if actual != crc:
            raise BlockCorrupt(
                f"a block's CRC32C is {actual:08x}, its header says {crc:08x}: {body_bytes:,} bytes altered"
            )
    elif crc:
        raise BlockCorrupt(f"a block has the CRC32C {crc:08x} but no flag for it")
    return records, body


def count_mismatch(records: int, actual: int) -> BlockCorrupt:
    """The error for a block whose header count differs from its body."""
    return BlockCorrupt(f"a block's header counts {records:,} records, its body has {actual:,}")
