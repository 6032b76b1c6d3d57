# Plain pairs grouped by key, their values in rows of eight bytes for each part.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fastbuf.serializers.plain_keys cimport PlainKeys, Texts
from fastbuf.serializers.plain_lists cimport MOST_NODES, PlainNode

cdef enum:
    MOST_CELLS = 8              # parts of a value


# For one thread.  Runs no Python code.
cdef class PlainGroups:
    cdef readonly int64_t rows
    cdef int _sides                     # 0: one, and values do not name it
    cdef PlainKeys _keys
    cdef uint8_t _kinds[MOST_NODES]     # of a value's nodes
    cdef uint8_t _items[MOST_NODES]
    cdef int _nodes                     # 0: not known yet
    cdef int _width                     # cells of a value
    cdef uint32_t *_groups              # of each row: number of its key, times sides, and its side; NULL: sorted
    cdef int64_t *_cells                # of each row: ints, floats' bits, 0 to 2 (None, False, True), texts' places
    cdef int64_t _room                  # rows of these two
    cdef int64_t *_starts               # where the rows of a group begin, and behind the last where they end
    cdef Texts _texts                   # of values

    cdef int _take_kinds(self, PlainNode *nodes, int n)
    cdef int _take_cells(self, PlainNode *node, int cell, int n) except -1
    cdef int _sort(self) except -1
    cdef PyObject *_make(self, const int64_t *cells, int *node, int *cell) except NULL
    cdef int64_t _value_bytes(self) noexcept
    cdef list _list(self, int64_t start, int64_t stop)


# The values of a key: rows of the above.
cdef class PlainValues:
    cdef PlainGroups _groups
    cdef int64_t _start
    cdef int64_t _stop
