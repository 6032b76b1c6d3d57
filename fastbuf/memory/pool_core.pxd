# Map of the pool's C cores: plain structs and nogil functions, so that the I/O thread uses them without the GIL.
#
# Who owns what: a PoolCore belongs to its NetworkBufferPool, a LocalCore to the PoolCore (its memory stays until the
# PoolCore goes and is used again for later pools, so that a stale look at a LocalCore reads wrong numbers, never freed
# memory).  C code that calls these functions keeps the Python pool alive meanwhile.
# Who does what, each with its algorithm, the pairing of its atomics and the forbidden outcomes at its head:
#     free_list.pxd       Treiber's stack, of segments or of chunks
#     magazines.pyx       what a thread keeps for itself, and how everybody else gets at it
#     pool_home.pyx       where segments come from and go to when the thread's own magazine does not do
#     pool_claims.pyx     who may hold how many: claims, surplus, limits, peak
#     pool_waking.pyx     who waits, and who wakes them
#     pool_core.pyx       requests and recycles, made of these
#     pool_fast.pxd       the two that are called most, inline
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport (
    fb_ai64,
    fb_au32,
    fb_au64,
    fb_event,
    fb_u32_load_seq_cst,
    fb_u64_load_seq_cst,
)


cdef extern from *:
    """
    #define FB_WORD_DESTROYED 0x8000000000000000ull
    #define FB_WORD_CLAIM 0x100000000ull
    """
    const uint64_t WORD_DESTROYED "FB_WORD_DESTROYED"       # LocalCore.word: local_destroy has run
    const uint64_t WORD_CLAIM "FB_WORD_CLAIM"               # LocalCore.word: one claim in flight


cdef extern from "fb_magazine.h" nogil:
    enum:
        FB_BESIDE                   # numbers beside a segment's link
        FB_CHUNK                    # segments that change hands together: 1 + 2 * FB_BESIDE

cdef enum:
    LOCAL_EMPTY = -1                # no segment now, or the deadline has passed
    LOCAL_DESTROYED = -2
    LOCAL_SIGNAL = -3               # a signal came: check signals, call again
    MOST_AT_ONCE = 64               # segments that Python's batches move by one CAS


cdef struct LocalCore               # below
cdef struct PoolCore


# One per segment, a cache line each.
cdef struct SegmentMeta:
    fb_au32 refs                    # references held by users; 0: home.  First: compared without an offset, in one step
    fb_au32 generation              # how often it has come home
    # While on a free list: depth << 32 | (next index + 1); depth counts this one and all below.
    fb_au64 link
    # The pool that counts it as held; NULL: on the global list.  Written by whoever moves it.
    LocalCore *owner
    int32_t more[10]                # FB_BESIDE: others of the chunk, while it is the first or second of one on a list


# Treiber stack of segments, or of chunks by their first: head = tag << 32 | (index + 1), 0 in the low half: empty.
cdef struct FreeList:
    fb_au64 head
    char room[56]


cdef struct LocalCore:
    # Segments that are home, and held by this pool: here, in `chunks`, or in a magazine.
    FreeList free
    # --- who holds how many, and who waits for one
    fb_au64 word                    # destroyed bit | claims in flight | segments held (out + home)
    # Segments it may hold now; moved by redistribution, under the NetworkBufferPool's lock.
    fb_au32 limit
    fb_au32 waiting                 # 1: a request failed since the last wake-up
    fb_au32 peak                    # most segments out at once
    fb_au32 gate                    # 1: somebody is at all magazines (magazines.pyx), and their owners keep out
    fb_au32 slots                   # a bit for each magazine in use
    fb_au32 listener_pins           # threads that are notifying the listener or writing to the signal
    fb_event available              # those inside local_acquire
    fb_au64 listener                # fb_event*, 0: none; set by local_set_listener only
    fb_au32 signal                  # eventfd + 1 for tasks that wait, 0: none; set by local_set_signal only
    # May be lent beyond limit; fixed, but read by wakers when p may just be changing hands.
    fb_au32 overdraft
    fb_au64 waits                   # requests that had to wait
    # --- fixed while the pool lives: all that a request in the thread's own magazine looks at
    PoolCore *pool
    int64_t here                    # the PoolCore's: to go there for it costs more than the rest of the request
    SegmentMeta *meta               # the PoolCore's
    fb_au64 magazines               # fb_magazine[FB_SLOTS]: nobody's, until a thread wants one
    LocalCore *following            # next of all the pool's LocalCores; fixed once it is in that list
    uint32_t required               # guaranteed
    uint32_t maximum                # cap of limit
    uint64_t born                   # which local_new of the pool it was: the order of redistribution
    uint32_t in_service             # 0: free for another pool; under the NetworkBufferPool's lock
    char room[4]
    # --- between magazines
    FreeList chunks                 # FB_CHUNK segments each; depth counts chunks
    fb_au64 wait_ns                 # time that requests waited, sum
    char room2[56]


