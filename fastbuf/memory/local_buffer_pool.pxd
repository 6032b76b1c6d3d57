from fastbuf.memory.pool_core cimport LocalCore


cdef class LocalBufferPool:
    cdef LocalCore *core
    cdef object network             # the NetworkBufferPool: keeps core and arena alive
    cdef object tasks               # TaskQueue: who waits in request_async; None until somebody does
    cdef int eventfd                # what wakes them, -1: none yet; owned
    cdef readonly str name
    cdef object __weakref__

    cdef object wait(self, object timeout)
    cdef open_eventfd(self)
    cdef refuse_fork(self)


cdef LocalBufferPool local_adopt(LocalCore *core, object network, str name)
