"""The queue of one subpartition (algorithm, pairing and forbidden outcomes are in the ``.pxd``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from fastbuf._native.atomics cimport *
from fastbuf._native.threads cimport pthread_mutex_lock, pthread_mutex_unlock
from fastbuf.exchange.shared_block cimport *
from fastbuf.memory.pool_core cimport PoolCore, segment_data, segment_recycle


cdef void _nobody(void *context) noexcept nogil:
    # The notify function while no drainer is connected.
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


cdef int sub_allow_drops(Subpartition *s, bint chunks) noexcept nogil:
    """Before anything is queued: the writer may drop the oldest.  chunks: of rows, each of which is a record."""
    cdef uint32_t size = s.mask + 1
    cdef Slot *slots
    while size < s.bound + 2 * EVENT_SLOTS:
        size *= 2
    s.marks = <Mark *> calloc(size, sizeof(Mark))
    slots = <Slot *> realloc(s.slots, size * sizeof(Slot))
    if slots != NULL:
        s.slots = slots
    if slots == NULL or s.marks == NULL:
        return -1
    s.mask = size - 1
    s.chunks = chunks
    s.ends = &s.own_ends
    return 0


cdef void sub_free(Subpartition *s) noexcept nogil:
    # Both sides have ended: recycles what is left, including the open buffer.
    if s.slots == NULL:
        return
    s.no_credit = False
    while sub_peek(s) != NULL:
        sub_advance(s, 0, True)
    free(s.slots)
    free(s.marks)
    s.slots = NULL
    s.marks = NULL


cdef void sub_forget_drainer(Subpartition *s) noexcept nogil:
    """The drainer is about to be freed: notify nobody from here on."""
    s.notify = _nobody


# ---- writer


cdef bint sub_has_room(Subpartition *s, bint until_low) noexcept nogil:
    """Whether the queue has room for a buffer; until_low: after it was full, only once it is half empty."""
    cdef uint32_t tail = fb_u32_load_relaxed(&s.tail)
    if not s.full and tail - s.head_seen < s.bound:
        return True
    if s.shared != NULL:
        s.shared.collect(s.shared)
    if not until_low:
        sub_wait_for_any(s)     # before the check, so that a writer that then sleeps is notified
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
    """From here on the drainer notifies for every buffer that leaves; called before the check for room."""
    if s.full:
        s.full = False
        _set_low_water(s, 0)
        fb_fence_seq_cst()      # before the check: see the wake-ups in the .pxd


cdef void sub_begin(Subpartition *s, int32_t segment) noexcept nogil:
    # The caller has called sub_has_room; from here on the drainer recycles the segment.
    cdef uint32_t tail = fb_u32_load_relaxed(&s.tail)
    cdef Slot *slot = &s.slots[tail & s.mask]
    slot.event = NULL
    slot.segment = segment
    slot.drained = 0
    fb_u32_store_relaxed(&slot.committed, 0)
    fb_u32_store_relaxed(&slot.finished, 0)
    if s.marks != NULL:
        if s.torn:
            slot.drained = s.skip
        s.torn = False
    fb_u32_store_release(&s.tail, tail + 1)
    if s.shared != NULL:
        lender_begin(s.shared, tail, <uint32_t> segment)
    if s.marks != NULL:
        s.marks[tail & s.mask].skip = s.skip
        _publish(s, tail)


cdef void _publish(Subpartition *s, uint32_t number) noexcept nogil:
    # The slot is set, but for its gap.
    cdef Mark *mark = &s.marks[number & s.mask]
    mark.gap = s.gap
    s.gap = 0
    if s.shared != NULL:
        lender_mark(s.shared, number, s.slots[number & s.mask].drained, mark.gap)
    fb_u64_add_seq_cst(s.ends, <uint64_t> 1 << 32)


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
    """Like sub_finish, for a writer that goes on with this queue; True: it must call sub_tell before it stops."""
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


cdef void sub_cut(Subpartition *s) noexcept nogil:
    """Gives up this consumer alone; its drainer tells it, and closes the queue."""
    fb_u32_store_release(&s.cut, 1)
    fb_u32_store_release(&s.cancelled, 1)
    s.notify(s.notify_context)


cdef const char *sub_slow() noexcept nogil:
    return b"this consumer is too slow: it left max_buffers_per_channel buffers of a broadcast unread, whose " \
        b"producer goes on without such ones (on_slow_consumer='disconnect')"


cdef EventBlob *event_new(const uint8_t *data, uint32_t length) noexcept nogil:
    """A new event of `length` bytes, copied from `data` unless that is NULL; NULL: no memory."""
    cdef EventBlob *e = <EventBlob *> malloc(sizeof(EventBlob) + length)
    if e != NULL:
        e.length = length
        if data != NULL:
            memcpy(event_data(e), data, length)
    return e


cdef bint sub_has_event_room(Subpartition *s) noexcept nogil:
    cdef uint64_t records = 0
    sub_wait_for_any(s)
    if s.marks != NULL and s.events >= EVENT_SLOTS:
        sub_drop_oldest(s, s.mask, &records)        # drops nothing: counts the events
        if s.events >= EVENT_SLOTS:
            return False
    if s.shared != NULL:
        s.shared.collect(s.shared)
        if not lender_has_event_room(s.shared):
            return False
    return fb_u32_load_relaxed(&s.tail) - fb_u32_load_acquire(&s.head) <= s.mask


cdef void sub_push_event(Subpartition *s, EventBlob *event) noexcept nogil:
    # The caller has called sub_has_event_room and has finished the open buffer, as events stand between buffers.
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
    if s.marks != NULL:
        s.events += 1
        _publish(s, tail)
    s.notify(s.notify_context)


cdef uint32_t sub_queued(Subpartition *s) noexcept nogil:
    # Exact for writer and drainer, approximate for other threads.
    return fb_u32_load_acquire(&s.tail) - fb_u32_load_acquire(&s.head)


# ---- writer, where the oldest are dropped


cdef uint32_t sub_unread(Subpartition *s) noexcept nogil:
    """Slots that the drainer has not claimed."""
    if s.shared != NULL:
        s.shared.collect(s.shared)
    return fb_u32_load_relaxed(&s.tail) - <uint32_t> fb_u64_load_acquire(s.ends)


cdef uint64_t _records(Subpartition *s, Slot *slot, uint32_t at) noexcept nogil:
    # How many begin in the buffer, from the element at `at` on.  A chunk that spans buffers has one row.
    cdef const uint8_t *data = segment_data(s.pool, slot.segment)
    cdef uint64_t next = at, end = fb_u32_load_relaxed(&slot.committed), n = 0
    cdef uint32_t size, rows
    while next < end:
        rows = 1
        if s.chunks and next + 8 <= end:
            memcpy(&rows, data + next + 4, 4)
        n += rows
        if next + 4 > end:
            break
        memcpy(&size, data + next, 4)
        next += <uint64_t> 4 + size
    return n


cdef bint _take_back(Subpartition *s, uint32_t *front) noexcept nogil:
    """What is unread is the writer's again, from `front` on; False: a reader in another process has altered `ends`."""
    cdef uint32_t head = fb_u32_load_acquire(&s.head)       # before `ends`, whose front it never passes
    cdef uint32_t tail = fb_u32_load_relaxed(&s.tail)
    cdef uint64_t ends = fb_u64_load_acquire(s.ends)
    while True:
        front[0] = <uint32_t> ends
        if <uint32_t> (ends >> 32) != tail or front[0] - head > tail - head:
            return False
        if fb_u64_cas_acq_rel(s.ends, &ends, <uint64_t> front[0] << 32 | front[0]):
            return True


