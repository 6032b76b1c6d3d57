"""One end of a wire under watermarks (C level; map, owners and pairing are in the ``.pxd``)."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen

from fastbuf._native.atomics cimport (
    fb_now_ns,
    fb_u32_exchange_acq_rel,
    fb_u32_init,
    fb_u32_load_acquire,
    fb_u32_store_release,
)
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf._native.sockets cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    close,
    eventfd,
    eventfd_read,
    eventfd_write,
    iovec,
    msghdr,
    readv,
    sendmsg,
    shutdown,
)
from fastbuf._native.threads cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from fastbuf.exchange.failure cimport (
    FAIL_ABORTED,
    FAIL_CORRUPT,
    FAIL_PEER_LOST,
    FAIL_PROTOCOL,
    FAIL_SEQUENCE,
    FailureCode,
    failure_code,
    failure_set,
)
from fastbuf.exchange.gate_core cimport (
    EVENT_CREDIT,
    GateCore,
    gate_deliver,
    gate_deliver_event,
    gate_disconnect,
    gate_end_channel,
    gate_fail,
    gate_return,
    gate_segment,
    gate_take_back,
    gate_take_credit,
    gate_take_recall,
)
from fastbuf.exchange.result_subpartition cimport (
    EventBlob,
    event_data,
    event_new,
    sub_advance,
    sub_close,
    sub_event,
    sub_exhausted,
    sub_queued,
    sub_sendable,
)
from fastbuf.flow.watermark cimport watermark_add, watermark_init, watermark_remove
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.transports.messages cimport (
    ABORT_BYTES,
    FRAME_ABORT,
    FRAME_CANCEL,
    FRAME_CRC,
    FRAME_DATA,
    FRAME_DONE,
    FRAME_EVENT,
    FRAME_HEADER,
    FRAME_JOIN,
    FrameHeader,
    frame_is_sane,
    frame_set,
)

cdef enum:
    SHUT_RDWR = 2
    SLICE_NS = 500000000        # an idle end looks at itself this often
    TEXT = 512


cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    short POLLIN
    short POLLOUT
    int poll(pollfd *fds, unsigned long n, int timeout_ms)


# ---- any thread


cdef void wire_poke(WireEnd *e) noexcept nogil:
    if fb_u32_exchange_acq_rel(&e.poked, 1) == 0:
        eventfd_write(e.wake, 1)


cdef void wire_notify(void *context) noexcept nogil:
    wire_poke((<WireStream *> context).end)


cdef void wire_announce(void *context) noexcept nogil:
    fb_u32_store_release(&(<WireStream *> context).announced, 1)
    wire_notify(context)


cdef void wire_cancel(void *context) noexcept nogil:
    fb_u32_store_release(&(<WireStream *> context).cancel_asked, 1)
    wire_notify(context)


# ---- lock held: what is said


cdef void _queue(WireEnd *e, const uint8_t *data, uint32_t n) noexcept nogil:
    # There is room: for one frame beyond the high mark.
    cdef uint64_t at = (e.first + <uint64_t> e.mark.queued) % e.capacity
    cdef uint64_t part = min(<uint64_t> n, e.capacity - at)
    memcpy(&e.bytes[at], data, part)
    memcpy(e.bytes, data + part, n - part)
    watermark_add(&e.mark, n)
    e.peak = max(e.peak, e.mark.queued)


cdef void _frame(WireEnd *e, FrameHeader *h, const uint8_t *data) noexcept nogil:
    _queue(e, <const uint8_t *> h, FRAME_HEADER)
    if h.length:
        _queue(e, data, h.length)


cdef void wire_word(WireStream *s, uint8_t kind, const void *text, size_t length) noexcept nogil:
    """`kind` is the next that is said; in place of a JOIN that has not left: nothing, since nobody knows the stream."""
    cdef bint unheard_of = s.word != NULL and (<FrameHeader *> s.word).type == FRAME_JOIN
    length = min(length, <size_t> ABORT_BYTES)
    free(s.word)
    s.word = NULL
    if not unheard_of:
        s.word = <uint8_t *> malloc(FRAME_HEADER + length)      # without memory: the connection's end will say it
    if s.word != NULL:
        frame_set(<FrameHeader *> s.word, kind, s.id, <uint32_t> length, s.sequence, 0)
        memcpy(s.word + FRAME_HEADER, text, length)
        s.word_length = <uint32_t> (FRAME_HEADER + length)


cdef void wire_release_writer(WireStream *s, bint cancelled) noexcept nogil:
    if s.sub != NULL:
        sub_close(s.sub, cancelled)
        s.sub = NULL


cdef bint _say(WireEnd *e, WireStream *s) noexcept nogil:
    """One frame of this channel, if it has one and the queue is writable."""
    cdef FrameHeader h
    cdef uint8_t *data
    cdef uint32_t length
    cdef bint last
    cdef EventBlob *event
    if not e.mark.writable:
        return False
    if s.word != NULL:
        _queue(e, s.word, s.word_length)
        free(s.word)
        s.word = NULL
        return True
    if s.sub == NULL or s.said_end:
        return False
    if fb_u32_load_acquire(s.abort_asked):
        wire_word(s, FRAME_ABORT, s.failure.text, strlen(s.failure.text))
        s.over = True
        wire_release_writer(s, True)
        return True
    if fb_u32_exchange_acq_rel(&s.sub.flush_asked, 0):
        s.flush_pending = True
    if sub_sendable(s.sub, s.flush_pending, &data, &length, &last):
        frame_set(&h, FRAME_DATA, s.id, length, s.sequence, sub_queued(s.sub) - 1)
        if s.checksum:
            h.flags = FRAME_CRC
            h.crc = fb_crc32c(0, data, length)
        _frame(e, &h, data)
        s.sequence += 1
        sub_advance(s.sub, length, last)
        return True
    event = sub_event(s.sub)
    if event != NULL:
        frame_set(&h, FRAME_EVENT, s.id, event.length, s.sequence, 0)
        _frame(e, &h, event_data(event))
        sub_advance(s.sub, 0, True)
        return True
    s.flush_pending = False
    if sub_exhausted(s.sub):
        s.said_end = True
        frame_set(&h, FRAME_DONE, s.id, 0, s.sequence, 0)
        _frame(e, &h, <const uint8_t *> &h)
        return True
    return False


cdef bint _send(WireEnd *e) noexcept nogil:
    """What the socket takes of the queue."""
    cdef iovec parts[2]
    cdef msghdr m
    cdef ssize_t n
    cdef bint any = False
    while e.mark.queued:
        parts[0].iov_base = &e.bytes[e.first]
        parts[0].iov_len = min(<uint64_t> e.mark.queued, e.capacity - e.first)
        parts[1].iov_base = e.bytes
        parts[1].iov_len = <uint64_t> e.mark.queued - parts[0].iov_len
        memset(&m, 0, sizeof(m))
        m.msg_iov = parts
        m.msg_iovlen = 2
        n = sendmsg(e.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                e.broken = True
            break
        e.first = (e.first + <uint64_t> n) % e.capacity
        watermark_remove(&e.mark, n)
        e.moved += <uint64_t> n
        any = True
    return any


# ---- lock held: what is heard


cdef void _violated(WireEnd *e) noexcept nogil:
    e.broken = True
    e.why = FAIL_PROTOCOL


cdef void _refute(WireEnd *e, WireStream *s, FailureCode code, const char *what) noexcept nogil:
    """Its reader and its writer are told, and the rest of what comes for it is dropped."""
    cdef char text[TEXT]
    snprintf(text, TEXT, b"producer %s (channel %u): %s", e.peer, s.channel.number, what)
    gate_fail(s.gate, code, text, strlen(text))
    wire_word(s, FRAME_ABORT, text, strlen(text))
    s.over = True


cdef bint _place(WireEnd *e) noexcept nogil:
    """Where the payload goes; False: there is no place for it yet."""
    cdef WireStream *s = e.stream
    cdef GateCore *g = s.gate if s != NULL else NULL
    cdef uint32_t events
    e.into = NULL
    e.segment = -2
    if e.frame.type == FRAME_JOIN or e.frame.type == FRAME_ABORT:
        e.into = e.text
    elif g == NULL or s.over:
        pass
    elif e.frame.type == FRAME_DATA:
        if e.frame.sequence != s.channel.next_sequence:
            _refute(e, s, FAIL_SEQUENCE, b"a buffer came out of its order")
            return True
        gate_take_credit(g, s.channel, &events)         # it is told to nobody
        e.segment = gate_segment(g, s.channel, e.frame.value)
        if e.segment == -1:
            if not s.has_said:
                s.has_said = True
                gate_take_back(g, s.channel, 0, e.frame.value + 1)
            return False
        s.has_said = False
        s.channel.next_sequence += 1
        if e.segment >= 0:
            e.into = segment_data(g.buffers.pool, e.segment)
    elif e.frame.type == FRAME_EVENT:
        pthread_mutex_lock(&g.lock)
        events = s.channel.events_queued
        pthread_mutex_unlock(&g.lock)
        if events >= EVENT_CREDIT:
            return False
        e.event = event_new(NULL, e.frame.length)
        if e.event != NULL:
            e.into = event_data(e.event)
        else:
            _refute(e, s, FAIL_PROTOCOL, b"no memory for an event")
    return True


cdef void _heard_by_receiver(WireEnd *e, WireStream *s) noexcept nogil:
    if e.frame.type == FRAME_DATA:
        if e.segment >= 0:
            if e.frame.flags & FRAME_CRC and \
                    fb_crc32c(0, segment_data(s.gate.buffers.pool, e.segment), e.frame.length) != e.frame.crc:
                gate_return(s.gate, s.channel, e.segment)
                _refute(e, s, FAIL_CORRUPT, b"a buffer does not have the CRC32C that its header says")
            else:
                gate_deliver(s.gate, s.channel, e.segment, e.frame.length)
            e.segment = -2
    elif e.frame.type == FRAME_EVENT:
        if e.event != NULL:
            gate_deliver_event(s.gate, s.channel, e.event)
            e.event = NULL
    elif s.over or s.gate == NULL:
        pass
    elif e.frame.type == FRAME_DONE:
        if gate_end_channel(s.gate, s.channel, e.frame.sequence) != 0:
            _refute(e, s, FAIL_SEQUENCE, b"it says that it sent another number of buffers than came")
        else:
            wire_word(s, FRAME_DONE, b"", 0)
            s.over = True
    elif e.frame.type == FRAME_ABORT:
        gate_fail(s.gate, FAIL_ABORTED, <const char *> e.text, e.frame.length)
        s.over = True


cdef void _heard_by_sender(WireEnd *e, WireStream *s) noexcept nogil:
    if s.sub == NULL:
        return
    if e.frame.type == FRAME_DONE and not s.said_end:
        _violated(e)
        return
    if e.frame.type == FRAME_ABORT and s.failure != NULL:
        failure_set(s.failure, FAIL_ABORTED, <const char *> e.text, e.frame.length)
    s.over = True
    wire_release_writer(s, e.frame.type != FRAME_DONE)


cdef int _read(WireEnd *e, void *into, size_t n) noexcept nogil:
    """Bytes read; 0: none just now, or none any more."""
    cdef iovec part
    cdef ssize_t got
    part.iov_base = into
    part.iov_len = n
    got = readv(e.fd, &part, 1)
    if got <= 0:
        if got == 0 or (errno != EAGAIN and errno != EINTR):
            e.broken = True
        return 0
    return <int> got


cdef bint _head(WireEnd *e) noexcept nogil:
    """The header is whole: whose frame it is, and whether it may be."""
    cdef WireStream *s = e.streams
    cdef int kind = e.frame.type
    while s != NULL and s.id != e.frame.stream:
        s = s.next
    e.stream = s
    e.left = e.frame.length
    e.placed = False
    if not frame_is_sane(&e.frame, e.segment_size, e.receives):
        return False
    if kind == FRAME_JOIN:
        return e.receives and s == NULL
    if kind == FRAME_CANCEL:
        return not e.receives and s != NULL
    return s != NULL and (kind == FRAME_DONE or kind == FRAME_ABORT or
                          (e.receives and (kind == FRAME_DATA or kind == FRAME_EVENT)))


cdef PassResult _hear(WireEnd *e) noexcept nogil:
    """As far as what has come, and the places for it, go."""
    cdef uint8_t dropped[4096]
    cdef int n
    cdef PassResult any = PASS_IDLE
    while not e.broken:
        while e.have < FRAME_HEADER:
            n = _read(e, <uint8_t *> &e.frame + e.have, FRAME_HEADER - e.have)
            if n == 0:
                return any
            any = PASS_MOVED
            e.have += <uint32_t> n
            if e.have == FRAME_HEADER and not _head(e):
                _violated(e)
                return any
        if not e.placed:
            if not _place(e):
                if e.stopped_since == 0:
                    e.stopped_since = fb_now_ns()
                return any
            e.placed = True
            if e.stopped_since:
                e.stopped_ns += fb_now_ns() - e.stopped_since
                e.stopped_since = 0
        while e.left:
            if e.into != NULL:
                n = _read(e, e.into, e.left)
                e.into += n
            else:
                n = _read(e, dropped, min(<size_t> e.left, sizeof(dropped)))
            if n == 0:
                return any
            any = PASS_MOVED
            e.left -= <uint32_t> n
        e.have = 0
        any = PASS_MOVED
        if e.frame.type == FRAME_JOIN:
            return PASS_JOIN
        if e.receives:
            _heard_by_receiver(e, e.stream)
        else:
            _heard_by_sender(e, e.stream)
    return any


# ---- lock held: turns and ends


cdef void _drop_incoming(WireEnd *e, WireStream *s) noexcept nogil:
    if e.stream == s and e.have == FRAME_HEADER and e.placed:
        if e.segment >= 0:
            gate_return(s.gate, s.channel, e.segment)
            e.segment = -2
        free(e.event)
        e.event = NULL
        e.into = NULL


cdef void wire_let_go_gate(WireEnd *e, WireStream *s) noexcept nogil:
    if s.gate != NULL:
        _drop_incoming(e, s)
        gate_disconnect(s.gate, s.channel)
        s.gate = NULL
        s.channel = NULL


cdef void wire_tend(WireEnd *e, WireStream *s) noexcept nogil:
    """What the gate has asked for."""
    cdef uint32_t events, ready
    if s.gate == NULL or s.over:
        return
    if fb_u32_load_acquire(&s.cancel_asked):
        if failure_code(&s.gate.failure):
            wire_word(s, FRAME_ABORT, s.gate.failure.text, strlen(s.gate.failure.text))
        else:
            wire_word(s, FRAME_CANCEL, b"", 0)
        s.over = True
    elif fb_u32_exchange_acq_rel(&s.announced, 0):
        gate_take_credit(s.gate, s.channel, &events)
        if gate_take_recall(s.gate, s.channel):
            # Nobody was told of it, so it is given back here: another channel's buffer may be what stops the wire.
            pthread_mutex_lock(&s.gate.lock)
            ready = <uint32_t> s.channel.buffers.ready_count - s.channel.buffers.unannounced
            pthread_mutex_unlock(&s.gate.lock)
            gate_take_back(s.gate, s.channel, ready, 0)
            s.has_said = False


cdef void _over(WireEnd *e) noexcept nogil:
    """The connection has ended: who was not through has lost."""
    cdef WireStream *s = e.streams
    cdef char text[TEXT]
    cdef const char *broke = b": it broke the protocol" if e.why == FAIL_PROTOCOL else b""
    while s != NULL:
        if s.sub != NULL:
            snprintf(text, TEXT, b"consumer %s was lost before it acknowledged the end of partition%s", e.peer, broke)
            if not s.loss_is_cancel:
                failure_set(s.failure, <FailureCode> e.why, text, strlen(text))
            wire_release_writer(s, True)
        if s.gate != NULL:
            if not s.over:
                snprintf(text, TEXT, b"producer %s (channel %u) was lost without its end of partition%s",
                         e.peer, s.channel.number, broke)
                gate_fail(s.gate, <FailureCode> e.why, text, strlen(text))
            wire_let_go_gate(e, s)
        s.over = True
        s = s.next


cdef PassResult _pass(WireEnd *e, int64_t now) noexcept nogil:
    """Every channel has its turn, and what has come is taken in."""
    cdef WireStream *s
    cdef PassResult heard
    cdef bint any = False
    cdef bint unsaid = False
    e.interval_ns = -1
    s = e.streams
    while s != NULL:
        if s.sub != NULL and s.flush_interval_ns > 0 and (e.interval_ns < 0 or s.flush_interval_ns < e.interval_ns):
            e.interval_ns = s.flush_interval_ns
        s = s.next
    if 0 <= e.interval_ns <= now - e.flushed_ns:
        e.flushed_ns = now
        s = e.streams
        while s != NULL:
            s.flush_pending = s.flush_pending or s.flush_interval_ns > 0
            s = s.next
    s = e.streams
    while s != NULL:
        wire_tend(e, s)
        any |= _say(e, s)
        unsaid = unsaid or s.word != NULL
        s = s.next
    any |= _send(e)
    heard = _hear(e)
    if e.stop_by and ((not unsaid and e.mark.queued == 0) or now >= e.stop_by):
        e.broken = True
    if e.broken:
        _over(e)
        return PASS_OVER
    return heard if heard != PASS_IDLE else PASS_MOVED if any else PASS_IDLE


cdef PassResult wire_work(WireEnd *e) noexcept nogil:
    cdef pollfd fds[2]
    cdef PassResult result
    cdef uint64_t ignored
    cdef int64_t patience
    fds[0].fd = e.wake
    fds[0].events = POLLIN
    fds[1].fd = e.fd
    while True:
        if fb_u32_load_acquire(&e.poked):
            eventfd_read(e.wake, &ignored)      # before it is lowered: see the pairing
            fb_u32_exchange_acq_rel(&e.poked, 0)
        pthread_mutex_lock(&e.lock)
        result = _pass(e, fb_now_ns())
        fds[1].events = <short> ((POLLOUT if e.mark.queued else 0) | (0 if e.stopped_since else POLLIN))
        patience = LAST_WORDS_NS // 10 if e.stop_by else SLICE_NS
        if 0 <= e.interval_ns < patience:
            patience = e.interval_ns
        pthread_mutex_unlock(&e.lock)
        if result == PASS_JOIN or result == PASS_OVER:
            return result
        if result == PASS_IDLE:
            # A stopped end does not look whether its peer has gone: what that one sent before is still to be read.
            poll(fds, 2 if fds[1].events else 1, <int> (patience // 1000000 + 1))


cdef void wire_hang_up(WireEnd *e) noexcept nogil:
    """The socket is closed as soon as the connection is over; `wake` stays for whoever is not let go of yet."""
    shutdown(e.fd, SHUT_RDWR)           # a forked child may hold a duplicate
    close(e.fd)
    e.fd = -1


# ---- making and freeing


cdef WireEnd *wire_new(uint32_t segment_size, bint receives) noexcept nogil:
    """An end without its connection yet; NULL: no memory, or no descriptor."""
    cdef WireEnd *e = <WireEnd *> calloc(1, sizeof(WireEnd))
    if e == NULL:
        return NULL
    e.fd = -1
    e.segment = -2
    e.why = FAIL_PEER_LOST
    e.receives = receives
    e.segment_size = segment_size
    pthread_mutex_init(&e.lock, NULL)
    fb_u32_init(&e.poked, 0)
    watermark_init(&e.mark, segment_size)
    e.capacity = <uint64_t> e.mark.high + FRAME_HEADER + max(segment_size, <uint32_t> ABORT_BYTES)
    e.bytes = <uint8_t *> malloc(e.capacity)
    e.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if e.bytes == NULL or e.wake < 0:
        wire_free(e)
        return NULL
    return e


cdef void wire_close(WireEnd *e) noexcept nogil:
    """Its descriptors."""
    if e.fd >= 0:
        close(e.fd)
    if e.wake >= 0:
        close(e.wake)
    e.fd = -1
    e.wake = -1


cdef void wire_free(WireEnd *e) noexcept nogil:
    cdef WireStream *s
    while e.streams != NULL:
        s = e.streams
        e.streams = s.next
        free(s.word)
        free(s)
    wire_close(e)
    pthread_mutex_destroy(&e.lock)
    free(e.event)
    free(e.bytes)
    free(e)
