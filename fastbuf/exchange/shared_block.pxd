# Map of a shared block: the queue of a subpartition, as a reader in another process on this host sees it (memfd).
#
# Each channel has one memfd, made and sealed by the writer's process; the reader's process maps it, and maps the
# writer's arena for reading.  Segments are read in place.  Algorithm: Lamport's single-producer single-consumer ring
# (TOPLAS 5(2), 1983), as in result_subpartition.pxd; the block has the fields that both sides need, and each side
# writes its own cache lines.
#
#   offset 0       64            128       192           256     320            2368          4416
#   +-------------+-------------+---------+-------------+-------+--------------+-------------+----------+----------+
#   | magic ...   | tail, ended | revoked | head, ended | ends  | reason       | reason      | slots    | events   |
#   |             | flush_mark  |         | reading     |       |              |             | 64 bytes | 4 KiB    |
#   +-------------+-------------+---------+-------------+-------+--------------+-------------+----------+----------+
#     writer, once  writer        writer    reader        both    writer         reader        writer     writer
#
# The segments of the slots between head and tail are lent.  The reader gives them back in order, by moving `head`; it
# names no segment, so it cannot name a wrong one (memory/lending.pxd needs a return ring).  The record of what is lent
# is the writer's own queue (Subpartition), which the reader cannot write.  lender_collect recycles the segments between
# that queue's head and this head, once each, under its lock.  Giving back is the credit: a slot can be filled again
# when the reader is done with it, so at most `bound` segments are lent.
#
# Pairing (writer W, reader R)
#   tail         W stores with release after the slot is set; R loads with acquire (slot contents)
#   committed    W stores with release after the bytes; R loads with acquire (the bytes)
#   finished     W stores with release after the last `committed`; R reads it *before* committed
#   flush_mark   W stores with release after `committed`: bytes up to here may be read though the buffer is not full
#   ended        W stores with release after the last `tail` and after its reason; R reads it before tail
#   head         R stores with release after its last read of the segment; W loads with acquire (then it may refill it)
#   reader_ended R stores with release after its reason, the last `head` and its last read of any segment; W loads it
#                with acquire, before head
#   reading,     Dekker's algorithm (R: reading = 1, then loads revoked; W: revoked = 1, then loads reading), all
#   revoked      sequentially consistent.  R reads a segment only after reading = 1 and revoked = 0, until reading = 0.
#                So if W has set revoked and then sees reading = 0, R reads no segment any more.  R sets reading once
#                for several segments, and checks revoked before each
#   low_water    W stores, fence; R stores head, fence, loads it: the wake-ups of result_subpartition.pxd
#   ends         if the writer drops the oldest (`drops`): what is unread, as result_subpartition.pxd has it.  R claims
#                each slot by it, and never sees that a slot was taken back: `start` and `gap` of its next one tell.  W
#                checks that front is between R's head and its own tail, and R that front is where it stands
# Wake-ups: each side rings the other's bell after its stores (eventcount, fb_event.h).  W rings after every buffer; if
# it writes several without waiting, after the last one, and after each one while R sleeps.  R rings after every
# TELL_EVERY slots that it gives back, and after the last one that was there, if `low_water` allows.
# A waiting R polls its next slot for a short time before it sleeps (shared_spin, shared_reader.pxd).  What it sees
# there only makes it check again; whether it may sleep depends on the bell's epoch alone.
# Death: no side waits for a store of the other.  When the control line ends, the peer is dead or has closed the
# channel: the writer takes back everything between its own head and tail, under the lock, and ignores this block from
# then on.
# Silence is not death: a stopped process may go on.  The writer tells such a reader of an abort and sets `revoked`, as
# a writer does that closes; it gets the segments back when the reader reads none, or is dead.
#
# Forbidden: reading a segment that is not lent; recycling one twice, or never though the reader is dead; reading bytes
# that were not committed; lending more than `bound` buffers; seeing the end before the last buffer.
# tests/models/checker/shared_ring.c runs this code under every schedule.
#
# Unlike TCP there is no RECALL: the gate gives a memfd channel no segments in advance, so an idle channel holds nothing
# that another could use.  A slow reader keeps at most `bound` segments, of the one subpartition that it reads.
#
# No side trusts the other: each keeps its own positions, loads each value of the other once, checks it, and uses the
# checked copy.  One thing is not guarded against: a writer that alters committed bytes while they are decoded.  But it
# has proved to know the exchange's secret.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf._native.atomics cimport *
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.doorbell cimport Bell
from fastbuf.exchange.failure cimport Failure

cdef enum:
    SHARED_EVENTS = 16          # most events of one channel that the reader has not read
    SHARED_EVENT_BYTES = 4096   # longest event; exchange/events.py has the same bound
    SHARED_REASON = 2040        # longest reason
    SHARED_SLOTS = 2048         # most slots: max_buffers_per_channel is at most 1024

cdef enum SharedEnd:
    SHARED_OPEN = 0
    SHARED_DONE = 1             # writer: nothing comes after tail; reader: it has read everything
    SHARED_CANCELLED = 2        # reader: it needs no more data
    SHARED_ABORTED = 3          # either: it has failed, with its reason


cdef struct SharedSlot:
    fb_au32 segment
    fb_au32 event_length        # 0: a buffer, else the length of an event
    fb_au32 event_place
    fb_au32 committed
    fb_au32 finished
    fb_au32 start               # `drops`: bytes at the front that are not to be read
    fb_au64 gap                 # `drops`: records that were dropped just before
    char room[32]


cdef struct SharedReason:
    fb_au32 length
    uint32_t zero
    char text[SHARED_REASON]


