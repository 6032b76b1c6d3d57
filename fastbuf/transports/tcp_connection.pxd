# Map of a connection's input and output; the caller of every function holds the turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport Connection


# Reads and handles what has arrived; streams that then have frames to send are on the ready list.
cdef void connection_read(Connection *c, int most) noexcept nogil
# For a stopped connection (flow control without credit): continues reading if it may.
cdef void connection_goes_on(Connection *c) noexcept nogil
# Sends the frames of streams that are ready; afterwards `phase` and `blocked` tell the loop what to do.
cdef void connection_write(Connection *c, bint eager) noexcept nogil
# Called once per interval: sends PING to a silent peer, and gives the peer up if it stays silent for one more interval.
cdef void connection_look(Connection *c) noexcept nogil
