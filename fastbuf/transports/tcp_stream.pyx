"""What the two ends of a stream send and handle: data of a subpartition, and the answers of the gate."""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free

from fastbuf._native.atomics cimport *
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.exchange.failure cimport *
from fastbuf.exchange.gate_core cimport *
from fastbuf.exchange.result_subpartition cimport *
from fastbuf.flow.flow_control cimport FLOW_CREDIT, FLOW_ON_OFF, flow_heard, flow_may_send, flow_sent
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.transports.messages cimport *
from fastbuf.transports.tcp_state cimport *

cdef enum:
    TEXT = 512


# ---- the sending end


cdef inline bint _may_send(Stream *s) noexcept nogil:
    return flow_may_send(&s.flow, &(<Registry *> s.loop).source, 0 if s.flow.kind == FLOW_CREDIT else fb_now_ns())


cdef void _data(Stream *s, OutFrame *f, uint8_t *data, uint32_t length, bint last) noexcept nogil:
    # The backlog is the number of buffers behind this one, so that the receiver can reserve segments for them.
    frame_set(&f.header, FRAME_DATA, s.id, length, s.sequence, sub_queued(s.sub) - 1 - s.out)
    f.data = data
    f.last = last
    if s.checksum:
        f.header.flags = FRAME_CRC
        f.header.crc = fb_crc32c(0, data, length)
    s.sequence += 1
    flow_sent(&s.flow, length, 0 if s.flow.kind == FLOW_CREDIT else fb_now_ns())
    # it waits for the socket, until the writer learns of too little credit
    fb_u32_store_relaxed(&s.sub.held, HELD_LINK)


cdef bint sender_goes_on(Stream *s, OutFrame *f) noexcept nogil:
    """Whether a whole buffer follows those being sent, and no other frame must come before it."""
    cdef uint8_t *data
    cdef uint32_t length
    if s.recalled or not _may_send(s) or not s.connection.flow.writable or \
            (s.abort_asked != NULL and fb_u32_load_acquire(s.abort_asked)):
        return False
    length = sub_whole(s.sub, s.out, &data)
    if length == 0:
        return False
    _data(s, f, data, length, True)
    return True


cdef void _wait(Stream *s) noexcept nogil:
    # A stopped stream is restarted when the stop ends; one delayed by its rate needs a timer.
    cdef Registry *all = <Registry *> s.loop
    if s.flow.kind != FLOW_ON_OFF and (all.next_send_ns < 0 or s.flow.due_ns < all.next_send_ns):
        all.next_send_ns = s.flow.due_ns


cdef bint sender_next(Stream *s, OutFrame *f) noexcept nogil:
    cdef uint8_t *data
    cdef uint32_t length
    cdef bint last
    cdef uint32_t sendable, gap
    cdef EventBlob *event
    cdef bint held_back = False
    if s.sub == NULL or s.state != STREAM_OPEN:
        return False
    if s.abort_asked != NULL and fb_u32_load_acquire(s.abort_asked):
        stream_part(s, FRAME_ABORT, s.writer_failure.text)
        return False
    if fb_u32_load_acquire(&s.sub.cut):
        stream_part(s, FRAME_ABORT, sub_slow())
        return False
    if fb_u32_exchange_acq_rel(&s.sub.flush_asked, 0):
        s.flush_pending = True
    if s.sub.marks != NULL:     # without credit the oldest stay in the queue, where they may be dropped
        s.sub.no_credit = not _may_send(s)
    # Called without credit too: a last buffer that was sent completely must not delay the end.
    sendable = sub_sendable(s.sub, s.flush_pending, &data, &length, &last)
    if s.sub.marks != NULL and not sendable:
        gap = <uint32_t> sub_gap(s.sub, 0xffffffff)
        if gap:
            frame_set(&f.header, FRAME_GAP, s.id, 0, 0, gap)
            return True
        sendable = held_back = sub_event(s.sub) == NULL and sub_held_back(s.sub)
    if s.recalled:
        s.recalled = False
        if s.flow.credit > sendable:
            frame_set(&f.header, FRAME_RETURN, s.id, 0, 0, s.flow.credit - sendable)
            s.flow.credit = sendable
            return True
    if sendable:
        if not held_back and _may_send(s):
            _data(s, f, data, length, last)
            return True
        fb_u32_store_relaxed(&s.sub.held, HELD_READER)
        if s.flow.kind != FLOW_CREDIT:
            _wait(s)
            return False
        s.connection.needs_credit = True
        if s.reports_backlog and not s.asked:
            s.asked = True
            frame_set(&f.header, FRAME_RETURN, s.id, 0, sub_queued(s.sub), 0)
            return True
    else:
        event = sub_event(s.sub)
        if event != NULL:
            if s.event_credit == 0:
                return False
            s.event_credit -= 1
            frame_set(&f.header, FRAME_EVENT, s.id, event.length, s.sequence, 0)
            f.data = event_data(event)
            return True
        s.flush_pending = False
    if sub_exhausted(s.sub):
        s.said_end = True
        frame_set(&f.header, FRAME_DONE, s.id, 0, s.sequence, 0)
        return True
    return False


