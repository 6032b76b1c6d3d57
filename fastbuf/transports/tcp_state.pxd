# Map of a TCP connection and of its streams, one for each channel between a subpartition and a gate.
#
# Owner of every field: who has the turn, but for what is marked.  Both are made by Python after the handshake (a stream
# that joins: before its own), handed to the loop, and freed by the loop.
#
# Life of a stream: JOINING (its secret is being proved) -> OPEN -> OVER, when both sides have said their end, or the
# connection is gone.  Its memory stays until nobody points to it: a writer's queue does until it has let go, a gate
# until it was disconnected, a thread that connects while it `holds` it, the lists of the loop and of the connection.
#
# Life of a connection: OPEN -> CLOSING (nothing more to say: our half is shut, and the peer's bytes are dropped until
# its EOF) -> DEAD.  A close with unread bytes would make the kernel send a reset, which may destroy what the peer has
# not read yet; so whoever has said the last word waits for the other's EOF, for a bounded time.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.failure cimport Failure
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.result_subpartition cimport EventBlob, Subpartition
from fastbuf.flow.flow_control cimport Flow, FlowConnection, FlowSender, FlowSource
from fastbuf.transports.messages cimport ABORT_BYTES, FrameHeader

cdef enum:
    OUT_FRAMES = 16             # most frames of one gather write
    OUT_LOT = 8                 # of one stream, that has the connection for itself
    OUT_TURN = 2                # where others wait for their turn
    OUT_RIDERS = 2              # frames that go with them, for which alone no call would be made
    AHEAD_BYTES = 1024          # read beyond what is wanted: small frames need fewer calls
    READS_A_TURN = 32           # calls of one connection, then the others have their turn
    READS_A_LOOK = 4            # by one who waits, and goes on with what has come while the rest is on its way
    JOINS = 64                  # streams of one connection that have not proved their secret yet
    LETTERS = 2                 # messages that each side says in a handshake

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
    PHASE_DEAD = 2              # off the loop, to be freed


# What a loop has of both; the head of the loop's own structure, so that `loop` points to it.
cdef struct Registry:
    Connection *connections
    fb_au32 open                # how many they are; read at any time
    Stream *streams
    Stream *doomed
    fb_au64 moved               # bytes read and sent.  Written in the turn, read at any time
    Connection *running         # may have something to say, or to be asked of epoll
    FlowSource source           # what flow controls know of all senders
    int64_t next_send_ns        # a stream that its rate keeps waiting may go on then; -1: there is none
    fb_au32 stops               # how often a connection was stopped.  Written in the turn, read at any time
    pthread_mutex_t lock        # letters, and the loop's commands
    Letter *inbox               # handshakes of streams that join us, in their order; for the listener's thread
    Letter *inbox_last
    int inbox_fd                # eventfd that says so, -1: nobody listens
    fb_event answered           # a command was carried out; a stream that is held got a letter, or is over


# A message of a handshake, or another's parting word: malloc'ed, `length` bytes follow.
cdef struct Letter:
    Letter *next
    uint64_t connection         # serial
    uint32_t stream
    uint32_t length
    char peer[80]


cdef struct Stream:
    # -- set once
    int role
    void *loop
    uint32_t id                 # on the wire
    uint32_t number             # the producer's channel, for messages
    bint checksum
    bint loss_is_cancel         # sender: a receiver that vanishes has cancelled
    # -- any thread
    fb_au32 dirty               # 1: on the loop's stack of streams to look at
    Stream *next_dirty          # whoever set dirty
    fb_au32 cancel_asked        # receiver: say CANCEL (or ABORT, when the gate has failed)
    fb_au32 gone                # 1: over; for the thread that holds it
    # -- the loop's lock
    Letter *letter_in           # of a stream that is held: what has come of the handshake
    # -- the turn
    Connection *connection      # NULL: over
    int state
    bint held                   # a thread that connects has a pointer to it
    bint doomed                 # on the loop's list of what is to be freed
    Stream *next_doomed
    Stream *next                # all of a loop
    Stream *previous
    Stream *next_in_bucket
    bint ready                  # on the connection's list of those that may have something to say
    Stream *next_ready
    bint rides                  # receiver: on the connection's list of those whose credit may go with what goes anyway
    Stream *next_rider
    uint32_t out                # its frames that are on their way out: one, or whole buffers that follow each other
    Letter *letter_out
    bint refusing               # the letter is a refusal, and the last word
    uint32_t letters            # that came
    int parting                 # still to be said for one who has let go: FRAME_CANCEL, or FRAME_ABORT with its text
    Letter *parting_text
    bint want_done              # answer the peer's end with DONE
    uint32_t done_sequence
    bint said_end
    bint heard_end
    uint32_t sequence           # sender: buffers sent
    # sender
    Subpartition *sub           # NULL once let go of
    Failure *writer_failure
    fb_au32 *abort_asked        # the writer's: say ABORT with writer_failure's text; what LET_GO knows it by
    int64_t flush_interval_ns   # buffer timeout; 0: the writer asks after every record, negative: never
    bint flush_pending          # what is committed may leave, full or not
    FlowSender flow
    bint recalled               # the receiver wants back what is not needed
    bint poor                   # it has, before: it is to hear of a buffer that waits for credit ...
    bint asked                  # ... and has
    uint32_t event_credit       # events that may leave; they take no credit, and this bounds what the receiver keeps
    # receiver
    GateCore *gate              # NULL once let go of
    InputChannel *channel


