# Rows of plain values of one kind, in eight bytes for each part.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fastbuf.serializers.plain_lists cimport MOST_NODES, PlainNode

cdef enum:
    MOST_CELLS = 8              # parts of a value


# Bytes that are appended to; a place in them is offset << 8 | length.
cdef struct Texts:
    uint8_t *bytes
    int64_t used
    int64_t room


cdef int texts_room(Texts *texts, int64_t more) except -1
cdef int64_t texts_put(Texts *texts, const uint8_t *p, int64_t n) noexcept nogil     # room for it is there
# realloc to so many bytes; NULL is never given
cdef void *resized(void *p, int64_t size) except NULL


# For one thread.  Runs no Python code.
cdef class PlainRows:
    cdef readonly int64_t rows
    cdef uint8_t _kinds[MOST_NODES]     # of a value's nodes; ints are KIND_INT64
    cdef uint8_t _items[MOST_NODES]
    cdef int _nodes                     # 0: not known yet
    cdef int _width                     # cells of a value
    cdef uint32_t *_groups              # which group each row is of; NULL: they are sorted
    cdef int64_t *_cells                # of each row: ints, floats' bits, 0 to 2 (None, False, True), texts' places
    cdef int64_t _room                  # rows of these two
    cdef int64_t *_starts               # where the rows of a group begin, and behind the last where they end
    cdef Texts _texts

    cdef bint _take_kinds(self, PlainNode *nodes, int n)
    cdef int _reserve(self, int64_t more) except -1
    # The next n rows of all columns; their nodes move on
    cdef int _take(self, PlainNode *nodes, int count, int n) except -1
    cdef int _take_cells(self, PlainNode *node, int cell, int n) except -1
    cdef int _sort(self, int64_t groups) except -1
    cdef void _empty(self) noexcept
    cdef int64_t _value_bytes(self) noexcept
    cdef PyObject *_make(self, const int64_t *cells, int *node, int *cell) except NULL
    cdef list _list(self, int64_t start, int64_t stop)
    # As pack_plain would give the rows; side: pairs (key, value) as (key, (side, value)), unless it is below 0
    cdef bytes _pack(self, int64_t start, int64_t stop, int side)
