from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t

from fastbuf.memory.pool_core cimport PoolCore


cdef class MemorySegment:
    cdef PoolCore *core
    cdef PyObject *home             # owned; keeps core alive: the LocalBufferPool or NetworkBufferPool
    cdef int32_t number
    cdef uint32_t generation        # of the segment when this handle was made
    cdef uint32_t held              # references this handle owns; 0: recycled.  Under the GIL
    cdef uint32_t exports           # buffers exported by this handle.  Under the GIL
    cdef PyObject *ended            # debug build: str, the line that gave its last reference back; owned.  NULL: none

    cdef int check(self) except -1
    cdef int refuse_exported(self) except -1
    cdef int debug_end(self) except -1
    cdef str debug_ended(self)


# A handle that takes over one reference of segment `number` which the caller owns, and which is given back if it
# raises; `home` keeps `core` alive.
cdef MemorySegment segment_adopt(PoolCore *core, object home, int32_t number)
# The same for n of them.
cdef list segments_adopt(PoolCore *core, object home, const int32_t *numbers, uint32_t n)
# `MemorySegment.recycle` of each, which may be of different pools; if one is refused, nothing is given back.
cdef segments_recycle(list segments)
