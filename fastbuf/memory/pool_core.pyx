"""Requests and recycles: the paths that run for every buffer.

A request takes from the calling thread's magazine; else from the pool's chunks and list, from other threads' magazines
(``magazines.pyx``), from the global list within the limit (``pool_claims.pyx``), in this order; else it fails or waits
(``pool_waking.pyx``).  A recycle goes the other way.  None of this takes the GIL or a lock.  Only a thread that looks
into another thread's magazine waits, for the few instructions of that magazine's owner.

    atomic            pairs with
    ``refs`` release  ``refs`` acquire of the last reference: it sees what the other holders wrote

A user sees what the previous user of a segment wrote, because every path between them is ordered: a list's ``head``
(``free_list.pxd``), a magazine's ``busy`` and the gate (``fb_magazine.h``), or the same thread.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport (
    fb_cpu_relax,
    fb_event,
    fb_event_prepare,
    fb_event_wait,
    fb_likely,
    fb_now_ns,
    fb_prefetch_write,
    fb_u32_add_relaxed,
    fb_u32_load_acquire,
    fb_u32_load_relaxed,
    fb_u32_load_seq_cst,
    fb_u32_store_relaxed,
    fb_u64_add_relaxed,
    fb_u64_load_acquire,
    fb_u64_load_seq_cst,
)
from fastbuf.memory.free_list cimport empty, pop_many
from fastbuf.memory.magazines cimport (
    GLANCE,
    LOOK,
    SURE,
    Look,
    fb_magazine,
    fb_magazine_here,
    local_figures,
    magazine_put_many,
    magazine_take,
    magazine_take_many,
)
from fastbuf.memory.pool_claims cimport note_peak
from fastbuf.memory.debug_checks cimport POOL_DEBUG
from fastbuf.memory.pool_core cimport WORD_DESTROYED, LocalCore, PoolCore, SegmentMeta
from fastbuf.memory.pool_fast cimport caller_at, recycle_here
from fastbuf.memory.pool_home cimport let_go, put_many_slowly, take_listed, take_slowly
from fastbuf.memory.pool_waking cimport arm, waking_set_listener, waking_set_signal


cdef enum:
    SPINS = 100                     # tries before sleeping, some microseconds


# --- requests ---------------------------------------------------------------------------------------------------------

cdef inline int32_t take(LocalCore *p, uint32_t extra, Look how) noexcept nogil:
    cdef int32_t i = magazine_take(p, fb_magazine_here(fb_u64_load_acquire(&p.magazines), p.here))
    if fb_likely(i >= 0):
        fb_u32_store_relaxed(&p.meta[i].refs, 1)
        return i
    return take_slowly(p, extra, how)


cdef int32_t take_or_arm(LocalCore *p, uint32_t extra) noexcept nogil:
    if fb_u64_load_seq_cst(&p.listener) == 0:
        return -1
    arm(p)
    return take(p, extra, SURE)


cdef int32_t local_try_or_arm(LocalCore *p) noexcept nogil:
    cdef int32_t i = take(p, 0, LOOK)
    if i >= 0:
        return i
    arm(p)
    return take(p, 0, SURE)


cdef int32_t local_try_acquire(LocalCore *p) noexcept nogil:
    cdef int32_t i = take(p, 0, LOOK)
    return i if i >= 0 else take_or_arm(p, 0)


cdef int32_t local_try_acquire_overdraft(LocalCore *p) noexcept nogil:
    cdef uint32_t extra = fb_u32_load_relaxed(&p.overdraft)
    cdef int32_t i = take(p, extra, LOOK)
    return i if i >= 0 else take_or_arm(p, extra)


cdef uint32_t local_try_acquire_many(LocalCore *p, uint32_t n, int32_t *segments) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef SegmentMeta *meta = g.meta
    cdef uint32_t left = 0
    cdef uint32_t got, listed, k
    cdef uint64_t w
    cdef int32_t i
    if n == 0:
        return 0
    got = magazine_take_many(p, fb_magazine_here(fb_u64_load_acquire(&p.magazines), p.here), n, segments)
    listed = pop_many(g, &p.free, n - got, segments + got, &left)
    got += listed
    for k in range(got):
        fb_u32_store_relaxed(&meta[segments[k]].refs, 1)
    if listed != 0:
        w = fb_u64_load_seq_cst(&p.word)
        if w & WORD_DESTROYED:
            segment_recycle_many(g, segments, got)
            return 0
        if <uint32_t>w > fb_u32_load_relaxed(&p.peak):
            note_peak(p)
    # each of these stays with p, so the next batch finds them free in the pool
    while got < n:
        i = take(p, 0, LOOK)
        if i < 0 and got == 0:
            i = take_or_arm(p, 0)
        if i < 0:
            break
        segments[got] = i
        got += 1
    return got


# Whether a request that may wait should give recycling threads a moment before it tries again.  Below the limit a try
# costs less than waiting; at the limit it is better to let magazines and chunks fill.
cdef inline bint at_limit(LocalCore *p) noexcept nogil:
    return fb_u64_load_seq_cst(&p.word) >= fb_u32_load_seq_cst(&p.limit)


cdef int32_t local_wait(LocalCore *p, int64_t deadline_ns) noexcept nogil:
    cdef int32_t i
    cdef uint32_t key
    cdef int rc, _
    for _ in range(SPINS):
        if not empty(&p.free) or not empty(&p.chunks) or not empty(&p.pool.free):
            i = take(p, 0, GLANCE if at_limit(p) else LOOK)
            if i >= 0:
                return i
        fb_cpu_relax()
    while True:
        key = fb_event_prepare(&p.available)
        arm(p)
        i = take(p, 0, SURE)
        if i >= 0:
            return i
        if local_destroyed(p):
            return LOCAL_DESTROYED
        rc = fb_event_wait(&p.available, key, deadline_ns)
        if rc == 1:
            i = take_listed(p)                          # most often the segment that it was woken for is there
            if i >= 0:
                return i
            continue
        if rc == 0:
            i = take(p, 0, SURE)                        # a segment that came just at the deadline is still taken
            if i >= 0:
                return i
            return LOCAL_DESTROYED if local_destroyed(p) else LOCAL_EMPTY
        return LOCAL_SIGNAL


cdef int32_t local_acquire(LocalCore *p, int64_t deadline_ns) noexcept nogil:
    cdef int64_t begin
    cdef int32_t i = take(p, 0, GLANCE if at_limit(p) else LOOK)
    if i >= 0:
        return i
    if local_destroyed(p):
        return LOCAL_DESTROYED
    begin = fb_now_ns()
    fb_u64_add_relaxed(&p.waits, 1)
    i = local_wait(p, deadline_ns)
    fb_u64_add_relaxed(&p.wait_ns, <uint64_t>(fb_now_ns() - begin))
    return i


# --- segments ---------------------------------------------------------------------------------------------------------

cdef uint8_t *segment_data(PoolCore *g, int32_t i) noexcept nogil:
    return g.data + <size_t>i * g.stride


cdef uint32_t segment_refs(PoolCore *g, int32_t i) noexcept nogil:
    return fb_u32_load_acquire(&g.meta[i].refs)


cdef uint32_t segment_generation(PoolCore *g, int32_t i) noexcept nogil:
    # Relaxed: it changes only when there is no reference, and the caller has one.
    return fb_u32_load_relaxed(&g.meta[i].generation)


cdef void segment_retain(PoolCore *g, int32_t i) noexcept nogil:
    # Relaxed: the caller has a reference, so the count cannot become zero meanwhile.
    fb_u32_add_relaxed(&g.meta[i].refs, 1)


cdef int segment_recycle(PoolCore *g, int32_t i) noexcept nogil:
    # most often another thread acquired it: fetch the line for writing, in one transfer instead of two
    fb_prefetch_write(&g.meta[i])
    return recycle_here(g, caller_at(g), i)


cdef uint32_t segment_recycle_many(PoolCore *g, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef SegmentMeta *meta = g.meta
    cdef SegmentMeta *s
    cdef LocalCore *owner
    cdef fb_magazine *own
    cdef uint32_t refused = 0
    # first of those freed together: they have one owner and need one CAS at most
    cdef uint32_t begin = 0
    cdef uint32_t k
    cdef int last = 1
    while begin < n:
        owner = meta[segments[begin]].owner
        k = begin
        while k < n:
            s = &meta[segments[k]]
            if s.owner != owner:
                break
            if not POOL_DEBUG and fb_likely(fb_u32_load_acquire(&s.refs) == 1):     # as in let_go
                fb_u32_store_relaxed(&s.refs, 0)
                fb_u32_store_relaxed(&s.generation, fb_u32_load_relaxed(&s.generation) + 1)
            else:
                last = let_go(g, segments[k])
                if last != 1:
                    break
            k += 1
        if k != begin:
            own = fb_magazine_here(fb_u64_load_acquire(&owner.magazines), g.here)
            if not magazine_put_many(owner, own, segments + begin, k - begin):
                put_many_slowly(owner, segments + begin, k - begin)
        begin = k
        if last != 1:
            refused += last < 0
            last = 1
            begin += 1
    return refused


# --- figures ----------------------------------------------------------------------------------------------------------

cdef uint32_t local_in_use(LocalCore *p) noexcept nogil:
    cdef uint32_t held = 0
    cdef uint32_t home = 0
    local_figures(p, &held, &home)
    return held - home


# --- the listener -----------------------------------------------------------------------------------------------------

cdef void local_set_listener(LocalCore *p, fb_event *e) noexcept nogil:
    waking_set_listener(p, e)


cdef void local_set_signal(LocalCore *p, int fd) noexcept nogil:
    waking_set_signal(p, fd)
