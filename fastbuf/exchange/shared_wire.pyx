"""A wire that channels of one process share: what a connection between two processes is, without the processes.

Channels within a process are read in place and need none.  It is there to compare flow control by credit with what came
before it, on the same frames, queues, gates and pools: see the map in the ``.pxd``.
"""

from typing import Any, NamedTuple

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen

from fastbuf._native.atomics cimport (
    fb_event_cancel,
    fb_event_init,
    fb_event_notify,
    fb_event_prepare,
    fb_event_wait,
    fb_now_ns,
    fb_u32_exchange_acq_rel,
    fb_u32_init,
    fb_u32_load_acquire,
    fb_u32_store_release,
    fb_u64_load_relaxed,
)
from fastbuf._native.threads cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from fastbuf.exchange.failure cimport FAIL_ABORTED, FAIL_PROTOCOL, failure_code, failure_set
from fastbuf.exchange.gate_core cimport (
    EVENT_CREDIT,
    gate_connect,
    gate_deliver,
    gate_deliver_event,
    gate_disconnect,
    gate_end_channel,
    gate_fail,
    gate_open_channel,
    gate_segment,
    gate_take_back,
    gate_take_credit,
    gate_take_recall,
)
from fastbuf.exchange.input_gate cimport InputGate
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport (
    EventBlob,
    event_data,
    event_new,
    sub_advance,
    sub_close,
    sub_event,
    sub_exhausted,
    sub_forget_drainer,
    sub_queued,
    sub_sendable,
)
from fastbuf.flow.watermark cimport watermark_add, watermark_init, watermark_remove
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.memory.pool_core cimport segment_data

from fastbuf.errors import ConfigError, ExchangeClosed, SequenceError
from fastbuf.exchange.named_thread import start_thread

cdef enum:
    SLICE_NS = 500000000        # an idle wire looks at itself this often


# ---- any thread


cdef void _notify(void *context) noexcept nogil:
    fb_event_notify(&(<WireChannel *> context).wire.event)


cdef void _announce(void *context) noexcept nogil:
    fb_u32_store_release(&(<WireChannel *> context).announced, 1)
    _notify(context)


cdef void _cancel(void *context) noexcept nogil:
    fb_u32_store_release(&(<WireChannel *> context).cancel_asked, 1)
    _notify(context)


# ---- the wire's thread, lock held


cdef void _put(Wire *w, WireChannel *c, int kind, const uint8_t *data, uint32_t length,
               EventBlob *event) noexcept nogil:
    cdef WireFrame *f = &w.frames[(w.head + w.count) % WIRE_FRAMES]
    cdef uint64_t at = (w.first + <uint64_t> w.mark.queued) % w.capacity
    cdef uint64_t part = min(<uint64_t> length, w.capacity - at)
    f.channel = c
    f.kind = kind
    f.length = length
    f.event = event
    f.backlog = 0
    w.count += 1
    if data != NULL:
        memcpy(&w.bytes[at], data, part)
        memcpy(w.bytes, data + part, length - part)
        watermark_add(&w.mark, length)
        w.peak = max(w.peak, w.mark.queued)
        w.sent += length


cdef void _off(Wire *w, uint8_t *data) noexcept nogil:
    """The first frame is done with; its bytes go to data, if that is wanted."""
    cdef WireFrame *f = &w.frames[w.head]
    cdef uint64_t part = min(<uint64_t> f.length, w.capacity - w.first)
    if f.kind == WIRE_DATA:
        if data != NULL:
            memcpy(data, &w.bytes[w.first], part)
            memcpy(data + part, w.bytes, f.length - part)
        w.first = (w.first + f.length) % w.capacity
        watermark_remove(&w.mark, f.length)
    w.head = (w.head + 1) % WIRE_FRAMES
    w.count -= 1


cdef void _release_writer(WireChannel *c, bint cancelled) noexcept nogil:
    if c.sub != NULL:
        sub_close(c.sub, cancelled)
        c.sub = NULL


