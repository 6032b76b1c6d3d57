"""The receiving half of a connection: what comes for a gate, and what the gate answers."""

from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_load_acquire
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.exchange.failure cimport FAIL_ABORTED, FAIL_CORRUPT, FAIL_NONE, FAIL_SEQUENCE, failure_code
from fastbuf.exchange.gate_core cimport (
    gate_deliver,
    gate_deliver_event,
    gate_disconnect,
    gate_end_channel,
    gate_fail,
    gate_segment,
    gate_take_credit,
)
from fastbuf.exchange.result_subpartition cimport EventBlob, event_data, event_new
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.transports.messages cimport (
    FRAME_ABORT,
    FRAME_CANCEL,
    FRAME_CRC,
    FRAME_CREDIT,
    FRAME_DATA,
    FRAME_DONE,
    FRAME_EVENT,
)
from fastbuf.transports.tcp_state cimport (
    LINGER_NS,
    PHASE_OPEN,
    Connection,
    connection_drop_incoming,
    connection_gate_failed,
    connection_kill,
    connection_linger,
    connection_say,
    connection_say_abort,
    connection_violated,
)

cdef enum:
    TEXT = 512


cdef bint _in_sequence(Connection *c) noexcept nogil:
    cdef char text[TEXT]
    if c.in_frame.sequence == c.channel.next_sequence:
        return True
    snprintf(text, TEXT, b"producer %s (channel %u): buffer %u came where %u was due",
             c.peer, c.number, c.in_frame.sequence, c.channel.next_sequence)
    connection_gate_failed(c, FAIL_SEQUENCE, text)
    connection_kill(c)
    return False


cdef void _start_event(Connection *c) noexcept nogil:
    c.in_data = NULL
    if c.gate == NULL or not _in_sequence(c):
        return
    c.in_event = event_new(NULL, c.in_frame.length)
    if c.in_event == NULL:
        connection_violated(c, b"no memory for an event")
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
        connection_violated(c, b"an event was sent that there was no place for")


cdef void _start_data(Connection *c) noexcept nogil:
    c.in_data = NULL
    c.in_segment = -1
    if c.gate == NULL or not _in_sequence(c):
        return
    c.channel.next_sequence += 1
    c.in_segment = gate_segment(c.gate, c.channel, c.in_frame.value)
    if c.in_segment == -1:
        connection_violated(c, b"a buffer was sent without credit")
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
            connection_gate_failed(c, FAIL_CORRUPT, text)
            connection_kill(c)
            return
    if gate_deliver(c.gate, c.channel, c.in_segment, c.in_frame.length) != 0:
        connection_violated(c, b"no memory for the queue of buffers")
    c.in_segment = -1
    c.in_data = NULL


cdef void _producer_done(Connection *c) noexcept nogil:
    cdef char text[TEXT]
    if c.gate != NULL and gate_end_channel(c.gate, c.channel, c.in_frame.sequence) != 0:
        snprintf(text, TEXT, b"producer %s (channel %u) says it sent %u buffers, %llu came",
                 c.peer, c.number, c.in_frame.sequence, <unsigned long long> c.channel.received)
        connection_gate_failed(c, FAIL_SEQUENCE, text)
        connection_kill(c)
        return
    c.want_done = True


cdef void receiver_starts(Connection *c) noexcept nogil:
    """A header has come: where its payload goes."""
    if c.in_frame.type == FRAME_DATA:
        _start_data(c)
    elif c.in_frame.type == FRAME_EVENT:
        _start_event(c)


cdef void receiver_hears(Connection *c) noexcept nogil:
    """A whole frame of the producer's."""
    cdef int kind = c.in_frame.type
    if kind == FRAME_DATA:
        _finish_data(c)
    elif kind == FRAME_EVENT:
        _finish_event(c)
    elif kind == FRAME_DONE:
        _producer_done(c)
    elif kind == FRAME_ABORT:
        if c.gate != NULL:
            gate_fail(c.gate, FAIL_ABORTED, c.in_text, c.in_frame.length)
        connection_kill(c)


cdef void receiver_said(Connection *c) noexcept nogil:
    """The frame is out."""
    cdef int kind = c.out_header.type
    if kind == FRAME_ABORT or kind == FRAME_DONE or kind == FRAME_CANCEL:
        connection_linger(c)


cdef bint receiver_next(Connection *c) noexcept nogil:
    cdef uint32_t n, events
    if c.said_end:
        return False
    if c.want_done:
        c.said_end = True
        connection_say(c, FRAME_DONE, c.in_frame.sequence, 0)
        return True
    if fb_u32_load_acquire(&c.cancel_asked):
        if c.gate != NULL and failure_code(&c.gate.failure) != FAIL_NONE:
            connection_say_abort(c, c.gate.failure.text)
        else:
            c.said_end = True
            connection_say(c, FRAME_CANCEL, 0, 0)
        return True
    if c.gate != NULL:
        n = gate_take_credit(c.gate, c.channel, &events)
        if n or events:
            connection_say(c, FRAME_CREDIT, events, n)
            return True
    return False


cdef bint receiver_let_go(Connection *c) noexcept nogil:
    """The gate is about to be freed: say CANCEL or ABORT if that is still to be said, and go on alone.

    True: there is something to be said still.
    """
    if c.gate == NULL:
        return False
    if c.phase == PHASE_OPEN and not c.said_end and not c.want_done and not c.out_active:
        if failure_code(&c.gate.failure) != FAIL_NONE:
            connection_say_abort(c, c.gate.failure.text)
        else:
            c.said_end = True
            connection_say(c, FRAME_CANCEL, 0, 0)
    connection_drop_incoming(c)
    gate_disconnect(c.gate, c.channel)
    c.gate = NULL
    c.channel = NULL
    if c.phase == PHASE_OPEN:
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        return True
    return False