cdef void _move(Subpartition *s, uint32_t number, uint32_t to) noexcept nogil:
    cdef Slot *slot = &s.slots[number & s.mask]
    cdef Slot *place = &s.slots[to & s.mask]
    place.event = slot.event
    place.segment = slot.segment
    place.drained = slot.drained
    fb_u32_store_relaxed(&place.committed, fb_u32_load_relaxed(&slot.committed))
    fb_u32_store_relaxed(&place.finished, 1)
    s.marks[to & s.mask] = s.marks[number & s.mask]
    if s.shared != NULL:
        lender_move(s.shared, number, to)


cdef uint32_t _drop(Subpartition *s, uint32_t keep, uint64_t *records) noexcept nogil:
    # What is between front and tail belongs to the writer; every buffer there is finished.
    cdef uint32_t front, tail = fb_u32_load_relaxed(&s.tail), to, number, committed, dropped = 0, buffers = 0
    cdef uint64_t n, gap = 0
    cdef Slot *slot
    cdef Mark *mark
    if not _take_back(s, &front):
        return 0
    for number in range(front, front + (tail - front)):
        buffers += s.slots[number & s.mask].event == NULL
    s.events = tail - front - buffers
    to = front
    for number in range(front, front + (tail - front)):
        slot = &s.slots[number & s.mask]
        mark = &s.marks[number & s.mask]
        committed = fb_u32_load_relaxed(&slot.committed)
        if slot.event == NULL and (buffers > keep or s.torn and 0 < mark.skip and mark.skip >= committed):
            buffers -= 1
            # The element that began before it is counted there, or else here.
            n = _records(s, slot, mark.skip) + (not s.torn and slot.drained < mark.skip)
            gap += mark.gap + n
            records[0] += n
            dropped += 1
            s.torn = True
            if s.shared != NULL and committed:
                fb_u64_store_relaxed(&s.buffers, fb_u64_load_relaxed(&s.buffers) - 1)
            segment_recycle(s.pool, slot.segment)
            continue
        if slot.event == NULL:
            if s.torn:
                slot.drained = mark.skip
            s.torn = False
        mark.gap += gap
        gap = 0
        if to != number:
            _move(s, number, to)
        if s.shared != NULL:
            lender_mark(s.shared, to, s.slots[to & s.mask].drained, s.marks[to & s.mask].gap)
        to += 1
    s.gap += gap                    # behind all that is left
    fb_u32_store_release(&s.tail, to)
    if s.shared != NULL:
        lender_set_tail(s.shared, to)
    if to != front:
        fb_u64_add_seq_cst(s.ends, <uint64_t> (to - front) << 32)
    return dropped


