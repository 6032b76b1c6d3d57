from fastbuf.memory.pool_types cimport LocalCore


cdef class LocalBufferPool:
    cdef LocalCore *core
    cdef object network             # the NetworkBufferPool: keeps core and arena alive
    cdef object tasks               # TaskQueue of the tasks waiting in request_async; None until the first one waits
    cdef int eventfd                # eventfd that wakes these tasks, owned; -1: not made yet
    cdef readonly str name
    cdef object __weakref__

    cdef object wait(self, object timeout)
    cdef open_eventfd(self)
    cdef refuse_fork(self)


cdef LocalBufferPool local_adopt(LocalCore *core, object network, str name)
