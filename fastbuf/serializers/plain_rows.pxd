# Map of rows of plain values of the same type, with eight bytes for each part.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fastbuf.serializers.plain_lists cimport MOST_NODES, PlainNode

cdef enum:
    MOST_CELLS = 8              # most parts of a value


# An append-only buffer of texts; a place in it is offset << 8 | length.
cdef struct Texts:
    uint8_t *bytes
    int64_t used
    int64_t room


# The cells of a node: those of the i-th value are at step * i; or, of values that are chosen, at step * which[i].
cdef struct Column:
    const int64_t *cells
    int64_t step


cdef int texts_room(Texts *texts, int64_t more) except -1
cdef int64_t texts_put(Texts *texts, const uint8_t *p, int64_t n) noexcept nogil     # after texts_room
# realloc that raises MemoryError instead of returning NULL
cdef void *resized(void *p, int64_t size) except NULL
# The bytes that pack_plain would make of `count` values.  The nodes have the values' kinds and numbers of items;
# `which` chooses values, NULL: the first ones.
cdef bytes pack_columns(PlainNode *nodes, const Column *columns, int n, const uint32_t *which, const uint8_t *texts,
                        int64_t count)


# For one thread.  Runs no Python code.
cdef class PlainRows:
    cdef readonly int64_t rows
    cdef uint8_t _kinds[MOST_NODES]     # of a value's nodes; ints are KIND_INT64
    cdef uint8_t _items[MOST_NODES]
    cdef int _nodes                     # 0: not known yet
    cdef int _width                     # cells of a value
    cdef uint32_t *_groups              # the group of each row; NULL: rows are sorted by group
    cdef int64_t *_cells                # the row's parts: ints, bits of floats, 0 to 2 (None, False, True), text places
    cdef int64_t _room                  # capacity of these two, in rows
    cdef int64_t *_starts               # the first row of each group, and at the end the number of rows
    cdef Texts _texts

    cdef bint _take_kinds(self, PlainNode *nodes, int n)
    cdef int _reserve(self, int64_t more) except -1
    # Append the next n rows of all columns; moves on in the columns
    cdef int _take(self, PlainNode *nodes, int count, int n) except -1
    cdef int _take_cells(self, PlainNode *node, int cell, int n) except -1
    cdef int _sort(self, int64_t groups) except -1
    cdef void _empty(self) noexcept
    cdef int64_t _value_bytes(self) noexcept
    cdef PyObject *_make(self, const int64_t *cells, int *node, int *cell) except NULL
    cdef list _list(self, int64_t start, int64_t stop)
    # The rows as pack_plain packs them; side: unless negative, pairs (key, value) become (key, (side, value))
    cdef bytes _pack(self, int64_t start, int64_t stop, int side)
