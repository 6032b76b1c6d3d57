# Map of a connection's input and output; every function runs with the turn (tcp_loop.pxd).
from fastbuf.transports.tcp_state cimport Connection


# Reads what has come; whoever has something to say to it is ready afterwards.
cdef void connection_read(Connection *c, int most) noexcept nogil
# Of one that is stopped (flow control without credit): reads on if it may.
cdef void connection_goes_on(Connection *c) noexcept nogil
# Says what there is to say; `phase` and `blocked` then tell the loop what to do.
cdef void connection_write(Connection *c, bint eager) noexcept nogil
# Once an interval: a peer that is silent is asked for a sign of life, and given up when it had an interval for that.
cdef void connection_look(Connection *c) noexcept nogil
