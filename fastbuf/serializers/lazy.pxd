# Views of encoded rows: a field is decoded when it is read.
#
# Lifetime.  LazyRows holds an export (Py_buffer) of the bytes from its making to release() or its end, and every
# LazyRow holds its LazyRows: a bytearray cannot be resized, a segment not recycled, while either lives.  release()
# gives the export back at once; whatever is read of a row after that raises SegmentStateError, and reads nothing.
cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t, uint8_t

from fastbuf.serializers.lazy_plan cimport LazyKey, LazyPlan


@cython.final
cdef class LazyRows:
    cdef LazyPlan _plan
    cdef Py_buffer _buffer
    cdef bint _open              # the export is held; all that reads asks for it first
    cdef const uint8_t *_bytes   # its body: the elements; valid while it is open
    cdef Py_ssize_t _size        # of the body
    cdef Py_ssize_t _records
    cdef int64_t *_starts        # of each payload, records + 1 of them; it ends 4 bytes before the next one's start
    cdef LazyKey _key            # None: rows have no key
    cdef readonly tuple key      # its fields' names; None without

    cdef int _hold(self, object buf, Py_ssize_t head) except -1
    cdef int _set_key(self, object wanted) except -1
    cdef int _index(self, Py_ssize_t records) except -1
    cdef int _reserve(self, Py_ssize_t records) except -1
    cdef int _check(self) except -1
    cdef bint _none(self, Py_ssize_t place, Py_ssize_t i) except -1
    cdef Py_ssize_t _gather(self, Py_ssize_t place, uint8_t *to) noexcept
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
    cdef LazyRow _last           # the row given out last, and the one before it
    cdef LazyRow _before


# The records of a block (its errors as RowSerializer.view has them); those of bytes that are elements and no more; and
# one record without its length.
cdef LazyRows view_block(LazyPlan plan, object buf, object fingerprint, object key)
cdef LazyRows view_elements(LazyPlan plan, object body, Py_ssize_t records)
cdef LazyRow view_payload(LazyPlan plan, object payload, object key)
