# Map of the I/O thread: one native thread per ShuffleEnvironment, with epoll, without the GIL.
#
# How it is woken, without a system call while it is awake (as with an eventcount, but with epoll in place of the
# futex):
#     waker   W1 push the stream on `dirty` (CAS, release)    loop  L1 exchange sleeping to 1
#             W2 exchange sleeping to 0; it was 1 -> eventfd             L2 dirty empty? no -> do not sleep
#                                                                        L3 epoll_wait
# W2 and L1 are read-modify-writes of one word: either W2 sees L1's 1, or L1 reads what W2 wrote and L2
# sees W1.  Forbidden: a stream on the stack while the loop sleeps and
# no eventfd write is on its way.
#
# `dirty` is a Treiber stack that is only emptied as a whole (exchange with NULL), so it has no ABA problem.  A stream
# is on it at most once: the thread that pushes it sets the stream's `dirty` flag, and the loop clears the flag *before*
# it handles the stream.
#
# The turn is the lock for working on connections and streams; the I/O thread has it whenever it is not in epoll_wait.
# A writer that marks its stream takes the turn if it is free, so that a record is sent by one system call and without a
# thread switch (flat combining: Hendler et al., SPAA 2010; the stack of dirty streams is the publication list).  If
# another thread has the turn, nothing need be woken: that thread finds the pushed stream, since it looks at the stack
# again afterwards.
#     pusher  T1 push the stream (CAS)                        holder  T3 unlock the turn; fence
#             T2 fence; try the turn: it is taken -> go               T4 dirty empty? no -> try again (the I/O
#                                                                        thread: do not sleep)
# One of the two fences comes first.  If it is T2's, T4 sees the stream; if it is T3's, T2 finds the turn free.
# Forbidden: a stream is on the stack, no thread has the turn, and the I/O thread sleeps.
#
# The seat is the right to call epoll, so that no other thread holds unhandled events.  The I/O thread has it, unless a
# guest wants it.  A guest is a thread that would otherwise wait for the loop (a reader for a buffer, a writer for
# credit): it drives the loop itself.  It polls for a while if that pays, then sleeps in epoll, and leaves when its
# event has moved.  With only one connection it polls by reading that connection, with the seat and the turn.  A thread
# that fails to get the turn meanwhile has pushed a stream; the guest finds it at its next look, before it sleeps (L2),
# or at G4.
# The I/O thread is parked meanwhile (a futex) and wakes every few milliseconds.  That is often enough for a PING, and
# twenty wake-ups in 80 ms of data instead of eighty save 5 to 8 % of a record's CPU time.  If no guest has driven for a
# few of these wake-ups, or a thread sleeps that the loop must wake (`asleep`), it takes the seat and sleeps in epoll
# itself.
#   guest   G1 seat FREE to GUEST (CAS)                   marker  W1 push the stream
#             G3 seat to FREE; fence                                  W2 sleeping was 1 -> eventfd: whoever is in epoll
#             G4 dirty? -> the turn, as T2                            G2 fence; seat is not GUEST -> wake who is parked
#             G5 asleep? -> wake who is parked
#     I/O     P1 announce itself at `parked`; fence           sleeper P3 asleep += 1; wake who is parked
#             P2 command, `left`, T4; seat is not GUEST           (a thread that gives up waiting for the seat, or drove
#                and (dirty or asleep) -> take the seat            in vain, does so before it sleeps on its event)
# T4 runs whoever has the seat: a thread that found the turn taken by the I/O thread has woken nobody, and a guest that
# sleeps in epoll does not look at the stack.
# One of the fences of G2 and G3 comes first, so the marker finds the seat free or the guest finds the stream; P1 and
# the wake-ups form an eventcount (fb_event.h).  Events that no thread waits for (a PING, credit for a busy writer) may
# wait until the I/O thread wakes.  A guest asks the I/O thread for the seat by `driven` and the eventfd; it does not
# ask another guest.
# Forbidden: a thread sleeps, or a stream is on the stack, while no thread is in epoll, no thread has the turn and the
# I/O thread is parked.
# Only the thread with the seat frees connections.  Only the I/O thread frees streams, executes commands and reads the
# clock; a guest that leaves such work to it sets `left` and wakes it.  The loop's memory stays until all guests are
# gone: a guest increments `guests` before it touches the loop (with the GIL, after checking that the gate or partition
# is not closed, or within a write that the closing thread waits for), and decrements it with release afterwards.  The
# thread that stops the loop loads it with acquire.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event
from fastbuf._native.sockets cimport epoll_event
from fastbuf._native.threads cimport pthread_mutex_t, pthread_t
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.transports.tcp_state cimport Connection, Message, Registry, Stream

