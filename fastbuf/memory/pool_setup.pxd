# Making and ending C cores.  The caller holds the NetworkBufferPool's lock, or is its constructor or destructor.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf.memory.pool_types cimport LocalCore, PoolCore

# Makes a pool of `count` segments that are `stride` bytes apart; NULL: no memory.
cdef PoolCore *pool_new(uint8_t *data, uint32_t count, uint32_t segment_size, size_t stride) noexcept nogil
cdef void pool_free(PoolCore *g) noexcept nogil
# A pool with limit = required; NULL: no memory.  The sum of all `required` must not exceed the segments.
cdef LocalCore *local_new(PoolCore *g, uint32_t required, uint32_t maximum, uint32_t overdraft) noexcept nogil
# Call it when the Python object is gone.  Once all its segments are free, another pool may use the memory.  Under the
# GIL, like local_new.
cdef void local_abandon(LocalCore *p) noexcept nogil
cdef uint32_t fork_count() noexcept nogil                   # number of forks since this module was imported
