# Map of one subpartition: the queue of buffers between the record writer and its drainer (a transport or local reader).
#
# Algorithm: Lamport's single-producer single-consumer ring (TOPLAS 5(2), 1983) of slots.  A slot is a segment with a
# shared write position, as in Flink's BufferBuilder and BufferConsumer: the writer queues a segment when it begins to
# fill it, and publishes bytes by `committed`.  So the drainer can flush a partly filled buffer without the writer.
#
# Pairing
#   tail       writer stores with release after the slot is set; drainer loads with acquire (slot contents)
#   head       drainer stores with release after it is done with the slot; writer loads with acquire (slot is free)
#   committed  writer stores with release after the bytes; drainer loads with acquire (the bytes)
#   finished   writer stores with release after the last `committed`; drainer reads finished *before*
#              committed, so that finished = 1 means that committed is final
#   ended      writer stores with release after the last `finished`; drainer reads it before tail
#   flush_asked  writer sets it with release after `committed`, and notifies; drainer clears it by an exchange before it
#              checks for data: it sees the bytes, or after the notice finds it set
#   low_water  writer stores, then a fence; drainer stores head, then a fence, then loads it: see below
#   cancelled, closed   drainer stores with release; writer loads with acquire; they never go back to 0
#   cut        writer stores with release, then `cancelled` too, and notifies; drainer loads with acquire, and closes
# If the reader is in another process (memfd channel), each change is also written to the shared block (`shared`,
# shared_block.pxd).  The drainer in this process is then the thread that collects what the reader gave back: the
# writer when it finds no room, or the transport.
#
# Wake-ups.  A writer that found the queue full waits until it is half empty; otherwise it would be woken for each
# buffer that leaves, to fill one and sleep again.  It stores that length in `low_water`, and the drainer notifies it
# only when the queue is no longer than that (0: for each buffer).  A drainer that shortens the queue to that length
# notifies in any case, so here the eventcount is enough.  But if the writer later waits for any free slot or segment,
# it clears `low_water` before it checks: then either it sees the new head, or the drainer sees the new `low_water` (two
# fences, as in Dekker's algorithm).  An end, a cancel or a failure is always notified.
# tests/models/checker/subpartition.c runs this code under every schedule.
#
# Dropping the oldest.  A broadcast with on_slow_consumer="drop_oldest" takes back what a slow consumer has not come
# to.  Then the two ends of what is unread, `tail << 32 | front`, are one word (`ends`), and each change of it is one
# read-modify-write:
#   claim      drainer: (tail, front) -> (tail, front + 1).  The slot is in its hand until `head` has passed it, and
#              the writer leaves it alone.  A locked step for each buffer, of such queues only
#   publish    writer: tail + 1, after the slot is set
#   take back  writer: (tail, front) -> (front, front).  Then every slot from front on is its own again.  It drops the
#              oldest buffers, moves the others and the events forward, and publishes them all at once
# So a slot has one owner at each moment: [head, front) the drainer, [front, tail) nobody until one of the two steps,
# the rest the writer.  (As in the deque of Arora, Blumofe and Plaxton, SPAA 1998; the drainer is its thief.)  That the
# word has an old value again, since as many slots were published as were taken back, does no harm: a slot is read only
# after its claim.  Pairing: changes of `ends` release the slots that were set before; the claim acquires the last
# publish, as no plain store ever stands between.  What a drainer reads of a slot before its claim (finished,
# committed) is a hint, and atomic.  `tail` follows `ends`: a hint for the drainer, but once `ended` is set both say the
# same.
# Of the slots beyond `bound`, half are for events, half for what is in the drainer's hand: at most EVENT_SLOTS.
# With `shared`, `ends` is in the shared block, and the writer takes back under the lender's lock, which guards the
# slots from `head` on: the collector recycles by them.
# A consumer goes on at an element: `skip` of a slot says how many of its bytes belong to an element that began before.
# If that one is gone, `drained` begins there.  `gap` says how many records are gone just before the slot: the drainer
# tells it first, and the reader drops the half element that it may have.
#
# Forbidden: draining bytes that were not committed; reusing a slot while the drainer reads it; seeing the end of
# partition before the last buffer; more than `bound` buffers queued; dropping what the drainer has claimed, or an
# event; losing a record that no gap counts.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event, fb_pad
from fastbuf.exchange.shared_block cimport SharedLender
from fastbuf.memory.pool_core cimport PoolCore

ctypedef void (*notify_fn)(void *context) noexcept nogil


cdef enum:
    EVENT_SLOTS = 8             # slots beyond `bound` for events, so that they do not wait in a full queue


cdef enum Held:
    HELD_READER = 0             # by the consumer: it gave no credit, or has not read in place
    HELD_LINK = 1               # by the socket, which is full; the consumer gave credit


# An event: malloc'ed, `length` bytes follow.  Owned by its slot, then by the gate it is delivered to.
cdef struct EventBlob:
    uint32_t length