cdef enum CommandKind:
    COMMAND_ADD = 1             # add a connection and its first stream
    COMMAND_JOIN = 2            # add a stream, held by the caller, to the connection
    COMMAND_MESSAGE = 3         # send the message, in the stream's handshake; with a gate: the stream is accepted
    COMMAND_REFUSE = 4          # the same as the stream's last frame; without a message: ABORT
    COMMAND_OPEN = 5            # the handshake is over and the caller no longer holds the stream
    COMMAND_LEAVE = 6           # the caller no longer holds the stream, whose handshake failed
    COMMAND_LET_GO = 7          # detach streams from a gate or a subpartition
    COMMAND_STOP = 8


cdef struct Command:
    int kind
    void *argument              # LET_GO: the gate or subpartition
    Connection *connection
    Stream *stream
    uint64_t serial             # identifies a connection, and
    uint32_t id                 # a stream of it
    Message *message            # owned by the loop from now on, if the result is 0
    GateCore *gate
    InputChannel *channel
    int64_t ping_interval_ns
    Command *next
    fb_au32 done
    int result                  # -1: the connection or stream no longer exists


cdef enum Seat:
    SEAT_FREE = 0
    SEAT_IO = 1
    SEAT_GUEST = 2


cdef struct IoLoop:
    Registry all                # first field: `loop` of streams and connections points to it
    int epoll_fd
    int event_fd
    pthread_t thread
    fb_au32 sleeping
    fb_au32 left                # 1: a guest has left work to the I/O thread; read after L1, like `dirty`
    fb_au32 guests              # threads in loop_mark_now, and threads that wait and may drive
    fb_au32 seat                # who may call epoll
    fb_au32 driven              # 1: a guest has driven, or wants to, since the I/O thread last looked
    fb_au32 asleep              # threads that sleep until the loop wakes them
    fb_event parked             # the I/O thread sleeps on it while guests do its work
    Driver driver               # the functions that guests call
    int cpus                    # CPUs of the machine: a peer may run on others than those this process is bound to
    pthread_mutex_t turn        # guards all fields below except `dirty` and `commands`, and every connection and stream
    fb_au64 dirty               # Stream*
    Command *commands           # guarded by all.lock
    # -- I/O thread
    uint32_t looks              # wake-ups in a row without a guest that drove
    bint unburied               # it met a dead connection while another thread had the seat
    uint64_t last_serial
    int64_t next_flush_ns
    int64_t next_sweep_ns
    int64_t next_ping_ns
    int64_t stop_at_ns          # -1: not asked to stop; else when lingering connections are cut


cdef void command_init(Command *k, int kind) noexcept nogil
cdef void loop_mark(void *stream) noexcept nogil
cdef bint loop_push(IoLoop *loop, Stream *s) noexcept nogil     # True: it was not on the stack
# the caller has the turn
cdef bint loop_run(IoLoop *loop, bint bury, bint eager) noexcept nogil
cdef void loop_run_dirty(IoLoop *loop) noexcept nogil
cdef void loop_events(IoLoop *loop, epoll_event *events, int n, int reads) noexcept nogil
# any thread
cdef void loop_wake(IoLoop *loop) noexcept nogil
cdef void *loop_main(void *argument) noexcept nogil
cdef int64_t loop_parks_until(int64_t now, int timeout_ms) noexcept nogil
