# Waiting and waking; what pairs with what stands at the head of pool_waking.pyx.
from fastbuf._native.atomics cimport fb_event
from fastbuf.memory.pool_core cimport LocalCore, PoolCore

# R1: from here on whoever makes something available to p will notify.  True: nobody had done it before; then R2 has to
# look into the magazines, whatever they seem to hold.
cdef bint arm(LocalCore *p) noexcept nogil
# L3: notifies everybody who waits for p, once per arming.
cdef void wake(LocalCore *p) noexcept nogil
# The same for every pool that may take from the global list now.
cdef void pool_wake_waiting(PoolCore *g) noexcept nogil
# local_set_listener and local_set_signal of pool_core.pxd.
cdef void waking_set_listener(LocalCore *p, fb_event *e) noexcept nogil
cdef void waking_set_signal(LocalCore *p, int fd) noexcept nogil
