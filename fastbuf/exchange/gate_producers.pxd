# Which producers a gate awaits, whether all have ended, and which are refused.
#
# channels, sealed: as in the gate; lost: as in its intake.
from libc.stdint cimport uint32_t

from fastbuf.exchange.gate_core cimport GateCore


cdef bint awaits_producers(GateCore *g, channels, dict sealed, dict lost) except -1
cdef bint all_have_ended(GateCore *g, gate, dict sealed, dict lost) except -1
# Raises why a producer cannot have the channel of that number; peers: where the connected ones are
cdef int refuse_producer(GateCore *g, gate, dict peers, uint32_t number, bint is_local, str peer) except -1
# Raises StallTimeout if no thread but this one could write or unblock a channel; stalled: nothing came for long, so
# nobody else is thought to come
cdef int refuse_to_wait_for_oneself(GateCore *g, gate, dict sealed, dict lost, bint stalled) except -1
