"""Functions for tests only: a gate's segments by themselves."""

from libc.stdint cimport int32_t, uint32_t

from fastbuf.flow.buffer_manager cimport *
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool


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