cdef struct OutFrame:
    FrameHeader header
    const uint8_t *data
    void *owned                 # freed when the frame is out
    Stream *stream              # NULL: the connection's own, or of a stream that has let go of it
    bint last                   # sender: the frame ends its slot


cdef struct Connection:
    # -- set once
    int fd
    uint64_t serial             # what Python knows it by
    bint dialled                # we opened it: we close it after the last stream
    void *loop
    uint32_t segment_size       # longest DATA that may come
    char peer[80]               # for messages
    # -- the turn
    FlowConnection flow
    # Without credit: the buffer of `in_frame` has no segment yet, and nothing is read before it has.  So it cannot be
    # known from the peer's silence whether it lives: such connections ask no PING.
    bint stopped
    int phase
    Connection *next
    Connection *previous
    bint running                # on the loop's list of connections to run
    Connection *next_running
    int epoll_fd                # where it is watched, once epoll_mask is set
    uint32_t epoll_mask         # what the loop has asked epoll for
    bint hungry                 # a stream has something to send and no credit
    bint blocked                # the socket took less than we had: wait for EPOLLOUT
    int64_t linger_until_ns     # PHASE_CLOSING ends here at the latest
    # is the peer alive?
    int64_t ping_interval_ns    # the shortest of its streams'
    int64_t ping_due_ns
    bint heard                  # something came since the last look
    bint moved                  # bytes left a socket that had been full
    uint32_t queued             # unsent bytes at the last look
    uint32_t silent             # looks in a row without a sign of life
    bint want_ping
    bint want_pong
    # streams
    Stream **buckets
    uint32_t n_buckets          # a power of two
    uint32_t streams
    uint32_t joining
    uint32_t next_id            # of the next stream that we open: even if we dialled, else odd
    uint32_t peer_id            # the least that a stream that the peer opens may have
    Stream *first_ready
    Stream *last_ready
    Stream *first_rider
    # what comes in
    uint8_t ahead[AHEAD_BYTES]
    uint32_t ahead_at
    uint32_t ahead_left
    FrameHeader in_header       # the one that is being read
    uint32_t in_header_fill
    FrameHeader in_frame        # the one whose payload is being read
    Stream *in_stream           # its stream, or NULL
    uint32_t in_left            # payload bytes still to come
    uint8_t *in_data            # where the next one goes; NULL: dropped
    int32_t in_segment
    EventBlob *in_event         # the event that is being read
    Letter *in_letter
    char in_text[ABORT_BYTES]
    # what goes out: a ring of frames; the first may have gone in part
    OutFrame out[OUT_FRAMES]
    uint32_t out_first
    uint32_t out_count
    uint32_t out_sent           # bytes of the first


cdef Connection *connection_new(int fd, bint dialled, Flow flow, uint32_t segment_size,
                                const char *peer) noexcept nogil
cdef void connection_free(Connection *c) noexcept nogil
cdef Stream *stream_new(int role, uint32_t number) noexcept nogil
cdef void stream_free(Stream *s) noexcept nogil
cdef Letter *letter_new(const void *text, uint32_t length) noexcept nogil
cdef inline char *letter_text(Letter *letter) noexcept nogil:
    return <char *> (letter + 1)
# streams of a connection
cdef int connection_add(Connection *c, Stream *s, uint32_t id) noexcept nogil
cdef Stream *connection_find(Connection *c, uint32_t id) noexcept nogil
cdef void connection_mark(Connection *c) noexcept nogil     # the loop is to run it
cdef void stream_ready(Stream *s) noexcept nogil            # it may have something to say
cdef void stream_rides(Stream *s) noexcept nogil            # it may have credit to tell, some time
cdef void streams_go_on(Registry *all) noexcept nogil       # those that another's gate had stopped
cdef void stream_over(Stream *s) noexcept nogil
cdef void stream_settle(Stream *s) noexcept nogil           # over, if both sides have said their end
cdef void stream_detach(Stream *s) noexcept nogil           # its frame goes out from a copy: what it points to may go
cdef void stream_doom(Stream *s) noexcept nogil             # to be freed, if nobody outside the loop points to it
cdef void stream_part(Stream *s, int kind, const char *text) noexcept nogil
cdef void stream_release_writer(Stream *s, bint cancelled) noexcept nogil
cdef void stream_drop_incoming(Stream *s) noexcept nogil
# ending
cdef void connection_close(Connection *c) noexcept nogil    # shuts our half, waits for the peer's EOF
# Off the wire at once; every stream that had something to get or to say is told why.
cdef void connection_lost(Connection *c, const char *why) noexcept nogil
# The peer broke the protocol, on stream s if that is known.
cdef void connection_violated(Connection *c, Stream *s, const char *what) noexcept nogil
# The gate of s fails with that, and the connection ends: what a peer sends that miscounts is not believed.
cdef void connection_refuted(Stream *s, int code, const char *text) noexcept nogil
