# Map of one subpartition: the queue of buffers between a record writer and whoever drains it.
#
# Algorithm: Lamport's single-producer single-consumer ring (TOPLAS 5(2), 1983) of slots, each a
# segment with a shared write position (Flink's BufferBuilder and BufferConsumer): the writer queues a
# segment when it begins it and publishes bytes by `committed`, so that the drainer can flush a partly
# filled buffer without asking the writer.
#
# Pairing
#   tail       writer stores with release after the slot is set; drainer loads with acquire (slot contents)
#   head       drainer stores with release after it is done with the slot; writer loads with acquire (slot is free)
#   committed  writer stores with release after the bytes; drainer loads with acquire (the bytes)
#   finished   writer stores with release after the last `committed`; drainer reads finished *before*
#              committed, so that finished = 1 means that committed is final
#   ended      writer stores with release after the last `finished`; drainer reads it before it looks at tail
#   flush_asked  writer raises with release after `committed`, and notifies; drainer lowers by an exchange before it
#              looks: it sees the bytes, or finds it raised when the notice has it look again
#   low_water  writer stores, then a fence; drainer stores head, then a fence, then loads it: see below
#   cancelled, closed   drainer stores with release; writer loads with acquire; they only ever go up
# A queue whose reader is in another process (memfd channel) is shown to it as it is written (`shared`,
# shared_block.pxd); its drainer here is whoever collects what the reader is done with: the writer when it finds no
# room, or the transport.
#
# Wake-ups. A writer that found the queue full goes on when it is half empty, so that it is not woken, to fill one
# buffer and sleep again, whenever one leaves. `low_water` says so to the drainer, which then tells the writer of no
# buffer that leaves more than that queued (0: it tells of each). Whoever makes the queue as short as that tells the
# writer whatever it reads there, so that is the eventcount's pairing and no more. But the writer may wait for
# something else later, any place or any segment that comes free: then it has lowered `low_water` before it looks, and
# either it sees the new head, or the drainer sees the new mark (two fences, Dekker's). An end, a cancel or a
# failure is always told. tests/models/checker/subpartition.c runs this code under every schedule.
#
# Forbidden: bytes drained that were not committed; a slot reused while the drainer reads it; an
# end-of-partition seen before the last buffer; more than `bound` buffers queued.
from libc.stdint cimport int32_t, uint8_t, uint32_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event, fb_pad
from fastbuf.exchange.shared_block cimport SharedLender
from fastbuf.memory.pool_core cimport PoolCore

ctypedef void (*notify_fn)(void *context) noexcept nogil


cdef enum:
    EVENT_SLOTS = 8             # places beyond `bound` that are for events: they do not wait for a queue of data


cdef enum Held:
    HELD_READER = 0             # the consumer has not taken it: no credit, or it reads in place
    HELD_LINK = 1               # the consumer gave credit: it waits for the socket


# An event of the stream: malloc'ed, `length` bytes follow.  Owned by its slot, then by whoever it is delivered to.
cdef struct EventBlob:
    uint32_t length


cdef struct Slot:
    EventBlob *event            # NULL: the slot is a buffer
    int32_t segment
    uint32_t drained            # drainer only: bytes of the segment that have gone
    fb_au32 committed
    fb_au32 finished


cdef struct Subpartition:
    # -- set once
    Slot *slots
    uint32_t mask               # slots - 1
    uint32_t bound              # max_buffers_per_channel
    PoolCore *pool
    # Tells the drainer that there is something.  Two words, so set when nobody notifies: before the first buffer, or
    # before `consumers` of a blocking partition says so.
    notify_fn notify
    void *notify_context
    fb_event *writer_event      # tells the writer that a slot came free, or that the drainer has ended
    SharedLender *shared        # memfd channel: what the reader in another process sees of this queue; else NULL
    # -- writer
    fb_pad pad_writer
    fb_au32 tail
    fb_au32 ended
    fb_au32 flush_asked         # writer raises, drainer lowers: send what is committed
    uint32_t head_seen          # writer only: last head it read
    bint full                   # writer only: it was, and is not half empty yet
    fb_au32 low_water
    fb_au64 bytes               # writer stores (relaxed), anybody may read: a figure
    # -- drainer
    fb_pad pad_drainer
    fb_au32 head
    fb_au32 cancelled           # the consumer wants no more
    fb_au32 held                # drainer stores (relaxed), writer loads: a Held, why what is queued has not left
    fb_au32 closed              # the drainer is done with this subpartition (delivered, cancelled or failed)
    # Buffers that left: drainer stores (relaxed), anybody may read.  With `shared` the writer does: buffers that are
    # finished, so that the reader may have all of them.
    fb_au64 buffers
    fb_pad pad_end


cdef int sub_init(Subpartition *s, uint32_t bound, PoolCore *pool, fb_event *writer_event) noexcept nogil
cdef void sub_free(Subpartition *s) noexcept nogil
cdef void sub_forget_drainer(Subpartition *s) noexcept nogil
# writer
cdef bint sub_has_room(Subpartition *s, bint until_low) noexcept nogil
cdef void sub_wait_for_any(Subpartition *s) noexcept nogil
cdef void sub_begin(Subpartition *s, int32_t segment) noexcept nogil
cdef void sub_commit(Subpartition *s, uint32_t position) noexcept nogil
cdef void sub_finish(Subpartition *s) noexcept nogil
cdef bint sub_finish_early(Subpartition *s) noexcept nogil
cdef void sub_tell(Subpartition *s) noexcept nogil
cdef void sub_flush(Subpartition *s) noexcept nogil
cdef void sub_end(Subpartition *s) noexcept nogil
cdef bint sub_has_event_room(Subpartition *s) noexcept nogil
cdef void sub_push_event(Subpartition *s, EventBlob *event) noexcept nogil
cdef uint32_t sub_queued(Subpartition *s) noexcept nogil
# drainer
cdef Slot *sub_peek(Subpartition *s) noexcept nogil
cdef bint sub_sendable(Subpartition *s, bint partial, uint8_t **data, uint32_t *length, bint *last) noexcept nogil
cdef uint32_t sub_whole(Subpartition *s, uint32_t behind, uint8_t **data) noexcept nogil
cdef EventBlob *sub_event(Subpartition *s) noexcept nogil
cdef EventBlob *event_new(const uint8_t *data, uint32_t length) noexcept nogil
cdef inline uint8_t *event_data(EventBlob *e) noexcept nogil:
    return <uint8_t *> (e + 1)
cdef bint sub_advance(Subpartition *s, uint32_t length, bint last) noexcept nogil
cdef bint sub_exhausted(Subpartition *s) noexcept nogil
cdef void sub_discard(Subpartition *s) noexcept nogil
cdef void sub_close(Subpartition *s, bint cancelled) noexcept nogil
