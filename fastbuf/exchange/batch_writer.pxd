# Map of the part of a record writer that writes batches, and waits for room.
from libc.stdint cimport int64_t, uint64_t

from fastbuf.exchange.channel_selector cimport ChannelSelector
from fastbuf.exchange.long_records cimport LongRecordWriter
from fastbuf.serializers.scatter cimport BatchScatter


cdef class BatchWriter(LongRecordWriter):
    cdef ChannelSelector selector
    cdef BatchScatter scatter           # columnar only; holds the batch that is being written
    cdef int first                      # subpartition to start with; it changes, for fairness
    cdef readonly uint64_t records
    cdef bint flush_always              # buffer timeout 0
    cdef bint beginning                 # a batch is being taken in, with and without the GIL
    cdef bint in_batch
    cdef bint to_all                    # broadcast: every buffer is for all subpartitions

    cdef int pump_batch(self) except -1
    cdef int finish_pending(self, int64_t deadline_ns=*) except -1
    cdef int finish_blocked(self, int64_t deadline_ns) except -1
    cdef int blocked_part(self) noexcept
    cdef int wait_for_room(self) except -1
    cdef int flush_now(self) except -1
    cdef int check_longest(self) except -1
    cdef int begin_batch(self, object batch) except -1
