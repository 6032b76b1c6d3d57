# Map of a shared block: what a subpartition shows of itself to a reader in another process of the host (memfd channel).
#
# One memfd per channel, made and sealed by the writer's process; the reader's process maps it, and maps the writer's
# arena for reading.  Segments are read in place.  Algorithm: Lamport's single-producer single-consumer ring (TOPLAS
# 5(2), 1983), as in result_subpartition.pxd, of which this is the part that both sides need; each side writes lines of
# its own.
#
#   offset 0       64            128           192           256            2304          4352
#   +-------------+-------------+-------------+-------------+--------------+-------------+----------+----------+
#   | magic ...   | tail, ended | revoked     | head, ended | reason       | reason      | slots    | events   |
#   |             | flush_mark  |             | reading     |              |             | 64 bytes | 4 KiB    |
#   +-------------+-------------+-------------+-------------+--------------+-------------+----------+----------+
#     writer, once  writer        writer        reader        writer         reader        writer     writer    writes
#
# The segments of the slots between head and tail are lent.  They come back in order, since a channel is read in order:
# so the return ring of memory/lending.pxd is one counter here, `head`, and a return names no segment, which could be a
# wrong one.  Who has what stands in the writer's own queue (Subpartition), which the reader cannot reach; what is
# between that queue's head and this one goes home, once: by lender_collect, under its lock.  The return is the credit:
# a slot is free for another buffer when the reader is done with the one before, so at most `bound` segments are lent.
#
# Pairing (writer W, reader R)
#   tail         W stores with release after the slot is set; R loads with acquire (slot contents)
#   committed    W stores with release after the bytes; R loads with acquire (the bytes)
#   finished     W stores with release after the last `committed`; R reads it *before* committed
#   flush_mark   W stores with release after `committed`: so far bytes may be read though the buffer is not full
#   ended        W stores with release after the last `tail` and after its reason; R reads it before tail
#   head         R stores with release after its last look at the segment; W loads with acquire (it may fill it anew)
#   reader_ended R stores with release after its reason, the last `head` and its last look at any segment; W loads it
#                with acquire, before head
#   reading,     Dekker's (R: reading = 1, revoked?  W: revoked = 1, reading?), all sequentially consistent: R looks
#   revoked      into a segment only between reading = 1, revoked = 0 and reading = 0; so W, which has set revoked and
#                then sees reading = 0, has every segment for itself again.  R sets reading once for all that is there,
#                and looks at revoked before each segment
#   low_water    W stores, fence; R stores head, fence, loads it: the wake-ups of result_subpartition.pxd
# Wake-ups: each side rings the other's bell after its stores (eventcount, fb_event.h): W after every buffer (of some in
# a row, without a wait between them: after the last, and after each where it sees that R sleeps), R after every
# TELL_EVERY that it gives back and after the last one that was there, if W's low-water mark says so.
# An R that waits looks at the slot that is next for a while before it sleeps (shared_spin, shared_reader.pxd): what it
# sees there is a reason to look again and nothing else, and it sleeps by the bell's epoch alone.
# Death: nobody waits for a store of the other's.  When the control line ends, the peer is dead or has let go: the
# writer takes back all that is between its own head and tail, under the lock, and believes this block no more.
# Silence is not death: a reader that is stopped may go on.  It is told of an abort and `revoked` is set, as by a writer
# that lets go; what it has comes home when it does not look at it, or is dead.
#
# Forbidden: a segment read that is not lent, or not any more; one that goes home twice, or never though the reader is
# dead; bytes read that were not committed; more than `bound` buffers lent; an end seen before the last buffer.
# tests/models/checker/shared_ring.c runs this code under every schedule.
#
# There is no RECALL as over TCP: the gate gives a memfd channel no segment in advance, so an idle one holds nothing
# that another could use.  What a slow reader keeps is at most `bound` segments of the one subpartition it reads.
#
# Nothing of this depends on the other side behaving: each side keeps its own places, takes a value of the other's once,
# checks it, and uses what it has checked.  Not guarded against: a writer that alters bytes it has committed while they
# are decoded.  It has proved the exchange's secret.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf._native.atomics cimport (
    fb_au32,
    fb_au64,
    fb_event_asleep,
    fb_u32_load_acquire,
    fb_u32_load_relaxed,
    fb_u32_store_relaxed,
    fb_u32_store_release,
    fb_u64_store_release,
)
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.doorbell cimport Bell
from fastbuf.exchange.failure cimport Failure

cdef enum:
    SHARED_EVENTS = 16          # events of one channel that may be on their way
    SHARED_EVENT_BYTES = 4096   # longest event; exchange/events.py has the same bound
    SHARED_REASON = 2040        # longest reason
    SHARED_SLOTS = 2048         # most slots: max_buffers_per_channel is at most 1024

cdef enum SharedEnd:
    SHARED_OPEN = 0
    SHARED_DONE = 1             # writer: nothing comes after tail; reader: has had everything
    SHARED_CANCELLED = 2        # reader: wants no more
    SHARED_ABORTED = 3          # either gives up, for its reason


cdef struct SharedSlot:
    fb_au32 segment
    fb_au32 event_length        # 0: a buffer, else an event of so many bytes
    fb_au32 event_place
    fb_au32 committed
    fb_au32 finished
    char room[44]


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
    char room0[44]
    # -- writer
    fb_au32 tail
    fb_au32 ended               # SharedEnd
    fb_au64 flush_mark          # slot number << 32 | bytes
    fb_au32 low_water
    char room1[44]
    fb_au32 revoked             # the writer takes everything back: look into no segment any more
    char room2[60]
    # -- reader
    fb_au32 head
    fb_au32 reader_ended        # SharedEnd
    fb_au32 reading
    char room3[52]
    SharedReason writer_reason
    SharedReason reader_reason
    SharedSlot slot[1]          # `slots` of them; then the events


# The writer's end.  Owner: the writer's thread, but for what is marked.
cdef struct SharedLender:
    SharedBlock *block
    uint8_t *events
    uint32_t mask               # slots - 1; set once
    uint32_t events_out         # pushed so far
    fb_au32 events_home         # of which the reader has had so many; stored under the lock
    Bell *reader_bell           # set once
    fb_au32 reader_fd           # the reader's eventfd (int), -1; set once
    void (*collect)(void *) noexcept nogil      # lender_collect; set once
    # -- any thread, under the lock
    pthread_mutex_t lock
    void *sub                   # Subpartition
    fb_au32 *abort_asked        # the partition's
    Failure *failure            # the partition's
    bint loss_is_cancel
    bint broken                 # the reader has written what cannot be


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
    # Without a fence: who relies on it notifies in the end (fb_event.h).
    return fb_event_asleep(&x.reader_bell.event)


cdef inline void lender_flush(SharedLender *x, uint32_t number, uint32_t position) noexcept nogil:
    # Only the last slot can be half full.
    fb_u64_store_release(&x.block.flush_mark, <uint64_t> number << 32 | position)


cdef inline void lender_set_low_water(SharedLender *x, uint32_t queued) noexcept nogil:
    fb_u32_store_relaxed(&x.block.low_water, queued)


cdef inline bint lender_has_event_room(SharedLender *x) noexcept nogil:
    return x.events_out - fb_u32_load_acquire(&x.events_home) < SHARED_EVENTS


cdef inline void lender_event(SharedLender *x, uint32_t number, const uint8_t *data, uint32_t length) noexcept nogil:
    # The caller has asked lender_has_event_room; the reader is done with what was at this place.
    cdef SharedSlot *slot = _shared_slot(x, number)
    cdef uint32_t place = x.events_out % SHARED_EVENTS
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
