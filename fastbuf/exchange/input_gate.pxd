# Map of an input gate: what R producers sent, as record batches or records.
#
# One thread reads at a time (`lock` sees to it); any thread may abort or close.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.exchange.gate_core cimport ChannelAccount, GateCore, ReadyBuffer
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.serializer cimport Serializer
from fastbuf.serializers.spanning cimport SpanningReader

cdef enum:
    READY_BATCH = 64            # buffers taken from the queue, and given back, at a time


cdef class InputGate:
    cdef GateCore *core
    cdef readonly Serializer serializer
    cdef readonly LocalBufferPool pool
    cdef readonly object environment
    cdef readonly object config
    cdef readonly object channels           # number expected, or None: open until sealed
    cdef readonly unsigned int gate_id
    cdef readonly unsigned long long epoch
    cdef readonly bytes secret
    cdef readonly bint finished
    cdef readonly bint closed
    cdef readonly bint freed
    cdef object final_stats
    cdef object __weakref__
    cdef uint32_t forks                     # fork_count() when it was made
    cdef int wake_fd                        # eventfd for event loops, -1: not asked for yet
    cdef object lock
    cdef object sealed                      # {channel: buffers}
    cdef list readers                       # SpanningReader by channel index
    cdef list local_partitions              # (InputChannel index, ResultPartition), kept alive while read
    cdef BatchAssembler assembler           # columnar
    cdef list records                       # row, pickled
    cdef int64_t first_row_ns               # when the oldest row that waits to be given out came
    cdef int64_t partial_ns                 # when local buffers were last read half full
    cdef uint32_t local_turn
    cdef readonly uint64_t records_in
    cdef uint64_t local_bytes
    cdef uint64_t local_buffers
    cdef int64_t wait_ns
    cdef object event                       # comes after what waits to be given out
    cdef object pending                     # iterator over records given out one by one

    cdef int take_in(self, InputChannel *c, const uint8_t *data, uint32_t length) except -1
    cdef int drain(self, bint partial) except -1
    cdef int drain_remote(self) except -1
    cdef int drain_local(self, bint partial) except -1
    cdef bint enough(self) noexcept
    cdef Py_ssize_t waiting(self) noexcept
    cdef object give_out(self)
    cdef bint complete(self) except -1
    cdef int check_process(self) except -1
    cdef SpanningReader reader(self, uint32_t index)
    cdef ChannelAccount *accounts(self, uint32_t *n, int64_t *floating_out) except NULL