cdef uint32_t sub_drop_oldest(Subpartition *s, uint32_t keep, uint64_t *records) noexcept nogil:
    """Drops the oldest unread buffers until `keep` are left; -> how many, and adds to `records` what began in them.

    No buffer is open.
    """
    cdef uint32_t dropped = 0
    if s.shared == NULL:
        dropped = _drop(s, keep, records)
    else:
        pthread_mutex_lock(&s.shared.lock)
        if not fb_u32_load_acquire(&s.closed):      # the collector has not taken all home
            dropped = _drop(s, keep, records)
        pthread_mutex_unlock(&s.shared.lock)
    s.notify(s.notify_context)      # it may have looked in between
    return dropped


cdef bint sub_make_way(Subpartition *s, int64_t patience_ns, uint32_t skip, uint64_t *dropped,
                       uint64_t *records) noexcept nogil:
    """Makes room for one more buffer, if need be by dropping the oldest; False: the consumer is not slow yet.

    skip: bytes of the next buffer that go on with an element of the last one.
    """
    cdef uint32_t unread = sub_unread(s), tail = fb_u32_load_relaxed(&s.tail)
    cdef int64_t now
    if unread <= s.bound // 2 and tail - unread != s.dropped_at:
        s.full_ns = 0                   # it has caught up by itself
    if unread >= s.bound:
        now = fb_now_ns()
        if s.full_ns == 0:
            s.full_ns = now
        if now - s.full_ns < patience_ns:
            return False
        s.dropped_at = tail - unread
        # An eighth at once, so that each buffer costs a few moves of others, however many there are.
        dropped[0] += sub_drop_oldest(s, s.bound - max(<uint32_t> 1, s.bound // 8), records)
    s.skip = skip
    # Always, with at most `bound` buffers and EVENT_SLOTS events that are unread, and EVENT_SLOTS in hand.
    return fb_u32_load_relaxed(&s.tail) - fb_u32_load_acquire(&s.head) <= s.mask


# ---- drainer


cdef bint _claim(Subpartition *s, uint32_t number) noexcept nogil:
    """Whether the drainer has claimed that slot, now or before."""
    cdef uint64_t ends
    cdef Slot *slot = &s.slots[number & s.mask]
    if <int32_t> (s.front - number) > 0:
        return True
    ends = fb_u64_load_acquire(s.ends)
    while <uint32_t> (ends >> 32) != number:
        if s.no_credit and (not fb_u32_load_acquire(&slot.finished) or fb_u32_load_relaxed(&slot.committed)):
            return False
        if fb_u64_cas_acq_rel(s.ends, &ends, (ends >> 32) << 32 | <uint32_t> (number + 1)):
            s.front = number + 1
            return True
    return False


cdef bint sub_held_back(Subpartition *s) noexcept nogil:
    """Whether something is unread that a drainer without credit has not claimed."""
    return s.no_credit and <uint32_t> (fb_u64_load_acquire(s.ends) >> 32) != s.front


cdef uint64_t sub_gap(Subpartition *s, uint64_t most) noexcept nogil:
    """Records that were dropped just before what is next, to be told first; at most so many at once."""
    cdef Slot *slot = sub_peek(s) if s.marks != NULL else NULL
    cdef Mark *mark
    cdef uint64_t gap = 0
    if slot != NULL:
        mark = &s.marks[slot - s.slots]
        gap = min(mark.gap, most)
        mark.gap -= gap
    return gap


cdef inline bint _after_gap(Subpartition *s, Slot *slot) noexcept nogil:
    return s.marks != NULL and s.marks[slot - s.slots].gap != 0


cdef Slot *sub_peek(Subpartition *s) noexcept nogil:
    cdef uint32_t head = fb_u32_load_relaxed(&s.head)
    if s.marks != NULL and s.ends == &s.own_ends:
        if not _claim(s, head):
            return NULL
    elif head == fb_u32_load_acquire(&s.tail):
        return NULL
    return &s.slots[head & s.mask]


cdef bint sub_sendable(Subpartition *s, bint partial, uint8_t **data, uint32_t *length, bint *last) noexcept nogil:
    """The bytes of the next buffer that may be sent or read now, and whether they are its last.

    partial: also bytes of a buffer that the writer still fills.
    """
    cdef Slot *slot = sub_peek(s)
    cdef uint32_t finished
    cdef uint32_t committed
    while slot != NULL and slot.event == NULL and not _after_gap(s, slot):
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
        # All of its bytes were sent before the writer finished it.
        sub_advance(s, 0, True)
        slot = sub_peek(s)
    return False


cdef uint32_t sub_whole(Subpartition *s, uint32_t behind, uint8_t **data) noexcept nogil:
    """Length of the buffer `behind` slots after the next one; 0: it is not finished, or not a buffer.

    For a drainer that has found the buffers before it and has not advanced yet, so nothing of this one was sent.
    """
    cdef uint32_t at = fb_u32_load_relaxed(&s.head) + behind
    cdef Slot *slot = &s.slots[at & s.mask]
    if s.marks != NULL:
        if behind >= EVENT_SLOTS or not fb_u32_load_acquire(&slot.finished) or not _claim(s, at):
            return 0
    # Queued if `at` is before `tail`; the difference is always below 2**31.
    elif <int32_t> (fb_u32_load_acquire(&s.tail) - at) <= 0:
        return 0
    if slot.event != NULL or _after_gap(s, slot) or not fb_u32_load_acquire(&slot.finished):
        return 0
    data[0] = segment_data(s.pool, slot.segment) + slot.drained
    return max(fb_u32_load_relaxed(&slot.committed), slot.drained) - slot.drained


cdef EventBlob *sub_event(Subpartition *s) noexcept nogil:
    """The event that is next, if there is one; called after sub_sendable has returned False."""
    cdef Slot *slot = sub_peek(s)
    return slot.event if slot != NULL and not _after_gap(s, slot) else NULL


cdef bint sub_advance(Subpartition *s, uint32_t length, bint last) noexcept nogil:
    """`length` bytes were sent or read; last: the buffer is done, and its segment is recycled."""
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
    fb_fence_seq_cst()          # low_water after head: see the wake-ups in the .pxd
    low_water = fb_u32_load_relaxed(&s.low_water)
    if low_water == 0 or fb_u32_load_relaxed(&s.tail) - head - 1 <= low_water:
        fb_event_notify(s.writer_event)
    return True


cdef bint sub_exhausted(Subpartition *s) noexcept nogil:
    # ended is loaded before tail: a thread that sees ended = 1 sees every buffer queued before it.
    cdef bint ended = fb_u32_load_acquire(&s.ended)
    return ended and sub_queued(s) == 0


cdef void sub_discard(Subpartition *s) noexcept nogil:
    """Drops finished buffers of a cancelled consumer; the open buffer stays until the writer finishes it."""
    cdef Slot *slot
    s.no_credit = False
    slot = sub_peek(s)
    while slot != NULL and fb_u32_load_acquire(&slot.finished):
        sub_advance(s, 0, True)
        slot = sub_peek(s)


cdef void sub_close(Subpartition *s, bint cancelled) noexcept nogil:
    """The drainer's last step: after `closed` the writer itself drops what is still queued."""
    if cancelled:
        fb_u32_store_release(&s.cancelled, 1)
        sub_discard(s)
    fb_u32_exchange_acq_rel(&s.closed, 1)
    fb_event_notify(s.writer_event)
