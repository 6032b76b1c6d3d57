# A magazine holds free segments of one pool for one thread.  How the thread uses it, and how other threads empty it.
#
# fb_magazine.h has the protocol and the pairing of atomics.  A magazine belongs to one thread and one LocalCore.  The
# pool counts its segments as held and free, like those on the pool's lists.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf._native.atomics cimport (
    fb_au32,
    fb_au64,
    fb_likely,
    fb_u32_is,
    fb_u32_load_relaxed,
    fb_u32_store_relaxed,
)
from fastbuf.memory.pool_core cimport LocalCore, PoolCore


cdef extern from "fb_magazine.h" nogil:
    const uint32_t FB_MAGAZINE_ITEMS
    const uint32_t FB_SLOTS
    ctypedef struct fb_magazine:
        fb_au32 hot
        fb_au32 busy
        fb_au64 open
        fb_au32 count
        fb_au32 cool
        fb_au64 thread
        int32_t items[42]           # FB_MAGAZINE_ITEMS
        uint32_t penalty
    ctypedef struct fb_here:
        fb_magazine *last
    fb_here *fb_here_at(int64_t distance)
    fb_magazine *fb_magazine_here(uint64_t base, int64_t distance)
    bint fb_magazine_enter(fb_magazine *m, uint64_t pool)   # False: do not use the magazine.  Call leave in both cases
    void fb_magazine_busy(fb_magazine *m)
    void fb_magazine_open(fb_magazine *m, uint64_t pool)
    void fb_magazine_leave(fb_magazine *m)
    void fb_magazine_leave_with(fb_magazine *m, uint32_t i)
    void fb_magazine_quiet(fb_magazine *m)
    bint fb_fences_find_out()
    void fb_fence_everybody()
    void fb_wait_turn(uint32_t turn)
    uint64_t fb_thread_id()


cdef enum:
    LEAST_PENALTY = 32              # after a seizure, this many segments go to the list instead
    MOST_PENALTY = 1024             # doubled by each further seizure until a chunk was moved


cdef extern from *:
    """
    #define FB_NOTHING 0xFFFFFFFFu
    """
    const uint32_t NOTHING "FB_NOTHING"         # value of `hot`


cdef enum Look:                     # how hard a request searches for free segments
    GLANCE = 0                      # on the lists only
    LOOK = 1                        # also in magazines that seem to hold segments
    SURE = 2                        # in all magazines: finds every segment put before, and shuts the magazines (R2)


# --- the owner, between enter and leave -------------------------------------------------------------------------------

# Returns -1 if the magazine is empty, shut, or another pool's.
cdef inline int32_t magazine_take(LocalCore *p, fb_magazine *m) noexcept nogil:
    cdef int32_t i
    cdef uint32_t at
    if fb_likely(fb_magazine_enter(m, <uint64_t><size_t>p)):
        i = <int32_t>fb_u32_load_relaxed(&m.hot)
        if fb_likely(i >= 0):
            fb_magazine_leave_with(m, NOTHING)
            return i
        at = fb_u32_load_relaxed(&m.count)
        if at != 0:
            fb_u32_store_relaxed(&m.count, at - 1)
            i = m.items[at - 1]
            fb_magazine_leave(m)
            return i
    fb_magazine_leave(m)
    return -1


# Returns False if the magazine is full, shut, or another pool's.  While it is open nobody else needs its segments: no
# thread waits, and the pool is alive and within its limit.  A thread that learns otherwise shuts the magazine.
cdef inline bint magazine_put(LocalCore *p, fb_magazine *m, int32_t i) noexcept nogil:
    cdef uint32_t at
    if fb_likely(fb_magazine_enter(m, <uint64_t><size_t>p)):
        if fb_likely(fb_u32_is(&m.hot, NOTHING)):
            fb_magazine_leave_with(m, <uint32_t>i)
            return True
        at = fb_u32_load_relaxed(&m.count)
        if at < FB_MAGAZINE_ITEMS:
            m.items[at] = i
            fb_u32_store_relaxed(&m.count, at + 1)
            fb_magazine_leave(m)
            return True
    fb_magazine_leave(m)
    return False


