# Map of a result partition: R subpartitions, the pool they draw on, and the open buffer of each.
#
# One thread writes at a time (the record writer's); drainers (I/O thread, local readers) touch the
# subpartitions only, as result_subpartition.pxd says.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.activity cimport fb_activity
from fastbuf._native.atomics cimport fb_ai64, fb_au32, fb_event
from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.driver cimport Driver, DriveState
from fastbuf.exchange.failure cimport Failure
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.memory.pool_core cimport LocalCore, PoolCore

cdef enum WriteState:
    WRITE_BLOCKED = 0           # no segment, or the queue is full
    WRITE_OK = 1
    WRITE_DROPPED = 2           # the consumer has cancelled: what is meant for it is dropped


# A broadcast's buffer is filled once: place `subpartitions` of `buffers`.  It is queued for every consumer that has not
# cancelled, each queue with a reference of its own, and the writer has one more until it is full.
cdef struct OpenBuffer:         # writer only
    int32_t segment             # -1: none is open
    uint32_t fill               # may be ahead of what is committed, while `touched`
    bint touched                # the record writer has it among those that it commits before it goes on
    uint8_t *data


# `blocked[part]` are nanoseconds that the writer waited for that subpartition, `blocked[subpartitions + part]` those of
# them in which its socket was full: the writer stores (relaxed), anybody reads.
cdef struct PartitionCore:      # stays at its place while the partition lives: other threads point here
    fb_event *event             # a slot or a segment came free, a consumer ended, or something failed; the bell's
    Failure failure
    fb_au32 abort_asked         # drainers: say ABORT(failure.text) to the consumers
    Driver *driver              # of the transport that drains it, or NULL.  The GIL
    fb_activity activity        # what the writer's thread does
    fb_ai64 *blocked
    fb_ai64 short_ns            # it waited for a segment though the queue had room.  As `blocked`


cdef class ResultPartition:
    cdef PartitionCore *core
    cdef Subpartition *subs     # what consumers drain
    cdef Subpartition *stage    # what the writer fills: the same, but of a blocking partition, which stores it first
    cdef OpenBuffer *buffers
    cdef readonly int subpartitions
    cdef readonly uint32_t segment_size
    cdef PoolCore *pool_core
    cdef readonly LocalBufferPool pool
    cdef readonly object config
    cdef readonly int64_t flush_ns          # buffer timeout; 0: the writer asks after every record, negative: never
    cdef int64_t stall_ns       # stall timeout, negative: none
    cdef readonly object environment
    cdef readonly unsigned int channel
    cdef PyObject *bell_kept    # a reference of its own to `bell`: the collector may clear that one before the end
    cdef readonly Doorbell bell             # `core.event` is its
    cdef DriveState drive       # how fetching its credit itself has paid
    cdef int64_t spin_ns        # how long to look before sleeping, where peers share memory
    cdef public int fallbacks   # channels that went to TCP since shared memory was not to be had
    cdef int64_t spin_most      # the longest it looks; 0: there is one core
    cdef bint short             # no segment was to be had when it last asked for one
    cdef bint shares            # a subpartition is read in another process through shared memory
    cdef public object credentials      # what a transport connects its consumers with
    cdef list transports        # who drains each subpartition, for messages and letting go
    cdef list notified          # local gates: their cores must outlive this partition's last notify
    cdef readonly bint closed
    cdef readonly bint ended    # the end of partition is written
    cdef unsigned long writing  # thread that writes into segments just now, 0: none.  Set and read under the GIL
    cdef readonly unsigned long written_by      # thread that wrote last, 0: none has.  As `writing`
    cdef bint unlocked          # it writes without the GIL
    cdef bint destroyed
    cdef int waited_for         # subpartition that the writer waits for, -1: none.  Its thread
    cdef bint waits_short       # it waits for a segment though that one's queue has room.  Its thread
    cdef readonly list gates    # of each subpartition: what its consumer is known by (see `meets`), None: not attached

    cdef int begin_writing(self) except -1
    cdef int check_quickly(self) except -1
    # part: a subpartition, or `subpartitions` for all of them
    cdef WriteState open_buffer(self, int part, bint overdraft) noexcept nogil
    cdef WriteState open_shared(self, bint overdraft) noexcept nogil
    cdef int acquire(self, bint overdraft) noexcept nogil
    cdef bint has_room(self, int part) noexcept nogil
    cdef bint any_room(self) noexcept nogil
    cdef int most_free(self, int after) noexcept nogil
    cdef void collect_shared(self) noexcept nogil
    cdef bint spin(self, uint32_t epoch, Driver *driver) noexcept nogil
    cdef void commit(self, int part, uint32_t n) noexcept nogil
    cdef bint commit_early(self, int part, uint32_t n) noexcept nogil
    cdef void tell(self, int part) noexcept nogil
    cdef bint finish_early(self, int part) noexcept nogil
    cdef void finish_buffer(self, int part) noexcept nogil
    cdef void finish_shared(self) noexcept nogil
    cdef int queue_event(self, bytes data) except -1
    cdef void drop(self, int part) noexcept nogil
    # for partitions that store what is written before it may be read
    cdef bint make_room(self) noexcept nogil
    cdef int refill(self, int part) except -1
    cdef int reader_ended(self) except -1
    cdef uint64_t stored(self) noexcept nogil
    cdef int refuse_write(self) except -1
    cdef int refuse_second(self) except -1
    cdef uint64_t progress(self) noexcept nogil
    cdef void waits(self, int part) noexcept nogil
    cdef void runs(self) noexcept nogil
    cdef void does(self, uint32_t state, int part) noexcept nogil
    cdef int wait(self, uint32_t key, int64_t deadline_ns, int64_t *blocked_since, uint64_t *seen) except -1
    cdef void sleep(self, uint32_t key, int64_t until) noexcept
    cpdef flush(self)
    cdef int end(self) except -1
    cdef bint all_closed(self) noexcept nogil
    cdef void *abort_key(self) noexcept nogil
