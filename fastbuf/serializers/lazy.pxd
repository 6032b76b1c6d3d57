# Views of encoded rows: a field is decoded only when it is read.
#
# Lifetime.  LazyRows holds an export (Py_buffer) of the bytes until release() or its destruction, and every LazyRow
# holds its LazyRows: meanwhile a bytearray cannot be resized and a segment cannot be recycled.  release() gives the
# export back at once; later reads of a row raise SegmentStateError and touch no memory.
cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t, uint8_t

from fastbuf.serializers.lazy_plan cimport LazyKey, LazyPlan


@cython.final
cdef class LazyRows:
    cdef LazyPlan _plan
    cdef Py_buffer _buffer
    cdef bint _open              # the export is held; every read checks it first
    cdef const uint8_t *_bytes   # body of the block: the elements; valid while _open
    cdef Py_ssize_t _size        # bytes of the body
    cdef Py_ssize_t _records
    # start of each payload, records + 1 entries; a payload ends 4 bytes before the next start
    cdef int64_t *_starts
    cdef LazyKey _key            # None: rows have no key
    cdef readonly tuple key      # names of the key's fields; None without key

    cdef int _hold(self, object buf, Py_ssize_t head) except -1
    cdef int _set_key(self, object wanted) except -1
    cdef int _index(self, Py_ssize_t records) except -1
    cdef int _reserve(self, Py_ssize_t records) except -1
    cdef int _check(self) except -1
    cdef bint _none(self, Py_ssize_t place, Py_ssize_t i) except -1
    cdef Py_ssize_t _gather(self, Py_ssize_t place, uint8_t *to) noexcept
    cdef LazyRow _row(self, Py_ssize_t i)
    # Finds field i of the record p[0:n]; 1: found, 0: it is None.  Checks bounds at every call, since the bytes may be
    # in a bytearray that somebody writes.
    cdef int _find(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n, const uint8_t **value,
                   Py_ssize_t *length) except -1
    cdef object _read(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n)


@cython.final
cdef class LazyRow:
    cdef LazyRows _rows
    cdef const uint8_t *_p       # the row's payload; valid while _rows is open
    cdef Py_ssize_t _n


@cython.final
cdef class LazyIterator:
    cdef LazyRows _rows
    cdef Py_ssize_t _at
    cdef LazyRow _last           # the row returned last; _before: the one before it
    cdef LazyRow _before


# The records of a block (errors as in RowSerializer.view); of bytes that contain only elements; of one record without
# its length.
cdef LazyRows view_block(LazyPlan plan, object buf, object fingerprint, object key)
cdef LazyRows view_elements(LazyPlan plan, object body, Py_ssize_t records)
cdef LazyRow view_payload(LazyPlan plan, object payload, object key)
