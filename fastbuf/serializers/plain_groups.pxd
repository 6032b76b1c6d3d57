# Map of plain pairs grouped by key; values are stored in rows, with eight bytes for each of their parts.
from libc.stdint cimport int64_t

from fastbuf.serializers.plain_keys cimport PlainKeys
from fastbuf.serializers.plain_rows cimport PlainRows


# For one thread.  Runs no Python code.
cdef class PlainGroups(PlainRows):          # rows are values; the group of a row is key number * sides + side
    cdef int _sides                         # 0: one side, and values do not contain its number
    cdef PlainKeys _keys


# The values of a key: a range of the rows of PlainGroups.
cdef class PlainValues:
    cdef PlainGroups _groups
    cdef int64_t _start
    cdef int64_t _stop
