"""Requests and recycles: the paths that run for every buffer.

A request takes from the pool's own list, else from the global list within the limit (``pool_claims.pyx``); else it
fails or waits (``pool_waking.pyx``).  A recycle pushes to the list of the pool that holds the segment; that pool gives
back what it has beyond its limit, and wakes one who waits.  None of this takes the GIL or a lock, or waits for another
thread's progress.

    atomic                              pairs with
    ``refs`` release                    ``refs`` acquire of the last reference: it sees what the other holders wrote
    ``refs``, ``generation`` relaxed,   the CAS of push, or whatever handed the segment on: nobody else has a reference
    of a segment that only one holds
    push seq_cst, then ``limit`` and    the two pairs of ``pool_waking.pyx``
    ``waiting`` seq_cst

A user sees what the previous user of a segment wrote, as it was pushed by one and popped by the other (the list's
``head``, ``free_list.pxd``).

Forbidden outcomes: two users of a segment; a request that fails while a free segment of its pool was on the list before
it began and stays there; a segment in use that a destroyed pool gave out after its end.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf.memory.debug_checks cimport POOL_DEBUG, debug_poison
from fastbuf.memory.free_list cimport empty, pop, pop_many, push, push_many
from fastbuf.memory.pool_claims cimport local_figures, note_peak, take_global, trim
from fastbuf.memory.pool_types cimport WORD_DESTROYED, LocalCore, PoolCore, SegmentMeta
from fastbuf.memory.pool_waking cimport arm, wake


cdef enum:
    SPINS = 100                     # tries before sleeping, some microseconds


# --- requests ---------------------------------------------------------------------------------------------------------

# From p's list only; -1: the list is empty, or p was destroyed.
cdef inline int32_t take_listed(LocalCore *p) noexcept nogil:
    cdef int32_t i = pop(p.pool, &p.free)
    cdef uint64_t w
    if i < 0:
        return -1
    w = fb_u64_load_seq_cst(&p.word)
    if w & WORD_DESTROYED:
        push(p.pool, &p.free, i)
        after_push(p)
        return -1
    fb_u32_store_relaxed(&p.pool.meta[i].refs, 1)       # published when the segment is handed on
    if <uint32_t>w > fb_u32_load_relaxed(&p.peak):
        note_peak(p)
    return i


cdef inline int32_t take(LocalCore *p, uint32_t extra) noexcept nogil:
    cdef int32_t i = take_listed(p)
    return i if i >= 0 else take_global(p, extra)


cdef int32_t take_or_arm(LocalCore *p, uint32_t extra) noexcept nogil:
    if fb_u64_load_seq_cst(&p.listener) == 0:
        return -1
    arm(p)
    return take(p, extra)


cdef int32_t local_try_or_arm(LocalCore *p) noexcept nogil:
    cdef int32_t i = take(p, 0)
    if i >= 0:
        return i
    arm(p)
    return take(p, 0)


cdef int32_t local_try_acquire(LocalCore *p) noexcept nogil:
    cdef int32_t i = take(p, 0)
    return i if i >= 0 else take_or_arm(p, 0)


cdef int32_t local_try_acquire_overdraft(LocalCore *p) noexcept nogil:
    cdef uint32_t extra = fb_u32_load_relaxed(&p.overdraft)
    cdef int32_t i = take(p, extra)
    return i if i >= 0 else take_or_arm(p, extra)


cdef uint32_t local_try_acquire_many(LocalCore *p, uint32_t n, int32_t *segments) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint32_t got = pop_many(g, &p.free, n, segments)
    cdef uint32_t k
    cdef uint64_t w
    cdef int32_t i
    if got != 0:
        for k in range(got):
            fb_u32_store_relaxed(&g.meta[segments[k]].refs, 1)
        w = fb_u64_load_seq_cst(&p.word)
        if w & WORD_DESTROYED:
            segment_recycle_many(g, segments, got)
            return 0
        if <uint32_t>w > fb_u32_load_relaxed(&p.peak):
            note_peak(p)
    # each of these stays with p, so the next batch finds them free in the pool
    while got < n:
        i = take(p, 0)
        if i < 0 and got == 0:
            i = take_or_arm(p, 0)
        if i < 0:
            break
        segments[got] = i
        got += 1
    return got


cdef int32_t local_wait(LocalCore *p, int64_t deadline_ns) noexcept nogil:
    cdef int32_t i
    cdef uint32_t key
    cdef int rc, _
    for _ in range(SPINS):
        if not empty(&p.free) or not empty(&p.pool.free):
            i = take(p, 0)
            if i >= 0:
                return i
        fb_cpu_relax()
    while True:
        key = fb_event_prepare(&p.available)
        arm(p)
        i = take(p, 0)
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
            i = take(p, 0)                              # a segment that came just at the deadline is still taken
            if i >= 0:
                return i
            return LOCAL_DESTROYED if local_destroyed(p) else LOCAL_EMPTY
        return LOCAL_SIGNAL


cdef int32_t local_acquire(LocalCore *p, int64_t deadline_ns) noexcept nogil:
    cdef int64_t begin
    cdef int32_t i = take(p, 0)
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


cdef void segment_retain(PoolCore *g, int32_t i) noexcept nogil:
    # Relaxed: the caller has a reference, so the count cannot become zero meanwhile.
    fb_u32_add_relaxed(&g.meta[i].refs, 1)


# Drops a reference.  Returns 1 for the last one (the caller frees the segment), 0, or -1 if it was not in use.
cdef inline int let_go(PoolCore *g, int32_t i) noexcept nogil:
    # A thread that owns a reference and sees refs = 1 is alone: no other thread has a reference to copy (as in
    # Arc::get_mut).  The acquire pairs with the release of the references dropped before.  The debug build still
    # decrements atomically, to detect two threads that recycle the same reference.
    cdef SegmentMeta *m = &g.meta[i]
    cdef uint32_t r = fb_u32_load_acquire(&m.refs)
    if r == 1 and not POOL_DEBUG:
        fb_u32_store_relaxed(&m.refs, 0)                # published when the segment is freed
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


# Runs after a push to p's list.  The segment may have another user by now, and p may even serve another pool; these
# checks then do no harm.
cdef inline void after_push(LocalCore *p) noexcept nogil:
    if <uint32_t>fb_u64_load_seq_cst(&p.word) > fb_u32_load_seq_cst(&p.limit):
        trim(p)
    if fb_u32_load_seq_cst(&p.waiting) != 0:
        wake(p)


cdef int segment_recycle(PoolCore *g, int32_t i) noexcept nogil:
    cdef LocalCore *p
    cdef int last
    # most often another thread acquired it: fetch the line for writing, in one transfer instead of two
    fb_prefetch_write(&g.meta[i])
    last = let_go(g, i)
    if last == 1:
        p = g.meta[i].owner
        push(g, &p.free, i)
        after_push(p)
    return last


cdef uint32_t segment_recycle_many(PoolCore *g, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef SegmentMeta *meta = g.meta
    cdef LocalCore *owner
    cdef uint32_t refused = 0
    # first of those freed together: they have one owner and need one CAS
    cdef uint32_t begin = 0
    cdef uint32_t k
    cdef int last
    while begin < n:
        owner = meta[segments[begin]].owner
        k = begin
        last = 1
        while k < n and meta[segments[k]].owner == owner:
            last = let_go(g, segments[k])
            if last != 1:
                break
            k += 1
        if k != begin:
            push_many(g, &owner.free, segments + begin, k - begin)
            after_push(owner)
        begin = k
        if last != 1:
            refused += last < 0
            begin += 1
    return refused


# --- figures ----------------------------------------------------------------------------------------------------------

cdef uint32_t local_in_use(LocalCore *p) noexcept nogil:
    cdef uint32_t held = 0
    cdef uint32_t home = 0
    local_figures(p, &held, &home)
    return held - home
