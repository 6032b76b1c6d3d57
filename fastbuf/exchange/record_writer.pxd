# Map of the record writer: it encodes records and batches into the open buffers of a result partition.
from libc.stdint cimport uint64_t

from fastbuf.exchange.channel_selector cimport ChannelSelector
from fastbuf.exchange.long_records cimport LongRecordWriter
from fastbuf.serializers.row_plan cimport Node
from fastbuf.serializers.scatter cimport BatchScatter


cdef class RecordWriter(LongRecordWriter):
    cdef ChannelSelector selector
    cdef BatchScatter scatter           # columnar only; holds the batch that is being written
    cdef int first                      # subpartition to start with; it changes, for fairness
    cdef readonly uint64_t records
    cdef object __weakref__
    cdef bint flush_always              # buffer timeout 0
    cdef bint in_batch
    cdef bint to_all                    # broadcast: every buffer is for all subpartitions
    # Encodes many rows in a call; NULL for other serializers than rows, and for rows with tails (serializer.pxd).
    cdef Node *plan

    cdef int pump_batch(self) except -1
    cdef int finish_pending(self) except -1
    cdef int finish_blocked(self) except -1
    cdef int blocked_part(self) noexcept
    cdef int wait_for_room(self) except -1
    cdef int flush_now(self) except -1
    cdef bint _written(self, int done) except -1
    cdef int emit_one(self, object record) except -1
    cdef int begin_record(self, object record) except -1
    cdef int check_longest(self) except -1
    cdef int write_record(self, int part, object record) except -1
    cdef inline int encode_into(self, int part, object record, Py_ssize_t n) except -1
    cdef int explain(self, object record, object error) except -1
    cdef int emit_list(self, list records) except -1
    cdef int emit_run(self, list records, Py_ssize_t *i) except -1
    cdef int write_some(self, list records, Py_ssize_t *i, int *touched, int *n) except -1
