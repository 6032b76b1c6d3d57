# Records of a schema as rows; row_plan.pxd has the layout, row_encode.pxd and row_decode.pxd the code.
from libc.stdint cimport uint8_t

from fastbuf.serializers.lazy_plan cimport LazyPlan
from fastbuf.serializers.row_plan cimport Node, RowPlan
from fastbuf.serializers.serializer cimport Serializer


cdef class RowSerializer(Serializer):
    cdef RowPlan _plan
    cdef LazyPlan _lazy                    # None before the first view
    cdef Py_ssize_t _bytes_per_record      # measured by the last dumps; first guess of the next one
    cdef object _record                    # class of decoded records; None: tuples
    cdef bint _named                       # _record is a named tuple's class
    cdef bint _by_name                     # _record takes the fields by name
    # The last var-length field, if it holds bytes: a record's tail (serializer.pxd).
    cdef Py_ssize_t _tail_field
    cdef Py_ssize_t _tail_slot             # offset of its slot
    cdef Py_ssize_t _tail_before           # offset of the previous var-length field's slot, -1: none

    cdef LazyPlan _lazy_plan(self)
    cdef void _find_tail(self, Node *root) noexcept
    # Makes a tuple, of the named tuple's class if there is one; then the record from it.
    cdef object _tuple(self, const uint8_t *src, Py_ssize_t length)
    cdef object _shaped(self, object values)
    cdef object _dump(self, object records)
    cdef object _load(self, const uint8_t *p, Py_ssize_t left, Py_ssize_t records)


cdef class RowIterator:
    cdef RowSerializer _serializer
    cdef const uint8_t[::1] _body          # keeps the block alive
    cdef Py_ssize_t _at
    cdef Py_ssize_t _number                # records returned
    cdef Py_ssize_t _records               # record count in the header
