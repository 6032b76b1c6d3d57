# The functions of a serializer that a channel's writer and reader need: encode and decode one record.
#
# A tail is the bytes at the end of a long record.  An encoder or decoder does not move them: they are copied once, from
# the record's bytes object into segments, piece by piece, and from segments into the bytes object of the new record.
# The payload is the same with a tail or without.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

cdef enum:
    LEAST_TAIL = 4096           # fewer bytes are encoded with the rest of their record


cdef class Serializer:
    cdef readonly str kind                        # as in KIND_NAMES of block.py
    cdef readonly unsigned long long fingerprint  # of the schema; 0 without one
    cdef readonly object schema                   # Schema or None
    cdef readonly bint checksum                   # blocks made by dumps contain a CRC32C

    cdef readonly Py_ssize_t tail_head            # bytes of a payload that tell where its tail begins; 0: no tails

    # ConfigError if a subclass has an __init__ that does not call this class's.
    cdef int check_made(self) except -1

    # Writes the payload of one record to dst and returns its size.  If the result > room, nothing useful was written:
    # call again with that room.  The GIL is held; user code may run (a property, a __reduce__).
    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1
    # Drops what was kept for the call with more room, which does not come.
    cdef void forget(self) noexcept
    # Decodes the record of one payload.  Copies: src may be recycled as soon as this returns.
    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length)

    # As encode_record, but without the record's tail, if it has one: `tail`, set to NULL by the caller, is then a new
    # reference to the tail, whose bytes follow the bytes that the result counts.
    cdef Py_ssize_t encode_head(self, object record, uint8_t *dst, Py_ssize_t room, PyObject **tail) except -1
    # Appends the records of the complete elements (u32 length | payload) in src; returns the bytes of these elements.
    # Stops before an element that is incomplete, or longer than `longest`.
    cdef Py_ssize_t decode_elements(self, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                                    list records) except -1
    # Where the tail of a payload of `size` bytes begins; `head` has its first `tail_head` bytes.  -1: it has no tail.
    cdef Py_ssize_t tail_at(self, const uint8_t *head, Py_ssize_t size) noexcept
    # Decodes a payload in two parts, split where tail_at says; may change the head.
    cdef object decode_with_tail(self, uint8_t *head, Py_ssize_t length, bytes tail)
