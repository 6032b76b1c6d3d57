from fastbuf.memory.pool_core cimport LocalCore


cdef class LocalBufferPool:
    cdef LocalCore *core            # NULL only before create_local_pool has filled it in
    cdef object network             # the NetworkBufferPool: keeps core and arena alive
    cdef readonly str name
    cdef bint counted               # the network pool still counts it (destroy has not run)
    cdef object __weakref__
