# Map of the two ends of a stream: what each sends and handles of messages.pxd.  The caller of every function holds the
# turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport OutFrame, Stream


# Writes the next frame; False: there is nothing to send.
cdef bint sender_next(Stream *s, OutFrame *f) noexcept nogil
cdef bint receiver_next(Stream *s, OutFrame *f) noexcept nogil
# Called after sender_next, before its frames were sent: writes a further whole buffer to be sent with them.
cdef bint sender_goes_on(Stream *s, OutFrame *f) noexcept nogil
cdef void sender_said(Stream *s, OutFrame *f) noexcept nogil        # the frame was sent
# Handles a header: decides where its payload goes.  The connection may end.
cdef void receiver_starts(Stream *s) noexcept nogil
# A place for the buffer whose header arrived may be free now.
cdef void receiver_goes_on(Stream *s) noexcept nogil
# Handles a whole frame; its text is in the connection's in_text.  The stream, or the connection, may end.
cdef void sender_hears(Stream *s) noexcept nogil
cdef void receiver_hears(Stream *s) noexcept nogil
# The writer, or the gate, is about to be freed.
cdef void sender_let_go(Stream *s) noexcept nogil
cdef void receiver_let_go(Stream *s) noexcept nogil
