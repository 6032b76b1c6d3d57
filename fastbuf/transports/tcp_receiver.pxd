# Map of the receiving half of a stream; the caller of every function holds the turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport OutFrame, Stream


cdef bint receiver_next(Stream *s, OutFrame *f) noexcept nogil      # writes the next frame; False: nothing to send
# Handles a header: decides where its payload goes.  The connection may end.
# a place for the buffer whose header arrived may be free now
cdef void receiver_goes_on(Stream *s) noexcept nogil
cdef void receiver_starts(Stream *s) noexcept nogil
# Handles a whole frame.  The stream, or the connection, may end.
cdef void receiver_hears(Stream *s) noexcept nogil
cdef void receiver_let_go(Stream *s) noexcept nogil
