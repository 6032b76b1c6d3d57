# The slow paths of requests and recycles.
#
# They are in a module of their own so that the fast paths in pool_fast.pxd save no registers for them.
from libc.stdint cimport int32_t, uint32_t

from fastbuf._native.atomics cimport (
    fb_u32_cas_acq_rel,
    fb_u32_load_acquire,
    fb_u32_load_relaxed,
    fb_u32_store_relaxed,
)
from fastbuf.memory.debug_checks cimport POOL_DEBUG, debug_poison
from fastbuf.memory.magazines cimport Look
from fastbuf.memory.pool_core cimport LocalCore, PoolCore, SegmentMeta

# For a magazine that is empty or missing.  The segment has one reference; -1: none.
cdef int32_t take_slowly(LocalCore *p, uint32_t extra, Look how) noexcept nogil
# The same from p's list only; -1: the list is empty, or p was destroyed.
cdef int32_t take_listed(LocalCore *p) noexcept nogil
# For a magazine that is full, shut or missing.  The segment has no reference any more.  Returns 1.
cdef int put_slowly(LocalCore *p, int32_t i) noexcept nogil
# The same for n segments that are freed together.
cdef void put_many_slowly(LocalCore *p, const int32_t *segments, uint32_t n) noexcept nogil
# segment_recycle for a segment that has several references or none, and for the debug build.
cdef int recycle_shared(PoolCore *g, int32_t i) noexcept nogil
# Call it after a push to p.free: it gives up a surplus and wakes waiting threads.
cdef void after_push(LocalCore *p) noexcept nogil


# Drops a reference.  Returns 1 for the last one (the caller frees the segment), 0, or -1 if it was not in use.
cdef inline int let_go(PoolCore *g, int32_t i) noexcept nogil:
    cdef SegmentMeta *m = &g.meta[i]
    cdef uint32_t r = fb_u32_load_acquire(&m.refs)
    if r == 1 and not POOL_DEBUG:                       # as in recycle_here
        fb_u32_store_relaxed(&m.refs, 0)
    else:
        while True:
            if r == 0:
                return -1
            if fb_u32_cas_acq_rel(&m.refs, &r, r - 1):
                break
        if r > 1:
            return 0
    fb_u32_store_relaxed(&m.generation, fb_u32_load_relaxed(&m.generation) + 1)
    if POOL_DEBUG:
        debug_poison(g, i)
    return 1
