# Map of the sending half of a stream; the caller of every function holds the turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport OutFrame, Stream


cdef bint sender_next(Stream *s, OutFrame *f) noexcept nogil        # writes the next frame; False: nothing to send
# Called after sender_next, before its frames were sent: writes a further whole buffer to be sent with them.
cdef bint sender_goes_on(Stream *s, OutFrame *f) noexcept nogil
cdef void sender_said(Stream *s, OutFrame *f) noexcept nogil        # the frame was sent
# Handles a whole frame; its text is in the connection's in_text.  The stream, or the connection, may end.
cdef void sender_hears(Stream *s) noexcept nogil
cdef void sender_let_go(Stream *s) noexcept nogil
