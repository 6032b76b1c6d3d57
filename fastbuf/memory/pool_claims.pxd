# Claims, surplus, limits and counts; the rules stand at the head of pool_claims.pyx.
from libc.stdint cimport int32_t, uint32_t

from fastbuf.memory.pool_types cimport LocalCore

# The slow half of a request, when p has no free segment: takes one from the global list, with one reference, and counts
# it as held by p.  Returns -1 if there is none, if p holds limit + extra already, or if p was destroyed.
cdef int32_t take_global(LocalCore *p, uint32_t extra) noexcept nogil
# Moves p's surplus (free segments held beyond the limit) to the global list; returns how many.
cdef uint32_t trim(LocalCore *p) noexcept nogil
# Segments held and free segments, both at the same moment.  One that `trim` is moving still counts as held, and no more
# as free.
cdef void local_figures(LocalCore *p, uint32_t *held, uint32_t *home) noexcept nogil
# Call it after taking a segment from a list while peak < held.
cdef void note_peak(LocalCore *p) noexcept nogil
# Records that `used` segments were in use at one moment.
cdef void raise_peak(LocalCore *p, uint32_t used) noexcept nogil

# --- limits and ends; the caller holds the NetworkBufferPool's lock ---------------------------------------------------
# call pool_wake_waiting once after all limits are set
cdef void local_set_limit(LocalCore *p, uint32_t limit) noexcept nogil
cdef void local_destroy(LocalCore *p) noexcept nogil                        # needs no lock
