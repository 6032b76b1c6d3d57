"""A connection and its streams: start, lists and end; no input or output except closing (map: the ``.pxd``)."""

from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen, strncpy

from fastbuf._native.atomics cimport fb_event_notify, fb_now_ns, fb_u32_store_release
from fastbuf._native.sockets cimport EPOLL_CTL_DEL, SHUT_WR, close, epoll_ctl, epoll_event, shutdown
from fastbuf.exchange.failure cimport FAIL_PEER_LOST, FAIL_PROTOCOL, FailureCode, failure_set
from fastbuf.exchange.gate_core cimport *
from fastbuf.exchange.result_subpartition cimport sub_close
from fastbuf.flow.flow_control cimport Flow, flow_connection_init, flow_over
from fastbuf.transports.messages cimport ABORT_BYTES

cdef enum:
    LINGER_NS = 2000000000      # longest wait for the peer's EOF
    TEXT = 512
    FIRST_BUCKETS = 16


cdef Connection *connection_new(int fd, bint dialled, Flow flow, uint32_t segment_size,
                                const char *peer) noexcept nogil:
    cdef Connection *c = <Connection *> calloc(1, sizeof(Connection))
    if c == NULL:
        return NULL
    c.buckets = <Stream **> calloc(FIRST_BUCKETS, sizeof(Stream *))
    if c.buckets == NULL:
        free(c)
        return NULL
    c.n_buckets = FIRST_BUCKETS
    c.fd = fd
    c.dialled = dialled
    c.next_id = 0 if dialled else 1
    c.peer_id = 1 - c.next_id
    c.segment_size = segment_size
    flow_connection_init(&c.flow, flow, segment_size)
    c.in_segment = -1
    strncpy(c.peer, peer, sizeof(c.peer) - 1)
    return c


cdef void connection_free(Connection *c) noexcept nogil:
    if c.fd >= 0:
        close(c.fd)
    free(c.buckets)
    free(c)


cdef Stream *stream_new(int role, uint32_t number) noexcept nogil:
    cdef Stream *s = <Stream *> calloc(1, sizeof(Stream))
    if s == NULL:
        return NULL
    s.role = role
    s.number = number
    s.flush_interval_ns = -1
    s.event_credit = EVENT_CREDIT
    return s


cdef void stream_free(Stream *s) noexcept nogil:
    free(s.message_in)
    free(s.message_out)
    free(s.parting_text)
    free(s)


cdef Message *message_new(const void *text, uint32_t length) noexcept nogil:
    cdef Message *message = <Message *> calloc(1, sizeof(Message) + length)
    if message != NULL:
        message.length = length
        if text != NULL:
            memcpy(message_text(message), text, length)
    return message


# ---- lists


cdef void _grow(Connection *c) noexcept nogil:
    # Chains have an average length of one.  If there is no memory they get longer, which is only slower.
    cdef uint32_t n = c.n_buckets * 2
    cdef uint32_t i
    cdef Stream *s
    cdef Stream *following
    cdef Stream **grown = <Stream **> calloc(n, sizeof(Stream *))
    if grown == NULL:
        return
    for i in range(c.n_buckets):
        s = c.buckets[i]
        while s != NULL:
            following = s.next_in_bucket
            s.next_in_bucket = grown[s.id & (n - 1)]
            grown[s.id & (n - 1)] = s
            s = following
    free(c.buckets)
    c.buckets = grown
    c.n_buckets = n


cdef void connection_add(Connection *c, Stream *s, uint32_t id) noexcept nogil:
    """Adds the stream to the connection and to its loop."""
    cdef Registry *all = <Registry *> c.loop
    if c.streams >= c.n_buckets:
        _grow(c)
    s.id = id
    s.loop = c.loop
    s.connection = c
    s.flow.kind = c.flow.kind
    s.next_in_bucket = c.buckets[id & (c.n_buckets - 1)]
    c.buckets[id & (c.n_buckets - 1)] = s
    c.streams += 1
    if s.state == STREAM_JOINING:
        c.joining += 1
    if (id ^ c.next_id) & 1:
        c.peer_id = id + 2
    else:
        c.next_id = id + 2
    s.previous = NULL
    s.next = all.streams
    if s.next != NULL:
        s.next.previous = s
    all.streams = s


