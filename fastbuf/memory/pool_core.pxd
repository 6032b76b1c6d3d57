# Map of the pool's C cores: plain structs and nogil functions, so that the I/O thread uses them without the GIL.
#
# Ownership: a NetworkBufferPool owns its PoolCore, and a PoolCore owns its LocalCores.  The memory of a LocalCore is
# freed only with the PoolCore; until then later pools use it again.  So a stale pointer to a LocalCore reads wrong
# numbers, never freed memory.  C code that calls these functions keeps the Python pool alive.
# The modules; each starts with its algorithm, the pairing of its atomics and the forbidden outcomes:
#     free_list.pxd     Treiber's stack of segments or of chunks
#     magazines.pyx     free segments that a thread keeps, and how other threads get them
#     pool_home.pyx     requests and recycles that the thread's own magazine cannot serve
#     pool_claims.pyx   how many segments a pool may hold: claims, surplus, limits, peak
#     pool_waking.pyx   waiting and wake-ups
#     pool_core.pyx     requests and recycles, made from the parts above
#     pool_fast.pxd     the two functions that are called most, inline
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
        FB_BESIDE                   # segment numbers stored beside a segment's link
        FB_CHUNK                    # segments that move together: 1 + 2 * FB_BESIDE

cdef enum:
    LOCAL_EMPTY = -1                # no free segment now, or the deadline has passed
    LOCAL_DESTROYED = -2
    LOCAL_SIGNAL = -3               # a signal came: handle it and call again
    MOST_AT_ONCE = 64               # segments that a batch from Python moves by one CAS


cdef struct LocalCore               # below
cdef struct PoolCore


# One per segment, each in its own cache line.
cdef struct SegmentMeta:
    # references held by users; 0: free.  First field, so that comparing it needs no offset
    fb_au32 refs
    fb_au32 generation              # how often it was freed
    # While on a free list: depth << 32 | (next index + 1); depth counts this one and all below.
    fb_au64 link
    # The pool that counts it as held; NULL: on the global list.  Written by the thread that moves the segment.
    LocalCore *owner
    # FB_BESIDE: other segments of the chunk, if this is the chunk's first or second on a list
    int32_t more[10]


# Treiber stack of segments, or of chunks by their first segment: head = tag << 32 | (index + 1); low half 0: empty.
cdef struct FreeList:
    fb_au64 head
    char room[56]


cdef struct LocalCore:
    # Free segments held by this pool are here, in `chunks`, or in a magazine.
    FreeList free
    # --- limits and waiting
    fb_au64 word                    # destroyed bit | claims in flight | segments held (in use + free)
    # Segments that the pool may hold now; changed by redistribution, under the NetworkBufferPool's lock.
    fb_au32 limit
    fb_au32 waiting                 # 1: a request failed since the last wake-up
    fb_au32 peak                    # most segments in use at once
    # 1: a thread is emptying all magazines (magazines.pyx), and their owners must not use them
    fb_au32 gate
    fb_au32 slots                   # one bit for each magazine in use
    fb_au32 listener_pins           # threads that are now notifying the listener or writing to the signal
    fb_event available              # threads in local_acquire sleep on it
    fb_au64 listener                # fb_event*; 0: none.  Set by local_set_listener only
    fb_au32 signal                  # eventfd + 1 for waiting tasks; 0: none.  Set by local_set_signal only
    # Segments that may be lent beyond the limit.  Constant, but a waker may read it while this memory gets a new pool.
    fb_au32 overdraft
    fb_au64 waits                   # requests that had to wait
    # --- constant while the pool lives: all that a request served by the thread's own magazine reads
    PoolCore *pool
    # copy of the PoolCore's: reading it there would cost more than the rest of the request
    int64_t here
    SegmentMeta *meta               # the PoolCore's
    fb_au64 magazines               # fb_magazine[FB_SLOTS]; a shared empty array until a thread needs a magazine
    LocalCore *following            # next in the list of all the pool's LocalCores; constant once it is in the list
    uint32_t required               # guaranteed
    uint32_t maximum                # upper bound of limit
    uint64_t born                   # serial number of the local_new call; redistribution goes in this order
    uint32_t in_service             # 0: free for another pool; guarded by the NetworkBufferPool's lock
    char room[4]
    # --- chunks that move between magazines
    FreeList chunks                 # chunks of FB_CHUNK segments; depth counts chunks
    fb_au64 wait_ns                 # total time that requests waited
    char room2[56]


