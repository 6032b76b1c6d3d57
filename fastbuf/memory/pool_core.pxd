# Segments, requests and recycles: nogil functions, so that the I/O thread uses them without the GIL.
# pool_types.pxd has the structs, who owns them, and the modules behind this one.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from fastbuf._native.atomics cimport fb_u32_load_seq_cst, fb_u64_load_seq_cst
from fastbuf.memory.pool_types cimport WORD_DESTROYED, LocalCore, PoolCore


cdef enum:
    LOCAL_EMPTY = -1                # no free segment now, or the deadline has passed
    LOCAL_DESTROYED = -2
    LOCAL_SIGNAL = -3               # a signal came: handle it and call again
    MOST_AT_ONCE = 64               # segments that a batch from Python moves by one CAS


# --- segments ---------------------------------------------------------------------------------------------------------
cdef uint8_t *segment_data(PoolCore *g, int32_t i) noexcept nogil
cdef uint32_t segment_refs(PoolCore *g, int32_t i) noexcept nogil
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
# As local_try_acquire, but arms the pool even without a listener.
cdef int32_t local_try_or_arm(LocalCore *p) noexcept nogil

# --- figures: exact at some moment during the call --------------------------------------------------------------------
cdef uint32_t local_in_use(LocalCore *p) noexcept nogil


cdef inline uint32_t local_limit(LocalCore *p) noexcept nogil:
    return fb_u32_load_seq_cst(&p.limit)


cdef inline bint local_destroyed(LocalCore *p) noexcept nogil:
    return (fb_u64_load_seq_cst(&p.word) & WORD_DESTROYED) != 0
