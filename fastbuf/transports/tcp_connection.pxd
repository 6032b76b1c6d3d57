# Map of a connection's input and output; every function runs on the I/O thread.
from fastbuf.transports.tcp_state cimport Connection


# Reads what has come (if readable) and says what there is to say; then `phase` and `blocked` tell the loop what to do.
cdef void connection_run(Connection *c, bint readable) noexcept nogil
# Letting go: asked for by Python, carried out by the I/O thread.
cdef void connection_let_go_of_gate(Connection *c) noexcept nogil
cdef void connection_let_go_of_writer(Connection *c) noexcept nogil
