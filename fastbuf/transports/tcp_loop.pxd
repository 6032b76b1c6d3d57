# Map of the I/O thread: one native thread a process (per ShuffleEnvironment), epoll, no GIL.
#
# Waking it, without a system call while it is awake (the eventcount's argument, with epoll in place
# of the futex):
#     waker   W1 push the stream on `dirty` (CAS, release)    loop  L1 exchange sleeping to 1
#             W2 exchange sleeping to 0; it was 1 -> eventfd             L2 dirty empty? no -> do not sleep
#                                                                        L3 epoll_wait
# W2 and L1 are read-modify-writes of one word: either W2 sees L1's 1, or L1 reads what W2 wrote and L2
# sees W1.  Forbidden: a stream on the stack while the loop sleeps and
# no eventfd write is on its way.
#
# `dirty` is a Treiber stack that is only ever emptied whole (exchange with NULL), so it has no ABA
# problem; a stream is on it at most once (its own `dirty` flag, set by the pusher, cleared by the
# loop *before* it looks at the stream).
#
# The turn: whoever has it works on connections and streams, the I/O thread whenever it is not in epoll_wait.  A writer
# that marks its stream takes it if it is free, so that a record leaves by one system call and no change of threads
# (flat combining: Hendler et al., SPAA 2010; the stack of dirty streams is the publication list).  Nobody has to be
# woken: a stream that is pushed while another has the turn is found by that one, which looks again after it.
#     pusher  T1 push the stream (CAS)                        holder  T3 unlock the turn; fence
#             T2 fence; try the turn: it is taken -> go               T4 dirty empty? no -> try again (the I/O
#                                                                        thread: do not sleep)
# Of the two fences one comes first: T2's, then T4 sees the stream; T3's, then T2 finds the turn free.
# Forbidden: a stream on the stack, nobody has the turn, and the I/O thread sleeps.
#
# The seat: whoever has it asks epoll, so that nobody else has events in hand; the I/O thread, unless a guest wants it.
# A guest is a thread that would wait for what comes (a reader for a buffer, a writer for credit): it drives the loop
# itself, looks without sleeping for a while if that pays, sleeps in epoll otherwise, and goes when its event has moved.
# Where there is one connection, it looks by reading that, with the seat and the turn; whoever fails to get the turn for
# that time has pushed a stream that the guest finds at its next look, before it sleeps (L2), or at G4.
# The I/O thread is parked meanwhile (a futex), and looks every few milliseconds: often enough for a PING, and at twenty
# looks in 80 ms of data in place of eighty a record costs 5 to 8 % less CPU time.  When no guest has driven for a few
# looks, or a thread sleeps that the loop is to wake (`asleep`), it takes the seat and sleeps in epoll itself.
#     guest   G1 seat FREE to GUEST (CAS)                     marker  W1 push the stream
#             G3 seat to FREE; fence                                  W2 sleeping was 1 -> eventfd: whoever is in epoll
#             G4 dirty? -> the turn, as T2                            G2 fence; seat is not GUEST -> wake who is parked
#             G5 asleep? -> wake who is parked
#     I/O     P1 announce itself at `parked`; fence           sleeper P3 asleep += 1; wake who is parked
#             P2 command, `left`, T4; seat is not GUEST           (a thread that gives up waiting for the seat, or drove
#                and (dirty or asleep) -> take the seat            in vain, does so before it sleeps on its event)
# T4 is asked whoever has the seat: a pusher that found the turn taken by the I/O thread has woken nobody, and a guest
# that sleeps in epoll does not look.
# Of the fences of G2 and G3 one comes first, so the marker finds the seat free or the guest finds the stream; and
# P1 with the wake-ups is an eventcount (fb_event.h).  What nobody waits for (a PING, credit for one who computes) may
# wait for a look.  A guest asks the I/O thread for the seat by `driven` and the eventfd; another guest is not asked.
# Forbidden: a thread is asleep, or a stream on the stack, when nobody is in epoll, nobody has the turn and the I/O
# thread is parked.
# Only who has the seat frees connections, and only the I/O thread frees streams, carries out commands and looks at the
# clock; a guest that leaves it something of that says so in `left`, and wakes it.  The loop's memory stays until the
# guests are gone: `guests` goes up (with the GIL, having seen that the gate or partition is not closed, or within a
# write that its closer waits for) before the loop is touched and down, with release, after; who stops it loads it with
# acquire.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event
from fastbuf._native.sockets cimport epoll_event
from fastbuf._native.threads cimport pthread_mutex_t, pthread_t
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.transports.tcp_state cimport Connection, Letter, Registry, Stream

