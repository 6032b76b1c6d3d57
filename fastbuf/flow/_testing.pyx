"""Functions for tests only: loops over a ledger's operations without the GIL, and a gate's segments by themselves."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from fastbuf._native.atomics cimport fb_cpu_relax, fb_i64_load_acquire, fb_now_ns
from fastbuf.flow.buffer_manager cimport *
from fastbuf.flow.credit_ledger cimport CreditLedger
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef int64_t LONG_ENOUGH_NS = 3 * <int64_t> 1_000_000_000      # a busy machine may do fewer operations


def announce_loop(CreditLedger ledger, int channel, int64_t wanted, int64_t total):
    """The receiver: keeps `wanted` credits available until `total` were announced or three seconds have passed.

    Returns how many were announced.
    """
    cdef int64_t done = fb_i64_load_acquire(&ledger.row(channel).announced)
    cdef int64_t deadline = fb_now_ns() + LONG_ENOUGH_NS
    cdef int64_t missing
    with nogil:
        while done < total and fb_now_ns() < deadline:
            missing = min(wanted - fb_i64_load_acquire(&ledger.rows[channel].available), total - done)
            if missing > 0:
                done += ledger.grant(&ledger.rows[channel], missing)
            else:
                sched_yield()
    return done


def take_loop(CreditLedger ledger, int channel, int64_t total):
    """A sender: takes credits until the channel's senders have taken `total`, or three seconds have passed.

    Returns how many this sender took.
    """
    cdef int64_t mine = 0
    cdef int64_t deadline = fb_now_ns() + LONG_ENOUGH_NS
    ledger.row(channel)
    with nogil:
        while fb_i64_load_acquire(&ledger.rows[channel].used) < total and fb_now_ns() < deadline:
            if ledger.use(&ledger.rows[channel]):
                mine += 1
            else:
                fb_cpu_relax()
                sched_yield()
    return mine


def block_all_used(NetworkBufferPool pool not None, LocalBufferPool local not None, int32_t segments):
    """Blocks a channel whose sender used all segments before it was told of any, as one may that needs no credit.

    Returns the ready segments of the channel and of the gate after that.
    """
    cdef GateBuffers g
    cdef ChannelBuffers c
    cdef int32_t s, ready
    taken = []
    if bm_init(&g, pool.core, local.core, segments, 1, segments, NULL, 0) < 0:
        raise MemoryError
    bm_open(&g, &c, NULL)
    bm_take_back(&g, &c, 0, <uint32_t> segments)    # it has so many buffers that wait
    s = bm_take(&g, &c, 0)
    while s >= 0:
        taken.append(s)
        s = bm_take(&g, &c, 0)
    bm_block(&g, &c)
    ready = bm_count_ready(&g)
    counts = c.ready_count, ready
    for s in taken:
        bm_release(&g, &c, s)
    bm_close(&g, &c)
    bm_free(&g)
    return counts
