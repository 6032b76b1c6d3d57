from fastbuf.memory.pool_core cimport LocalCore


cdef class LocalBufferPool:
    cdef LocalCore *core
    cdef object network             # the NetworkBufferPool: keeps core and arena alive
    cdef readonly str name
    cdef object __weakref__

    cdef object wait(self, object timeout)
    cdef object refusal(self, object timeout)
    cdef refuse_fork(self)


cdef LocalBufferPool local_adopt(LocalCore *core, object network, str name)
