"""The reader's end of a memfd channel: reads a writer's segments in place (``shared_block.pxd`` is the map)."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import os

from fastbuf._native.atomics cimport *
from fastbuf._native.files cimport fb_map_shared, fb_unmap
from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.shared_block cimport *
from fastbuf.memory.arena cimport Arena

from fastbuf.errors import ConfigError, ResourceError
from fastbuf.exchange.shared_lender import MAGIC, VERSION, block_length, events_offset
from fastbuf.memory.layout import require_sealed


cdef enum:
    LOOKS = 64                  # polls in one shared_glance


cdef inline bint _has_more(SharedLook *l) noexcept nogil:
    # Whether SharedReader.next would find something: a finished buffer, an event, or flushed bytes.
    cdef SharedSlot *slot = &l.block.slot[0] + (l.head & l.mask)
    cdef uint64_t mark
    if l.tail == l.head:
        l.tail = fb_u32_load_acquire(&l.block.tail)
        if l.tail == l.head:
            return False
    if fb_u32_load_acquire(&slot.finished):         # events are finished from the start
        return True
    if fb_u32_load_acquire(&slot.committed) == l.drained:
        return False
    mark = fb_u64_load_acquire(&l.block.flush_mark)
    return <uint32_t> (mark >> 32) == l.head and <uint32_t> mark > l.drained


cdef bint shared_came(SharedLook *looks, int n) noexcept nogil:
    cdef int k
    for k in range(n):
        if _has_more(&looks[k]):
            return True
    return False


cdef bint shared_glance(SharedLook *looks, int n) noexcept nogil:
    cdef int _i
    for _i in range(LOOKS):
        if shared_came(looks, n):
            return True
        fb_cpu_relax()
        fb_cpu_relax()
    return False


cdef bint shared_spin(SharedLook *looks, int n, fb_event *e, uint32_t epoch, int64_t limit_ns) noexcept nogil:
    cdef int64_t until = -1, now
    while True:
        if shared_glance(looks, n):
            return True
        if fb_event_epoch(e) != epoch:
            return True
        now = fb_now_ns()
        if until < 0:
            until = now + limit_ns
        elif now >= until:
            return False


cdef class SharedReader:
    """Reads in place the buffers that a subpartition of another process lends; made by the memfd transport.

    Parameters
    ----------
    fd : int
        The memfd of the channel's block; the caller keeps it.
    arena : Arena
        The writer's, attached.
    bell : Doorbell
        The writer's, attached.
    peer : str
        For messages.

    Raises
    ------
    ConfigError
        It is not the block of a channel, has another version, or has invalid values.
    ResourceError
        It cannot be mapped.
    """

    def __cinit__(self, int fd, Arena arena not None, Doorbell bell not None, peer):
        cdef SharedBlock *block
        require_sealed(fd, "a channel")
        self.length = os.fstat(fd).st_size
        if self.length < sizeof(SharedBlock):
            raise ConfigError(
                f"not the shared block of a channel: it has {self.length} bytes, less than {sizeof(SharedBlock)}")
        block = <SharedBlock *> fb_map_shared(self.length, fd, True)
        if block == NULL:
            raise ResourceError(f"cannot map the shared block of a channel: {os.strerror(errno)}")
        self.block = block
        self.slots = block.slots
        if block.magic != <uint64_t> MAGIC or block.version != <uint32_t> VERSION:
            raise ConfigError(
                f"not the shared block of a channel, or of another version: magic {block.magic:#x}, version "
                f"{block.version} instead of {VERSION}")
        if not 2 <= self.slots <= SHARED_SLOTS or self.slots & (self.slots - 1) or \
                block_length(self.slots) != self.length or block.segment_size != arena.segment_size:
            raise ConfigError(
                f"the shared block of a channel has invalid values: {self.slots} slots and segments of "
                f"{block.segment_size} bytes do not fit its {self.length} bytes and an arena with segments of "
                f"{arena.segment_size} bytes")
        self.drops = block.drops != 0
        self.events = <const uint8_t *> block + <size_t> events_offset(self.slots)
        self.arena = arena
        self.bell = bell
        self.peer = peer

    def __dealloc__(self):
        if self.block != NULL:
            fb_unmap(self.block, self.length)

    cdef void look(self, SharedLook *at) noexcept nogil:
        """Fills in the place to poll for what comes next."""
        at.block = self.block
        at.mask = self.slots - 1
        at.head = self.head
        at.tail = self.tail_seen
        at.drained = self.drained

    cdef bint has_more(self) noexcept nogil:
        """Whether there is something to read, an unfilled buffer or an end too; a hint."""
        cdef SharedSlot *slot = &self.block.slot[0] + (self.head & (self.slots - 1))
        if self.head == fb_u32_load_acquire(&self.block.tail):
            return self.writer_ended() != SHARED_OPEN
        return fb_u32_load_acquire(&slot.finished) or fb_u32_load_acquire(&slot.committed) > self.drained

    cdef News next(self, bint partial, const uint8_t **data, uint32_t *length, bint *last) noexcept nogil:
        """What can be read now; partial: also bytes of a buffer that the writer still fills.

        The caller reads the bytes between `enter` and `leave`, then calls `advance`.
        """
        cdef SharedSlot *slot
        cdef uint32_t segment, finished, committed, place, n
        cdef uint32_t tail
        cdef uint64_t mark
        cdef News news
        if self.head == self.tail_seen and not self.drops:      # else the cache line of `tail` is left to the writer
            tail = fb_u32_load_acquire(&self.block.tail)
            if tail - self.head > self.slots:
                return NEWS_BROKEN
            self.tail_seen = tail
        while True:
            if self.head == self.tail_seen:
                news = self.claim() if self.drops else NEWS_NONE
                if news != NEWS_BYTES:
                    return news
            if self.gap:
                self.gap_told = self.gap
                self.gap = 0
                data[0] = <const uint8_t *> &self.gap_told
                length[0] = sizeof(self.gap_told)
                last[0] = False
                return NEWS_GAP
            slot = &self.block.slot[0] + (self.head & (self.slots - 1))
            n = fb_u32_load_relaxed(&slot.event_length)
            if n:
                place = fb_u32_load_relaxed(&slot.event_place)
                if n > SHARED_EVENT_BYTES or place >= SHARED_EVENTS:
                    return NEWS_BROKEN
                data[0] = self.events + place * SHARED_EVENT_BYTES
                length[0] = n
                last[0] = True
                return NEWS_EVENT
            finished = fb_u32_load_acquire(&slot.finished)      # before committed: see the pairing
            committed = fb_u32_load_acquire(&slot.committed)
            segment = fb_u32_load_relaxed(&slot.segment)
            if segment >= <size_t> self.arena.segments or committed > <size_t> self.arena.segment_size or \
                    committed < self.drained and not self.drops:
                return NEWS_BROKEN
            if committed > self.drained:
                if not finished and not partial:
                    mark = fb_u64_load_acquire(&self.block.flush_mark)
                    if <uint32_t> (mark >> 32) != self.head or <uint32_t> mark <= self.drained:
                        return NEWS_NONE
                data[0] = self.arena.base + <size_t> segment * <size_t> self.arena.stride + self.drained
                length[0] = committed - self.drained
                last[0] = finished != 0
                return NEWS_BYTES
            if not finished:
                return NEWS_NONE
            self.advance(0, True)       # all of its bytes were read before the writer finished it

    cdef News claim(self) noexcept nogil:
        """Takes the next slot, so that the writer does not; NEWS_NONE: there is none."""
        cdef uint64_t ends = fb_u64_load_acquire(&self.block.ends)
        cdef SharedSlot *slot = &self.block.slot[0] + (self.head & (self.slots - 1))
        while True:
            if <uint32_t> ends != self.head or <uint32_t> (ends >> 32) - self.head > self.slots:
                return NEWS_BROKEN
            if <uint32_t> (ends >> 32) == self.head:
                return NEWS_NONE
            if fb_u64_cas_acq_rel(&self.block.ends, &ends, (ends >> 32) << 32 | <uint32_t> (self.head + 1)):
                break
        self.tail_seen = self.head + 1
        self.gap = fb_u64_load_relaxed(&slot.gap)
        self.drained = fb_u32_load_relaxed(&slot.start)
        return NEWS_BYTES if self.drained <= <size_t> self.arena.segment_size else NEWS_BROKEN

    cdef void advance(self, uint32_t length, bint last) noexcept nogil:
        """The reader has read `length` bytes; last: it gives the slot and its segment back."""
        self.drained += length
        if last:
            self.received += self.drained != 0
            self.drained = 0
            self.head += 1
            fb_u32_store_release(&self.block.head, self.head)
            # A sleeping writer is woken only for several slots at a time, and by `leave` for the rest.  One that polls
            # sees `head` at once.
            if self.head - self.told_head >= TELL_EVERY:
                self.tell()

    cdef void tell(self) noexcept nogil:
        cdef uint32_t low_water
        self.told_head = self.head
        fb_fence_seq_cst()              # low_water after head: see the wake-ups in result_subpartition.pxd
        low_water = fb_u32_load_relaxed(&self.block.low_water)
        if low_water == 0 or fb_u32_load_relaxed(&self.block.tail) - self.head <= low_water:
            fb_event_notify(&self.bell.bell.event)

    cdef bint enter(self) noexcept nogil:
        """Called before reading each segment, which is then allowed until `leave`; False: the writer has revoked it.

        `leave` is called only once after several segments, so that the fence is paid for once.
        """
        if not self.inside:
            fb_u32_exchange_acq_rel(&self.block.reading, 1)
            fb_fence_seq_cst()
            self.inside = True
        return fb_u32_load_seq_cst(&self.block.revoked) == 0

    cdef void leave(self) noexcept nogil:
        """Called after the last segment was read; rings the writer's doorbell if slots were given back."""
        if self.inside:
            fb_u32_store_release(&self.block.reading, 0)
            self.inside = False
        if self.head != self.told_head:
            self.tell()

    cdef SharedEnd writer_ended(self) noexcept nogil:
        cdef uint32_t how = fb_u32_load_acquire(&self.block.ended)
        return <SharedEnd> how if how == SHARED_DONE or how == SHARED_ABORTED else SHARED_OPEN

    cdef bint exhausted(self) noexcept nogil:
        # ended is loaded before tail: a reader that sees the end sees every buffer queued before it.
        cdef bint ended = self.writer_ended() == SHARED_DONE
        return ended and self.head == fb_u32_load_acquire(&self.block.tail)

    cdef void end(self, SharedEnd how, const char *reason, size_t length) noexcept nogil:
        """Reports the reader's end to the writer, after its last read of a segment; only the first call counts."""
        if self.over != SHARED_OPEN:
            return
        self.over = how
        length = min(length, <size_t> SHARED_REASON)
        memcpy(self.block.reader_reason.text, reason, length)
        fb_u32_store_release(&self.block.reader_reason.length, <uint32_t> length)
        fb_u32_store_release(&self.block.reader_ended, how)
        fb_event_notify(&self.bell.bell.event)

    cdef bytes writer_reason(self):
        cdef char text[SHARED_REASON]
        cdef uint32_t n = fb_u32_load_acquire(&self.block.writer_reason.length)
        if n > SHARED_REASON:
            n = SHARED_REASON
        memcpy(text, self.block.writer_reason.text, n)
        return text[:n]

    def received_so_far(self):
        """Buffers that were read completely."""
        return self.received

    def has_ended(self):
        """Whether the writer or the reader has reported its end, so that the control line may end without an error."""
        return self.over != SHARED_OPEN or self.writer_ended() != SHARED_OPEN
