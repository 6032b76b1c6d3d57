# The free list's operations, inline.
#
# Free lists (FreeList) are the global one and two per local pool, all threaded through SegmentMeta.link, so that a
# segment is on one list at most.  Treiber's stack (R. K. Treiber, "Systems Programming: Coping with Parallelism", IBM
# RJ 5118, 1986) with a tag of 32 bits beside the index against ABA (IBM System/370 Principles of Operation, appendix
# A).  Each node also keeps its depth.  What lies below a node cannot change while the node is on the list, so the top's
# depth is the list's length: the number free costs no counter.
#
#     atomic            pairs with
#     head CAS in push  head load in pop: the popper sees the node's link, and all that the last user wrote
#     link relaxed      nothing: a stale link is thrown away since the tag has moved and the CAS on head fails
#
# Forbidden: one segment on two lists, or on a list and out; a segment on none and not out.
#
# Taking or putting back several is one CAS too: what lies below the head cannot change while head (tag and index)
# stands, so the chain that was walked is the list's if the CAS on head succeeds.  If it fails, all that was read is
# thrown away; a stale link is still the number of a segment, or 0, so that a walk over stale links stays inside `meta`.
from libc.stdint cimport int32_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport (
    fb_u64_cas_seq_cst,
    fb_u64_load_relaxed,
    fb_u64_load_seq_cst,
    fb_u64_store_relaxed,
)
from fastbuf.memory.pool_core cimport FreeList, PoolCore, SegmentMeta


cdef inline bint empty(FreeList *stack) noexcept nogil:
    return <uint32_t>fb_u64_load_seq_cst(&stack.head) == 0


# Exact at a moment within the call.
cdef inline uint32_t list_depth(PoolCore *g, FreeList *stack) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t again
    cdef uint32_t depth
    while True:
        depth = depth_at(g, h)
        again = fb_u64_load_seq_cst(&stack.head)
        if again == h:
            return depth
        h = again


# What the list's length was when its head was h, if it still is.
cdef inline uint32_t depth_at(PoolCore *g, uint64_t h) noexcept nogil:
    return 0 if <uint32_t>h == 0 else <uint32_t>(fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link) >> 32)


cdef inline void push(PoolCore *g, FreeList *stack, int32_t i) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t depth
    while True:
        # The depth read here may be stale only if the head has moved meanwhile, and then the CAS fails.
        depth = 0 if <uint32_t>h == 0 else fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link) >> 32
        fb_u64_store_relaxed(&g.meta[i].link, (depth + 1) << 32 | <uint32_t>h)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | <uint64_t>(i + 1)):
            return


# segments[0] comes to lie on top; n >= 1, and no two are the same.
cdef inline void push_many(PoolCore *g, FreeList *stack, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef SegmentMeta *meta = g.meta
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t depth, below
    cdef uint32_t k
    cdef int32_t i
    while True:
        depth = 0 if <uint32_t>h == 0 else fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link) >> 32
        below = <uint32_t>h
        for k in range(n, 0, -1):
            depth += 1
            i = segments[k - 1]
            fb_u64_store_relaxed(&meta[i].link, depth << 32 | below)
            below = <uint64_t>(i + 1)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | below):
            return


# -1: empty.  left: how many remain on the list.
cdef inline int32_t pop(PoolCore *g, FreeList *stack, uint32_t *left) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t link
    while <uint32_t>h != 0:
        link = fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | <uint32_t>link):
            left[0] = <uint32_t>(link >> 32) - 1
            return <int32_t>(<uint32_t>h - 1)
    return -1


# Up to n into segments[n], the top first; returns how many.  left: how many remain on the list (unless none came).
cdef inline uint32_t pop_many(
    PoolCore *g, FreeList *stack, uint32_t n, int32_t *segments, uint32_t *left
) noexcept nogil:
    cdef SegmentMeta *meta = g.meta
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t link = 0
    cdef uint32_t at, got
    while <uint32_t>h != 0 and n != 0:
        at = <uint32_t>h
        got = 0
        while at != 0 and got < n:
            segments[got] = <int32_t>(at - 1)
            got += 1
            link = fb_u64_load_relaxed(&meta[at - 1].link)
            at = <uint32_t>link
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | at):
            left[0] = <uint32_t>(link >> 32) - 1
            return got
    return 0
