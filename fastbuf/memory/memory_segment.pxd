from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t

from fastbuf.memory.pool_types cimport PoolCore


cdef class MemorySegment:
    cdef PoolCore *core
    cdef PyObject *home             # owned LocalBufferPool or NetworkBufferPool; keeps core alive
    cdef int32_t number
    cdef uint32_t generation        # the segment's generation when this handle was made
    cdef uint32_t held              # references that this handle owns; 0: recycled.  Guarded by the GIL
    cdef uint32_t exports           # number of buffers exported by this handle.  Guarded by the GIL
    cdef PyObject *ended            # debug build: owned str, the line that returned its last reference.  NULL: none

    cdef int check(self) except -1
    cdef int refuse_exported(self) except -1
    cdef int debug_end(self) except -1
    cdef str debug_ended(self)


# Makes a handle that takes over one reference of segment `number` from the caller; an exception returns that reference.
# `home` keeps `core` alive.
cdef MemorySegment segment_adopt(PoolCore *core, object home, int32_t number)
# The same for n of them.
cdef list segments_adopt(PoolCore *core, object home, const int32_t *numbers, uint32_t n)
# `MemorySegment.recycle` for each; their pools may differ.  If one segment is refused, none is recycled.
cdef segments_recycle(list segments)
