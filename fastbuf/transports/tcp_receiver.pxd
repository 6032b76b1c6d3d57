# Map of the receiving half of a stream; every function runs with the turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport OutFrame, Stream


cdef bint receiver_next(Stream *s, OutFrame *f) noexcept nogil      # puts down the next frame; False: nothing to say
# A header has come: where its payload goes.  The connection may end by it.
cdef void receiver_goes_on(Stream *s) noexcept nogil        # the buffer whose header came may have a place now
cdef void receiver_starts(Stream *s) noexcept nogil
# A whole frame has come.  The stream, or the connection, may end by it.
cdef void receiver_hears(Stream *s) noexcept nogil
cdef void receiver_let_go(Stream *s) noexcept nogil
