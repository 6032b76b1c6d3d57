# Map of the record writer: records and batches into the open buffers of a result partition.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.exchange.channel_selector cimport ChannelSelector
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer


cdef class RecordWriter:
    cdef readonly ResultPartition partition
    cdef readonly Serializer serializer
    cdef ChannelSelector selector
    cdef BatchScatter scatter           # columnar only; holds the batch that is being written
    cdef int first                      # subpartition to begin with, so that none is always first
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
    cdef readonly uint64_t records
    cdef Py_ssize_t longest             # max_record_bytes
    cdef bint flush_always              # buffer timeout 0
    cdef bint in_batch
    cdef bint to_all                    # broadcast: every buffer is for all subpartitions

    cdef int pump_spill(self) except -1
    cdef int pump_batch(self) except -1
    cdef int finish_pending(self) except -1
    cdef bint _written(self, int done) except -1
    cdef int refuse(self, Py_ssize_t n) except -1
    cdef int emit_one(self, object record) except -1
    cdef int begin_record(self, object record) except -1
    cdef int check_longest(self) except -1
    cdef int write_record(self, int part, object record) except -1
    cdef inline int encode_into(self, int part, object record) except -1
    cdef int reserve(self, Py_ssize_t room) except -1
    cdef int spill(self, int part, Py_ssize_t length, PyObject *tail) except -1
    cdef void take_tail(self, PyObject *tail) noexcept
    cdef int spill_from_tail(self) noexcept
    cdef Py_ssize_t whole(self, Py_ssize_t n, PyObject *tail) except -1
    cdef int put_tail(self, int part, Py_ssize_t n, PyObject *tail) except -1
    cdef int explain(self, object record, object error) except -1
    cdef int emit_list(self, list records) except -1
    cdef Py_ssize_t emit_run(self, list records, Py_ssize_t i) except -1
