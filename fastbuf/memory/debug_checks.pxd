# Checks of the debug build only (FASTBUF_DEBUG=1): poison in free segments, and a guard after each segment.
#
# recycle fills a segment with POISON.  A late read then sees nonsense.  A late write is found by the next request from
# Python and by the audit.  After each segment come GUARD bytes of the value GUARDED, which no code may write.  They are
# checked when Python recycles the segment, and by the audit.
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcmp, memset

from fastbuf._native.atomics cimport fb_u32_load_relaxed
from fastbuf.memory.pool_types cimport PoolCore


cdef extern from *:
    """
    #ifdef FASTBUF_DEBUG
    #define FB_POOL_DEBUG 1
    #define FB_GUARD 64
    #else
    #define FB_POOL_DEBUG 0
    #define FB_GUARD 0
    #endif
    #define FB_POISON 0xDB
    #define FB_GUARDED 0xFC
    """
    const bint POOL_DEBUG "FB_POOL_DEBUG"
    const int GUARD "FB_GUARD"                      # bytes after each segment
    const uint8_t POISON "FB_POISON"
    const uint8_t GUARDED "FB_GUARDED"


# Whether all `length` >= 1 bytes have that value.
cdef inline bint all_are(const uint8_t *data, size_t length, uint8_t value) noexcept nogil:
    return data[0] == value and memcmp(data, data + 1, length - 1) == 0


cdef inline void fill(uint8_t *data, uint8_t value, size_t length) noexcept nogil:
    memset(data, value, length)


cdef inline uint8_t *debug_data(PoolCore *g, int32_t i) noexcept nogil:
    return g.data + <size_t>i * g.stride


cdef inline void debug_poison(PoolCore *g, int32_t i) noexcept nogil:
    if not g.left_to_readers:
        fill(debug_data(g, i), POISON, g.segment_size)


# Only for a free segment.  A segment that was never recycled still has the arena's initial bytes.
cdef inline bint debug_poison_intact(PoolCore *g, int32_t i) noexcept nogil:
    return (
        g.left_to_readers
        or fb_u32_load_relaxed(&g.meta[i].generation) == 0
        or all_are(debug_data(g, i), g.segment_size, POISON)
    )


cdef inline void debug_set_guard(PoolCore *g, int32_t i) noexcept nogil:
    fill(debug_data(g, i) + g.segment_size, GUARDED, GUARD)


cdef inline bint debug_guard_intact(PoolCore *g, int32_t i) noexcept nogil:
    return all_are(debug_data(g, i) + g.segment_size, GUARD, GUARDED)