# Takes up to n at once; returns how many.
cdef inline uint32_t magazine_take_many(LocalCore *p, fb_magazine *m, uint32_t n, int32_t *segments) noexcept nogil:
    cdef uint32_t got = 0
    cdef uint32_t at, some
    if fb_likely(fb_magazine_enter(m, <uint64_t><size_t>p)):
        if n != 0 and not fb_u32_is(&m.hot, NOTHING):
            segments[0] = <int32_t>fb_u32_load_relaxed(&m.hot)
            fb_u32_store_relaxed(&m.hot, NOTHING)
            got = 1
        at = fb_u32_load_relaxed(&m.count)
        some = at if at < n - got else n - got
        memcpy(segments + got, &m.items[at - some], some * sizeof(int32_t))
        fb_u32_store_relaxed(&m.count, at - some)
        got += some
    fb_magazine_leave(m)
    return got


# Puts all n at once, or none: False if there is no room, or as in magazine_put.
cdef inline bint magazine_put_many(LocalCore *p, fb_magazine *m, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef bint put = False
    if fb_likely(fb_magazine_enter(m, <uint64_t><size_t>p)):
        put = magazine_add(m, segments, n)
    fb_magazine_leave(m)
    return put


# Call it between enter and leave.
cdef inline bint magazine_add(fb_magazine *m, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef uint32_t at = fb_u32_load_relaxed(&m.count)
    if n > FB_MAGAZINE_ITEMS - at:
        return False
    memcpy(&m.items[at], segments, n * sizeof(int32_t))
    fb_u32_store_relaxed(&m.count, at + n)
    return True


# magazine_put for a magazine that is full or shut.  A full one first moves a chunk to the pool.  One that is shut is
# opened, unless other threads need segments or did so recently.
cdef bint magazine_put_slowly(LocalCore *p, fb_magazine *m, int32_t i) noexcept nogil
# magazine_put_many for a magazine that is shut; it is opened under the same condition.
cdef bint magazine_put_many_slowly(
    LocalCore *p, fb_magazine *m, const int32_t *segments, uint32_t n
) noexcept nogil
# magazine_take for an empty magazine: it first gets a chunk from the pool.
cdef int32_t magazine_refill(LocalCore *p, fb_magazine *m) noexcept nogil
# Makes the calling thread the owner of its slot's magazine; NULL: it cannot have one.
cdef fb_magazine *magazine_own(LocalCore *p) noexcept nogil

# --- everybody else ---------------------------------------------------------------------------------------------------

# For a request that found p.free empty: moves p's free segments to p.free.  True: try p.free again.
cdef bint fetch(LocalCore *p, Look how) noexcept nogil
# Moves all segments in magazines to p.free and shuts the magazines.  Returns how many were in use then.
cdef uint32_t seize(LocalCore *p) noexcept nogil
# Call it when p holds more than its limit: no segment is put into a magazine until p is within its limit again.
cdef void shut(LocalCore *p) noexcept nogil
# Segments held and free segments, both at the same moment.
cdef void local_figures(LocalCore *p, uint32_t *held, uint32_t *home) noexcept nogil
# Counts the lists only: segments in magazines count as in use.
cdef uint32_t local_spread(LocalCore *p) noexcept nogil
# For the end of a slot's thread: moves the segments of its magazines, in all pools, to the lists.
cdef void slot_flush(uint32_t slot) noexcept nogil
# Adds a pool to those that slot_flush visits.  Remove it before its memory is freed, with all segments free.
cdef void pools_add(PoolCore *g) noexcept nogil
cdef void pools_remove(PoolCore *g) noexcept nogil