cdef Stream *connection_find(Connection *c, uint32_t id) noexcept nogil:
    cdef Stream *s = c.buckets[id & (c.n_buckets - 1)]
    while s != NULL and s.id != id:
        s = s.next_in_bucket
    return s


cdef void connection_mark(Connection *c) noexcept nogil:
    cdef Registry *all = <Registry *> c.loop
    if not c.running and c.phase != PHASE_DEAD:
        c.running = True
        c.next_running = all.running
        all.running = c


cdef void stream_ready(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    if c == NULL or s.ready:
        return
    s.ready = True
    s.next_ready = NULL
    if c.last_ready == NULL:
        c.first_ready = s
    else:
        c.last_ready.next_ready = s
    c.last_ready = s
    connection_mark(c)


cdef void stream_piggyback(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    if not s.piggybacks:
        s.piggybacks = True
        s.next_piggyback = c.first_piggyback
        c.first_piggyback = s


cdef void stream_doom(Stream *s) noexcept nogil:
    cdef Registry *all = <Registry *> s.loop
    if s.state == STREAM_OVER and s.abort_asked == NULL and not s.held and not s.doomed:
        s.doomed = True
        s.next_doomed = all.doomed
        all.doomed = s


# ---- the end of a stream


cdef void streams_go_on(Registry *all) noexcept nogil:
    """No gate stops the senders of this environment any more."""
    cdef Stream *s = all.streams
    while s != NULL:
        if s.sub != NULL:
            stream_ready(s)
        s = s.next


cdef void stream_release_writer(Stream *s, bint cancelled) noexcept nogil:
    cdef Registry *all = <Registry *> s.loop
    if s.flow.stopped and flow_over(&s.flow, &all.source):
        streams_go_on(all)
    if s.sub != NULL:
        stream_detach(s)
        sub_close(s.sub, cancelled)
        s.sub = NULL


cdef void stream_drop_incoming(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    if c == NULL or c.in_stream != s:
        return
    if c.stopped:
        connection_mark(c)          # it no longer waits for a segment
    if c.in_segment >= 0 and s.gate != NULL:
        gate_return(s.gate, s.channel, c.in_segment)
    c.in_segment = -1
    c.in_data = NULL
    free(c.in_event)
    c.in_event = NULL
    free(c.in_message)
    c.in_message = NULL


cdef void stream_detach(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    cdef OutFrame *f
    cdef uint32_t i
    if s.out == 0:
        return
    s.out = 0
    for i in range(c.out_count):
        f = &c.out[(c.out_first + i) % OUT_FRAMES]
        if f.stream != s:
            continue
        f.stream = NULL
        if f.owned == NULL and f.header.length and c.phase != PHASE_DEAD:
            f.owned = malloc(f.header.length)
            if f.owned == NULL:
                # The rest of a frame sent in part cannot be made up, and no other frame can follow it.
                connection_close(c)
                continue
            memcpy(f.owned, f.data, f.header.length)
            f.data = <const unsigned char *> f.owned


cdef void stream_part(Stream *s, int kind, const char *text) noexcept nogil:
    """Stores the last frame of a detached stream; without memory for its text, the frame has no text."""
    if s.parting:
        return
    s.parting = kind
    if text != NULL:
        s.parting_text = message_new(text, <uint32_t> min(strlen(text), <size_t> ABORT_BYTES))


cdef void stream_over(Stream *s) noexcept nogil:
    cdef Registry *all = <Registry *> s.loop
    cdef Connection *c = s.connection
    cdef Stream **at
    if c == NULL:
        return
    # A stream that was joining may try again on another connection, with the same queue.
    if s.state != STREAM_JOINING or s.heard_end:
        stream_release_writer(s, True)
    stream_detach(s)
    stream_drop_incoming(s)
    if c.in_stream == s:
        c.in_stream = NULL
    at = &c.buckets[s.id & (c.n_buckets - 1)]
    while at[0] != s:
        at = &at[0].next_in_bucket
    at[0] = s.next_in_bucket
    c.streams -= 1
    if s.state == STREAM_JOINING:
        c.joining -= 1
    s.state = STREAM_OVER
    s.connection = NULL
    if s.gate != NULL:
        gate_disconnect(s.gate, s.channel)
        s.gate = NULL
        s.channel = NULL
    if s.held:
        fb_u32_store_release(&s.gone, 1)
        fb_event_notify(&all.answered)
    stream_doom(s)
    connection_mark(c)          # after its last stream the connection may be closed


cdef void stream_settle(Stream *s) noexcept nogil:
    if s.said_end and s.heard_end and s.out == 0:
        stream_over(s)


# ---- the end of a connection


cdef void _off(Connection *c) noexcept nogil:
    # Closes the socket at once, and ends every stream.
    cdef epoll_event ignored
    cdef uint32_t i
    cdef Stream *s
    c.phase = PHASE_DEAD
    # A forked child has a duplicate of the descriptor.  So close alone would neither remove it from epoll, which would
    # keep reporting a freed connection, nor tell the peer.
    if c.epoll_mask:
        epoll_ctl(c.epoll_fd, EPOLL_CTL_DEL, c.fd, &ignored)
    shutdown(c.fd, SHUT_WR)
    close(c.fd)
    c.fd = -1
    for i in range(c.n_buckets):
        while c.buckets[i] != NULL:
            stream_over(c.buckets[i])
    while c.out_count:
        free(c.out[c.out_first].owned)
        c.out_first = (c.out_first + 1) % OUT_FRAMES
        c.out_count -= 1
    s = c.first_ready
    while s != NULL:
        s.ready = False
        s = s.next_ready
    c.first_ready = NULL
    c.last_ready = NULL
    while c.first_piggyback != NULL:
        c.first_piggyback.piggybacks = False
        c.first_piggyback = c.first_piggyback.next_piggyback


cdef void connection_close(Connection *c) noexcept nogil:
    if c.phase == PHASE_OPEN:
        c.phase = PHASE_CLOSING
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        shutdown(c.fd, SHUT_WR)
        connection_mark(c)


cdef void _tell(Connection *c, Stream *s, FailureCode code, const char *why) noexcept nogil:
    """Tells a stream's writer or gate, unless it has ended, that its peer was lost or broke the protocol."""
    cdef char text[TEXT]
    cdef bint lost = code == FAIL_PEER_LOST
    if s.role == ROLE_SENDER:
        if s.sub == NULL or s.writer_failure == NULL or s.state == STREAM_JOINING or (lost and s.loss_is_cancel):
            return
        if lost:
            snprintf(text, TEXT, b"consumer %s (channel %u) was lost before it acknowledged the end of partition: %s",
                     c.peer, s.number, why)
        else:
            snprintf(text, TEXT, b"consumer %s (channel %u) broke the protocol: %s", c.peer, s.number, why)
        failure_set(s.writer_failure, code, text, strlen(text))
    elif s.gate != NULL and gate_channel_is_open(s.gate, s.channel):
        if lost:
            snprintf(text, TEXT,
                     b"producer %s (channel %u) was lost without its end of partition, after %llu buffers: %s",
                     c.peer, s.number, <unsigned long long> s.channel.counted.buffers, why)
        else:
            snprintf(text, TEXT, b"producer %s (channel %u) broke the protocol: %s", c.peer, s.number, why)
        if lost:
            gate_lose(s.gate, s.channel, code, text, strlen(text))
        else:
            gate_fail(s.gate, code, text, strlen(text))


cdef void _end(Connection *c, FailureCode code, const char *why) noexcept nogil:
    cdef uint32_t i
    cdef Stream *s
    if c.phase == PHASE_DEAD:
        return
    for i in range(c.n_buckets):
        s = c.buckets[i]
        while s != NULL:
            _tell(c, s, code, why)
            s = s.next_in_bucket
    connection_mark(c)
    _off(c)


cdef void connection_lost(Connection *c, const char *why) noexcept nogil:
    _end(c, FAIL_PEER_LOST, why)


cdef void connection_violated(Connection *c, Stream *s, const char *what) noexcept nogil:
    if s != NULL:
        _tell(c, s, FAIL_PROTOCOL, what)
        # The peer of the other streams is the same process: it is not trusted on any of them.
        _end(c, FAIL_PEER_LOST, b"another channel of its connection broke the protocol")
    else:
        _end(c, FAIL_PROTOCOL, what)


cdef void connection_refuted(Stream *s, FailureCode code, const char *text) noexcept nogil:
    if s.gate != NULL:
        gate_fail(s.gate, code, text, strlen(text))
    _end(s.connection, FAIL_PEER_LOST, b"another channel of its connection miscounted or altered its buffers")
