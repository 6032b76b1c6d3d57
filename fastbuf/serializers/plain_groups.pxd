# Plain pairs grouped by key, their values in rows of eight bytes for each part.
from libc.stdint cimport int64_t

from fastbuf.serializers.plain_keys cimport PlainKeys
from fastbuf.serializers.plain_rows cimport PlainRows


# For one thread.  Runs no Python code.
cdef class PlainGroups(PlainRows):          # rows of values; a group is the number of a key, times sides, and the side
    cdef int _sides                         # 0: one, and values do not name it
    cdef PlainKeys _keys


# The values of a key: rows of the above.
cdef class PlainValues:
    cdef PlainGroups _groups
    cdef int64_t _start
    cdef int64_t _stop
