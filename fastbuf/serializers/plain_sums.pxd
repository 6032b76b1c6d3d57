# Plain pairs merged by a known operator, without objects.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf.serializers.plain_keys cimport PlainKeys
from fastbuf.serializers.plain_lists cimport PlainNode


# For one thread.  Runs no Python code but the source's.
cdef class PlainSums:
    cdef readonly int64_t rows      # that fill has read
    cdef readonly uint64_t proof    # of their keys, as in RecordGroups
    cdef readonly list left         # records that fill has read, and that are not in the table
    cdef int _how                   # MERGE_
    cdef PlainKeys _keys
    cdef int _value                 # KIND_INT64 or KIND_FLOAT; 0: not known yet
    cdef int64_t *_values           # by the number of the key; a float's bits
    cdef int64_t _room
    cdef int64_t _had               # keys that have a value

    cdef int _merge(self, const uint32_t *found, const int64_t *values, int n) except -1
    cdef int _fill_block(self, source, bint *ended) except -1
    cdef bytes _packed(self, const uint32_t *which, int64_t count)
