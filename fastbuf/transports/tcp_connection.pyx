"""Input and output of one TCP connection; the caller has the turn.  Never takes the GIL, never waits.

Every stream that may have frames to send is in the connection's queue, and adds one frame per turn; the frames are sent
by one gather write.  A frame is sent only with its own stream's credit, so the peer never stops reading, and a stream
without credit delays no other stream.  (Under the other flow controls a peer may stop reading: flow_control.pxd.)
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport memcpy, memset, strerror

from fastbuf._native.atomics cimport fb_event_notify, fb_u64_load_relaxed, fb_u64_store_relaxed
from fastbuf._native.sockets cimport *
from fastbuf._native.threads cimport pthread_mutex_lock, pthread_mutex_unlock
from fastbuf.flow.flow_control cimport flow_queued, flow_written
from fastbuf.transports.messages cimport *
from fastbuf.transports.tcp_state cimport *
from fastbuf.transports.tcp_stream cimport *

cdef enum:
    SMALL_BYTES = 512           # frames of a write up to this size are copied into one buffer
    SILENT = 2                  # checks in a row without a sign of life; the second comes one interval after the PING
    TEXT = 160

cdef uint8_t _dropped[65536]    # for bytes that are dropped; written, never read


# ---- input


cdef void _joins(Connection *c) noexcept nogil:
    """Handles the header of a handshake message: of a stream that wants to join, or is joining."""
    cdef Stream *s = c.in_stream
    if s == NULL and c.in_frame.stream >= c.peer_id and (c.in_frame.stream ^ c.peer_id) & 1 == 0 \
            and c.joining < JOINS and (<Registry *> c.loop).inbox_fd >= 0:
        s = stream_new(ROLE_RECEIVER, 0)
        if s != NULL:
            connection_add(c, s, c.in_frame.stream)
    if s == NULL or s.state != STREAM_JOINING or s.messages == JOIN_MESSAGES or s.heard_end:
        connection_violated(c, NULL, b"a handshake message for a channel that is not in a handshake")
        return
    c.in_stream = s
    s.messages += 1
    c.in_message = message_new(NULL, c.in_frame.length)
    if c.in_message == NULL:
        connection_violated(c, NULL, b"no memory for a handshake message")
    else:
        c.in_data = <uint8_t *> message_text(c.in_message)


cdef void _on_message(Connection *c, Stream *s) noexcept nogil:
    cdef Registry *all = <Registry *> c.loop
    cdef Message *message = c.in_message
    c.in_message = NULL
    message.connection = c.serial
    message.stream = s.id
    memcpy(message.peer, c.peer, sizeof(c.peer))
    pthread_mutex_lock(&all.lock)
    if s.role == ROLE_RECEIVER:
        if all.inbox == NULL:
            all.inbox = message
        else:
            all.inbox_last.next = message
        all.inbox_last = message
    elif s.message_in == NULL:
        s.message_in = message
        message = NULL
    pthread_mutex_unlock(&all.lock)
    if s.role == ROLE_RECEIVER:
        eventfd_write(all.inbox_fd, 1)
        return
    fb_event_notify(&all.answered)
    if message != NULL:
        free(message)
        connection_violated(c, s, b"it sent a handshake message out of order")
    elif c.in_frame.value == JOIN_REFUSED:
        s.sub = NULL            # nothing was sent: its queue is unchanged
        s.heard_end = True
        s.want_done = True
        stream_ready(s)


cdef void _on_frame(Connection *c) noexcept nogil:
    """Handles a whole frame."""
    cdef Stream *s = c.in_stream
    c.in_data = NULL
    if c.in_frame.type == FRAME_PING:
        if c.in_frame.value == PING_ASKS:
            c.want_pong = True
            connection_mark(c)
        return
    if c.in_frame.type == FRAME_JOIN:
        _on_message(c, s)
    elif s.role == ROLE_SENDER:
        sender_hears(s)
    else:
        receiver_hears(s)
    if c.phase != PHASE_DEAD:
        c.in_stream = NULL
        stream_settle(s)


cdef void _on_header(Connection *c) noexcept nogil:
    cdef int kind = c.in_header.type
    c.in_frame = c.in_header
    c.in_header_fill = 0
    c.in_stream = NULL
    c.in_data = NULL
    c.in_segment = -1
    if kind != FRAME_PING:
        c.in_stream = connection_find(c, c.in_frame.stream)
        if c.in_stream == NULL and kind != FRAME_JOIN:
            connection_violated(c, NULL, b"a frame of another channel")
            return
    if not frame_is_sane(&c.in_frame, c.segment_size, c.in_stream == NULL or c.in_stream.role == ROLE_RECEIVER):
        connection_violated(c, NULL, b"a frame of unknown kind or impossible length")
        return
    if kind != FRAME_PING:
        if kind == FRAME_JOIN:
            _joins(c)
        elif c.in_stream.heard_end:
            connection_violated(c, NULL, b"a frame after the last one of its channel")
        elif kind == FRAME_ABORT:
            c.in_data = <uint8_t *> c.in_text
        elif c.in_stream.role == ROLE_RECEIVER:
            receiver_starts(c.in_stream)
        if c.phase == PHASE_DEAD:
            return
    c.in_left = c.in_frame.length
    if c.in_left == 0:
        _on_frame(c)


cdef void _take_ahead(Connection *c) noexcept nogil:
    """Handles the bytes that were read ahead: headers, and payloads, which are copied to their places."""
    cdef uint32_t n
    while c.ahead_left and c.phase != PHASE_DEAD and not c.stopped:
        if c.in_left:
            n = min(c.ahead_left, c.in_left)
            if c.in_data != NULL:
                memcpy(c.in_data, &c.ahead[c.ahead_at], n)
                c.in_data += n
            c.in_left -= n
        else:
            n = min(c.ahead_left, FRAME_HEADER - c.in_header_fill)
            memcpy(<uint8_t *> &c.in_header + c.in_header_fill, &c.ahead[c.ahead_at], n)
            c.in_header_fill += n
        c.ahead_at += n
        c.ahead_left -= n
        if c.in_header_fill == FRAME_HEADER:
            _on_header(c)
        elif c.in_header_fill == 0 and c.in_left == 0:
            _on_frame(c)


cdef inline void _count(Connection *c, int64_t n) noexcept nogil:
    # Only the thread with the turn writes; guests read without it.
    cdef Registry *all = <Registry *> c.loop
    fb_u64_store_relaxed(&all.moved, fb_u64_load_relaxed(&all.moved) + <uint64_t> n)


cdef void connection_read(Connection *c, int most) noexcept nogil:
    """Reads payload straight into its segment, and the bytes after it in the same call; at most `most` calls."""
    cdef iovec iov[2]
    cdef int n_iov
    cdef ssize_t n
    cdef size_t wanted, part
    for _ in range(most):
        if c.stopped or c.phase == PHASE_DEAD:
            return
        n_iov = 0
        wanted = 0
        if c.phase == PHASE_CLOSING:
            iov[0].iov_base = _dropped
            iov[0].iov_len = sizeof(_dropped)
            wanted = sizeof(_dropped)
            n_iov = 1
        elif c.in_left:
            if c.in_data != NULL:
                iov[0].iov_base = c.in_data
                iov[0].iov_len = c.in_left
            else:
                iov[0].iov_base = _dropped
                iov[0].iov_len = min(<size_t> c.in_left, sizeof(_dropped))
            wanted = iov[0].iov_len
            n_iov = 1
        if c.phase == PHASE_OPEN and wanted == c.in_left:
            # After a large payload another one usually follows: its bytes should not be copied.
            iov[n_iov].iov_base = c.ahead
            iov[n_iov].iov_len = FRAME_HEADER if wanted > AHEAD_BYTES else AHEAD_BYTES
            wanted += iov[n_iov].iov_len
            n_iov += 1
        if n_iov == 1:          # for small data: saves a fifth of a microsecond
            n = recv(c.fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT)
        else:
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
        c.heard = True
        _count(c, n)
        wanted -= n
        if c.phase == PHASE_OPEN:
            if c.in_left:
                part = min(<size_t> n, <size_t> c.in_left)
                c.in_left -= <uint32_t> part
                if c.in_data != NULL:
                    c.in_data += part
                n -= part
                c.ahead_at = 0
                c.ahead_left = <uint32_t> n
                if c.in_left == 0:
                    _on_frame(c)
            else:
                c.ahead_at = 0
                c.ahead_left = <uint32_t> n
            if c.phase != PHASE_DEAD:
                _take_ahead(c)
        if c.phase == PHASE_DEAD or wanted:         # the socket is empty, or the caller wanted no more
            return


cdef void connection_goes_on(Connection *c) noexcept nogil:
    """A stopped connection continues, if the buffer at which it stopped has a segment now, or needs none."""
    c.stopped = False
    if c.phase == PHASE_OPEN:
        if c.in_stream != NULL and c.in_stream.gate != NULL:
            receiver_goes_on(c.in_stream)
        _take_ahead(c)
        connection_read(c, READS_A_TURN)


# ---- output


cdef bint _next(Stream *s, OutFrame *f) noexcept nogil:
    """Writes the next frame of a stream; False: it has nothing to send."""
    cdef Message *message = s.message_out
    if s.said_end:
        return False
    if message != NULL:
        s.message_out = NULL
        frame_set(&f.header, FRAME_JOIN, s.id, message.length, 0, JOIN_REFUSED if s.refusing else 0)
        f.data = <uint8_t *> message_text(message)
        f.owned = message
        s.said_end = s.refusing
        return True
    if s.want_done:
        s.said_end = True
        frame_set(&f.header, FRAME_DONE, s.id, 0, s.done_sequence, 0)
        return True
    if not s.parting and (sender_next(s, f) if s.role == ROLE_SENDER else receiver_next(s, f)):
        return True
    if s.parting:
        s.said_end = True
        message = s.parting_text
        s.parting_text = NULL
        frame_set(&f.header, <uint8_t> s.parting, s.id, 0 if message == NULL else message.length, 0, 0)
        if message != NULL:
            f.data = <uint8_t *> message_text(message)
            f.owned = message
        return True
    return False


cdef OutFrame *_place(Connection *c) noexcept nogil:
    cdef OutFrame *f = &c.out[(c.out_first + c.out_count) % OUT_FRAMES]
    f.data = NULL
    f.owned = NULL
    f.stream = NULL
    f.last = False
    return f


cdef inline void _put_own(Connection *c, OutFrame *f) noexcept nogil:
    c.out_count += 1
    flow_queued(&c.flow, FRAME_HEADER + f.header.length)


cdef void _put(Connection *c, Stream *s, OutFrame *f) noexcept nogil:
    f.stream = s
    s.out += 1
    _put_own(c, f)


cdef void _piggyback(Connection *c) noexcept nogil:
    """A write is about to go out: add small amounts of credit, which alone would not be worth a write.

    If each message is answered by another, credit never needs a write of its own, which would cost a system call and a
    packet in each direction, before the answer.
    """
    cdef Stream *s
    cdef OutFrame *f
    cdef uint32_t most = min(<uint32_t> OUT_FRAMES, c.out_count + OUT_PIGGYBACK)
    while c.first_piggyback != NULL and c.out_count < most:
        s = c.first_piggyback
        c.first_piggyback = s.next_piggyback
        s.piggybacks = False
        if s.connection == NULL or s.out:       # as in _gather
            continue
        f = _place(c)
        if _next(s, f):
            _put(c, s, f)


cdef void _gather(Connection *c) noexcept nogil:
    """Each ready stream has its turn, while there is room for frames."""
    cdef Stream *s
    cdef OutFrame *f
    if c.want_pong and c.out_count < OUT_FRAMES:
        c.want_pong = False
        f = _place(c)
        frame_set(&f.header, FRAME_PING, 0, 0, 0, PING_ANSWERS)
        _put_own(c, f)
    if c.want_ping and c.out_count < OUT_FRAMES:
        c.want_ping = False
        f = _place(c)
        frame_set(&f.header, FRAME_PING, 0, 0, 0, PING_ASKS)
        _put_own(c, f)
    while c.first_ready != NULL and c.out_count < OUT_FRAMES and c.flow.writable:
        s = c.first_ready
        c.first_ready = s.next_ready
        if c.first_ready == NULL:
            c.last_ready = NULL
        s.ready = False
        if s.connection == NULL or s.out:       # over; or its frames are being sent, and it gets a turn after them
            continue
        f = _place(c)
        if not _next(s, f):
            stream_settle(s)
            continue
        _put(c, s, f)
        # Several buffers in one call: the kernel makes larger packets of them, and wakes the receiver once.
        while f.last and s.out < (OUT_LOT if c.first_ready == NULL else OUT_TURN) and c.out_count < OUT_FRAMES:
            f = _place(c)
            if not sender_goes_on(s, f):
                break
            _put(c, s, f)
    if c.out_count and c.first_piggyback != NULL:
        _piggyback(c)


cdef ssize_t _send(Connection *c) noexcept nogil:
    cdef iovec iov[2 * OUT_FRAMES]
    cdef msghdr m
    cdef OutFrame *f
    cdef uint32_t i
    cdef size_t gone = c.out_sent
    cdef size_t n = 0
    cdef size_t length = 0
    cdef uint8_t small[SMALL_BYTES]
    for i in range(c.out_count):
        f = &c.out[(c.out_first + i) % OUT_FRAMES]
        if gone < FRAME_HEADER:
            iov[n].iov_base = <uint8_t *> &f.header + gone
            iov[n].iov_len = FRAME_HEADER - gone
            length += iov[n].iov_len
            n += 1
            gone = FRAME_HEADER
        if f.header.length > gone - FRAME_HEADER:
            iov[n].iov_base = <void *> (f.data + (gone - FRAME_HEADER))
            iov[n].iov_len = f.header.length - (gone - FRAME_HEADER)
            length += iov[n].iov_len
            n += 1
        gone = 0
    if length <= SMALL_BYTES:           # copying costs less than the kernel's work on several places
        length = 0
        for i in range(<uint32_t> n):
            memcpy(&small[length], iov[i].iov_base, iov[i].iov_len)
            length += iov[i].iov_len
        return send(c.fd, small, length, MSG_NOSIGNAL | MSG_DONTWAIT)
    memset(&m, 0, sizeof(msghdr))
    m.msg_iov = iov
    m.msg_iovlen = n
    return sendmsg(c.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)


cdef void _sent(Connection *c, size_t n) noexcept nogil:
    """`n` bytes were sent: tell the streams whose frames are complete."""
    cdef OutFrame *f
    cdef Stream *s
    n += c.out_sent
    while c.out_count:
        f = &c.out[c.out_first]
        if n < FRAME_HEADER + f.header.length:
            break
        n -= FRAME_HEADER + f.header.length
        flow_written(&c.flow, FRAME_HEADER + f.header.length)
        c.out_first = (c.out_first + 1) % OUT_FRAMES
        c.out_count -= 1
        free(f.owned)
        f.owned = NULL
        s = f.stream
        if s != NULL:
            s.out -= 1
            if s.role == ROLE_SENDER:
                sender_said(s, f)
            stream_ready(s)
            stream_settle(s)
    c.out_sent = <uint32_t> n


cdef void connection_write(Connection *c, bint eager) noexcept nogil:
    """Sends all that is ready; eager: first read credit that may have arrived, since no other thread reads now."""
    cdef ssize_t n
    cdef int error
    cdef bint was_blocked = c.blocked
    c.blocked = False
    while c.phase == PHASE_OPEN:
        c.needs_credit = False
        _gather(c)
        if c.out_count == 0:
            if eager and c.needs_credit:
                eager = False
                connection_read(c, READS_A_LOOK)
                continue
            if c.dialled and c.streams == 0:
                connection_close(c)
            return
        n = _send(c)
        if n >= 0:
            c.moved |= was_blocked
            _count(c, n)
            _sent(c, n)
        elif errno == EAGAIN:
            c.blocked = True
            return
        elif errno != EINTR:
            # The peer may have sent a reason before it closed: read that first.
            error = errno
            connection_read(c, READS_A_TURN)
            if c.phase == PHASE_OPEN:
                connection_lost(c, strerror(error))
            return


# ---- liveness of the peer


cdef void connection_look(Connection *c) noexcept nogil:
    cdef char text[TEXT]
    cdef int queued = 0
    if c.heard:
        c.silent = 0
    else:
        ioctl(c.fd, SIOCOUTQ, &queued)
        # A slow network is not a dead peer: our bytes are still on their way, and the answer comes after them.
        if c.moved or 0 < queued < <int> c.queued:
            c.silent = 0
        else:
            c.silent += 1
    c.queued = queued
    c.heard = False
    c.moved = False
    if c.silent >= SILENT:
        snprintf(text, TEXT, b"it gave no sign of life, and no answer to a PING, for %.4g s (ping_interval_s %.4g)",
                 (SILENT * c.ping_interval_ns) / 1e9, c.ping_interval_ns / 1e9)
        connection_lost(c, text)
    elif c.silent:
        c.want_ping = True
        connection_mark(c)
