# The header of a block in C.  block.py draws it and has the error messages; this version saves the cost of Python's for
# blocks of few short records.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf._native.crc32c cimport fb_crc32c

cdef enum:
    HEAD_BYTES = 32
    HEAD_MAGIC = 0x46554246       # "FBUF"
    HEAD_VERSION = 1
    HEAD_CRC = 1                  # the flag

cdef struct BlockHead:
    uint32_t magic
    uint16_t version
    uint8_t kind
    uint8_t flags
    uint64_t fingerprint
    uint64_t body_bytes
    uint32_t records
    uint32_t crc


# The block's record count; -1: a field of the header is wrong, and check_block raises the error.
cdef inline int64_t records_of(const uint8_t *block, Py_ssize_t n, int kind, uint64_t fingerprint) noexcept nogil:
    cdef BlockHead head
    if n < HEAD_BYTES:
        return -1
    memcpy(&head, block, HEAD_BYTES)
    if head.magic != HEAD_MAGIC or head.version != HEAD_VERSION or head.kind != kind or head.flags & ~HEAD_CRC:
        return -1
    if head.fingerprint != fingerprint or head.body_bytes != <uint64_t> (n - HEAD_BYTES):
        return -1
    if (fb_crc32c(0, block + HEAD_BYTES, n - HEAD_BYTES) if head.flags & HEAD_CRC else 0) != head.crc:
        return -1
    return head.records


# Writes the header before a body that is already written.
cdef inline void put_head(uint8_t *block, Py_ssize_t n, int kind, uint64_t fingerprint, uint32_t records,
                          bint checksum) noexcept nogil:
    cdef BlockHead head
    head.magic, head.version, head.kind = HEAD_MAGIC, HEAD_VERSION, <uint8_t> kind
    head.flags = HEAD_CRC if checksum else 0
    head.fingerprint = fingerprint
    head.body_bytes = <uint64_t> (n - HEAD_BYTES)
    head.records = records
    head.crc = fb_crc32c(0, block + HEAD_BYTES, n - HEAD_BYTES) if checksum else 0
    memcpy(block, &head, HEAD_BYTES)
