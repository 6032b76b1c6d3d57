# Map of writing a record that is longer than the room in the open buffer.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.serializers.serializer cimport Serializer

cdef enum:
    PREFIX = 4                          # bytes of the length field before each record


cdef class LongRecordWriter:
    cdef readonly ResultPartition partition
    cdef readonly Serializer serializer
    cdef Py_ssize_t longest             # max_record_bytes
    cdef uint8_t *scratch               # the encoded record that did not fit, without its tail
    cdef Py_ssize_t scratch_room
    # The rest of a partly written element: spill_left bytes at spill_next, for spill_part, then the tail.  If
    # spill_left is 0, nothing is left to write.
    cdef const uint8_t *spill_next
    cdef Py_ssize_t spill_left
    cdef bint spill_begun               # part of it is written: the rest may overdraw the pool
    cdef bytes spill_tail               # the record's tail (serializer.pxd), kept alive; None: it has none
    cdef bint spilling_tail             # spill_next points into the tail
    cdef int spill_part

    # These return 1: done, 0: blocked.
    cdef int spill(self, int part, Py_ssize_t length, PyObject *tail) except -1
    cdef Py_ssize_t forget_tail(self, Py_ssize_t n, PyObject *tail) noexcept
    cdef int put_tail(self, int part, Py_ssize_t n, PyObject *tail) except -1
    cdef int pump_spill(self) except -1

    cdef int reserve(self, Py_ssize_t room) except -1
    cdef void take_tail(self, PyObject *tail) noexcept
    cdef int spill_from_tail(self) noexcept
    cdef Py_ssize_t whole(self, Py_ssize_t n, PyObject *tail) except -1
    cdef int refuse(self, Py_ssize_t n) except -1