cdef struct PoolCore:
    FreeList free                   # the global list
    # Free segments minus those that pools still need to reach `required`; may be negative for a short time.
    fb_ai64 spare
    fb_au32 waiting                 # how many LocalCores have `waiting` set
    uint32_t forks                  # fork_count() when it was made: a forked child must not allocate
    char room[48]
    uint8_t *data                   # the arena; segment i begins at data + i * stride
    SegmentMeta *meta
    uint32_t count                  # segments
    uint32_t segment_size           # bytes
    size_t stride                   # bytes: segment_size, and in a debug build a guard
    # offset from the thread pointer to the thread's own record (fb_magazine.h); constant
    int64_t here
    uint64_t births                 # number of local_new calls; guarded by the lock
    # LocalCore*: list of all, in use or not; new ones are added at the front, none is removed
    fb_au64 locals
    PoolCore *next_pool             # list of all pools; guarded by the lock of magazines.pyx
    bint left_to_readers            # debug build: segments recycled from now on are not poisoned
    # --- making and ending local pools in constant time
    fb_au64 guaranteed              # sum of `required` of the live pools
    fb_au32 abandoned               # LocalCores whose Python object is gone; some may still hold segments
    # where the search for one of them continues; NULL: at the front.  Guarded by the lock
    LocalCore *rover
    uint64_t looks                  # LocalCores visited to make pools and to set limits; guarded by the lock


# --- segments ---------------------------------------------------------------------------------------------------------
cdef uint8_t *segment_data(PoolCore *g, int32_t i) noexcept nogil
cdef uint32_t segment_refs(PoolCore *g, int32_t i) noexcept nogil
cdef uint32_t segment_generation(PoolCore *g, int32_t i) noexcept nogil
# Adds a reference; the caller has one already.
cdef void segment_retain(PoolCore *g, int32_t i) noexcept nogil
# Drops a reference.  Returns 1: the segment is free now, 0: others still hold it, -1: it was not in use (double
# recycle; nothing was done).
cdef int segment_recycle(PoolCore *g, int32_t i) noexcept nogil
# The same for n segments; neighbours of the same pool are freed by one CAS.  Returns how many were not in use.
cdef uint32_t segment_recycle_many(PoolCore *g, const int32_t *segments, uint32_t n) noexcept nogil

# --- requests: the segment's number, with one reference that the caller owns ------------------------------------------
cdef int32_t local_try_acquire(LocalCore *p) noexcept nogil                 # -1: none
# May go up to `overdraft` beyond the limit; -1: none.
cdef int32_t local_try_acquire_overdraft(LocalCore *p) noexcept nogil
# Takes up to n segments, as many as are free now, and returns how many.  Those in the pool come by one CAS.  Returning
# 0 counts as a failed try for the listener.
cdef uint32_t local_try_acquire_many(LocalCore *p, uint32_t n, int32_t *segments) noexcept nogil
# Waits until CLOCK_MONOTONIC deadline_ns (negative: without limit).  Returns -1 timeout, -2 destroyed, -3 signal.
cdef int32_t local_acquire(LocalCore *p, int64_t deadline_ns) noexcept nogil
# As local_acquire, but counts neither the wait nor its time: for callers that wait in slices.
cdef int32_t local_wait(LocalCore *p, int64_t deadline_ns) noexcept nogil

# --- the listener -----------------------------------------------------------------------------------------------------
# After local_try_acquire* on this pool has failed, `e` is notified (fb_event_notify) once when a segment may be free:
# one was recycled, a limit rose, or the pool was destroyed.  The next failed try arms it again.  So:
#     key = fb_event_prepare(e); i = local_try_acquire(p); if i < 0: fb_event_wait(e, key, deadline)
# loses nothing.  NULL removes the listener.  After the call returns no thread uses the old event, so it may be freed.
cdef void local_set_listener(LocalCore *p, fb_event *e) noexcept nogil

# As local_try_acquire, but arms the pool even without a listener.
cdef int32_t local_try_or_arm(LocalCore *p) noexcept nogil
# Sets an eventfd that is written whenever the listener would be notified; -1 removes it.  After the call returns no
# thread uses the old eventfd, so it may be closed.
cdef void local_set_signal(LocalCore *p, int fd) noexcept nogil

# --- figures: exact at some moment during the call --------------------------------------------------------------------
cdef uint32_t local_in_use(LocalCore *p) noexcept nogil


cdef inline uint32_t local_held(LocalCore *p) noexcept nogil:
    return <uint32_t>fb_u64_load_seq_cst(&p.word)


cdef inline uint32_t local_limit(LocalCore *p) noexcept nogil:
    return fb_u32_load_seq_cst(&p.limit)


cdef inline bint local_destroyed(LocalCore *p) noexcept nogil:
    return (fb_u64_load_seq_cst(&p.word) & WORD_DESTROYED) != 0
