"""The queue of one subpartition (C level; algorithm, pairing and forbidden outcomes are in the ``.pxd``)."""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from fastbuf._native.atomics cimport (
    fb_event,
    fb_event_notify,
    fb_fence_seq_cst,
    fb_u32_exchange_acq_rel,
    fb_u32_load_acquire,
    fb_u32_load_relaxed,
    fb_u32_store_relaxed,
    fb_u32_store_release,
    fb_u64_load_relaxed,
    fb_u64_store_relaxed,
)
from fastbuf.exchange.shared_block cimport (
    lender_begin,
    lender_commit,
    lender_end,
    lender_event,
    lender_finish,
    lender_flush,
    lender_has_event_room,
    lender_is_waited_for,
    lender_set_low_water,
)
from fastbuf.memory.pool_core cimport PoolCore, segment_data, segment_recycle


cdef void _nobody(void *context) noexcept nogil:
    # Until a drainer is connected there is nobody to tell.
    pass


cdef int sub_init(Subpartition *s, uint32_t bound, PoolCore *pool, fb_event *writer_event) noexcept nogil:
    cdef uint32_t size = 2
    while size < bound + EVENT_SLOTS:
        size *= 2
    memset(s, 0, sizeof(Subpartition))
    s.slots = <Slot *> calloc(size, sizeof(Slot))
    if s.slots == NULL:
        return -1
    s.mask = size - 1
    s.bound = bound
    s.pool = pool
    s.writer_event = writer_event
    s.notify = _nobody
    return 0


cdef void sub_free(Subpartition *s) noexcept nogil:
    # Both sides have ended: whatever is left goes home, the open buffer too.
    if s.slots == NULL:
        return
    while sub_peek(s) != NULL:
        sub_advance(s, 0, True)
    free(s.slots)
    s.slots = NULL


cdef void sub_forget_drainer(Subpartition *s) noexcept nogil:
    """The drainer's memory is about to go (it has let go of this queue): tell nobody from here on."""
    s.notify = _nobody


# ---- writer


