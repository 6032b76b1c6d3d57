# Map of a TCP connection and its streams; there is one stream per channel between a subpartition and a gate.
#
# Owner of every field is the thread that has the turn, except where marked.  Python makes both after the handshake (a
# stream that joins: before its own handshake) and hands them to the loop, which frees them.
#
# Life of a stream: JOINING (its secret is being proved) -> OPEN -> OVER, when both sides have sent their end or the
# connection is gone.  Its memory stays until no pointer to it is left.  Pointers are in: a writer's queue until it is
# detached, a gate until it is disconnected, a connecting thread while it `holds` the stream, the lists of the loop and
# of the connection.
#
# Life of a connection: OPEN -> CLOSING (nothing left to send: our half is shut down, and bytes from the peer are
# dropped until its EOF) -> DEAD.  If a socket is closed with unread bytes, the kernel sends a reset, which may destroy
# data that the peer has not read yet.  So the side that sent the last frame waits for the other's EOF, for a limited
# time.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.failure cimport Failure, FailureCode
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.result_subpartition cimport EventBlob, Subpartition
from fastbuf.flow.flow_control cimport Flow, FlowConnection, FlowSender, FlowSource
from fastbuf.transports.messages cimport ABORT_BYTES, FrameHeader

cdef enum:
    OUT_FRAMES = 16             # most frames in one gather write
    OUT_LOT = 8                 # most frames of one stream if no other stream is ready
    OUT_TURN = 2                # most frames of one stream if others are ready
    OUT_PIGGYBACK = 2              # further frames added to a write that would not cause a write alone
    AHEAD_BYTES = 1024          # bytes read beyond those needed: small frames need fewer calls
    READS_A_TURN = 32           # reads of one connection before the others get their turn
    # reads by a waiting thread: it goes on with what has arrived while the rest is in transit
    READS_A_LOOK = 4
    JOINS = 64                  # most streams of one connection that have not proved their secret yet
    JOIN_MESSAGES = 2           # messages of each side in a handshake

cdef enum StreamRole:
    ROLE_SENDER = 1
    ROLE_RECEIVER = 2

cdef enum StreamState:
    STREAM_JOINING = 0
    STREAM_OPEN = 1
    STREAM_OVER = 2

cdef enum ConnectionPhase:
    PHASE_OPEN = 0
    PHASE_CLOSING = 1
    PHASE_DEAD = 2              # removed from the loop, to be freed


# State of a loop that connections and streams use; first part of the loop's struct, so that `loop` points to it.
cdef struct Registry:
    Connection *connections
    fb_au32 open                # number of connections; read at any time
    Stream *streams
    Stream *doomed
    fb_au64 moved               # bytes read and sent.  Written with the turn, read at any time
    Connection *running         # connections that may have frames to send or epoll settings to change
    FlowSource source           # state of flow control for all senders
    int64_t next_send_ns        # when a stream delayed by its rate may go on; -1: there is none
    fb_au32 stops               # how often a connection was stopped.  Written with the turn, read at any time
    pthread_mutex_t lock        # guards handshake messages and the loop's commands
    Message *inbox              # handshakes of joining streams, in order of arrival; for the listener's thread
    Message *inbox_last
    int inbox_fd                # eventfd, written when `inbox` gets a message; -1: there is no listener
    fb_event answered           # a command was executed; or a held stream got a message or is over


# A handshake message, or the text of a final ABORT: malloc'ed, `length` bytes follow.
cdef struct Message:
    Message *next
    uint64_t connection         # serial
    uint32_t stream
    uint32_t length
    char peer[80]


cdef struct Stream:
    # -- set once
    int role
    void *loop
    uint32_t id                 # on the wire
    uint32_t number             # the producer's channel, for error messages
    bint checksum
    bint loss_is_cancel         # sender: the loss of the receiver counts as CANCEL
    # -- any thread
    fb_au32 dirty               # 1: on the loop's stack of streams to handle
    Stream *next_dirty          # written by the thread that set dirty
    fb_au32 cancel_asked        # receiver: send CANCEL (or ABORT, if the gate has failed)
    fb_au32 gone                # 1: over; read by the thread that holds the stream
    # -- the loop's lock
    Message *message_in         # for a held stream: handshake message that arrived
    # -- the turn
    Connection *connection      # NULL: over
    int state
    bint held                   # a connecting thread has a pointer to it
    bint doomed                 # on the loop's list of streams to free
    Stream *next_doomed
    Stream *next                # list of all streams of a loop
    Stream *previous
    Stream *next_in_bucket
    bint ready                  # on the connection's list of streams that may have frames to send
    Stream *next_ready
    bint piggybacks             # receiver: on the connection's list of streams whose credit waits for another write
    Stream *next_piggyback
    uint32_t out                # number of its frames being sent: one, or several whole buffers in a row
    Message *message_out
    bint refusing               # message_out is a refusal, and the last frame
    uint32_t messages           # handshake messages received
    # frame still to be sent after it was detached: FRAME_CANCEL, or FRAME_ABORT with parting_text
    int parting
    Message *parting_text
    bint want_done              # answer the peer's end with DONE
    uint32_t done_sequence
    bint said_end
    bint heard_end
    uint32_t sequence           # sender: buffers sent
    # sender
    Subpartition *sub           # NULL once detached
    Failure *writer_failure
    # the writer's field: send ABORT with writer_failure's text; LET_GO finds the stream by it
    fb_au32 *abort_asked
    int64_t flush_interval_ns   # buffer timeout; 0: the writer flushes after every record; negative: never flush
    bint flush_pending          # committed bytes may be sent even if the buffer is not full
    FlowSender flow
    bint recalled               # the receiver wants unused credit back
    bint reports_backlog        # credit was recalled before: tell the receiver when a buffer waits for credit ...
    bint asked                  # ... it was told
    uint32_t event_credit       # events that may be sent; they need no credit, and this bounds what the receiver stores
    # receiver
    GateCore *gate              # NULL once detached
    InputChannel *channel


