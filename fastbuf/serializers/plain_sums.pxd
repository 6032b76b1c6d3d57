# Map of a table that merges plain pairs by a known operator, without Python objects.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.serializers.plain_keys cimport PlainKeys


# For one thread.  Runs no Python code except the source's.
cdef class PlainSums:
    cdef readonly int64_t rows      # read by fill
    cdef readonly uint64_t proof    # sum of their keys' hashes, as in RecordGroups
    cdef readonly list left         # records that fill has read but not merged
    cdef int _how                   # MERGE_
    cdef PlainKeys _keys
    cdef uint8_t _value             # KIND_INT64 or KIND_FLOAT; 0: not known yet
    cdef int64_t *_values           # by the number of the key: the int, or the bits of the float
    cdef int64_t _room
    cdef int64_t _had               # number of keys that have a value

    cdef int _merge(self, const uint32_t *found, const int64_t *values, int n) except -1
    cdef int _fill_block(self, source, bint *ended) except -1
    cdef bytes _packed(self, const uint32_t *which, int64_t count)
