# Map of the I/O thread: one native thread a process (per ShuffleEnvironment), epoll, no GIL.
#
# Waking it, without a system call while it is awake (the eventcount's argument, with epoll in place
# of the futex):
#     waker   W1 push the connection on `dirty` (CAS, release)    loop  L1 exchange sleeping to 1
#             W2 exchange sleeping to 0; it was 1 -> eventfd             L2 dirty empty? no -> do not sleep
#                                                                        L3 epoll_wait
# W2 and L1 are read-modify-writes of one word: either W2 sees L1's 1, or L1 reads what W2 wrote and L2
# sees W1.  Forbidden: a connection on the stack while the loop sleeps and
# no eventfd write is on its way.
#
# `dirty` is a Treiber stack that is only ever emptied whole (exchange with NULL), so it has no ABA
# problem; a connection is on it at most once (its own `dirty` flag, set by the pusher, cleared by the
# loop *before* it looks at the connection).
from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport fb_au32, fb_au64, fb_event
from fastbuf._native.threads cimport pthread_mutex_t, pthread_t
from fastbuf.transports.tcp_state cimport Connection

cdef enum CommandKind:
    COMMAND_ADD = 1
    COMMAND_LET_GO = 2          # of a gate or a subpartition
    COMMAND_STOP = 3


cdef struct Command:
    int kind
    void *argument
    Command *next
    fb_au32 done
    int result


cdef struct IoLoop:
    int epoll_fd
    int event_fd
    pthread_t thread
    fb_au32 sleeping
    fb_au64 dirty               # Connection*
    pthread_mutex_t lock        # commands
    Command *commands
    fb_event answered
    # -- I/O thread
    Connection *connections
    int64_t next_flush_ns
    int64_t next_sweep_ns
    bint stopping


cdef class IoThread:
    cdef IoLoop *loop
    cdef int pid
    cdef int command(self, int kind, void *argument) except -1
    cpdef stop(self)


cdef void loop_mark(void *connection) noexcept nogil
