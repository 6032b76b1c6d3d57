from libc.stdint cimport uint64_t

from fastbuf.memory.pool_types cimport PoolCore


cdef class NetworkBufferPool:
    cdef PoolCore *core
    cdef readonly object arena      # Arena: holds the mapping that core.data points into
    cdef object lock                # lock for making local pools and changing limits
    cdef bint dirty                 # the next holder of the lock must compute the limits again
    cdef int waiting                # number of active limits_at_the_end blocks
    # every live pool is at its maximum, so adding or removing one changes no other limit
    cdef bint roomy
    cdef uint64_t most              # upper bound of the sum of these maxima
    cdef uint64_t living            # local pools when the limits were computed, and those made since
    cdef uint64_t gone              # local pools destroyed since
    cdef bint ended
    cdef object __weakref__

    cdef move_limits(self)