cdef enum CommandKind:
    COMMAND_ADD = 1             # connection and its first stream
    COMMAND_JOIN = 2            # stream, held by the caller: the next of the connection's
    COMMAND_LETTER = 3          # say that, in the handshake of the stream; with a gate: it is welcome
    COMMAND_REFUSE = 4          # the same, and it is the last word; without a letter: ABORT
    COMMAND_OPEN = 5            # stream: the handshake is over, the caller holds it no more
    COMMAND_LEAVE = 6           # stream: so it is, and nothing came of it
    COMMAND_LET_GO = 7          # of a gate or a subpartition
    COMMAND_STOP = 8


cdef struct Command:
    int kind
    void *argument              # what LET_GO lets go of
    Connection *connection
    Stream *stream
    uint64_t serial             # names a connection, and
    uint32_t id                 # a stream of it
    Letter *letter              # the loop's from here on, if the result is 0
    GateCore *gate
    InputChannel *channel
    int64_t ping_interval_ns
    Command *next
    fb_au32 done
    int result                  # -1: there is no such connection or stream any more


cdef enum Seat:
    SEAT_FREE = 0
    SEAT_IO = 1
    SEAT_GUEST = 2


cdef struct IoLoop:
    Registry all                # first: `loop` of streams and connections points to it
    int epoll_fd
    int event_fd
    pthread_t thread
    fb_au32 sleeping
    fb_au32 left                # 1: a guest has left something to the I/O thread; looked at after L1, as `dirty` is
    fb_au32 guests              # threads within loop_mark_now, or that wait and may drive
    fb_au32 seat                # who may ask epoll
    fb_au32 driven              # 1: a guest has driven, or wants to, since the I/O thread looked last
    fb_au32 asleep              # threads that sleep until the loop brings them something
    fb_event parked             # the I/O thread, while guests do its work
    Driver driver               # what guests call
    int cpus                    # of the machine: a peer may be on another than this process is bound to
    pthread_mutex_t turn        # all that follows but `dirty` and `commands`, and every connection and stream
    fb_au64 dirty               # Stream*
    Command *commands           # all.lock
    # -- I/O thread
    uint32_t looks              # at what guests left, in a row, without one that drove
    bint unburied               # it met a dead connection when another had the seat
    uint64_t last_serial
    int64_t next_flush_ns
    int64_t next_sweep_ns
    int64_t next_ping_ns
    int64_t stop_at_ns          # -1: not asked to; else when those that linger are cut


cdef void command_init(Command *k, int kind) noexcept nogil
cdef void loop_mark(void *stream) noexcept nogil
cdef bint loop_push(IoLoop *loop, Stream *s) noexcept nogil     # True: it was not on the stack
# with the turn
cdef bint loop_run(IoLoop *loop, bint bury, bint eager) noexcept nogil
cdef void loop_run_dirty(IoLoop *loop) noexcept nogil
cdef void loop_events(IoLoop *loop, epoll_event *events, int n, int reads) noexcept nogil
# any thread
cdef void loop_wake(IoLoop *loop) noexcept nogil
cdef void *loop_main(void *argument) noexcept nogil
cdef int64_t loop_parks_until(int64_t now, int timeout_ms) noexcept nogil
