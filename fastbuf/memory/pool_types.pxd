# What a pool's C cores are made of.  The modules that work on them, each of which uses only those above it:
#     free_list.pxd     Treiber's stack of segments, inline
#     pool_setup.pyx    making and ending cores
#     pool_waking.pyx   waiting and wake-ups
#     pool_claims.pyx   how many segments a pool may hold: claims, surplus, limits, peak
#     pool_core.pyx     requests and recycles; its .pxd is what other packages use
# Each starts with its algorithm, the pairing of its atomics and the forbidden outcomes.
#
# Ownership: a NetworkBufferPool owns its PoolCore, and a PoolCore owns its LocalCores.  The memory of a LocalCore is
# freed only with the PoolCore; until then later pools use it again.  So a stale pointer to a LocalCore reads wrong
# numbers, never freed memory.  C code that calls these functions keeps the Python pool alive.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_ai64, fb_au32, fb_au64, fb_event


cdef extern from *:
    """
    #define FB_WORD_DESTROYED 0x8000000000000000ull
    #define FB_WORD_CLAIM 0x100000000ull
    """
    const uint64_t WORD_DESTROYED "FB_WORD_DESTROYED"       # LocalCore.word: local_destroy has run
    const uint64_t WORD_CLAIM "FB_WORD_CLAIM"               # LocalCore.word: one claim in flight


cdef struct LocalCore               # below
cdef struct PoolCore


# One per segment, each in its own cache line.
cdef struct SegmentMeta:
    fb_au32 refs                    # references held by users; 0: free
    fb_au32 generation              # how often it was freed
    # While on a free list: depth << 32 | (next index + 1); depth counts this one and all below.
    fb_au64 link
    # The pool that counts it as held; NULL: on the global list.  Written by the thread that moves the segment.
    LocalCore *owner
    char room[40]


# Treiber stack of segments: head = tag << 32 | (index + 1); low half 0: empty.
cdef struct FreeList:
    fb_au64 head
    char room[56]


cdef struct LocalCore:
    FreeList free                   # segments held by this pool that nobody uses
    # --- limits and waiting
    fb_au64 word                    # destroyed bit | claims in flight | segments held (in use + free)
    # Segments that the pool may hold now; changed by redistribution, under the NetworkBufferPool's lock.
    fb_au32 limit
    fb_au32 waiting                 # 1: a request failed since the last wake-up
    fb_au32 peak                    # most segments in use at once
    fb_au32 listener_pins           # threads that are now notifying the listener or writing to the signal
    fb_event available              # threads in local_acquire sleep on it
    fb_au64 listener                # fb_event*; 0: none.  Set by local_set_listener only
    fb_au32 signal                  # eventfd + 1 for waiting tasks; 0: none.  Set by local_set_signal only
    # Segments that may be lent beyond the limit.  Constant, but a waker may read it while this memory gets a new pool.
    fb_au32 overdraft
    fb_au64 waits                   # requests that had to wait
    fb_au64 wait_ns                 # total time that requests waited
    # --- constant while the pool lives
    PoolCore *pool
    LocalCore *following            # next in the list of all the pool's LocalCores; constant once it is in the list
    uint32_t required               # guaranteed
    uint32_t maximum                # upper bound of limit
    uint64_t born                   # serial number of the local_new call; redistribution goes in this order
    uint32_t in_service             # 0: free for another pool; guarded by the NetworkBufferPool's lock
    char room[28]


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
    uint64_t births                 # number of local_new calls; guarded by the lock
    # LocalCore*: list of all, in use or not; new ones are added at the front, none is removed
    fb_au64 locals
    Py_ssize_t *exports             # the arena's count of buffers that are exported; guarded by the GIL
    bint is_private                 # of this process alone: a forked child has no copy
    bint left_to_readers            # debug build: segments recycled from now on are not poisoned
    # --- making and ending local pools in constant time
    fb_au64 guaranteed              # sum of `required` of the live pools
    fb_au32 abandoned               # LocalCores whose Python object is gone; some may still hold segments
    # where the search for one of them continues; NULL: at the front.  Guarded by the lock
    LocalCore *rover
    uint64_t looks                  # LocalCores visited to make pools and to set limits; guarded by the lock