cdef struct SharedBlock:
    # -- writer, once
    uint64_t magic
    uint32_t version
    uint32_t slots              # a power of two
    uint32_t segment_size
    uint32_t drops              # 1: the writer may take back what was not claimed
    char room0[40]
    # -- writer
    fb_au32 tail
    fb_au32 ended               # SharedEnd
    fb_au64 flush_mark          # slot number << 32 | bytes
    fb_au32 low_water
    char room1[44]
    fb_au32 revoked             # 1: the writer takes everything back, no segment may be read any more
    char room2[60]
    # -- reader
    fb_au32 head
    fb_au32 reader_ended        # SharedEnd
    fb_au32 reading
    char room3[52]
    # -- both, with `drops`
    fb_au64 ends
    char room4[56]
    SharedReason writer_reason
    SharedReason reader_reason
    SharedSlot slot[1]          # `slots` of them; then the events


# The writer's end.  Owner: the writer's thread, except where marked.
cdef struct SharedLender:
    SharedBlock *block
    uint8_t *events
    uint32_t mask               # slots - 1; set once
    uint32_t events_out         # events pushed so far
    fb_au32 events_home         # events that the reader has read; stored under the lock
    Bell *reader_bell           # set once
    fb_au32 reader_fd           # the reader's eventfd (int), -1; set once
    void (*collect)(void *) noexcept nogil      # lender_collect; set once
    # -- any thread, under the lock
    pthread_mutex_t lock
    void *sub                   # Subpartition
    fb_au32 *abort_asked        # the partition's
    Failure *failure            # the partition's
    bint loss_is_cancel
    bint broken                 # the reader has written invalid values


cdef inline SharedSlot *_shared_slot(SharedLender *x, uint32_t number) noexcept nogil:
    return &x.block.slot[0] + (number & x.mask)


cdef inline void lender_begin(SharedLender *x, uint32_t number, uint32_t segment) noexcept nogil:
    cdef SharedSlot *slot = _shared_slot(x, number)
    fb_u32_store_relaxed(&slot.segment, segment)
    fb_u32_store_relaxed(&slot.event_length, 0)
    fb_u32_store_relaxed(&slot.committed, 0)
    fb_u32_store_relaxed(&slot.finished, 0)
    fb_u32_store_release(&x.block.tail, number + 1)


cdef inline void lender_commit(SharedLender *x, uint32_t number, uint32_t position) noexcept nogil:
    fb_u32_store_release(&_shared_slot(x, number).committed, position)


cdef inline void lender_finish(SharedLender *x, uint32_t number) noexcept nogil:
    fb_u32_store_release(&_shared_slot(x, number).finished, 1)


cdef inline bint lender_is_waited_for(SharedLender *x) noexcept nogil:
    # Without a fence, so it may miss a sleeper: the caller notifies in the end in any case (fb_event.h).
    return fb_event_asleep(&x.reader_bell.event)


cdef inline void lender_flush(SharedLender *x, uint32_t number, uint32_t position) noexcept nogil:
    # Only the last slot can be partly filled.
    fb_u64_store_release(&x.block.flush_mark, <uint64_t> number << 32 | position)


cdef inline void lender_set_low_water(SharedLender *x, uint32_t queued) noexcept nogil:
    fb_u32_store_relaxed(&x.block.low_water, queued)


cdef inline bint lender_has_event_room(SharedLender *x) noexcept nogil:
    return x.events_out - fb_u32_load_acquire(&x.events_home) < SHARED_EVENTS


cdef inline void lender_event(SharedLender *x, uint32_t number, const uint8_t *data, uint32_t length) noexcept nogil:
    # The caller has called lender_has_event_room, so the reader has read the event that was at this place.
    cdef SharedSlot *slot = _shared_slot(x, number)
    cdef uint32_t place = x.events_out % SHARED_EVENTS
    length = min(length, <uint32_t> SHARED_EVENT_BYTES)     # queue_event refuses longer ones
    memcpy(x.events + place * SHARED_EVENT_BYTES, data, length)
    x.events_out += 1
    fb_u32_store_relaxed(&slot.segment, 0)
    fb_u32_store_relaxed(&slot.event_length, length)
    fb_u32_store_relaxed(&slot.event_place, place)
    fb_u32_store_relaxed(&slot.committed, 0)
    fb_u32_store_relaxed(&slot.finished, 1)
    fb_u32_store_release(&x.block.tail, number + 1)


cdef inline void lender_end(SharedLender *x) noexcept nogil:
    if fb_u32_load_relaxed(&x.block.ended) == SHARED_OPEN:
        fb_u32_store_release(&x.block.ended, SHARED_DONE)


# ---- where the oldest are dropped


cdef inline void lender_mark(SharedLender *x, uint32_t number, uint32_t start, uint64_t gap) noexcept nogil:
    # Before the slot is published by `ends`.
    cdef SharedSlot *slot = _shared_slot(x, number)
    fb_u32_store_relaxed(&slot.start, start)
    fb_u64_store_relaxed(&slot.gap, gap)


cdef inline void lender_move(SharedLender *x, uint32_t number, uint32_t to) noexcept nogil:
    cdef SharedSlot *slot = _shared_slot(x, number)
    cdef SharedSlot *place = _shared_slot(x, to)
    fb_u32_store_relaxed(&place.segment, fb_u32_load_relaxed(&slot.segment))
    fb_u32_store_relaxed(&place.event_length, fb_u32_load_relaxed(&slot.event_length))
    fb_u32_store_relaxed(&place.event_place, fb_u32_load_relaxed(&slot.event_place))
    fb_u32_store_relaxed(&place.committed, fb_u32_load_relaxed(&slot.committed))
    fb_u32_store_relaxed(&place.finished, 1)


cdef inline void lender_set_tail(SharedLender *x, uint32_t tail) noexcept nogil:
    fb_u32_store_release(&x.block.tail, tail)
