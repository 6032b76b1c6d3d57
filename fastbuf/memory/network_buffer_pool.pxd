from fastbuf.memory.pool_core cimport PoolCore


cdef class NetworkBufferPool:
    cdef PoolCore *core
    cdef readonly object arena      # Arena: holds the mapping that core.data points into
    cdef object lock                # taken to create and destroy local pools and to move limits
    cdef dict pools                 # number -> weak reference of each LocalBufferPool that is not destroyed
    cdef bint dirty                 # limits must be worked out again by whoever has the lock
    cdef bint destroyed
    cdef object __weakref__
