# The free list's operations, inline.
#
# There is one global free list (FreeList) and one per local pool.  All use SegmentMeta.link, so a segment is on at most
# one list.  Each is Treiber's stack (R. K. Treiber, "Systems Programming: Coping with Parallelism", IBM RJ 5118, 1986)
# with a tag of 32 bits beside the index against ABA (IBM System/370 Principles of Operation, appendix A).  Each node
# also stores its depth.  Nodes below a node cannot change while that node is on the list, so the depth of the top node
# is the length of the list, and no counter is needed.
#
#     atomic                            pairs with
#     head CAS in push                  head load in pop: the popper sees the node's link, and all that the last user
#                                       wrote
#     link relaxed in pop and push      nothing: a stale link is thrown away since the tag has moved and the CAS on head
#                                       fails
#     link acquire in depth_at          link release in push: whoever reads the link of a node's next stay on a list
#                                       sees in its second look at head that the node was popped in between
#
# Forbidden: a segment on two lists; a segment both on a list and in use; a segment that is neither.
#
# Several segments are popped or pushed by one CAS too.  Nodes below the head cannot change while the head (tag and
# index) stays the same, so if the CAS on the head succeeds, the chain that was walked is the list's.  If the CAS fails,
# everything read is discarded.  A stale link is still 0 or the number of a segment, so the walk never leaves `meta`.
from libc.stdint cimport int32_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf.memory.pool_types cimport FreeList, PoolCore, SegmentMeta


cdef inline bint empty(FreeList *stack) noexcept nogil:
    return <uint32_t>fb_u64_load_seq_cst(&stack.head) == 0


# The length at some moment during the call.
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


# The length of the list when its head was h, if its head is still h afterwards.
cdef inline uint32_t depth_at(PoolCore *g, uint64_t h) noexcept nogil:
    return 0 if <uint32_t>h == 0 else <uint32_t>(fb_u64_load_acquire(&g.meta[<uint32_t>h - 1].link) >> 32)


cdef inline void push(PoolCore *g, FreeList *stack, int32_t i) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t depth
    while True:
        # This depth can be stale only if the head has changed meanwhile, and then the CAS fails.
        depth = 0 if <uint32_t>h == 0 else fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link) >> 32
        fb_u64_store_release(&g.meta[i].link, (depth + 1) << 32 | <uint32_t>h)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | <uint64_t>(i + 1)):
            return


# segments[0] becomes the top.  n >= 1, and all segments differ.
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
            fb_u64_store_release(&meta[i].link, depth << 32 | below)
            below = <uint64_t>(i + 1)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | below):
            return


# Returns -1 if the list is empty.
cdef inline int32_t pop(PoolCore *g, FreeList *stack) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t link
    while <uint32_t>h != 0:
        link = fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | <uint32_t>link):
            return <int32_t>(<uint32_t>h - 1)
    return -1


# Pops up to n segments, the top first, and returns how many.
cdef inline uint32_t pop_many(PoolCore *g, FreeList *stack, uint32_t n, int32_t *segments) noexcept nogil:
    cdef SegmentMeta *meta = g.meta
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint32_t at, got
    while <uint32_t>h != 0 and n != 0:
        at = <uint32_t>h
        got = 0
        while at != 0 and got < n:
            segments[got] = <int32_t>(at - 1)
            got += 1
            at = <uint32_t>fb_u64_load_relaxed(&meta[at - 1].link)
        if fb_u64_cas_seq_cst(&stack.head, &h, ((h >> 32) + 1) << 32 | at):
            return got
    return 0