cdef void sender_said(Stream *s, OutFrame *f) noexcept nogil:
    cdef int kind = f.header.type
    if kind == FRAME_DATA:
        if s.sub != NULL:
            sub_advance(s.sub, f.header.length, f.last)
    elif kind == FRAME_EVENT:
        if s.sub != NULL:
            sub_advance(s.sub, 0, True)
    elif kind == FRAME_ABORT:
        stream_release_writer(s, True)


cdef void _end_heard(Stream *s, bint cancelled) noexcept nogil:
    # Unsent data for this consumer is dropped here; the peer drops the rest.
    stream_release_writer(s, cancelled)
    s.heard_end = True
    s.want_done = True
    s.done_sequence = s.sequence
    stream_ready(s)


cdef void sender_hears(Stream *s) noexcept nogil:
    cdef int kind = s.connection.in_frame.type
    cdef uint32_t granted = s.connection.in_frame.value
    cdef uint32_t places = s.connection.in_frame.sequence
    cdef Registry *all = <Registry *> s.loop
    cdef bint stopped
    if kind == FRAME_DONE:
        if s.said_end:
            _end_heard(s, False)
        else:
            connection_violated(s.connection, s, b"the end of partition was acknowledged before it was sent")
    elif kind == FRAME_CREDIT:
        if granted > (0x7fffffff - s.flow.credit if s.flow.kind == FLOW_CREDIT else 0) or \
                places > EVENT_CREDIT - s.event_credit:
            connection_violated(s.connection, s, b"more credit than can be counted")
        else:
            s.flow.credit += granted
            s.asked = False
            s.event_credit += places
            stream_ready(s)
    elif kind == FRAME_FLOW:
        stopped = all.source.stopped != 0
        if places > EVENT_CREDIT - s.event_credit or not flow_heard(&s.flow, &all.source, granted, fb_now_ns()):
            connection_violated(s.connection, s, b"an announcement that its flow control does not use")
        else:
            s.event_credit += places
            stream_ready(s)
            if stopped and all.source.stopped == 0:
                streams_go_on(all)
    elif kind == FRAME_RECALL:
        s.recalled = True
        s.reports_backlog = True
        stream_ready(s)
    elif kind == FRAME_CANCEL:
        _end_heard(s, True)
    elif kind == FRAME_ABORT:
        if s.writer_failure != NULL and s.sub != NULL:
            failure_set(s.writer_failure, FAIL_ABORTED, s.connection.in_text, s.connection.in_frame.length)
        _end_heard(s, True)


cdef void sender_let_go(Stream *s) noexcept nogil:
    """The writer is about to be freed, and its queue with it."""
    cdef const char *text = b"let go without its end of partition"
    if s.connection != NULL and not s.said_end and not s.heard_end:
        if s.abort_asked != NULL and fb_u32_load_acquire(s.abort_asked):
            text = s.writer_failure.text
        stream_part(s, FRAME_ABORT, text)
        stream_ready(s)
    stream_release_writer(s, True)
    s.writer_failure = NULL
    s.abort_asked = NULL
    stream_doom(s)


# ---- the receiving end: input


cdef bint _in_sequence(Stream *s) noexcept nogil:
    cdef char text[TEXT]
    cdef Connection *c = s.connection
    if c.in_frame.sequence == s.channel.next_sequence:
        return True
    snprintf(text, TEXT, b"producer %s (channel %u): buffer %u came where %u was due",
             c.peer, s.number, c.in_frame.sequence, s.channel.next_sequence)
    connection_refuted(s, FAIL_SEQUENCE, text)
    return False


