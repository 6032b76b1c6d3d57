"""The reading end of input channels, one class for each way to read them (the map is in the ``.pxd``)."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport strlen

from fastbuf._native.atomics cimport fb_u32_exchange_acq_rel, fb_u32_load_acquire, fb_u64_load_relaxed
from fastbuf.exchange.failure cimport FAIL_ABORTED, failure_set
from fastbuf.exchange.gate_core cimport GateCore, gate_release, gate_take_ready
from fastbuf.exchange.input_channel cimport CHANNEL_FINISHED, READY_EVENT, InputChannel, ReadyBuffer
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport *
from fastbuf.exchange.shared_block cimport SHARED_ABORTED, SHARED_DONE, SharedEnd
from fastbuf.exchange.shared_reader cimport (
    NEWS_BYTES, NEWS_END, NEWS_EVENT, NEWS_GAP, NEWS_LOST, NEWS_NONE, News, SharedLook, SharedReader,
)
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.serializers.columns cimport fb_ask_for


cdef class ChannelReader:
    """Defaults, which the classes for each kind of channel override."""

    cdef void begin(self, bint partial) noexcept nogil:
        self.partial = partial

    cdef News next(self, uint32_t most, const uint8_t **data, uint32_t *length) noexcept nogil:
        return NEWS_NONE

    cdef void advance(self) noexcept nogil:
        pass

    cdef void leave(self) noexcept nogil:
        pass

    cdef int refill(self) except -1:
        return 0

    cdef bytes gave_up(self):
        return None

    cdef bint end(self, SharedEnd how, const char *reason) except -1:
        return True

    cdef bint hint(self, SharedLook *look) noexcept nogil:
        return False

    cdef bint has_more(self) noexcept nogil:
        return False

    cdef uint32_t queued(self) noexcept nogil:
        return 0

    cdef uint64_t stored(self) noexcept nogil:
        return 0


# ---- in place, in this process


cdef LocalChannel local_channel(InputChannel *c, ResultPartition partition, int part):
    cdef LocalChannel local = LocalChannel.__new__(LocalChannel)
    local.channel = c
    local.partition = partition
    local.part = part
    local.sub = &partition.subs[part]
    return local


cdef class LocalChannel(ChannelReader):
    """Reads in place what a writer of this process wrote."""

    cdef void begin(self, bint partial) noexcept nogil:
        self.asked = fb_u32_exchange_acq_rel(&self.sub.flush_asked, 0) != 0
        self.partial = partial or self.asked

    cdef News next(self, uint32_t most, const uint8_t **data, uint32_t *length) noexcept nogil:
        cdef EventBlob *event
        if sub_sendable(self.sub, self.partial, <uint8_t **> data, length, &self.last):
            self.length = length[0]
            return NEWS_BYTES
        event = sub_event(self.sub)
        if event != NULL:
            data[0] = event_data(event)
            length[0] = event.length
            self.length = 0
            self.last = True
            return NEWS_EVENT
        self.gap = sub_gap(self.sub, <uint64_t> -1)
        if self.gap:
            data[0] = <const uint8_t *> &self.gap
            return NEWS_GAP
        self.asked = False          # everything flushed was read
        return NEWS_END if sub_exhausted(self.sub) else NEWS_NONE

    cdef void advance(self) noexcept nogil:
        self.channel.counted.buffers += self.length != 0
        self.channel.counted.bytes += self.length
        sub_advance(self.sub, self.length, self.last)

    cdef void leave(self) noexcept nogil:
        if self.asked and sub_queued(self.sub):
            fb_u32_exchange_acq_rel(&self.sub.flush_asked, 1)

    cdef int refill(self) except -1:
        # A finished blocking partition loads the next buffer of its file.
        return self.partition.refill(self.part)

    cdef bytes gave_up(self):
        if fb_u32_load_acquire(&self.partition.core.abort_asked):
            return self.partition.core.failure.text
        return sub_slow() if fb_u32_load_acquire(&self.sub.cut) else None

    cdef bint end(self, SharedEnd how, const char *reason) except -1:
        if fb_u32_load_acquire(&self.sub.closed):
            return True
        if how == SHARED_DONE:
            self.channel.announced_total = fb_u64_load_relaxed(&self.sub.buffers)
            self.channel.state = CHANNEL_FINISHED
        elif how == SHARED_ABORTED:
            failure_set(&self.partition.core.failure, FAIL_ABORTED, reason, strlen(reason))
        sub_close(self.sub, how != SHARED_DONE)
        self.partition.reader_ended()
        return True

    cdef bint has_more(self) noexcept nogil:
        cdef Slot *slot = sub_peek(self.sub)
        return sub_exhausted(self.sub) or slot != NULL and (
            fb_u32_load_acquire(&slot.finished) or fb_u32_load_acquire(&slot.committed) > slot.drained)

    cdef uint32_t queued(self) noexcept nogil:
        return sub_queued(self.sub)

    cdef uint64_t stored(self) noexcept nogil:
        return self.partition.stored()


# ---- in place, in another process's memory


cdef SharedChannel shared_channel(InputChannel *c, SharedReader ring):
    cdef SharedChannel shared = SharedChannel.__new__(SharedChannel)
    shared.channel = c
    shared.ring = ring
    return shared


cdef class SharedChannel(ChannelReader):
    """Reads in place what a writer of another process wrote."""

    cdef News next(self, uint32_t most, const uint8_t **data, uint32_t *length) noexcept nogil:
        cdef News news = self.ring.next(self.partial, data, length, &self.last)
        self.length = length[0] if news == NEWS_BYTES else 0
        if news == NEWS_BYTES and not self.ring.enter():
            return NEWS_NONE        # the producer took it back: its reason, or the loss of its process, comes next
        if news == NEWS_NONE and self.ring.exhausted():
            return NEWS_END
        return news

    cdef void advance(self) noexcept nogil:
        self.channel.counted.buffers += self.length != 0
        self.channel.counted.bytes += self.length
        self.ring.advance(self.length, self.last)

    cdef void leave(self) noexcept nogil:
        self.ring.leave()

    cdef bytes gave_up(self):
        return self.ring.writer_reason() if self.ring.writer_ended() == SHARED_ABORTED else self.ring.lost

    cdef bint end(self, SharedEnd how, const char *reason) except -1:
        if how == SHARED_DONE:
            self.channel.announced_total = self.ring.received
            self.channel.state = CHANNEL_FINISHED
            self.ring.leave()       # segments are not read after the end was reported
        self.ring.end(how, reason, strlen(reason))
        return True

    cdef bint has_more(self) noexcept nogil:
        return self.ring.has_more()

    cdef bint hint(self, SharedLook *look) noexcept nogil:
        if look != NULL:
            self.ring.look(look)
        return True


# ---- filled by a transport's thread


cdef WireChannels wire_channels(GateCore *core):
    cdef WireChannels wire = WireChannels.__new__(WireChannels)
    wire.core = core
    return wire


cdef class WireChannels(ChannelReader):
    """Takes a few buffers at a time from the gate's queues; once read, their segments become credit again.

    It takes no more than are wanted, so that a list of records is given out while it is in the cache.
    """

    cdef News next(self, uint32_t most, const uint8_t **data, uint32_t *length) noexcept nogil:
        cdef ReadyBuffer *b
        if self.at == self.count:
            self.leave()
            self.count = gate_take_ready(self.core, self.taken, most)
            if self.count == 0:
                return NEWS_NONE
            self.holds = True
        b = &self.taken[self.at]
        self.channel = b.channel
        if b.gap:
            self.gap = b.gap
            b.gap = 0
            data[0] = <const uint8_t *> &self.gap
            return NEWS_GAP
        length[0] = b.length
        if b.segment >= 0:
            if self.at + 1 < self.count and b[1].segment >= 0:
                fb_ask_for(segment_data(self.core.buffers.pool, b[1].segment), b[1].length)
            data[0] = segment_data(self.core.buffers.pool, b.segment)
            return NEWS_BYTES
        if b.event != NULL:
            data[0] = event_data(b.event)
            return NEWS_EVENT if b.segment == READY_EVENT else NEWS_LOST
        return NEWS_END

    cdef void advance(self) noexcept nogil:
        self.at += 1
        self.holds = self.at < self.count

    cdef bint end(self, SharedEnd how, const char *reason) except -1:
        self.advance()
        return False

    cdef void leave(self) noexcept nogil:
        cdef uint32_t n = self.count
        self.count = self.at = 0
        self.holds = False
        if n:
            free(self.taken[n - 1].event)
            gate_release(self.core, self.taken, n)
