"""The writer's end of a memfd channel: lends segments to a reader in another process (map: ``shared_block.pxd``)."""

from libc.errno cimport errno
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strlen

from fastbuf._native.atomics cimport *
from fastbuf._native.files cimport fb_map_shared, fb_memfd, fb_unmap
from fastbuf._native.sockets cimport close
from fastbuf._native.threads cimport *
from fastbuf.exchange.doorbell cimport Doorbell, bell_ring
from fastbuf.exchange.failure cimport *
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport Slot, Subpartition, sub_close, sub_forget_drainer, sub_slow
from fastbuf.exchange.shared_block cimport *
from fastbuf.memory.pool_core cimport segment_recycle

from fastbuf.errors import ResourceError, strerror
from fastbuf.memory.layout import PAGE


MAGIC = 0x316b636f6c426266              # "fbBlock1"
VERSION = 2


def block_length(slots):
    """Bytes of the memfd of a channel with that many slots."""
    return events_offset(slots) + SHARED_EVENTS * SHARED_EVENT_BYTES


def events_offset(slots):
    """Offset of the events: the first page after the slots."""
    head = sizeof(SharedBlock) - sizeof(SharedSlot)
    return (head + slots * sizeof(SharedSlot) + PAGE - 1) // PAGE * PAGE


# ---- C level


cdef void _fail(SharedLender *x, FailureCode code, const char *text) noexcept nogil:
    if x.failure != NULL:
        failure_set(x.failure, code, text, strlen(text))


cdef void _hear_reason(SharedLender *x) noexcept nogil:
    cdef char text[SHARED_REASON]
    cdef uint32_t n = fb_u32_load_acquire(&x.block.reader_reason.length)
    if n > SHARED_REASON:
        n = SHARED_REASON
    memcpy(text, x.block.reader_reason.text, n)
    if x.failure != NULL:
        failure_set(x.failure, FAIL_ABORTED, text, n)


cdef bint _take_home(SharedLender *x, Subpartition *s) noexcept nogil:
    """Recycles the segments that the reader has given back; False: its `head` is invalid."""
    cdef uint32_t done = fb_u32_load_acquire(&x.block.head)
    cdef uint32_t head = fb_u32_load_relaxed(&s.head)
    # Slots before `lent` may be given back.  In this order, since `head` never passes the one, nor that one `tail`.
    cdef uint32_t lent = <uint32_t> fb_u64_load_acquire(s.ends) if s.marks != NULL else 0
    cdef uint32_t tail = fb_u32_load_acquire(&s.tail)
    cdef int32_t back[64]
    cdef uint32_t n, low_water
    cdef Slot *slot
    cdef bint sane = True
    if s.marks == NULL:
        lent = tail
    if done - head > lent - head or lent - head > tail - head:
        return False
    while sane and head != done:
        n = 0
        while head != done and n < 64:
            slot = &s.slots[head & s.mask]
            if not fb_u32_load_acquire(&slot.finished):     # the writer is still filling it
                sane = False
                break
            if slot.event != NULL:
                free(slot.event)
                slot.event = NULL
                fb_u32_store_release(&x.events_home, fb_u32_load_relaxed(&x.events_home) + 1)
            else:
                back[n] = slot.segment
                n += 1
            head += 1
        fb_u32_store_release(&s.head, head)
        # The pool gives out the segment recycled last, so recycle first those read last: they are still in the cache of
        # the reader's core, and writing to them would have to fetch them from there.
        while n:
            n -= 1
            segment_recycle(s.pool, back[n])
        fb_fence_seq_cst()              # low_water after head: see the wake-ups of result_subpartition.pxd
        low_water = fb_u32_load_relaxed(&s.low_water)
        if low_water == 0 or fb_u32_load_relaxed(&s.tail) - head <= low_water:
            fb_event_notify(s.writer_event)
    return sane


cdef void _collect(SharedLender *x, Subpartition *s) noexcept nogil:
    # Under the lock.  `reader_ended` is loaded before `head`: if it is set, `head` is final.
    cdef uint32_t how
    if fb_u32_load_relaxed(&s.closed) or x.broken:
        return
    how = fb_u32_load_acquire(&x.block.reader_ended)
    if not _take_home(x, s) or (how == SHARED_DONE and not _had_everything(s)) or how > SHARED_ABORTED:
        x.broken = True
        fb_u32_store_release(&x.block.revoked, 1)
        _fail(x, FAIL_PROTOCOL, b"a consumer on this host broke the protocol: it gave back what it was not lent")
        # Its segments are recycled when it dies, or closes the channel.
    elif how == SHARED_DONE:
        sub_close(s, False)
    elif how != SHARED_OPEN:
        if how == SHARED_ABORTED:
            _hear_reason(x)
        sub_close(s, True)


