"""A connection's beginning, its ends, and what is put down to be said; no input or output but closing.

Life: OPEN -> (DONE acknowledged, CANCEL or ABORT said or heard) -> CLOSING: our half is shut and the
peer's bytes are dropped until its EOF -> DEAD.  A close with unread bytes would make the kernel send
a reset, which may destroy what the peer has not read yet; so whoever has said the last word waits
for the other's EOF, for a bounded time.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strlen, strncpy

from fastbuf._native.atomics cimport fb_now_ns
from fastbuf._native.sockets cimport EPOLL_CTL_DEL, SHUT_WR, close, epoll_ctl, epoll_event, shutdown
from fastbuf.exchange.failure cimport FAIL_PEER_LOST, FAIL_PROTOCOL, failure_set
from fastbuf.exchange.gate_core cimport (
    EVENT_CREDIT,
    gate_channel_is_open,
    gate_disconnect,
    gate_fail,
    gate_return,
)
from fastbuf.exchange.result_subpartition cimport sub_close
from fastbuf.transports.messages cimport ABORT_BYTES, FRAME_ABORT, frame_set

cdef enum:
    TEXT = 512


cdef Connection *connection_new(int fd, int role, uint32_t number, uint32_t segment_size,
                                const char *peer) noexcept nogil:
    cdef Connection *c = <Connection *> calloc(1, sizeof(Connection))
    if c == NULL:
        return NULL
    c.fd = fd
    c.role = role
    c.number = number
    c.segment_size = segment_size
    c.in_segment = -1
    c.flush_interval_ns = -1
    c.event_credit = EVENT_CREDIT
    strncpy(c.peer, peer, sizeof(c.peer) - 1)
    return c


cdef void connection_free(Connection *c) noexcept nogil:
    if c.fd >= 0:
        close(c.fd)
    free(c)


# ---- ending


cdef void connection_kill(Connection *c) noexcept nogil:
    """Off the wire at once; lets go of its channel."""
    cdef epoll_event ignored
    if c.phase == PHASE_DEAD:
        return
    c.phase = PHASE_DEAD
    # A forked child has a duplicate of the descriptor: then close alone would neither take it off epoll, which would
    # go on to report a connection that is freed, nor tell the peer.
    if c.epoll_mask:
        epoll_ctl(c.epoll_fd, EPOLL_CTL_DEL, c.fd, &ignored)
    shutdown(c.fd, SHUT_WR)
    close(c.fd)
    c.fd = -1
    c.out_active = False
    connection_drop_incoming(c)
    if c.sub != NULL:
        sub_close(c.sub, True)
        c.sub = NULL
    if c.gate != NULL:
        gate_disconnect(c.gate, c.channel)
        c.gate = NULL
        c.channel = NULL


cdef void connection_drop_incoming(Connection *c) noexcept nogil:
    if c.in_segment >= 0 and c.gate != NULL:
        gate_return(c.gate, c.channel, c.in_segment)
    c.in_segment = -1
    c.in_data = NULL
    free(c.in_event)
    c.in_event = NULL


cdef void connection_linger(Connection *c) noexcept nogil:
    # The last word has been said: wait for the peer's EOF, dropping what still comes.
    if c.phase == PHASE_OPEN:
        c.phase = PHASE_CLOSING
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        shutdown(c.fd, SHUT_WR)


cdef void connection_release_writer(Connection *c, bint cancelled) noexcept nogil:
    if c.sub != NULL:
        sub_close(c.sub, cancelled)
        c.sub = NULL


cdef void _writer_lost(Connection *c, const char *why) noexcept nogil:
    cdef char text[TEXT]
    if c.sub != NULL:
        if not c.loss_is_cancel and c.writer_failure != NULL:
            snprintf(text, TEXT, b"consumer %s (channel %u) was lost before it acknowledged the end of partition: %s",
                     c.peer, c.number, why)
            failure_set(c.writer_failure, FAIL_PEER_LOST, text, strlen(text))
        connection_release_writer(c, True)


cdef void connection_gate_failed(Connection *c, int code, const char *text) noexcept nogil:
    if c.gate != NULL:
        gate_fail(c.gate, code, text, strlen(text))


cdef void connection_lost(Connection *c, const char *why) noexcept nogil:
    """The connection ended without the last word having been said."""
    cdef char text[TEXT]
    if c.phase == PHASE_OPEN:
        if c.role == ROLE_SENDER:
            _writer_lost(c, why)
        elif c.gate != NULL and gate_channel_is_open(c.gate, c.channel):
            snprintf(text, TEXT,
                     b"producer %s (channel %u) was lost without its end of partition, after %llu buffers: %s",
                     c.peer, c.number, <unsigned long long> c.channel.received, why)
            connection_gate_failed(c, FAIL_PEER_LOST, text)
    connection_kill(c)


cdef void connection_violated(Connection *c, const char *what) noexcept nogil:
    cdef char text[TEXT]
    snprintf(text, TEXT, b"%s %s (channel %u) broke the protocol: %s",
             b"consumer" if c.role == ROLE_SENDER else b"producer", c.peer, c.number, what)
    if c.role == ROLE_SENDER:
        if c.writer_failure != NULL and c.sub != NULL:
            failure_set(c.writer_failure, FAIL_PROTOCOL, text, strlen(text))
    else:
        connection_gate_failed(c, FAIL_PROTOCOL, text)
    connection_kill(c)


# ---- what is to be said


cdef void connection_say(Connection *c, int kind, uint32_t sequence, uint32_t value) noexcept nogil:
    frame_set(&c.out_header, <uint8_t> kind, c.number, 0, sequence, value)
    c.out_header_sent = 0
    c.out_left = 0
    c.out_length = 0
    c.out_active = True


cdef void connection_say_abort(Connection *c, const char *text) noexcept nogil:
    cdef size_t n = min(strlen(text), <size_t> ABORT_BYTES)
    memcpy(c.out_text, text, n)
    connection_say(c, FRAME_ABORT, 0, 0)
    c.out_header.length = <uint32_t> n
    c.out_data = <const uint8_t *> c.out_text
    c.out_left = <uint32_t> n
    c.said_end = True
