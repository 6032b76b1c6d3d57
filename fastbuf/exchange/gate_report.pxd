# Reports on a gate's channels: audit of the credits, text of a stall, gauges.
from fastbuf.exchange.gate_core cimport GateCore


cdef int audit_gate(GateCore *core) except -1
cdef object stalled_channels(GateCore *core)
cdef dict gate_gauges(GateCore *core)