cdef bint sub_has_room(Subpartition *s, bint until_low) noexcept nogil:
    """Whether a buffer may be begun: the queue is not full; until_low: and was not since it was half empty."""
    cdef uint32_t tail = fb_u32_load_relaxed(&s.tail)
    if not s.full and tail - s.head_seen < s.bound:
        return True
    if s.shared != NULL:
        s.shared.collect(s.shared)
    if not until_low:
        sub_wait_for_any(s)     # before the look: who sleeps after it has to be told of what it missed
    s.head_seen = fb_u32_load_acquire(&s.head)
    if tail - s.head_seen <= s.bound // 2:
        sub_wait_for_any(s)
        return True
    if not s.full:
        if tail - s.head_seen < s.bound:
            return True
        if until_low:
            s.full = True
            _set_low_water(s, s.bound // 2)
    return False


cdef void _set_low_water(Subpartition *s, uint32_t queued) noexcept nogil:
    fb_u32_store_relaxed(&s.low_water, queued)
    if s.shared != NULL:
        lender_set_low_water(s.shared, queued)


cdef void sub_wait_for_any(Subpartition *s) noexcept nogil:
    """From here on the drainer tells of every buffer that leaves: asked before looking for what may come so."""
    if s.full:
        s.full = False
        _set_low_water(s, 0)
        fb_fence_seq_cst()      # before the look: see the wake-ups


cdef void sub_begin(Subpartition *s, int32_t segment) noexcept nogil:
    # The caller has asked sub_has_room; the segment is the drainer's to recycle from here on.
    cdef uint32_t tail = fb_u32_load_relaxed(&s.tail)
    cdef Slot *slot = &s.slots[tail & s.mask]
    slot.event = NULL
    slot.segment = segment
    slot.drained = 0
    fb_u32_store_relaxed(&slot.committed, 0)
    fb_u32_store_relaxed(&slot.finished, 0)
    fb_u32_store_release(&s.tail, tail + 1)
    if s.shared != NULL:
        lender_begin(s.shared, tail, <uint32_t> segment)


cdef void sub_commit(Subpartition *s, uint32_t position) noexcept nogil:
    cdef Slot *slot = &s.slots[(fb_u32_load_relaxed(&s.tail) - 1) & s.mask]
    fb_u64_store_relaxed(&s.bytes, fb_u64_load_relaxed(&s.bytes) + position - fb_u32_load_relaxed(&slot.committed))
    fb_u32_store_release(&slot.committed, position)
    if s.shared != NULL:
        lender_commit(s.shared, fb_u32_load_relaxed(&s.tail) - 1, position)


cdef void sub_finish(Subpartition *s) noexcept nogil:
    if sub_finish_early(s):
        sub_tell(s)


cdef bint sub_finish_early(Subpartition *s) noexcept nogil:
    """As sub_finish, by a writer that goes on with this queue at once; True: it has to sub_tell before it stops."""
    cdef uint32_t number = fb_u32_load_relaxed(&s.tail) - 1
    fb_u32_store_release(&s.slots[number & s.mask].finished, 1)
    if s.shared != NULL:
        if fb_u32_load_relaxed(&s.slots[number & s.mask].committed):
            fb_u64_store_relaxed(&s.buffers, fb_u64_load_relaxed(&s.buffers) + 1)
        lender_finish(s.shared, number)
        if not lender_is_waited_for(s.shared):
            return True
    sub_tell(s)
    return False


cdef void sub_tell(Subpartition *s) noexcept nogil:
    s.notify(s.notify_context)


cdef void sub_flush(Subpartition *s) noexcept nogil:
    cdef uint32_t number = fb_u32_load_relaxed(&s.tail) - 1
    fb_u32_store_release(&s.flush_asked, 1)
    if s.shared != NULL:
        lender_flush(s.shared, number, fb_u32_load_relaxed(&s.slots[number & s.mask].committed))
    s.notify(s.notify_context)


cdef void sub_end(Subpartition *s) noexcept nogil:
    fb_u32_store_release(&s.ended, 1)
    if s.shared != NULL:
        lender_end(s.shared)
    s.notify(s.notify_context)


cdef EventBlob *event_new(const uint8_t *data, uint32_t length) noexcept nogil:
    """An event with room for `length` bytes, copied from data unless that is NULL; NULL: no memory."""
    cdef EventBlob *e = <EventBlob *> malloc(sizeof(EventBlob) + length)
    if e != NULL:
        e.length = length
        if data != NULL:
            memcpy(event_data(e), data, length)
    return e


cdef bint sub_has_event_room(Subpartition *s) noexcept nogil:
    sub_wait_for_any(s)
    if s.shared != NULL:
        s.shared.collect(s.shared)
        if not lender_has_event_room(s.shared):
            return False
    return fb_u32_load_relaxed(&s.tail) - fb_u32_load_acquire(&s.head) <= s.mask


cdef void sub_push_event(Subpartition *s, EventBlob *event) noexcept nogil:
    # The caller has asked sub_has_event_room, and finished the buffer before it: an event stands between buffers.
    cdef uint32_t tail = fb_u32_load_relaxed(&s.tail)
    cdef Slot *slot = &s.slots[tail & s.mask]
    slot.event = event
    slot.segment = -1
    slot.drained = 0
    fb_u32_store_relaxed(&slot.committed, 0)
    fb_u32_store_relaxed(&slot.finished, 1)
    fb_u32_store_release(&s.tail, tail + 1)
    if s.shared != NULL:
        lender_event(s.shared, tail, event_data(event), event.length)
    s.notify(s.notify_context)


cdef uint32_t sub_queued(Subpartition *s) noexcept nogil:
    # Exact for writer and drainer, a moment's picture for anybody else.
    return fb_u32_load_acquire(&s.tail) - fb_u32_load_acquire(&s.head)


# ---- drainer


cdef Slot *sub_peek(Subpartition *s) noexcept nogil:
    cdef uint32_t head = fb_u32_load_relaxed(&s.head)
    if head == fb_u32_load_acquire(&s.tail):
        return NULL
    return &s.slots[head & s.mask]


cdef bint sub_sendable(Subpartition *s, bint partial, uint8_t **data, uint32_t *length, bint *last) noexcept nogil:
    """What may leave now: the next buffer's bytes, and whether they are its last.

    partial: bytes of a buffer that the writer still fills may leave as well.
    """
    cdef Slot *slot = sub_peek(s)
    cdef uint32_t finished
    cdef uint32_t committed
    while slot != NULL and slot.event == NULL:
        finished = fb_u32_load_acquire(&slot.finished)      # before committed: see the pairing
        committed = fb_u32_load_acquire(&slot.committed)
        if committed > slot.drained:
            if not finished and not partial:
                return False
            data[0] = segment_data(s.pool, slot.segment) + slot.drained
            length[0] = committed - slot.drained
            last[0] = finished != 0
            return True
        if not finished:
            return False
        # All of it had left as a partial buffer before the writer closed it.
        sub_advance(s, 0, True)
        slot = sub_peek(s)
    return False


cdef uint32_t sub_whole(Subpartition *s, uint32_t behind, uint8_t **data) noexcept nogil:
    """Bytes of the buffer so many places behind the next one, if it is finished; 0: it is not, or is none.

    For a drainer that has found the ones before it and not yet advanced: none of this one can have left.
    """
    cdef uint32_t at = fb_u32_load_relaxed(&s.head) + behind
    cdef Slot *slot = &s.slots[at & s.mask]
    # Queued: `tail` is not yet there.  More than half a turn of 32 bits there are never.
    if <int32_t> (fb_u32_load_acquire(&s.tail) - at) <= 0 or slot.event != NULL or \
            not fb_u32_load_acquire(&slot.finished):
        return 0
    data[0] = segment_data(s.pool, slot.segment)
    return fb_u32_load_relaxed(&slot.committed)


cdef EventBlob *sub_event(Subpartition *s) noexcept nogil:
    """The event that is next, if one is: asked when sub_sendable has said that no bytes are."""
    cdef Slot *slot = sub_peek(s)
    return slot.event if slot != NULL else NULL


cdef bint sub_advance(Subpartition *s, uint32_t length, bint last) noexcept nogil:
    """`length` bytes have left; last: the buffer is done, its segment goes home."""
    cdef uint32_t head = fb_u32_load_relaxed(&s.head)
    cdef Slot *slot = &s.slots[head & s.mask]
    cdef int32_t segment = slot.segment
    cdef EventBlob *event = slot.event
    cdef uint32_t low_water
    slot.drained += length
    if length:
        fb_u64_store_relaxed(&s.buffers, fb_u64_load_relaxed(&s.buffers) + 1)
    if not last:
        return False
    fb_u32_store_release(&s.head, head + 1)
    if event != NULL:
        free(event)
    else:
        segment_recycle(s.pool, segment)
    fb_fence_seq_cst()          # low_water after head: see the wake-ups
    low_water = fb_u32_load_relaxed(&s.low_water)
    if low_water == 0 or fb_u32_load_relaxed(&s.tail) - head - 1 <= low_water:
        fb_event_notify(s.writer_event)
    return True


cdef bint sub_exhausted(Subpartition *s) noexcept nogil:
    # ended before tail: whoever sees ended = 1 sees every buffer that was queued before it.
    cdef bint ended = fb_u32_load_acquire(&s.ended)
    return ended and sub_peek(s) == NULL


cdef void sub_discard(Subpartition *s) noexcept nogil:
    """Drops what is queued and finished (a cancelled consumer); the writer's open buffer stays until it is finished."""
    cdef Slot *slot = sub_peek(s)
    while slot != NULL and fb_u32_load_acquire(&slot.finished):
        sub_advance(s, 0, True)
        slot = sub_peek(s)


cdef void sub_close(Subpartition *s, bint cancelled) noexcept nogil:
    """The drainer's last touch: from `closed` on the writer is its own drainer (it drops what it still had open)."""
    if cancelled:
        fb_u32_store_release(&s.cancelled, 1)
        sub_discard(s)
    fb_u32_exchange_acq_rel(&s.closed, 1)
    fb_event_notify(s.writer_event)
