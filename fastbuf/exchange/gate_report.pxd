# Reports on a gate's channels: audit of the credits, text of a stall, gauges, counters.
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport ChannelCounters


cdef int audit_gate(GateCore *core) except -1
cdef object stall_text(gate, GateCore *core)
cdef dict gate_gauges(GateCore *core)
cdef ChannelCounters gate_counters(GateCore *core) noexcept         # sums over all channels
