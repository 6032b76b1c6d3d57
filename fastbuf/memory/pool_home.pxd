# The slow half of requests and recycles.
#
# A module of its own, so that the fast half in pool_fast.pxd saves no registers for it.
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

# The magazine was empty, or there is none.  The segment has its one reference; -1: none.
cdef int32_t take_slowly(LocalCore *p, uint32_t extra, Look how) noexcept nogil
# The same from p's list alone; -1: it is empty, or p was destroyed.
cdef int32_t take_listed(LocalCore *p) noexcept nogil
# The magazine is full or shut, or there is none.  The segment has no reference any more.  Returns 1.
cdef int put_slowly(LocalCore *p, int32_t i) noexcept nogil
# The same of n, as segments that go home together.
cdef void put_many_slowly(LocalCore *p, const int32_t *segments, uint32_t n) noexcept nogil
# One reference less, of a segment that has more than one, or none, or in a debug build; as segment_recycle.
cdef int recycle_shared(PoolCore *g, int32_t i) noexcept nogil
# To be called after a push to p.free: gives a surplus up, and wakes who waits.
cdef void after_push(LocalCore *p) noexcept nogil


# One reference less: 1 with the last one (the caller sees that the segment goes home), 0, or -1 if it was not out.
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
