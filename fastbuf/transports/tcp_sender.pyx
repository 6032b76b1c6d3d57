"""The sending half of a connection: what a subpartition has to say, and what its consumer answers."""

from libc.stdint cimport uint8_t, uint32_t

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_exchange_acq_rel, fb_u32_load_acquire
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.exchange.failure cimport FAIL_ABORTED, failure_set
from fastbuf.exchange.gate_core cimport EVENT_CREDIT
from fastbuf.exchange.result_subpartition cimport (
    EventBlob,
    event_data,
    sub_advance,
    sub_event,
    sub_exhausted,
    sub_queued,
    sub_sendable,
)
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
    connection_kill,
    connection_linger,
    connection_release_writer,
    connection_say,
    connection_say_abort,
    connection_violated,
)


cdef bint sender_next(Connection *c) noexcept nogil:
    cdef uint8_t *data
    cdef uint32_t length
    cdef bint last
    cdef EventBlob *event
    if c.sub == NULL or c.said_end:
        return False
    if c.abort_asked != NULL and fb_u32_load_acquire(c.abort_asked):
        connection_say_abort(c, c.writer_failure.text)
        return True
    if fb_u32_exchange_acq_rel(&c.sub.flush_asked, 0):
        c.flush_pending = True
    # Looked at without credit too: a last buffer of which all has left stands in no end's way.
    if sub_sendable(c.sub, c.flush_pending, &data, &length, &last):
        if c.credit:
            # The backlog is what waits behind this buffer, so the receiver can find segments for it.
            connection_say(c, FRAME_DATA, c.sequence, sub_queued(c.sub) - 1)
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
            connection_say(c, FRAME_EVENT, c.sequence, 0)
            c.out_header.length = event.length
            c.out_data = event_data(event)
            c.out_left = event.length
            return True
        c.flush_pending = False
    if sub_exhausted(c.sub):
        c.said_end = True
        connection_say(c, FRAME_DONE, c.sequence, 0)
        return True
    return False


cdef void sender_said(Connection *c) noexcept nogil:
    """The frame is out."""
    cdef int kind = c.out_header.type
    if kind == FRAME_DATA:
        if c.sub != NULL:
            sub_advance(c.sub, c.out_length, c.out_last)
    elif kind == FRAME_EVENT:
        if c.sub != NULL:
            sub_advance(c.sub, 0, True)
    elif kind == FRAME_ABORT:
        connection_release_writer(c, True)
        connection_linger(c)


cdef void sender_hears(Connection *c) noexcept nogil:
    """A whole frame of the consumer's."""
    cdef int kind = c.in_frame.type
    if kind == FRAME_DONE:
        if c.said_end:
            connection_release_writer(c, False)
            connection_kill(c)
        else:
            connection_violated(c, b"an end was acknowledged that had not been said")
    elif kind == FRAME_CREDIT:
        if c.in_frame.value > 0x7fffffff - c.credit or c.in_frame.sequence > EVENT_CREDIT - c.event_credit:
            connection_violated(c, b"more credit than can be counted")
        else:
            c.credit += c.in_frame.value
            c.event_credit += c.in_frame.sequence
    elif kind == FRAME_CANCEL:
        # What was meant for this consumer is dropped; a frame that is half out may stay so, the peer drops it too.
        c.out_active = False
        c.said_end = True
        connection_release_writer(c, True)
        connection_linger(c)
    elif kind == FRAME_ABORT:
        if c.writer_failure != NULL and c.sub != NULL:
            failure_set(c.writer_failure, FAIL_ABORTED, c.in_text, c.in_frame.length)
        connection_kill(c)


cdef bint sender_let_go(Connection *c) noexcept nogil:
    """The writer is about to be freed, its queue with it; a frame that is half out cannot be finished.

    True: there is something to be said still.
    """
    cdef bint half_out = c.out_active and (c.out_header.type == FRAME_DATA or c.out_header.type == FRAME_EVENT)
    if c.sub == NULL:
        c.writer_failure = NULL
        c.abort_asked = NULL
        return False
    if c.phase == PHASE_OPEN and not half_out and not c.said_end and c.abort_asked != NULL \
            and fb_u32_load_acquire(c.abort_asked):
        connection_say_abort(c, c.writer_failure.text)
    connection_release_writer(c, True)
    c.writer_failure = NULL
    c.abort_asked = NULL
    if half_out or not c.said_end:
        connection_kill(c)
    elif c.phase == PHASE_OPEN:
        c.linger_until_ns = fb_now_ns() + LINGER_NS
        return True
    return False
