"""The slow paths of requests and recycles: those that the calling thread's own magazine cannot serve."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport (
    fb_u32_load_relaxed,
    fb_u32_load_seq_cst,
    fb_u32_store_relaxed,
    fb_u64_load_acquire,
    fb_u64_load_relaxed,
    fb_u64_load_seq_cst,
)
from fastbuf.memory.free_list cimport empty, pop, push, push_many
from fastbuf.memory.magazines cimport (
    FB_MAGAZINE_ITEMS,
    LOOK,
    Look,
    fb_magazine,
    fb_magazine_here,
    fetch,
    magazine_own,
    magazine_put,
    magazine_put_many_slowly,
    magazine_put_slowly,
    magazine_refill,
)
from fastbuf.memory.pool_claims cimport note_peak, take_global, trim
from fastbuf.memory.pool_core cimport WORD_DESTROYED, LocalCore, PoolCore
from fastbuf.memory.pool_home cimport let_go
from fastbuf.memory.pool_waking cimport wake


# Runs after a push to p's list.  The segment may have another user by now, and p may even serve another pool; these
# checks then do no harm.
cdef void after_push(LocalCore *p) noexcept nogil:
    if <uint32_t>fb_u64_load_seq_cst(&p.word) > fb_u32_load_seq_cst(&p.limit):
        trim(p, LOOK)
    if fb_u32_load_seq_cst(&p.waiting) != 0:
        wake(p)


# Finishes taking `i` from a list of p.
cdef int32_t taken(LocalCore *p, int32_t i) noexcept nogil:
    cdef uint64_t w = fb_u64_load_seq_cst(&p.word)
    if w & WORD_DESTROYED:
        push(p.pool, &p.free, i)
        after_push(p)
        return -1
    fb_u32_store_relaxed(&p.pool.meta[i].refs, 1)       # published when the segment is handed on
    if <uint32_t>w > fb_u32_load_relaxed(&p.peak):
        note_peak(p)
    return i


cdef int32_t take_listed(LocalCore *p) noexcept nogil:
    cdef uint32_t left = 0
    cdef int32_t i = pop(p.pool, &p.free, &left)
    return taken(p, i) if i >= 0 else -1


cdef int32_t take_slowly(LocalCore *p, uint32_t extra, Look how) noexcept nogil:
    cdef fb_magazine *m = magazine_own(p)
    cdef uint32_t left = 0
    cdef int32_t i
    if m != NULL and not empty(&p.chunks):
        i = magazine_refill(p, m)
        if i >= 0:
            return taken(p, i)
    while True:
        i = pop(p.pool, &p.free, &left)
        if i >= 0:
            return taken(p, i)
        if not fetch(p, how):
            break
    i = take_global(p, extra, how)
    if i >= 0:
        fb_u32_store_relaxed(&p.pool.meta[i].refs, 1)
        note_peak(p)
    return i


cdef int put_slowly(LocalCore *p, int32_t i) noexcept nogil:
    cdef fb_magazine *m
    if fb_u32_load_relaxed(&p.waiting) != 0:             # a thread waits: do not keep the segment in a magazine
        push(p.pool, &p.free, i)
        after_push(p)
        return 1
    if magazine_put(p, fb_magazine_here(fb_u64_load_acquire(&p.magazines), p.pool.here), i):
        return 1                                        # the thread used another pool last
    m = magazine_own(p)
    if m == NULL or not magazine_put_slowly(p, m, i):
        push(p.pool, &p.free, i)
        after_push(p)
    return 1


cdef void put_many_slowly(LocalCore *p, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef fb_magazine *m
    if fb_u32_load_relaxed(&p.waiting) == 0 and n <= FB_MAGAZINE_ITEMS:
        m = magazine_own(p)
        # A magazine that is open has no room, or it would have taken them.
        if m != NULL and fb_u64_load_relaxed(&m.open) == 0 and magazine_put_many_slowly(p, m, segments, n):
            return
    push_many(p.pool, &p.free, segments, n)
    after_push(p)


cdef int recycle_shared(PoolCore *g, int32_t i) noexcept nogil:
    cdef int last = let_go(g, i)
    if last == 1:
        put_slowly(g.meta[i].owner, i)
    return last
