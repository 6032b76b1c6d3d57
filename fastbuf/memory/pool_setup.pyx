"""Making and ending the pool's C cores, and their memory."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from fastbuf._native.atomics cimport *
from fastbuf.memory.debug_checks cimport POOL_DEBUG, debug_set_guard
from fastbuf.memory.pool_types cimport WORD_DESTROYED, LocalCore, PoolCore, SegmentMeta


cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)


cdef extern from "fb_fork.h" nogil:
    int fb_fork_watch()
    uint32_t fb_fork_count()


if fb_fork_watch() != 0:
    raise MemoryError("pthread_atfork refused the handler that keeps forked children from allocating")


cdef uint32_t fork_count() noexcept nogil:
    return fb_fork_count()


cdef PoolCore *pool_new(uint8_t *data, uint32_t count, uint32_t segment_size, size_t stride) noexcept nogil:
    cdef PoolCore *g = <PoolCore *>aligned_alloc(64, (sizeof(PoolCore) + 63) // 64 * 64)
    cdef uint32_t i
    if g == NULL:
        return NULL
    memset(g, 0, sizeof(PoolCore))
    g.meta = <SegmentMeta *>aligned_alloc(64, <size_t>count * sizeof(SegmentMeta))
    if g.meta == NULL:
        free(g)
        return NULL
    memset(g.meta, 0, <size_t>count * sizeof(SegmentMeta))
    g.data = data
    g.count = count
    g.segment_size = segment_size
    g.stride = stride
    g.forks = fb_fork_count()
    for i in range(count):                              # so that segment 0 is on top
        fb_u64_init(&g.meta[i].link, <uint64_t>(count - i) << 32 | (<uint64_t>(i + 2) if i + 1 < count else 0))
    if POOL_DEBUG:
        for i in range(count):
            debug_set_guard(g, i)
    fb_u64_init(&g.free.head, 1)
    fb_i64_init(&g.spare, count)
    return g


cdef void pool_free(PoolCore *g) noexcept nogil:
    cdef LocalCore *p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    cdef LocalCore *following
    while p != NULL:
        following = p.following
        free(p)
        p = following
    free(g.meta)
    free(g)


cdef bint is_free(LocalCore *p) noexcept nogil:
    return p.in_service == 0 and fb_u64_load_seq_cst(&p.word) == WORD_DESTROYED


# Returns a LocalCore that may be used again, or NULL.  The search continues where the last one ended: if many pools are
# replaced, each search does not walk past all the earlier ones.
cdef LocalCore *find_abandoned(PoolCore *g) noexcept nogil:
    cdef LocalCore *p = g.rover
    cdef LocalCore *end = g.rover
    if fb_u32_load_seq_cst(&g.abandoned) == 0:
        return NULL
    while p != NULL and not is_free(p):
        g.looks += 1
        p = p.following
    if p == NULL:
        p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
        while p != end and not is_free(p):
            g.looks += 1
            p = p.following
        if p == end:
            return NULL
    g.rover = p.following
    fb_u32_sub_seq_cst(&g.abandoned, 1)
    return p


cdef LocalCore *local_new(PoolCore *g, uint32_t required, uint32_t maximum, uint32_t overdraft) noexcept nogil:
    cdef LocalCore *p = find_abandoned(g)
    if p == NULL:
        p = <LocalCore *>aligned_alloc(64, (sizeof(LocalCore) + 63) // 64 * 64)
        if p == NULL:
            return NULL
        memset(p, 0, sizeof(LocalCore))
        fb_event_init(&p.available)
        fb_u64_init(&p.word, WORD_DESTROYED)
        p.pool = g
        p.following = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
        fb_u64_store_release(&g.locals, <uint64_t><size_t>p)
    # Used again or new, it looks destroyed, empty and without limit to other threads until the word is stored.  Tags
    # and epochs keep counting, since a thread may still compare with old ones.
    g.births += 1
    p.born = g.births
    p.required = required
    p.maximum = maximum
    fb_u32_store_relaxed(&p.overdraft, overdraft)
    fb_u32_store_relaxed(&p.peak, 0)
    fb_u64_store_relaxed(&p.waits, 0)
    fb_u64_store_relaxed(&p.wait_ns, 0)
    p.in_service = 1
    fb_u64_add_seq_cst(&g.guaranteed, required)
    fb_i64_sub_seq_cst(&g.spare, required)
    fb_u32_add_seq_cst(&p.limit, required - fb_u32_load_relaxed(&p.limit))
    fb_u64_store_release(&p.word, 0)
    return p


cdef void local_abandon(LocalCore *p) noexcept nogil:
    p.in_service = 0
    fb_u32_add_seq_cst(&p.pool.abandoned, 1)