cdef void receiver_starts(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    cdef Registry *all = <Registry *> s.loop
    if c.in_frame.type == FRAME_DONE:       # as ABORT, which does not come here: an end needs no proof
        return
    if s.state == STREAM_JOINING:
        connection_violated(c, NULL, b"a channel sent a frame before it had proved its secret")
        return
    if s.gate == NULL or (c.in_frame.type != FRAME_DATA and c.in_frame.type != FRAME_EVENT) or not _in_sequence(s):
        return
    if c.in_frame.type == FRAME_EVENT:
        c.in_event = event_new(NULL, c.in_frame.length)
        if c.in_event == NULL:
            connection_violated(c, s, b"no memory for an event")
        else:
            c.in_data = event_data(c.in_event)
        return
    s.channel.next_sequence += 1
    c.in_segment = gate_segment(s.gate, s.channel, c.in_frame.value)
    if c.in_segment >= 0:
        c.in_data = segment_data(s.gate.buffers.pool, c.in_segment)
    elif c.in_segment == -1:
        if s.flow.kind == FLOW_CREDIT:
            connection_violated(c, s, b"a buffer was sent without credit")
        else:
            c.stopped = True
            fb_u32_store_relaxed(&all.stops, fb_u32_load_relaxed(&all.stops) + 1)
            gate_wants(s.gate, s.channel, c.in_frame.value + 1)


cdef void receiver_goes_on(Stream *s) noexcept nogil:
    """For a connection that stopped for want of a segment: one may be free now, or the buffer is no longer needed."""
    cdef Connection *c = s.connection
    c.in_segment = gate_segment(s.gate, s.channel, c.in_frame.value)
    c.stopped = c.in_segment == -1
    if c.in_segment >= 0:
        c.in_data = segment_data(s.gate.buffers.pool, c.in_segment)


cdef void _hear_event(Stream *s) noexcept nogil:
    cdef EventBlob *event = s.connection.in_event
    s.connection.in_event = NULL
    if event == NULL:
        return
    if s.gate == NULL:
        free(event)
    elif gate_deliver_event(s.gate, s.channel, event) != 0:
        connection_violated(s.connection, s, b"an event was sent without event credit")


cdef void _hear_data(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    cdef uint32_t crc
    cdef int rc
    cdef char text[TEXT]
    if c.in_segment < 0 or s.gate == NULL:
        return
    if c.in_frame.flags & FRAME_CRC:
        crc = fb_crc32c(0, segment_data(s.gate.buffers.pool, c.in_segment), c.in_frame.length)
        if crc != c.in_frame.crc:
            snprintf(text, TEXT, b"producer %s (channel %u): buffer %u has CRC32C %08x, its header says %08x",
                     c.peer, s.number, c.in_frame.sequence, crc, c.in_frame.crc)
            connection_refuted(s, FAIL_CORRUPT, text)
            return
    rc = gate_deliver(s.gate, s.channel, c.in_segment, c.in_frame.length)
    c.in_segment = -1
    if rc != 0:
        connection_violated(c, s, b"no memory for the queue of buffers")
    else:
        stream_piggyback(s)         # the reader may return the credit before the next write


cdef void _hear_done(Stream *s) noexcept nogil:
    cdef char text[TEXT]
    cdef Connection *c = s.connection
    if not s.said_end and s.gate != NULL and gate_end_channel(s.gate, s.channel, c.in_frame.sequence) != 0:
        snprintf(text, TEXT, b"producer %s (channel %u) says it sent %u buffers, %llu came",
                 c.peer, s.number, c.in_frame.sequence, <unsigned long long> s.channel.counted.buffers)
        connection_refuted(s, FAIL_SEQUENCE, text)
        return
    s.heard_end = True
    s.want_done = True
    s.done_sequence = c.in_frame.sequence
    stream_ready(s)


cdef void receiver_hears(Stream *s) noexcept nogil:
    cdef Connection *c = s.connection
    cdef int kind = c.in_frame.type
    if kind == FRAME_DATA:
        _hear_data(s)
    elif kind == FRAME_EVENT:
        _hear_event(s)
    elif kind == FRAME_RETURN:
        if s.flow.kind != FLOW_CREDIT:
            connection_violated(c, s, b"it gave back credit where there is none")
        elif s.gate != NULL and gate_take_back(s.gate, s.channel, c.in_frame.value, c.in_frame.sequence) != 0:
            connection_violated(c, s, b"it gave back more credit than it had")
    elif kind == FRAME_GAP:
        if s.gate != NULL:
            gate_miss(s.gate, s.channel, c.in_frame.value)
    elif kind == FRAME_DONE:
        _hear_done(s)
    elif kind == FRAME_ABORT:
        if s.gate != NULL:
            gate_lose(s.gate, s.channel, FAIL_ABORTED, c.in_text, c.in_frame.length)
        s.heard_end = True
        s.want_done = True
        stream_ready(s)


# ---- the receiving end: output


cdef bint receiver_next(Stream *s, OutFrame *f) noexcept nogil:
    cdef uint32_t n, events, said
    if s.gate == NULL or s.state != STREAM_OPEN:
        return False
    if fb_u32_load_acquire(&s.cancel_asked):
        if failure_code(&s.gate.failure) != FAIL_NONE:
            stream_part(s, FRAME_ABORT, s.gate.failure.text)
        else:
            stream_part(s, FRAME_CANCEL, NULL)
        return False
    if s.flow.kind != FLOW_CREDIT:
        if gate_take_announcement(s.gate, s.channel, &events, &said):
            frame_set(&f.header, FRAME_FLOW, s.id, 0, events, said)
            return True
        frame_set(&f.header, FRAME_CREDIT, s.id, 0, events, 0)
        return events != 0
    n = gate_take_credit(s.gate, s.channel, &events)
    if n == 0 and events == 0:
        if gate_take_recall(s.gate, s.channel):
            frame_set(&f.header, FRAME_RECALL, s.id, 0, 0, 0)
            return True
        return False
    frame_set(&f.header, FRAME_CREDIT, s.id, 0, events, n)
    return True


cdef void receiver_let_go(Stream *s) noexcept nogil:
    """The gate is about to be freed: send CANCEL or ABORT, unless an end was sent."""
    if s.connection != NULL and not s.said_end and not s.heard_end:
        if failure_code(&s.gate.failure) != FAIL_NONE:
            stream_part(s, FRAME_ABORT, s.gate.failure.text)
        else:
            stream_part(s, FRAME_CANCEL, NULL)
        stream_ready(s)
    stream_drop_incoming(s)
    gate_disconnect(s.gate, s.channel)
    s.gate = NULL
    s.channel = NULL
