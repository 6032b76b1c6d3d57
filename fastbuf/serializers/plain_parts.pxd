# Map of plain pairs grouped by partition, without Python objects.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastbuf.serializers.plain_rows cimport PlainRows


# For one thread.  Runs no Python code.
cdef class PlainParts(PlainRows):           # rows are pairs, and groups are partitions
    cdef readonly int64_t read
    cdef readonly uint64_t proof
    cdef int64_t _partitions
    cdef int64_t _group_bytes
    cdef int _side                          # -1: none
    cdef object _wanted                     # None: all


# Reads pickles without making objects of them.
cdef class PlainPickles(PlainRows):
    cdef const uint8_t **_memo_texts        # the pickle's memo: first byte of a text, NULL for other objects
    cdef uint8_t *_lengths
    cdef int64_t _memo
    cdef int64_t _memo_room

    cdef bint _parse(self, const uint8_t *p, const uint8_t *end) except -1
    cdef int _remember(self, const uint8_t *p, uint8_t n) except -1
