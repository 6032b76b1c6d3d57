# Taking and recycling one segment, inline, for callers that do it for every buffer.
#
# The same as local_try_acquire and segment_recycle of pool_core.pxd without the call into another module, which costs
# about as much as the work itself.  A function that does it many times looks up the Caller once.
from libc.stdint cimport int32_t

from fastbuf._native.atomics cimport (
    fb_likely,
    fb_u32_count_up,
    fb_u32_is,
    fb_u32_store_relaxed,
)
from fastbuf.memory.debug_checks cimport POOL_DEBUG
from fastbuf.memory.magazines cimport fb_here, fb_here_at, magazine_put, magazine_take
from fastbuf.memory.pool_core cimport LocalCore, PoolCore, SegmentMeta, local_try_acquire
from fastbuf.memory.pool_home cimport put_slowly, recycle_shared


# The calling thread and the pool's records.  Use it only within one function call: another thread has other values.
cdef struct Caller:
    fb_here *me
    SegmentMeta *meta


cdef inline Caller caller_at(PoolCore *g) noexcept nogil:
    return Caller(fb_here_at(g.here), g.meta)


cdef inline int32_t try_acquire_here(LocalCore *p, Caller caller) noexcept nogil:
    cdef int32_t i = magazine_take(p, caller.me.last)
    if fb_likely(i >= 0):
        fb_u32_store_relaxed(&caller.meta[i].refs, 1)   # published when the segment is handed on
        return i
    return local_try_acquire(p)


cdef inline int recycle_here(PoolCore *g, Caller caller, int32_t i) noexcept nogil:
    cdef SegmentMeta *s = &caller.meta[i]
    cdef LocalCore *p = s.owner
    # A thread that owns a reference and sees refs = 1 is alone: no other thread has a reference to copy (as in
    # Arc::get_mut).  The acquire pairs with the release of the references dropped before.  The debug build still
    # decrements atomically (recycle_shared), to detect two threads that recycle the same reference.
    if POOL_DEBUG or not fb_likely(fb_u32_is(&s.refs, 1)):
        return recycle_shared(g, i)
    fb_u32_store_relaxed(&s.refs, 0)                    # published when the segment is freed
    fb_u32_count_up(&s.generation)
    if fb_likely(magazine_put(p, caller.me.last, i)):
        return 1
    return put_slowly(p, i)
