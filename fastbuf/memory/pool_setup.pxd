# Making and unmaking C cores; the caller holds the NetworkBufferPool's lock, or is its constructor or destructor.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf.memory.pool_core cimport LocalCore, PoolCore

# `count` segments, each `stride` bytes behind the one before; NULL: no memory.
cdef PoolCore *pool_new(uint8_t *data, uint32_t count, uint32_t segment_size, size_t stride) noexcept nogil
cdef void pool_free(PoolCore *g) noexcept nogil
# A pool with limit = required; NULL: no memory.  The sum of all `required` must not exceed the segments.
cdef LocalCore *local_new(PoolCore *g, uint32_t required, uint32_t maximum, uint32_t overdraft) noexcept nogil
# The Python object has gone: once nothing of it is out, the memory may serve another pool.  Under the GIL, as
# local_new.
cdef void local_abandon(LocalCore *p) noexcept nogil
cdef uint32_t fork_count() noexcept nogil                   # forks between this process and its import of this module
# Where the threads of a pool look that has no magazines yet: empty ones, into which nothing is put.
cdef uint64_t magazines_of_nobody() noexcept nogil
# The calling thread's slot; 0: there is none left for it.
cdef uint32_t slot_claim() noexcept nogil
# Before the first claim: what is to run when a thread that has a slot ends.  Not 0: it cannot be known.
cdef int slots_start(void (*flush)(uint32_t) noexcept nogil) noexcept nogil
