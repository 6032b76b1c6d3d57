# Map of a record that is longer than the room in the open buffer, while it is written.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.serializers.serializer cimport Serializer

cdef enum:
    PREFIX = 4                          # bytes of the length before each record


cdef class LongRecordWriter:
    cdef readonly ResultPartition partition
    cdef readonly Serializer serializer
    cdef Py_ssize_t longest             # max_record_bytes
    cdef uint8_t *scratch               # an element longer than the open buffer has room for, but for its tail
    cdef Py_ssize_t scratch_room
    # What is still to be written of an element that was begun: spill_left bytes from spill_next on, to spill_part, and
    # then the tail.  spill_left is 0 only when nothing is.
    cdef const uint8_t *spill_next
    cdef Py_ssize_t spill_left
    cdef bint spill_begun               # some of it is written: the rest may overdraw the pool
    cdef bytes spill_tail               # the record's tail (serializer.pxd), kept alive; None: it has none
    cdef bint spilling_tail             # spill_next is in it
    cdef int spill_part

    # Pumps: 1 done, 0 blocked.
    cdef int spill(self, int part, Py_ssize_t length, PyObject *tail) except -1
    cdef int put_tail(self, int part, Py_ssize_t n, PyObject *tail) except -1
    cdef int pump_spill(self) except -1

    cdef int reserve(self, Py_ssize_t room) except -1
    cdef void take_tail(self, PyObject *tail) noexcept
    cdef int spill_from_tail(self) noexcept
    cdef Py_ssize_t whole(self, Py_ssize_t n, PyObject *tail) except -1
    cdef int refuse(self, Py_ssize_t n) except -1