cdef struct OutFrame:
    FrameHeader header
    const uint8_t *data
    void *owned                 # memory to free when the frame was sent
    Stream *stream              # NULL: the frame belongs to the connection, or to a stream that is detached
    bint last                   # sender: last frame of its slot


cdef struct Connection:
    # -- set once
    int fd
    uint64_t serial             # Python's name for it
    bint dialled                # we opened it, so we close it after the last stream
    void *loop
    uint32_t segment_size       # longest DATA that may arrive
    char peer[80]               # for error messages
    # -- the turn
    FlowConnection flow
    # Without credit: the buffer of `in_frame` has no segment yet, and nothing is read until it has one.  A silent peer
    # may then be alive, so such connections send no PING.
    bint stopped
    int phase
    Connection *next
    Connection *previous
    bint running                # on the loop's list of connections to run
    Connection *next_running
    int epoll_fd                # the epoll in which fd is registered, if epoll_mask is set
    uint32_t epoll_mask         # events registered with epoll
    bint needs_credit           # a stream has data to send and no credit
    bint blocked                # the socket took only part of the data: wait for EPOLLOUT
    int64_t linger_until_ns     # PHASE_CLOSING ends at this time at the latest
    # state of the check whether the peer is alive
    int64_t ping_interval_ns    # the shortest of its streams
    int64_t ping_due_ns
    bint heard                  # bytes arrived since the last check
    bint moved                  # a full socket sent bytes
    uint32_t queued             # unsent bytes at the last check
    uint32_t silent             # checks in a row without a sign of life
    bint want_ping
    bint want_pong
    # streams
    Stream **buckets
    uint32_t n_buckets          # a power of two
    uint32_t streams
    uint32_t joining
    uint32_t next_id            # id of the next stream that we open: even if we dialled, else odd
    uint32_t peer_id            # smallest id that the next stream opened by the peer may have
    Stream *first_ready
    Stream *last_ready
    Stream *first_piggyback
    # input
    uint8_t ahead[AHEAD_BYTES]
    uint32_t ahead_at
    uint32_t ahead_left
    FrameHeader in_header       # the header being read
    uint32_t in_header_fill
    FrameHeader in_frame        # the header of the payload being read
    Stream *in_stream           # its stream, or NULL
    uint32_t in_left            # payload bytes still to be read
    uint8_t *in_data            # where the next one is stored; NULL: dropped
    int32_t in_segment
    EventBlob *in_event         # the event being read
    Message *in_message
    char in_text[ABORT_BYTES]
    # output: a ring of frames; the first one may have been sent in part
    OutFrame out[OUT_FRAMES]
    uint32_t out_first
    uint32_t out_count
    uint32_t out_sent           # bytes of the first one that were sent


cdef Connection *connection_new(int fd, bint dialled, Flow flow, uint32_t segment_size,
                                const char *peer) noexcept nogil
cdef void connection_free(Connection *c) noexcept nogil
cdef Stream *stream_new(int role, uint32_t number) noexcept nogil
cdef void stream_free(Stream *s) noexcept nogil
cdef Message *message_new(const void *text, uint32_t length) noexcept nogil
cdef inline char *message_text(Message *message) noexcept nogil:
    return <char *> (message + 1)
# streams of a connection
cdef void connection_add(Connection *c, Stream *s, uint32_t id) noexcept nogil
cdef Stream *connection_find(Connection *c, uint32_t id) noexcept nogil
cdef void connection_mark(Connection *c) noexcept nogil     # the loop is to run it
cdef void stream_ready(Stream *s) noexcept nogil            # it may have frames to send
cdef void stream_piggyback(Stream *s) noexcept nogil        # adds its credit to the next write
cdef void streams_go_on(Registry *all) noexcept nogil       # restarts streams that another stream's gate had stopped
cdef void stream_over(Stream *s) noexcept nogil
cdef void stream_settle(Stream *s) noexcept nogil           # ends it if both sides have sent their end
# copies the data of its frames being sent, so that it may be freed
cdef void stream_detach(Stream *s) noexcept nogil
cdef void stream_doom(Stream *s) noexcept nogil             # frees it once no thread outside the loop points to it
cdef void stream_part(Stream *s, int kind, const char *text) noexcept nogil
cdef void stream_release_writer(Stream *s, bint cancelled) noexcept nogil
cdef void stream_drop_incoming(Stream *s) noexcept nogil
# ending
cdef void connection_close(Connection *c) noexcept nogil    # shuts down our half, waits for the peer's EOF
# Closes the socket at once; every stream that had data to receive or send gets the reason.
cdef void connection_lost(Connection *c, const char *why) noexcept nogil
# The peer broke the protocol; s: the stream, if known.
cdef void connection_violated(Connection *c, Stream *s, const char *what) noexcept nogil
# Fails the gate of s with that text, and ends the connection: a peer that counts wrongly is not trusted.
cdef void connection_refuted(Stream *s, FailureCode code, const char *text) noexcept nogil