cdef bint _had_everything(Subpartition *s) noexcept nogil:
    return fb_u32_load_acquire(&s.ended) != 0 and fb_u32_load_relaxed(&s.head) == fb_u32_load_acquire(&s.tail)


cdef void lender_collect(void *lender) noexcept nogil:
    """Recycles the segments that the reader has given back, and notes whether it has ended; any thread."""
    cdef SharedLender *x = <SharedLender *> lender
    pthread_mutex_lock(&x.lock)
    if x.sub != NULL:
        _collect(x, <Subpartition *> x.sub)
    pthread_mutex_unlock(&x.lock)


cdef void _say_abort(SharedLender *x, const char *text) noexcept nogil:
    # Under the lock.  Only the first reason is kept, as later ones follow from it.
    cdef size_t n = min(strlen(text), <size_t> SHARED_REASON)
    if fb_u32_load_relaxed(&x.block.ended) != SHARED_ABORTED:
        memcpy(x.block.writer_reason.text, text, n)
        fb_u32_store_release(&x.block.writer_reason.length, <uint32_t> n)
        fb_u32_store_release(&x.block.ended, SHARED_ABORTED)


cdef bint lender_revoke(SharedLender *x) noexcept nogil:
    """Forbids the reader to read segments; True: it reads none now, and will read none."""
    # Dekker's algorithm: see the pairing in shared_block.pxd.
    fb_u32_exchange_acq_rel(&x.block.revoked, 1)
    fb_fence_seq_cst()
    return fb_u32_load_seq_cst(&x.block.reading) == 0


cdef void lender_notify(void *lender) noexcept nogil:
    """Wakes the reader: something was queued, ended or failed; any thread."""
    cdef SharedLender *x = <SharedLender *> lender
    cdef fb_au32 *asked = x.abort_asked         # may be set to NULL meanwhile, but the flag itself is not freed
    if asked != NULL and fb_u32_load_acquire(asked):
        pthread_mutex_lock(&x.lock)
        if x.abort_asked != NULL and x.failure != NULL and failure_code(x.failure):
            _say_abort(x, x.failure.text)
        pthread_mutex_unlock(&x.lock)
    elif x.sub != NULL and fb_u32_load_acquire(&(<Subpartition *> x.sub).cut):
        pthread_mutex_lock(&x.lock)
        _say_abort(x, sub_slow())
        pthread_mutex_unlock(&x.lock)
    bell_ring(x.reader_bell, &x.reader_fd)


# ---- Python


