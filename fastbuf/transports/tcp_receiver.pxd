# Map of the receiving half of a connection; every function runs on the I/O thread.
from fastbuf.transports.tcp_state cimport Connection


cdef void receiver_starts(Connection *c) noexcept nogil
cdef void receiver_hears(Connection *c) noexcept nogil
cdef bint receiver_next(Connection *c) noexcept nogil       # puts down the next frame; False: nothing to say
cdef void receiver_said(Connection *c) noexcept nogil
cdef bint receiver_let_go(Connection *c) noexcept nogil