cdef bint _send(Wire *w, WireChannel *c) noexcept nogil:
    """One frame of this channel, if it has one that may leave."""
    cdef uint8_t *data
    cdef uint32_t length, events, sendable, granted
    cdef bint last
    cdef EventBlob *event
    cdef EventBlob *copy
    if c.gate != NULL and fb_u32_exchange_acq_rel(&c.announced, 0):
        granted = gate_take_credit(c.gate, c.channel, &events)
        c.credit += granted
        c.event_credit += events
        if granted:
            c.asked = False
        if w.by_credit and gate_take_recall(c.gate, c.channel):
            c.poor = True
            sendable = c.sub != NULL and sub_sendable(c.sub, c.flush_pending, &data, &length, &last)
            if c.credit > sendable:
                gate_take_back(c.gate, c.channel, c.credit - sendable, 0)
                c.credit = sendable
    if c.sub == NULL or c.said_end:
        return False
    if fb_u32_load_acquire(c.abort_asked):      # overtakes what is on the wire: it may be stopped
        if c.gate != NULL:
            gate_fail(c.gate, FAIL_ABORTED, c.writer_failure.text, strlen(c.writer_failure.text))
        _release_writer(c, True)
        return True
    if fb_u32_load_acquire(&c.cancel_asked):
        if c.gate != NULL and failure_code(&c.gate.failure):
            failure_set(c.writer_failure, FAIL_ABORTED, c.gate.failure.text, strlen(c.gate.failure.text))
        _release_writer(c, True)
        return True
    if not w.mark.writable or w.count == WIRE_FRAMES:
        return False
    if fb_u32_exchange_acq_rel(&c.sub.flush_asked, 0):
        c.flush_pending = True
    if sub_sendable(c.sub, c.flush_pending, &data, &length, &last):
        if w.by_credit:
            if c.credit == 0:
                if c.poor and not c.asked and c.gate != NULL:
                    c.asked = True
                    gate_take_back(c.gate, c.channel, 0, sub_queued(c.sub))
                return False
            c.credit -= 1
        _put(w, c, WIRE_DATA, data, length, NULL)
        w.frames[(w.head + w.count - 1) % WIRE_FRAMES].backlog = sub_queued(c.sub) - 1
        sub_advance(c.sub, length, last)
        return True
    event = sub_event(c.sub)
    if event != NULL:
        if c.event_credit == 0:
            return False
        copy = event_new(event_data(event), event.length)
        if copy == NULL:
            return False
        c.event_credit -= 1
        _put(w, c, WIRE_EVENT, NULL, 0, copy)
        sub_advance(c.sub, 0, True)
        return True
    c.flush_pending = False
    if sub_exhausted(c.sub):
        c.said_end = True
        _put(w, c, WIRE_END, NULL, 0, NULL)
        return True
    return False


cdef bint _receive(Wire *w) noexcept nogil:
    """Takes the first frame off the wire; False: there is none, or nobody has a segment for it."""
    cdef WireFrame *f = &w.frames[w.head]
    cdef WireChannel *c = f.channel
    cdef const char *text = b"a buffer was sent without credit"
    cdef int32_t segment = -2
    cdef uint32_t length
    if w.count == 0:
        return False
    if f.kind == WIRE_DATA:
        if c.gate != NULL:
            segment = gate_segment(c.gate, c.channel, f.backlog)
        if segment == -1 and not w.by_credit:
            if w.stopped_since == 0:
                w.stopped_since = fb_now_ns()
            return False
        if segment == -1:
            gate_fail(c.gate, FAIL_PROTOCOL, text, strlen(text))
        if segment < 0:
            _off(w, NULL)
        else:
            c.channel.next_sequence += 1
            length = f.length
            _off(w, segment_data(c.gate.buffers.pool, segment))
            gate_deliver(c.gate, c.channel, segment, length)
    elif f.kind == WIRE_EVENT:
        if c.gate == NULL:
            free(f.event)
        else:
            gate_deliver_event(c.gate, c.channel, f.event)
        _off(w, NULL)
    else:
        if c.gate != NULL and c.sub != NULL:
            gate_end_channel(c.gate, c.channel, fb_u64_load_relaxed(&c.sub.buffers))
        _release_writer(c, False)
        _off(w, NULL)
    if w.stopped_since:
        w.stopped_ns += fb_now_ns() - w.stopped_since
        w.stopped_since = 0
    return True