cdef struct Slot:
    EventBlob *event            # NULL: the slot is a buffer
    int32_t segment
    uint32_t drained            # drainer only: bytes of the segment that were sent or read
    fb_au32 committed
    fb_au32 finished


cdef struct Mark:               # of a slot, where the oldest are dropped; it has the slot's owner
    uint32_t skip               # bytes of the buffer that belong to an element that began before it
    uint64_t gap                # records dropped just before it; the drainer sets it to 0 when it has told


cdef struct Subpartition:
    # -- set once
    Slot *slots
    uint32_t mask               # slots - 1
    uint32_t bound              # max_buffers_per_channel
    PoolCore *pool
    # Notifies the drainer.  The pair is not atomic, so it is set while nobody notifies: before the first buffer, or in
    # a blocking partition before `consumers` is set.
    notify_fn notify
    void *notify_context
    fb_event *writer_event      # wakes the writer: a slot became free, or the drainer has ended
    SharedLender *shared        # memfd channel: the copy of this queue in the shared block; else NULL
    Mark *marks                 # one for each slot, if the oldest are dropped; else NULL
    fb_au64 *ends               # with `marks`: `own_ends`, or that of the shared block; else NULL
    bint chunks                 # with `marks`: an element is a chunk of rows
    # -- writer
    fb_pad pad_writer
    fb_au32 tail
    fb_au32 ended
    fb_au32 cut                 # 1: the writer has ended this consumer alone, which is too slow (SLOW tells it)
    fb_au32 flush_asked         # 1: send what is committed; set by the writer, cleared by the drainer
    uint32_t head_seen          # writer only: last head it read
    bint full                   # writer only: the queue was full, and is not half empty yet
    fb_au32 low_water
    fb_au64 bytes               # for statistics: writer stores (relaxed), any thread reads
    # With `marks`, writer only
    uint32_t skip               # of the buffer that is begun next
    bint torn                   # the element that the buffer begun next goes on with was dropped
    uint64_t gap                # records dropped before the slot that is queued next
    uint32_t events             # events that are queued, or more
    int64_t full_ns             # since when the queue is full, until the drainer has come to half of it.  0: it is not
    uint32_t dropped_at         # what it had come to when some was dropped
    # -- drainer
    fb_pad pad_drainer
    fb_au32 head
    fb_au32 cancelled           # the consumer has cancelled
    fb_au32 held                # Held: why queued buffers have not left; drainer stores (relaxed), writer loads
    fb_au32 closed              # the drainer has ended (delivered, cancelled or failed)
    # Buffers sent; drainer stores (relaxed), any thread reads.  With `shared`: buffers finished, stored by the writer.
    fb_au64 buffers
    uint32_t front              # with `marks`, drainer only: slots before this one were claimed
    bint no_credit              # with `marks`, drainer only: it may claim no bytes
    fb_pad pad_ends
    fb_au64 own_ends
    fb_pad pad_end


cdef int sub_init(Subpartition *s, uint32_t bound, PoolCore *pool, fb_event *writer_event) noexcept nogil
cdef int sub_allow_drops(Subpartition *s, bint chunks) noexcept nogil
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
cdef void sub_cut(Subpartition *s) noexcept nogil
cdef const char *sub_slow() noexcept nogil      # what a consumer that was cut is told
cdef bint sub_has_event_room(Subpartition *s) noexcept nogil
cdef void sub_push_event(Subpartition *s, EventBlob *event) noexcept nogil
cdef uint32_t sub_queued(Subpartition *s) noexcept nogil
cdef uint32_t sub_unread(Subpartition *s) noexcept nogil
cdef bint sub_make_way(Subpartition *s, int64_t patience_ns, uint32_t skip, uint64_t *dropped,
                       uint64_t *records) noexcept nogil
cdef uint32_t sub_drop_oldest(Subpartition *s, uint32_t keep, uint64_t *records) noexcept nogil
# drainer
cdef Slot *sub_peek(Subpartition *s) noexcept nogil
cdef bint sub_sendable(Subpartition *s, bint partial, uint8_t **data, uint32_t *length, bint *last) noexcept nogil
cdef uint32_t sub_whole(Subpartition *s, uint32_t behind, uint8_t **data) noexcept nogil
cdef EventBlob *sub_event(Subpartition *s) noexcept nogil
cdef uint64_t sub_gap(Subpartition *s, uint64_t most) noexcept nogil
cdef bint sub_held_back(Subpartition *s) noexcept nogil
cdef EventBlob *event_new(const uint8_t *data, uint32_t length) noexcept nogil
cdef inline uint8_t *event_data(EventBlob *e) noexcept nogil:
    return <uint8_t *> (e + 1)
cdef bint sub_advance(Subpartition *s, uint32_t length, bint last) noexcept nogil
cdef bint sub_exhausted(Subpartition *s) noexcept nogil
cdef void sub_discard(Subpartition *s) noexcept nogil
cdef void sub_close(Subpartition *s, bint cancelled) noexcept nogil
