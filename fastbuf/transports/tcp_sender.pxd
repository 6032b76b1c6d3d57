# Map of the sending half of a stream; every function runs with the turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport OutFrame, Stream


cdef bint sender_next(Stream *s, OutFrame *f) noexcept nogil        # puts down the next frame; False: nothing to say
# After it, with its frames not yet out: puts down a whole buffer that follows, which is to leave with them.
cdef bint sender_goes_on(Stream *s, OutFrame *f) noexcept nogil
cdef void sender_said(Stream *s, OutFrame *f) noexcept nogil        # it is out
# A whole frame has come; its text is in the connection's in_text.  The stream, or the connection, may end by it.
cdef void sender_hears(Stream *s) noexcept nogil
cdef void sender_let_go(Stream *s) noexcept nogil
