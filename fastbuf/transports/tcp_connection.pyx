"""The state machine of one TCP connection; runs on the I/O thread alone, never takes the GIL, never waits.

Life: OPEN -> (DONE acknowledged, CANCEL or ABORT said or heard) -> CLOSING: our half is shut and the
peer's bytes are dropped until its EOF -> DEAD.  A close with unread bytes would make the kernel send
a reset, which may destroy what the peer has not read yet; so whoever has said the last word waits
for the other's EOF, for a bounded time.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strerror, strlen, strncpy

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_exchange_acq_rel, fb_u32_load_acquire
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf._native.sockets cimport (
    EPOLL_CTL_DEL,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SHUT_WR,
    close,
    epoll_ctl,
    epoll_event,
    iovec,
    msghdr,
    readv,
    sendmsg,
    shutdown,
)
from fastbuf.exchange.failure cimport (
    FAIL_ABORTED,
    FAIL_CORRUPT,
    FAIL_NONE,
    FAIL_PEER_LOST,
    FAIL_PROTOCOL,
    FAIL_SEQUENCE,
    failure_code,
    failure_set,
)
from fastbuf.exchange.gate_core cimport (
    EVENT_CREDIT,
    gate_deliver,
    gate_deliver_event,
    gate_disconnect,
    gate_end_channel,
    gate_channel_is_open,
    gate_fail,
    gate_return,
    gate_segment,
    gate_take_credit,
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
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.transports.messages cimport (
    ABORT_BYTES,
    FRAME_ABORT,
    FRAME_CANCEL,
    FRAME_CRC,
    FRAME_CREDIT,
    FRAME_DATA,
    FRAME_DONE,
    FRAME_EVENT,
    FRAME_HEADER,
    frame_is_sane,
    frame_set,
)

cdef enum:
    LINGER_NS = 2000000000
    READS_A_TURN = 32           # then the other connections have their turn
    TEXT = 512

cdef uint8_t _dropped[65536]    # bytes nobody wants; written, never read


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
    _drop_incoming(c)
    if c.sub != NULL:
        sub_close(c.sub, True)
        c.sub = NULL
    if c.gate != NULL:
        gate_disconnect(c.gate, c.channel)
        c.gate = NULL
        c.channel = NULL


cdef void _drop_incoming(Connection *c) noexcept nogil:
    if c.in_segment >= 0 and c.gate != NULL:
        gate_return(c.gate, c.channel, c.in_segment)
    c.in_segment = -1
    c.in_data = NULL
    free(c.in_event)
    c.in_event = NULL


cdef void _linger(Connection *c) noexcept nogil:
    # The last word has been said: wait for the peer's EOF, dropping what still comes.
    if c.phase == PHASE_OPEN:
        c.phase = PHASE_CLOSING
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        shutdown(c.fd, SHUT_WR)


cdef void _release_writer(Connection *c, bint cancelled) noexcept nogil:
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
        _release_writer(c, True)


cdef void _gate_failed(Connection *c, int code, const char *text) noexcept nogil:
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
            _gate_failed(c, FAIL_PEER_LOST, text)
    connection_kill(c)


cdef void _violated(Connection *c, const char *what) noexcept nogil:
    cdef char text[TEXT]
    snprintf(text, TEXT, b"%s %s (channel %u) broke the protocol: %s",
             b"consumer" if c.role == ROLE_SENDER else b"producer", c.peer, c.number, what)
    if c.role == ROLE_SENDER:
        if c.writer_failure != NULL and c.sub != NULL:
            failure_set(c.writer_failure, FAIL_PROTOCOL, text, strlen(text))
    else:
        _gate_failed(c, FAIL_PROTOCOL, text)
    connection_kill(c)


# ---- what comes in


cdef bint _in_sequence(Connection *c) noexcept nogil:
    cdef char text[TEXT]
    if c.in_frame.sequence == c.channel.next_sequence:
        return True
    snprintf(text, TEXT, b"producer %s (channel %u): buffer %u came where %u was due",
             c.peer, c.number, c.in_frame.sequence, c.channel.next_sequence)
    _gate_failed(c, FAIL_SEQUENCE, text)
    connection_kill(c)
    return False


cdef void _start_event(Connection *c) noexcept nogil:
    c.in_data = NULL
    if c.gate == NULL or not _in_sequence(c):
        return
    c.in_event = event_new(NULL, c.in_frame.length)
    if c.in_event == NULL:
        _violated(c, b"no memory for an event")
    else:
        c.in_data = event_data(c.in_event)


cdef void _finish_event(Connection *c) noexcept nogil:
    cdef EventBlob *event = c.in_event
    c.in_event = NULL
    c.in_data = NULL
    if event == NULL:
        return
    if c.gate == NULL:
        free(event)
    elif gate_deliver_event(c.gate, c.channel, event) != 0:
        _violated(c, b"an event was sent that there was no place for")


cdef void _start_data(Connection *c) noexcept nogil:
    c.in_data = NULL
    c.in_segment = -1
    if c.gate == NULL or not _in_sequence(c):
        return
    c.channel.next_sequence += 1
    c.in_segment = gate_segment(c.gate, c.channel, c.in_frame.value)
    if c.in_segment == -1:
        _violated(c, b"a buffer was sent without credit")
    elif c.in_segment >= 0:
        c.in_data = segment_data(c.gate.buffers.pool, c.in_segment)


cdef void _finish_data(Connection *c) noexcept nogil:
    cdef uint32_t crc
    cdef char text[TEXT]
    if c.in_segment < 0 or c.gate == NULL:
        return
    if c.in_frame.flags & FRAME_CRC:
        crc = fb_crc32c(0, segment_data(c.gate.buffers.pool, c.in_segment), c.in_frame.length)
        if crc != c.in_frame.crc:
            snprintf(text, TEXT, b"producer %s (channel %u): buffer %u has CRC32C %08x, its header says %08x",
                     c.peer, c.number, c.in_frame.sequence, crc, c.in_frame.crc)
            _gate_failed(c, FAIL_CORRUPT, text)
            connection_kill(c)
            return
    if gate_deliver(c.gate, c.channel, c.in_segment, c.in_frame.length) != 0:
        _violated(c, b"no memory for the queue of buffers")
    c.in_segment = -1
    c.in_data = NULL


cdef void _producer_done(Connection *c) noexcept nogil:
    cdef char text[TEXT]
    if c.gate != NULL and gate_end_channel(c.gate, c.channel, c.in_frame.sequence) != 0:
        snprintf(text, TEXT, b"producer %s (channel %u) says it sent %u buffers, %llu came",
                 c.peer, c.number, c.in_frame.sequence, <unsigned long long> c.channel.received)
        _gate_failed(c, FAIL_SEQUENCE, text)
        connection_kill(c)
        return
    c.want_done = True


cdef void _on_frame(Connection *c) noexcept nogil:
    """A whole frame has come."""
    cdef int kind = c.in_frame.type
    if kind == FRAME_DATA:
        _finish_data(c)
    elif kind == FRAME_EVENT:
        _finish_event(c)
    elif kind == FRAME_DONE:
        if c.role == ROLE_RECEIVER:
            _producer_done(c)
        elif c.said_end:
            _release_writer(c, False)
            connection_kill(c)
        else:
            _violated(c, b"an end was acknowledged that had not been said")
    elif kind == FRAME_CREDIT:
        if c.in_frame.value > 0x7fffffff - c.credit or c.in_frame.sequence > EVENT_CREDIT - c.event_credit:
            _violated(c, b"more credit than can be counted")
        else:
            c.credit += c.in_frame.value
            c.event_credit += c.in_frame.sequence
    elif kind == FRAME_CANCEL:
        # What was meant for this consumer is dropped; a frame that is half out may stay so, the peer drops it too.
        c.out_active = False
        c.said_end = True
        _release_writer(c, True)
        _linger(c)
    elif kind == FRAME_ABORT:
        if c.role == ROLE_RECEIVER:
            if c.gate != NULL:
                gate_fail(c.gate, FAIL_ABORTED, c.in_text, c.in_frame.length)
        elif c.writer_failure != NULL and c.sub != NULL:
            failure_set(c.writer_failure, FAIL_ABORTED, c.in_text, c.in_frame.length)
        connection_kill(c)


cdef void _on_header(Connection *c) noexcept nogil:
    c.in_frame = c.in_header
    c.in_header_fill = 0
    if c.in_frame.channel != c.number or not frame_is_sane(&c.in_frame, c.segment_size, c.role == ROLE_RECEIVER):
        _violated(c, b"a frame of unknown kind, impossible length or another channel")
        return
    c.in_left = c.in_frame.length
    if c.in_frame.type == FRAME_DATA:
        _start_data(c)
    elif c.in_frame.type == FRAME_EVENT:
        _start_event(c)
    elif c.in_frame.type == FRAME_ABORT:
        c.in_data = <uint8_t *> c.in_text
    if c.phase != PHASE_DEAD and c.in_left == 0:
        _on_frame(c)


cdef void _read(Connection *c) noexcept nogil:
    """Payload and the next header in one call, payload straight into its segment."""
    cdef iovec iov[2]
    cdef int n_iov
    cdef ssize_t n
    cdef size_t wanted, part
    for _ in range(READS_A_TURN):
        n_iov = 0
        wanted = 0
        if c.in_left:
            if c.in_data != NULL:
                iov[0].iov_base = c.in_data
                iov[0].iov_len = c.in_left
            else:
                iov[0].iov_base = _dropped
                iov[0].iov_len = min(<size_t> c.in_left, sizeof(_dropped))
            wanted = iov[0].iov_len
            n_iov = 1
        if wanted == c.in_left:
            iov[n_iov].iov_base = <uint8_t *> &c.in_header + c.in_header_fill
            iov[n_iov].iov_len = FRAME_HEADER - c.in_header_fill
            wanted += iov[n_iov].iov_len
            n_iov += 1
        n = readv(c.fd, iov, n_iov)
        if n == 0:
            connection_lost(c, b"the connection was closed")
            return
        if n < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                connection_lost(c, strerror(errno))
            return
        wanted -= n
        if c.in_left:
            part = min(<size_t> n, <size_t> c.in_left)
            c.in_left -= <uint32_t> part
            if c.in_data != NULL:
                c.in_data += part
            n -= part
            if c.in_left == 0:
                _on_frame(c)
                if c.phase == PHASE_DEAD:
                    return
        if n:
            c.in_header_fill += <uint32_t> n
            if c.in_header_fill == FRAME_HEADER:
                _on_header(c)
                if c.phase == PHASE_DEAD:
                    return
        if wanted:              # the socket had less than we asked for: it is empty
            return


# ---- what goes out


cdef int _push_out(Connection *c) noexcept nogil:
    """1: the frame is out; 0: the socket is full; -1: the connection is lost."""
    cdef iovec iov[2]
    cdef msghdr m
    cdef ssize_t n
    cdef size_t part
    while True:
        m.msg_iovlen = 0
        if c.out_header_sent < FRAME_HEADER:
            iov[0].iov_base = <uint8_t *> &c.out_header + c.out_header_sent
            iov[0].iov_len = FRAME_HEADER - c.out_header_sent
            m.msg_iovlen = 1
        if c.out_left:
            iov[m.msg_iovlen].iov_base = <void *> c.out_data
            iov[m.msg_iovlen].iov_len = c.out_left
            m.msg_iovlen += 1
        if m.msg_iovlen == 0:
            return 1
        n = _sendmsg(c.fd, iov, m.msg_iovlen)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        part = min(<size_t> n, <size_t> (FRAME_HEADER - c.out_header_sent))
        c.out_header_sent += <uint32_t> part
        n -= part
        c.out_data += n
        c.out_left -= <uint32_t> n


cdef inline ssize_t _sendmsg(int fd, iovec *iov, size_t n) noexcept nogil:
    cdef msghdr m
    memset(&m, 0, sizeof(msghdr))
    m.msg_iov = iov
    m.msg_iovlen = n
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)


cdef void _say(Connection *c, int kind, uint32_t sequence, uint32_t value) noexcept nogil:
    frame_set(&c.out_header, <uint8_t> kind, c.number, 0, sequence, value)
    c.out_header_sent = 0
    c.out_left = 0
    c.out_length = 0
    c.out_active = True


cdef void _say_abort(Connection *c, const char *text) noexcept nogil:
    cdef size_t n = min(strlen(text), <size_t> ABORT_BYTES)
    memcpy(c.out_text, text, n)
    _say(c, FRAME_ABORT, 0, 0)
    c.out_header.length = <uint32_t> n
    c.out_data = <const uint8_t *> c.out_text
    c.out_left = <uint32_t> n
    c.said_end = True


cdef bint _next_of_sender(Connection *c) noexcept nogil:
    cdef uint8_t *data
    cdef uint32_t length
    cdef bint last
    cdef EventBlob *event
    if c.sub == NULL or c.said_end:
        return False
    if c.abort_asked != NULL and fb_u32_load_acquire(c.abort_asked):
        _say_abort(c, c.writer_failure.text)
        return True
    if fb_u32_exchange_acq_rel(&c.sub.flush_asked, 0):
        c.flush_pending = True
    # Looked at without credit too: a last buffer of which all has left stands in no end's way.
    if sub_sendable(c.sub, c.flush_pending, &data, &length, &last):
        if c.credit:
            # The backlog is what waits behind this buffer, so the receiver can find segments for it.
            _say(c, FRAME_DATA, c.sequence, sub_queued(c.sub) - 1)
            c.out_header.length = length
            c.out_data = data
            c.out_left = length
            c.out_length = length
            c.out_last = last
            if c.checksum:
                c.out_header.flags = FRAME_CRC
                c.out_header.crc = fb_crc32c(0, data, length)
            c.sequence += 1
            c.credit -= 1
            return True
    else:
        event = sub_event(c.sub)
        if event != NULL:
            if c.event_credit == 0:
                return False
            c.event_credit -= 1
            _say(c, FRAME_EVENT, c.sequence, 0)
            c.out_header.length = event.length
            c.out_data = event_data(event)
            c.out_left = event.length
            return True
        c.flush_pending = False
    if sub_exhausted(c.sub):
        c.said_end = True
        _say(c, FRAME_DONE, c.sequence, 0)
        return True
    return False


cdef bint _next_of_receiver(Connection *c) noexcept nogil:
    cdef uint32_t n, events
    if c.said_end:
        return False
    if c.want_done:
        c.said_end = True
        _say(c, FRAME_DONE, c.in_frame.sequence, 0)
        return True
    if fb_u32_load_acquire(&c.cancel_asked):
        if c.gate != NULL and failure_code(&c.gate.failure) != FAIL_NONE:
            _say_abort(c, c.gate.failure.text)
        else:
            c.said_end = True
            _say(c, FRAME_CANCEL, 0, 0)
        return True
    if c.gate != NULL:
        n = gate_take_credit(c.gate, c.channel, &events)
        if n or events:
            _say(c, FRAME_CREDIT, events, n)
            return True
    return False


cdef void _write(Connection *c) noexcept nogil:
    cdef int rc, kind, error
    c.blocked = False
    while c.phase == PHASE_OPEN:
        if c.out_active:
            rc = _push_out(c)
            if rc == 0:
                c.blocked = True
                return
            if rc < 0:
                # The peer may have said why before it went: hear that first.
                error = errno
                _read(c)
                if c.phase == PHASE_OPEN:
                    connection_lost(c, strerror(error))
                return
            c.out_active = False
            kind = c.out_header.type
            if kind == FRAME_DATA:
                if c.sub != NULL:
                    sub_advance(c.sub, c.out_length, c.out_last)
            elif kind == FRAME_EVENT:
                if c.sub != NULL:
                    sub_advance(c.sub, 0, True)
            elif kind == FRAME_ABORT:
                _release_writer(c, True)
                _linger(c)
                return
            elif c.role == ROLE_RECEIVER and (kind == FRAME_DONE or kind == FRAME_CANCEL):
                _linger(c)
                return
        if not (_next_of_sender(c) if c.role == ROLE_SENDER else _next_of_receiver(c)):
            return


cdef void connection_run(Connection *c, bint readable) noexcept nogil:
    if readable and c.phase != PHASE_DEAD:
        _read(c)
    if c.phase == PHASE_OPEN:
        _write(c)
    elif c.phase == PHASE_CLOSING:
        c.blocked = False


# ---- letting go (asked for by Python, carried out by the I/O thread)


cdef void connection_let_go_of_gate(Connection *c) noexcept nogil:
    """The gate is about to be freed: say CANCEL or ABORT if that is still to be said, and go on alone."""
    if c.gate == NULL:
        return
    if c.phase == PHASE_OPEN and not c.said_end and not c.want_done and not c.out_active:
        if failure_code(&c.gate.failure) != FAIL_NONE:
            _say_abort(c, c.gate.failure.text)
        else:
            c.said_end = True
            _say(c, FRAME_CANCEL, 0, 0)
    _drop_incoming(c)
    gate_disconnect(c.gate, c.channel)
    c.gate = NULL
    c.channel = NULL
    if c.phase == PHASE_OPEN:
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        _write(c)


cdef void connection_let_go_of_writer(Connection *c) noexcept nogil:
    """The writer is about to be freed, its queue with it; a frame that is half out cannot be finished."""
    cdef bint half_out = c.out_active and (c.out_header.type == FRAME_DATA or c.out_header.type == FRAME_EVENT)
    if c.sub == NULL:
        c.writer_failure = NULL
        c.abort_asked = NULL
        return
    if c.phase == PHASE_OPEN and not half_out and not c.said_end and c.abort_asked != NULL \
            and fb_u32_load_acquire(c.abort_asked):
        _say_abort(c, c.writer_failure.text)
    _release_writer(c, True)
    c.writer_failure = NULL
    c.abort_asked = NULL
    if half_out or not c.said_end:
        connection_kill(c)
    elif c.phase == PHASE_OPEN:
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        _write(c)
