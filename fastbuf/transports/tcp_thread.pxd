# Map of the I/O thread's Python side.
from libc.stdint cimport int64_t

from fastbuf.transports.tcp_loop cimport Command, IoLoop
from fastbuf.transports.tcp_state cimport Stream


cdef class IoThread:
    cdef IoLoop *loop
    cdef int pid
    cdef int waiting            # threads in wait_message; guarded by the GIL
    cdef bint forking           # the thread that forks has the turn
    cdef object __weakref__
    cdef int check(self) except -1
    cdef void close_own(self) noexcept
    cdef int command(self, Command *k) except -1
    cdef int connections(self)
    # (peer, bytes that the kernel has not sent, its struct tcp_info) of connections that were dialled here; empty while
    # another is at work
    cdef list links(self)
    cdef unsigned int stops(self)
    cdef int open_inbox(self) except -1
    # (serial, stream, message, peer) of handshake messages for the listener's thread
    cdef list take_inbox(self)
    # The next handshake message for the thread that holds the stream; empty: the stream is over; None: timeout.
    cdef bytes wait_message(self, Stream *s, int64_t deadline_ns)
    cpdef stop(self)
