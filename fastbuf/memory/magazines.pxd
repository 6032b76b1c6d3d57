# What a thread keeps of a pool's free segments, for itself: how it takes and puts, and how everybody else gets at it.
#
# The protocol, and what pairs with what: fb_magazine.h.  A magazine belongs to one thread and one LocalCore; the pool
# counts what lies in it as held and home, like what is on its lists.
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
    bint fb_magazine_enter(fb_magazine *m, uint64_t pool)   # False: keep out; leave in either case
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
    LEAST_PENALTY = 32              # puts that go to the list after a seizure,
    MOST_PENALTY = 1024             # doubled by each that follows before a chunk has come or gone


cdef extern from *:
    """
    #define FB_NOTHING 0xFFFFFFFFu
    """
    const uint32_t NOTHING "FB_NOTHING"         # in hot


cdef enum Look:                     # how a request looks for what is home
    GLANCE = 0                      # at the lists: magazines are left alone
    LOOK = 1                        # into magazines that seem to hold something
    SURE = 2                        # into all of them: finds whatever was put before, and shuts them (R2)


# --- the owner, between enter and leave -------------------------------------------------------------------------------

# -1: nothing here, another pool's, or shut.
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


# False: full, another pool's, or shut.  What is put into an open one is not wanted elsewhere: nobody waits, and the
# pool lives and is within its limit, or whoever knows better has not come to shut it yet.
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


# Up to n at once; returns how many.
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


# All n at once, or none: False if they have no room, or as magazine_put.
cdef inline bint magazine_put_many(LocalCore *p, fb_magazine *m, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef bint put = False
    if fb_likely(fb_magazine_enter(m, <uint64_t><size_t>p)):
        put = magazine_add(m, segments, n)
    fb_magazine_leave(m)
    return put


# Between enter and leave.
cdef inline bint magazine_add(fb_magazine *m, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef uint32_t at = fb_u32_load_relaxed(&m.count)
    if n > FB_MAGAZINE_ITEMS - at:
        return False
    memcpy(&m.items[at], segments, n * sizeof(int32_t))
    fb_u32_store_relaxed(&m.count, at + n)
    return True


# As magazine_put, for a full one: a chunk of it goes to the pool first; and for one that is shut: it opens, unless
# segments are wanted elsewhere, or were not long ago.
cdef bint magazine_put_slowly(LocalCore *p, fb_magazine *m, int32_t i) noexcept nogil
# As magazine_put_many, for one that is shut: it opens, unless segments are wanted elsewhere, or were not long ago.
cdef bint magazine_put_many_slowly(
    LocalCore *p, fb_magazine *m, const int32_t *segments, uint32_t n
) noexcept nogil
# As magazine_take, for an empty one: a chunk of the pool's comes first.
cdef int32_t magazine_refill(LocalCore *p, fb_magazine *m) noexcept nogil
# The calling thread becomes the owner of the magazine of its slot; NULL: it can have none.
cdef fb_magazine *magazine_own(LocalCore *p) noexcept nogil

# --- everybody else ---------------------------------------------------------------------------------------------------

# Called where p.free was empty: brings what is home in p to that list.  True: look there again.
cdef bint fetch(LocalCore *p, Look how) noexcept nogil
# All that magazines hold goes to p.free, and they are shut.  Returns how many were out then.
cdef uint32_t seize(LocalCore *p) noexcept nogil
# To be called when p holds more than its limit: from here on nothing is put into a magazine until that has changed.
cdef void shut(LocalCore *p) noexcept nogil
# Segments held, and how many of them are home, of one moment.
cdef void local_figures(LocalCore *p, uint32_t *held, uint32_t *home) noexcept nogil
# The lists alone: what is in magazines counts as out.
cdef uint32_t local_spread(LocalCore *p) noexcept nogil
# When the thread of that slot ends: what it kept, in all pools, goes to the lists.
cdef void slot_flush(uint32_t slot) noexcept nogil
# Pools whose magazines slot_flush looks at; to be taken off before the memory goes, with all segments home.
cdef void pools_add(PoolCore *g) noexcept nogil
cdef void pools_remove(PoolCore *g) noexcept nogil