cdef bint _pass(Wire *w, bint flush) noexcept nogil:
    """Every channel has its turn, then what can be taken is taken; False: nothing happened."""
    cdef WireChannel *c = w.channels
    cdef bint any = False
    while c != NULL:
        if flush and c.flush_interval_ns > 0:
            c.flush_pending = True
        any |= _send(w, c)
        c = c.next
    while _receive(w):
        any = True
    return any


cdef int64_t _interval(Wire *w) noexcept nogil:
    # The shortest buffer timeout, negative: there is none.
    cdef WireChannel *c = w.channels
    cdef int64_t shortest = -1
    while c != NULL:
        if c.sub != NULL and c.flush_interval_ns > 0 and (shortest < 0 or c.flush_interval_ns < shortest):
            shortest = c.flush_interval_ns
        c = c.next
    return shortest


cdef void _run(Wire *w) noexcept nogil:
    cdef int64_t flushed = fb_now_ns()
    cdef int64_t now, until, interval
    cdef uint32_t key
    cdef bint any, flush, stopping
    while True:
        key = fb_event_prepare(&w.event)
        now = fb_now_ns()
        pthread_mutex_lock(&w.lock)
        stopping = w.stopping
        interval = _interval(w)
        flush = 0 <= interval <= now - flushed
        if flush:
            flushed = now
        any = not stopping and _pass(w, flush)
        pthread_mutex_unlock(&w.lock)
        if any or stopping:
            fb_event_cancel(&w.event)
            if stopping:
                return
        else:
            until = now + SLICE_NS
            if interval >= 0:
                until = min(until, flushed + interval)
            fb_event_wait(&w.event, key, until)


class WireTarget(NamedTuple):
    """A gate, reached over a wire: what a result partition is given as a target."""

    wire: Any
    gate: Any


