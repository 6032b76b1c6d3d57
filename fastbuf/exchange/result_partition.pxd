# Map of a result partition: its subpartitions, their open buffers, and the pool that they use.
#
# One thread writes at a time (the record writer's); drainers (I/O thread, local readers) use only the subpartitions, as
# described in result_subpartition.pxd.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.activity cimport fb_activity
from fastbuf._native.atomics cimport fb_ai64, fb_au32, fb_event
from fastbuf.exchange.doorbell cimport Doorbell, Spin
from fastbuf.exchange.driver cimport Driver, DriveState
from fastbuf.exchange.failure cimport Failure
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.memory.pool_core cimport LocalCore, PoolCore

cdef enum WriteState:
    WRITE_BLOCKED = 0           # no segment, or the queue is full
    WRITE_OK = 1
    WRITE_DROPPED = 2           # the consumer has cancelled: data for it is dropped


# A broadcast fills one buffer, buffers[subpartitions].  It is queued for every consumer that has not cancelled.  Each
# queue has a reference of its own, and so has the writer until the buffer is full.
cdef enum OnSlow:               # what becomes of a slow consumer of a broadcast, as config.ON_SLOW_CONSUMER
    SLOW_WAIT = 0
    SLOW_DROP = 1               # buffers are not queued for it, until it has room and a record begins with the buffer
    SLOW_DISCONNECT = 2         # it is cut off
    SLOW_DROP_OLDEST = 3        # what it has not come to is dropped, the oldest first


cdef struct OpenBuffer:         # writer only
    int32_t segment             # -1: none is open
    uint32_t fill               # may be ahead of what is committed, while `touched`
    bint skips                  # this consumer does not get the open buffer, nor the rest of its last record
    int64_t full_ns             # since when its queue is full, 0: it is not.  SLOW_DROP and SLOW_DISCONNECT
    uint64_t dropped            # buffers that it did not get.  Any thread reads
    uint64_t records            # SLOW_DROP_OLDEST: records that it did not get.  Any thread reads
    bint touched                # the record writer still has to commit it
    uint8_t *data


# `blocked[part]`: nanoseconds that the writer waited for that subpartition; `blocked[subpartitions + part]`: those in
# which its socket was full.  The writer stores (relaxed), any thread reads.
cdef struct PartitionCore:      # not moved while the partition lives: other threads point here
    fb_event *event             # the bell's; a slot or segment became free, a consumer ended, or something failed
    Failure failure
    fb_au32 abort_asked         # 1: drainers send ABORT(failure.text) to the consumers
    Driver *driver              # of the transport that drains it, or NULL.  Guarded by the GIL
    fb_activity activity        # what the writer's thread is doing
    fb_ai64 *blocked
    fb_ai64 short_ns            # waits for a segment although the queue had room.  Stored and read like `blocked`


cdef class ResultPartition:
    cdef PartitionCore *core
    cdef Subpartition *subs     # what consumers drain
    cdef Subpartition *stage    # what the writer fills: the same queues, except in a blocking partition
    cdef OpenBuffer *buffers
    cdef readonly int subpartitions
    cdef readonly uint32_t segment_size
    cdef PoolCore *pool_core
    cdef readonly LocalBufferPool pool
    cdef readonly object config
    cdef readonly int64_t flush_ns          # buffer timeout; 0: the writer flushes after every record, negative: never
    cdef int64_t stall_ns       # stall timeout, negative: none
    cdef readonly object environment
    cdef readonly unsigned int channel
    cdef readonly Doorbell bell             # contains `core.event`
    cdef DriveState drive       # statistics of driving the transport
    cdef Spin spins
    cdef public int fallbacks   # channels that use TCP because shared memory could not be used
    cdef bint short             # the last request for a segment failed
    cdef OnSlow on_slow         # set once
    cdef Py_ssize_t left        # bytes of the record in progress that are not written.  With SLOW_DROP_OLDEST
    cdef int64_t patience_ns    # a consumer is slow when its queue was full for so long.  Set once
    cdef bint lagging           # SLOW_DROP: some consumer is behind; buffers end with a record where they can
    cdef uint32_t cut           # consumers that were cut off
    cdef bint shares            # a subpartition is read in another process through shared memory
    cdef public object credentials      # what its gates are shown (exchange/connection.py)
    cdef readonly dict unreached        # what consumers said that had enough before they were connected
    cdef list transports        # (kind, place) of the drainer of each subpartition
    cdef list notified          # local gates: their cores must outlive this partition's last notify
    cdef readonly bint closed
    cdef readonly bint ended    # the end of partition is written
    cdef unsigned long writing  # thread that is writing into segments, 0: none.  Guarded by the GIL
    cdef readonly unsigned long written_by      # thread that wrote last, 0: none has.  Guarded by the GIL
    cdef bint unlocked          # it writes without the GIL
    cdef bint destroyed
    cdef int waited_for         # subpartition that the writer waits for, -1: none.  The writer's thread
    cdef bint waits_short       # it waits for a segment although that queue has room.  The writer's thread
    cdef readonly list gates    # the identifier of each subpartition's consumer (see `meets`), None: not attached

    cdef int begin_writing(self) except -1
    cdef int check_quickly(self) except -1
    # part: a subpartition, or `subpartitions` for all of them
    cdef WriteState open_buffer(self, int part, bint overdraft) noexcept nogil
    cdef WriteState open_shared(self, bint overdraft) noexcept nogil
    cdef bint is_slow(self, OpenBuffer *b) noexcept nogil
    cdef WriteState choose(self, bint within) noexcept nogil
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
    # overridden by partitions that store everything before it can be read
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
