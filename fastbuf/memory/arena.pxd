from libc.stdint cimport uint8_t, uint32_t


cdef class Arena:
    cdef uint8_t *base              # start of the mapping; NULL: closed
    cdef size_t length              # bytes mapped: segments * stride, rounded up to whole pages
    cdef int fd                     # the memfd; -1: the mapping is anonymous
    cdef readonly Py_ssize_t segments
    cdef readonly Py_ssize_t segment_size       # bytes
    cdef Py_ssize_t stride          # bytes from one segment to the next; more than segment_size in a debug build
    cdef bint writable
    cdef Py_ssize_t exports         # number of exported buffers, of its segments' too; guarded by the GIL
    cdef uint32_t forks             # fork_count() when it was mapped
    cdef Py_ssize_t shape[2]        # shape that the exported buffers point to
    cdef Py_ssize_t strides[2]
    cdef object __weakref__

    cdef void take(self, void *base, int fd, object layout, bint writable) noexcept
    cdef void unmap(self) noexcept
