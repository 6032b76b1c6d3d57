# Map of the loop's guests: threads that do the I/O thread's work while they would wait for it.  The protocol, its
# pairings and what it forbids are in tcp_loop.pxd.
from fastbuf.transports.tcp_loop cimport IoLoop


cdef void loop_mark_now(void *stream) noexcept nogil
cdef void guest_init(IoLoop *loop) noexcept nogil
