# Views of encoded rows: a field is decoded when it is read.
#
# Lifetime.  LazyRows holds an export (Py_buffer) of the bytes from its making to release() or its end, and every
# LazyRow holds its LazyRows: a bytearray cannot be resized, a segment not recycled, while either lives.  release()
# gives the export back at once; whatever is read of a row after that raises SegmentStateError, and reads nothing.
cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t

from fastbuf.serializers.row_plan cimport Node, RowPlan


@cython.final
cdef class LazyRows:
    cdef RowPlan _plan
    cdef Py_buffer _buffer
    cdef bint _open              # the export is held; all that reads asks for it first
    cdef Py_ssize_t _records
    cdef int64_t *_starts        # of each payload, records + 1 of them; it ends 4 bytes before the next one's start
    cdef int32_t *_before        # per field: offset of the slot of the var-length field before it, -1 for none
    cdef int32_t *_key           # positions of the key's fields
    cdef int32_t _keys           # how many; -1: rows have no key
    cdef readonly tuple key      # their names; None without
    cdef dict _places            # name -> position
    cdef dict _attributes        # the same without names of a row's methods

    cdef int _index(self, const uint8_t *p, Py_ssize_t left) except -1
    cdef int _choose(self, object key) except -1
    cdef int _check(self) except -1
    cdef Py_ssize_t _place(self, object field) except -1
    cdef LazyRow _row(self, Py_ssize_t i)
    # Where field i of the record p[0:n] stands; 1: there, 0: it is None.  Bounds are checked at each call: the bytes
    # may be somebody's bytearray.
    cdef int _find(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n, const uint8_t **value,
                   Py_ssize_t *length) except -1
    cdef object _read(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n)


@cython.final
cdef class LazyRow:
    cdef LazyRows _rows
    cdef const uint8_t *_p       # its payload, valid while _rows is open
    cdef Py_ssize_t _n


@cython.final
cdef class LazyIterator:
    cdef LazyRows _rows
    cdef Py_ssize_t _at
