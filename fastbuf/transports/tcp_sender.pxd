# Map of the sending half of a connection; every function runs on the I/O thread.
from fastbuf.transports.tcp_state cimport Connection


cdef bint sender_next(Connection *c) noexcept nogil         # puts down the next frame; False: nothing to say
cdef void sender_said(Connection *c) noexcept nogil
cdef void sender_hears(Connection *c) noexcept nogil
cdef bint sender_let_go(Connection *c) noexcept nogil
