from libc.stdint cimport int32_t, uint32_t

from fastbuf.memory.pool_core cimport PoolCore


cdef class MemorySegment:
    cdef PoolCore *core
    cdef object home                # keeps core alive: the LocalBufferPool or NetworkBufferPool
    cdef int32_t number
    cdef uint32_t generation        # of the segment when this handle was made
    cdef uint32_t held              # references this handle owns; 0: recycled.  Under the GIL
    cdef uint32_t exports           # buffers exported by this handle.  Under the GIL

    cdef int check(self) except -1


# A handle that takes over one reference of segment `number` which the caller owns; `home` keeps `core` alive.
cdef MemorySegment segment_adopt(PoolCore *core, object home, int32_t number)