cdef class SharedWire:
    """One stream of frames for many channels of this process, under credit or under watermarks.

    Made by :meth:`ShuffleEnvironment.create_wire`; a partition that has ``wire.to(gate)`` as a target sends over it.

    Parameters
    ----------
    environment : ShuffleEnvironment
    flow_control : str
        ``"credit"``: a buffer leaves only if its gate has a segment for it. ``"watermark"``: while less than two
        segments' bytes are on the wire; a gate without a segment stops the wire, and every channel on it.

    Notes
    -----
    Memory of the wire itself: three segments' bytes.
    """

    def __cinit__(self, environment, flow_control="credit"):
        cdef NetworkBufferPool pool = environment.pool
        if flow_control not in ("credit", "watermark"):
            raise ConfigError(f"flow_control is {flow_control!r}: 'credit' or 'watermark'")
        self.flow_control = flow_control
        self.wire = <Wire *> calloc(1, sizeof(Wire))
        if self.wire == NULL:
            raise MemoryError
        watermark_init(&self.wire.mark, pool.core.segment_size)
        self.wire.capacity = <uint64_t> self.wire.mark.high + pool.core.segment_size
        self.wire.bytes = <uint8_t *> malloc(self.wire.capacity)
        if self.wire.bytes == NULL:
            raise MemoryError
        self.wire.by_credit = flow_control == "credit"
        pthread_mutex_init(&self.wire.lock, NULL)
        fb_event_init(&self.wire.event)

    def __init__(self, environment, flow_control="credit"):
        # A daemon: a wire that was forgotten with its environment is ended by that one's finalizer, which joins it.
        self.thread = start_thread(self._run, "fastbuf-wire")

    def __dealloc__(self):
        cdef WireChannel *c
        if self.wire == NULL:
            return
        while self.wire.channels != NULL:
            c = self.wire.channels
            self.wire.channels = c.next
            free(c)
        while self.wire.count:
            if self.wire.frames[self.wire.head].kind == WIRE_EVENT:
                free(self.wire.frames[self.wire.head].event)
            _off(self.wire, NULL)
        pthread_mutex_destroy(&self.wire.lock)
        free(self.wire.bytes)
        free(self.wire)

    def _run(self):
        with nogil:
            _run(self.wire)

    def to(self, InputGate gate):
        """`gate` as a target of a result partition, over this wire."""
        return WireTarget(self, gate)

    def connect(self, ResultPartition partition, int index, InputGate gate):
        """Called by the environment: subpartition `index` goes to `gate` from now on."""
        cdef WireChannel *c
        if self.thread is None or gate.closed or partition.closed:
            raise ExchangeClosed("the wire, the gate or the partition is closed")
        c = <WireChannel *> calloc(1, sizeof(WireChannel))
        if c == NULL:
            raise MemoryError
        c.channel = gate_open_channel(gate.core, partition.channel, NULL, partition.flush_ns)
        if c.channel == NULL:
            free(c)
            raise SequenceError(
                f"gate {gate.gate_id}: channel {partition.channel} is there already, or the gate is closed")
        fb_u32_init(&c.announced, 1)
        fb_u32_init(&c.cancel_asked, 0)
        c.wire = self.wire
        c.event_credit = EVENT_CREDIT
        c.flush_interval_ns = partition.flush_ns
        c.writer_failure = &partition.core.failure
        c.abort_asked = &partition.core.abort_asked
        c.sub = &partition.subs[index]
        c.gate = gate.core
        partition.notified.append(self)         # the wire is notified as long as the partition may
        pthread_mutex_lock(&self.wire.lock)
        c.next = self.wire.channels
        self.wire.channels = c
        c.sub.notify = _notify
        c.sub.notify_context = c
        gate_connect(c.gate, c.channel, c, _announce, _cancel)
        pthread_mutex_unlock(&self.wire.lock)
        partition.set_transport(index, "wire", f"gate {gate.gate_id}, by {self.flow_control}")
        fb_event_notify(&self.wire.event)

    def let_go_gate(self, InputGate gate):
        """The gate is about to be freed: nothing of the wire points to it afterwards."""
        cdef WireChannel *c
        pthread_mutex_lock(&self.wire.lock)
        c = self.wire.channels
        while c != NULL:
            if c.gate == gate.core:
                _send(self.wire, c)     # a cancel that is asked for reaches the writer
                gate_disconnect(c.gate, c.channel)
                c.gate = NULL
                _release_writer(c, True)
            c = c.next
        pthread_mutex_unlock(&self.wire.lock)
        fb_event_notify(&self.wire.event)

    def let_go_partition(self, ResultPartition partition):
        """The partition is about to be freed: nothing of the wire points to it afterwards."""
        cdef WireChannel *c
        cdef const char *text = b"the producer was let go without its end of partition"
        pthread_mutex_lock(&self.wire.lock)
        c = self.wire.channels
        while c != NULL:
            if c.sub != NULL and c.abort_asked == &partition.core.abort_asked:
                if not fb_u32_load_acquire(c.abort_asked) and c.gate != NULL:
                    gate_fail(c.gate, FAIL_ABORTED, text, strlen(text))
                _send(self.wire, c)
                if c.sub != NULL:
                    sub_forget_drainer(c.sub)
                _release_writer(c, True)
            c = c.next
        pthread_mutex_unlock(&self.wire.lock)

    def stats(self):
        """Bytes sent, most bytes on the wire at once, and seconds that its receiving end was stopped."""
        cdef int64_t stopped
        pthread_mutex_lock(&self.wire.lock)
        stopped = self.wire.stopped_ns
        if self.wire.stopped_since:
            stopped += fb_now_ns() - self.wire.stopped_since
        out = {"bytes": self.wire.sent, "peak_bytes": self.wire.peak, "stopped_s": stopped / 1e9,
               "high": self.wire.mark.high, "low": self.wire.mark.low}
        pthread_mutex_unlock(&self.wire.lock)
        return out

    def close(self):
        """End the wire's thread; gates and partitions have let go of it. Idempotent."""
        thread, self.thread = self.thread, None
        if thread is not None:
            pthread_mutex_lock(&self.wire.lock)
            self.wire.stopping = True
            pthread_mutex_unlock(&self.wire.lock)
            fb_event_notify(&self.wire.event)
            thread.join()
