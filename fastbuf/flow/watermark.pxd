# Flow control before credit: how many bytes may wait to be sent, by two marks.
#
# Owner: whoever sends on the connection.  Source: Netty's WriteBufferWaterMark as Flink set it before 1.5
# (high 2 x segment size, low segment size + 1).
from libc.stdint cimport int64_t


cdef struct Watermark:
    int64_t high            # bytes: from here on not writable ...
    int64_t low             # ... until no more than so many are queued
    int64_t queued
    bint writable


cdef inline void watermark_init(Watermark *w, int64_t segment_size) noexcept nogil:
    w.high = 2 * segment_size
    w.low = segment_size + 1
    w.queued = 0
    w.writable = True


cdef inline void watermark_add(Watermark *w, int64_t n) noexcept nogil:
    w.queued += n
    if w.queued >= w.high:
        w.writable = False


cdef inline void watermark_remove(Watermark *w, int64_t n) noexcept nogil:
    w.queued -= n
    if w.queued <= w.low:
        w.writable = True
