# Map of one TCP connection: one channel between a sender (subpartition) and a receiver (gate).
#
# Owner of every field: the I/O thread, but for what is marked.  A connection is made by Python after
# the handshake, handed to the loop, and freed by the loop.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from fastbuf._native.atomics cimport fb_au32
from fastbuf.exchange.failure cimport Failure
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.result_subpartition cimport EventBlob, Subpartition
from fastbuf.transports.messages cimport ABORT_BYTES, FrameHeader

cdef enum:
    LINGER_NS = 2000000000      # how long the peer's EOF is waited for at the most


cdef enum ConnectionRole:
    ROLE_SENDER = 1
    ROLE_RECEIVER = 2

cdef enum ConnectionPhase:
    PHASE_OPEN = 0
    PHASE_CLOSING = 1           # nothing more to say: our half is shut, the peer's bytes are read and dropped till EOF
    PHASE_DEAD = 2              # off the loop, to be freed


cdef struct Connection:
    # -- set once
    int fd
    int role
    void *loop
    uint32_t number             # channel number, for frames and messages
    uint32_t segment_size
    bint checksum
    bint loss_is_cancel         # sender: a receiver that vanishes has cancelled
    char peer[80]               # for messages
    # -- any thread
    fb_au32 dirty               # 1: on the loop's stack of connections to look at
    Connection *next_dirty      # whoever set dirty
    fb_au32 cancel_asked        # receiver: say CANCEL (or ABORT, when the gate has failed)
    # -- I/O thread
    int phase
    int epoll_fd                # where it is watched, once epoll_mask is set
    uint32_t epoll_mask         # what the loop has asked epoll for
    bint blocked                # the socket took less than we had: wait for EPOLLOUT
    int64_t linger_until_ns     # PHASE_CLOSING ends here at the latest
    Connection *next
    Connection *previous
    # both: what comes in
    FrameHeader in_header       # the one that is being read
    uint32_t in_header_fill
    FrameHeader in_frame        # the one whose payload is being read
    uint32_t in_left            # payload bytes still to come
    uint8_t *in_data            # where the next one goes; NULL: dropped
    int32_t in_segment
    EventBlob *in_event         # the event that is being read
    char in_text[ABORT_BYTES]
    # both: a frame that goes out
    FrameHeader out_header
    uint32_t out_header_sent
    const uint8_t *out_data
    uint32_t out_left
    uint32_t out_length
    bint out_active
    bint out_last               # the frame ends its slot
    char out_text[ABORT_BYTES]
    bint said_end               # DONE, CANCEL or ABORT has been said
    # sender
    Subpartition *sub           # NULL once let go of
    Failure *writer_failure
    fb_au32 *abort_asked        # the writer's: say ABORT with writer_failure's text
    int64_t flush_interval_ns   # buffer timeout; 0: the writer asks after every record, negative: never
    bint flush_pending          # what is committed may leave, full or not
    uint32_t credit
    uint32_t event_credit       # events that may leave; they take no credit, and this bounds what the receiver keeps
    uint32_t sequence
    # receiver
    GateCore *gate              # NULL once let go of
    InputChannel *channel
    bint want_done              # acknowledge the end of partition


cdef Connection *connection_new(int fd, int role, uint32_t number, uint32_t segment_size,
                                const char *peer) noexcept nogil
cdef void connection_free(Connection *c) noexcept nogil
# ending
cdef void connection_kill(Connection *c) noexcept nogil
# As connection_kill, and whoever still had something to get or to say is told.
cdef void connection_lost(Connection *c, const char *why) noexcept nogil
cdef void connection_violated(Connection *c, const char *what) noexcept nogil
cdef void connection_linger(Connection *c) noexcept nogil
cdef void connection_drop_incoming(Connection *c) noexcept nogil
cdef void connection_release_writer(Connection *c, bint cancelled) noexcept nogil
cdef void connection_gate_failed(Connection *c, int code, const char *text) noexcept nogil
# what is to be said
cdef void connection_say(Connection *c, int kind, uint32_t sequence, uint32_t value) noexcept nogil
cdef void connection_say_abort(Connection *c, const char *text) noexcept nogil
