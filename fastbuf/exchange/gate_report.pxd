# What a gate's channels have at one moment: proved (audit), or told to people (a stall, how full it is).
from fastbuf.exchange.gate_core cimport GateCore


cdef int audit_gate(GateCore *core) except -1
cdef object stalled_channels(GateCore *core)
cdef dict gate_gauges(GateCore *core)
