# Claims, surplus and limits; the rules stand at the head of pool_claims.pyx.
from libc.stdint cimport int32_t, uint32_t

from fastbuf.memory.magazines cimport Look
from fastbuf.memory.pool_core cimport LocalCore

# The slow half of a request, when nothing is home: a segment of the global list, counted as p's; -1: none, or p holds
# limit + extra already, or was destroyed.
cdef int32_t take_global(LocalCore *p, uint32_t extra, Look how) noexcept nogil
# Moves p's surplus (held beyond limit, and home) to the global list; returns how many.
cdef uint32_t trim(LocalCore *p, Look how) noexcept nogil
# To be called after a segment was taken from a list while peak < held.
cdef void note_peak(LocalCore *p) noexcept nogil
# So many were out at one moment.
cdef void raise_peak(LocalCore *p, uint32_t used) noexcept nogil

# --- limits and ends; the caller holds the NetworkBufferPool's lock ---------------------------------------------------
cdef void local_set_limit(LocalCore *p, uint32_t limit) noexcept nogil     # then pool_wake_waiting, once for all limits
cdef void local_destroy(LocalCore *p) noexcept nogil                        # may be called without the lock
