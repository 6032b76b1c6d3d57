from libc.stdint cimport uint64_t

from fastbuf.memory.pool_core cimport PoolCore


cdef class NetworkBufferPool:
    cdef PoolCore *core
    cdef readonly object arena      # Arena: holds the mapping that core.data points into
    cdef object lock                # held to create local pools and to move limits
    cdef bint dirty                 # limits must be worked out again by whoever has the lock
    cdef int waiting                # blocks of limits_at_the_end that go on
    cdef bint roomy                 # every pool that lives is at its maximum: they come and go without the others
    cdef uint64_t most              # no less than the sum of these maxima
    cdef bint ended
    cdef object __weakref__

    cdef move_limits(self)
