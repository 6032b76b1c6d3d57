"""The receiving half of a stream: data for a gate, and the gate's answers."""

from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free

from fastbuf._native.atomics cimport fb_u32_load_acquire, fb_u32_load_relaxed, fb_u32_store_relaxed
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.exchange.failure cimport FAIL_ABORTED, FAIL_CORRUPT, FAIL_NONE, FAIL_SEQUENCE, failure_code
from fastbuf.exchange.gate_core cimport (
    gate_deliver,
    gate_deliver_event,
    gate_disconnect,
    gate_end_channel,
    gate_fail,
    gate_segment,
    gate_take_announcement,
    gate_take_back,
    gate_take_credit,
    gate_take_recall,
    gate_wants,
)
from fastbuf.exchange.result_subpartition cimport EventBlob, event_data, event_new
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.flow.flow_control cimport FLOW_CREDIT
from fastbuf.transports.messages cimport (
    FRAME_ABORT,
    FRAME_CANCEL,
    FRAME_CRC,
    FRAME_CREDIT,
    FRAME_DATA,
    FRAME_DONE,
    FRAME_EVENT,
    FRAME_FLOW,
    FRAME_RECALL,
    FRAME_RETURN,
    frame_set,
)
from fastbuf.transports.tcp_state cimport (
    STREAM_JOINING,
    STREAM_OPEN,
    Connection,
    OutFrame,
    Registry,
    Stream,
    connection_refuted,
    connection_violated,
    stream_drop_incoming,
    stream_part,
    stream_ready,
    stream_piggyback,
)

cdef enum:
    TEXT = 512


# ---- input


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
    if c.in_frame.type != FRAME_DATA and c.in_frame.type != FRAME_EVENT and c.in_frame.type != FRAME_RETURN:
        return
    if s.state == STREAM_JOINING:
        connection_violated(c, NULL, b"a channel sent a frame before it had proved its secret")
        return
    if s.gate == NULL or c.in_frame.type == FRAME_RETURN or not _in_sequence(s):
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
                 c.peer, s.number, c.in_frame.sequence, <unsigned long long> s.channel.received)
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
    elif kind == FRAME_DONE:
        _hear_done(s)
    elif kind == FRAME_ABORT:
        if s.gate != NULL:
            gate_fail(s.gate, FAIL_ABORTED, c.in_text, c.in_frame.length)
        s.heard_end = True
        s.want_done = True
        stream_ready(s)


# ---- output


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
