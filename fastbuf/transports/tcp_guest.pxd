# Map of the loop's guests: threads that do the I/O thread's work instead of waiting for it.  tcp_loop.pxd has the
# protocol, the pairings and the forbidden outcomes.
from fastbuf.transports.tcp_loop cimport IoLoop


cdef void loop_mark_now(void *stream) noexcept nogil
cdef void guest_init(IoLoop *loop) noexcept nogil