cdef class SharedWriter:
    """Lends the buffers of one subpartition to its reader in another process; made by the memfd transport.

    Parameters
    ----------
    partition : ResultPartition
    index : int
        The subpartition.
    """

    def __cinit__(self, ResultPartition partition not None, int index):
        cdef Subpartition *s = &partition.subs[index]
        cdef uint32_t slots = s.mask + 1
        cdef SharedBlock *block
        pthread_mutex_init(&self.x.lock, NULL)
        fb_u32_init(&self.x.reader_fd, <uint32_t> -1)
        self.index = index
        self.length = block_length(slots)
        self.fd = fb_memfd("fastbuf-channel", self.length)
        block = <SharedBlock *> fb_map_shared(self.length, self.fd, True) if self.fd >= 0 else NULL
        if block == NULL:
            raise ResourceError(
                f"no shared block for a channel ({self.length} bytes): {strerror(errno)}")
        block.magic = MAGIC
        block.version = VERSION
        block.slots = slots
        block.segment_size = partition.segment_size
        block.drops = s.marks != NULL
        self.x.block = block
        self.x.events = <uint8_t *> block + <size_t> events_offset(slots)
        self.x.mask = slots - 1
        self.x.collect = lender_collect

    def __dealloc__(self):
        # The transport keeps a connected one alive until it is over.
        if self.x.block != NULL:
            fb_unmap(self.x.block, self.length)
        if <int> fb_u32_load_relaxed(&self.x.reader_fd) >= 0:
            close(<int> fb_u32_load_relaxed(&self.x.reader_fd))
        if self.fd >= 0:
            close(self.fd)
        pthread_mutex_destroy(&self.x.lock)

    def connect(self, ResultPartition partition not None, Doorbell reader_bell not None, int reader_fd, peer,
                bint loss_is_cancel):
        """The reader has mapped the block: lend what is queued from now on.  Takes over `reader_fd`."""
        cdef Subpartition *s = &partition.subs[self.index]
        self.partition = partition
        self.reader_bell = reader_bell
        self.peer = peer
        self.x.reader_bell = reader_bell.bell
        fb_u32_store_release(&self.x.reader_fd, <uint32_t> reader_fd)
        self.x.abort_asked = &partition.core.abort_asked
        self.x.failure = &partition.core.failure
        self.x.loss_is_cancel = loss_is_cancel
        self.x.sub = s
        s.notify = lender_notify
        s.notify_context = &self.x
        s.shared = &self.x
        if s.marks != NULL:
            s.ends = &self.x.block.ends
        # The mapping stays; this saves a descriptor.
        close(self.fd)
        self.fd = -1

    def collect(self):
        """Recycle what the reader has given back; True: the channel is over, and nothing is lent any more."""
        lender_collect(&self.x)
        return self.partition is None or (self.let_go and self._is_home())

    def _is_home(self):
        cdef Subpartition *s = <Subpartition *> self.x.sub
        if not fb_u32_load_acquire(&s.closed):
            if fb_u32_load_acquire(&self.x.block.revoked) and not self.x.broken:
                self._revoke()
        return fb_u32_load_acquire(&s.closed) != 0

    def release(self):
        """Drop the partition's pointer to this, as it is about to be closed (no write is in progress).

        If the partition has finished, the reader can still read the rest.  Else it is told of an abort, and the
        segments are taken back as soon as it reads none.
        """
        cdef Subpartition *s
        if self.partition is None or self.let_go:
            return
        s = &self.partition.subs[self.index]
        s.shared = NULL
        sub_forget_drainer(s)
        self.let_go = True
        pthread_mutex_lock(&self.x.lock)
        _collect(&self.x, s)
        if not fb_u32_load_acquire(&s.ended) or fb_u32_load_acquire(&self.partition.core.abort_asked):
            if failure_code(&self.partition.core.failure):
                _say_abort(&self.x, self.partition.core.failure.text)
            else:
                _say_abort(&self.x, b"the producer gave up")
        self.x.abort_asked = NULL
        self.x.failure = NULL
        pthread_mutex_unlock(&self.x.lock)
        if fb_u32_load_acquire(&self.x.block.ended) == SHARED_ABORTED:
            self._revoke()
        bell_ring(self.x.reader_bell, &self.x.reader_fd)

    def _revoke(self):
        if lender_revoke(&self.x) and not self.x.broken:
            self._take_back()

    def _take_back(self):
        cdef Subpartition *s = <Subpartition *> self.x.sub
        pthread_mutex_lock(&self.x.lock)
        if not fb_u32_load_acquire(&s.closed):
            sub_close(s, True)
        pthread_mutex_unlock(&self.x.lock)

    def lost(self, why):
        """The control line has ended: the reader is dead or has closed the channel, so take back all segments, once."""
        cdef bytes text
        cdef Subpartition *s = <Subpartition *> self.x.sub
        if self.partition is None:
            return
        lender_collect(&self.x)                 # what it reported before
        if not fb_u32_load_acquire(&s.closed):
            text = self._words(why)
            pthread_mutex_lock(&self.x.lock)
            if not self.x.loss_is_cancel:
                _fail(&self.x, FAIL_PEER_LOST, text)
            pthread_mutex_unlock(&self.x.lock)
            self._take_back()

    def silent(self, why):
        """The reader's process is there, but gives no sign of life: the writer treats it as lost.

        It may go on later, even while reading a segment.  So it is told the reason.  Its segments are taken back now if
        it reads none; else later, when it has stopped reading or has died.
        """
        cdef bytes text
        cdef Subpartition *s = <Subpartition *> self.x.sub
        if self.partition is None or self.let_go:
            return
        lender_collect(&self.x)
        if fb_u32_load_acquire(&s.closed):
            return
        text = self._words(why)
        pthread_mutex_lock(&self.x.lock)
        if not self.x.loss_is_cancel:
            _fail(&self.x, FAIL_PEER_LOST, text)
        _say_abort(&self.x, text)
        pthread_mutex_unlock(&self.x.lock)
        fb_u32_store_release(&s.cancelled, 1)
        self._revoke()
        fb_event_notify(s.writer_event)

    def _words(self, why):
        return (
            f"{self.peer} (channel {self.partition.channel}) was lost before it acknowledged the end of "
            f"partition: {why}").encode("utf-8", "replace")

    def drop(self):
        """Last step: drop the partition; all segments are back, or their pool is about to end."""
        if self.partition is not None:
            self.release()
            self._take_back()
            self.partition = None
            self.x.sub = NULL