cdef struct PoolCore:
    FreeList free                   # the global list
    # Free segments that no pool's unmet `required` lays claim to; may be negative for a while.
    fb_ai64 spare
    fb_au32 waiting                 # how many LocalCores have `waiting` set
    uint32_t forks                  # fork_count() when it was made: a forked child must not allocate
    char room[48]
    uint8_t *data                   # the arena; segment i begins at data + i * stride
    SegmentMeta *meta
    uint32_t count                  # segments
    uint32_t segment_size           # bytes
    size_t stride                   # bytes: segment_size, and in a debug build a guard
    int64_t here                    # from the thread pointer to what a thread knows of itself (fb_magazine.h); fixed
    uint64_t births                 # local_new calls; under the lock
    fb_au64 locals                  # LocalCore*: all of them, in use or not; grows at the front, never shrinks
    PoolCore *next_pool             # of all pools there are; under the lock of magazines.pyx
    bint left_to_readers            # debug build: what is recycled from here on is not poisoned
    # --- what makes and ends local pools, so that a thousand of them cost a thousand times one
    fb_au64 guaranteed              # `required` of the pools that live, sum
    fb_au32 abandoned               # LocalCores that nobody has any more; some may still hold segments
    LocalCore *rover                # where the search for one of them goes on, NULL: at the front; under the lock
    uint64_t looks                  # LocalCores looked at to make pools and to move limits; under the lock


# --- segments ---------------------------------------------------------------------------------------------------------
cdef uint8_t *segment_data(PoolCore *g, int32_t i) noexcept nogil
cdef uint32_t segment_refs(PoolCore *g, int32_t i) noexcept nogil
cdef uint32_t segment_generation(PoolCore *g, int32_t i) noexcept nogil
# One more reference; the caller holds one already.
cdef void segment_retain(PoolCore *g, int32_t i) noexcept nogil
# One reference less.  1: it is home now, 0: others still hold it, -1: it was not out (double recycle; nothing was
# done).
cdef int segment_recycle(PoolCore *g, int32_t i) noexcept nogil
# The same of each of n; those of one pool that stand together go home by one CAS.  Returns how many were not out.
cdef uint32_t segment_recycle_many(PoolCore *g, const int32_t *segments, uint32_t n) noexcept nogil

# --- requests: the segment's number, with one reference that the caller owns ------------------------------------------
cdef int32_t local_try_acquire(LocalCore *p) noexcept nogil                 # -1: none
# Up to `overdraft` beyond the limit; -1: none.
cdef int32_t local_try_acquire_overdraft(LocalCore *p) noexcept nogil
# Up to n at once into segments[n], as many as there are now; returns how many.  What the pool has at home comes by one
# CAS.  0 counts as a failed try for the listener.
cdef uint32_t local_try_acquire_many(LocalCore *p, uint32_t n, int32_t *segments) noexcept nogil
# Waits until CLOCK_MONOTONIC deadline_ns (negative: for ever): -1 timeout, -2 destroyed, -3 signal.
cdef int32_t local_acquire(LocalCore *p, int64_t deadline_ns) noexcept nogil
# As local_acquire, but counts neither the wait nor its time (for callers that wait in slices).
cdef int32_t local_wait(LocalCore *p, int64_t deadline_ns) noexcept nogil

# --- the listener -----------------------------------------------------------------------------------------------------
# After a local_try_acquire* on this pool has failed, `e` is notified (fb_event_notify) once as soon as a segment may be
# had again, because one came home, a limit rose, or the pool was destroyed; the next failed try arms it anew.  So:
#     key = fb_event_prepare(e); i = local_try_acquire(p); if i < 0: fb_event_wait(e, key, deadline) else:
# fb_event_cancel(e) loses nothing.  NULL takes the listener off; on return nobody touches the old event any more, so
# it may be freed.
cdef void local_set_listener(LocalCore *p, fb_event *e) noexcept nogil

# As local_try_acquire, but arms whether there is a listener or not.
cdef int32_t local_try_or_arm(LocalCore *p) noexcept nogil
# An eventfd that is written to where the listener would be notified; -1 takes it off, and on return nobody touches the
# old one any more, so it may be closed.
cdef void local_set_signal(LocalCore *p, int fd) noexcept nogil

# --- figures: exact at one moment within the call ---------------------------------------------------------------------
cdef uint32_t local_in_use(LocalCore *p) noexcept nogil


cdef inline uint32_t local_held(LocalCore *p) noexcept nogil:
    return <uint32_t>fb_u64_load_seq_cst(&p.word)


cdef inline uint32_t local_limit(LocalCore *p) noexcept nogil:
    return fb_u32_load_seq_cst(&p.limit)


cdef inline bint local_destroyed(LocalCore *p) noexcept nogil:
    return (fb_u64_load_seq_cst(&p.word) & WORD_DESTROYED) != 0
