# Waiting and wake-ups.  The head of pool_waking.pyx has the pairing of atomics.
from fastbuf._native.atomics cimport fb_event
from fastbuf.memory.pool_core cimport LocalCore, PoolCore

# R1: from now on a thread that makes something available to p will notify.  True: p was not armed before; then R2 has
# to look into all magazines, whatever they seem to hold.
cdef bint arm(LocalCore *p) noexcept nogil
# L3: notifies all who wait for p, once per arming.
cdef void wake(LocalCore *p) noexcept nogil
# The same for every pool that may now take from the global list.
cdef void pool_wake_waiting(PoolCore *g) noexcept nogil
# local_set_listener and local_set_signal of pool_core.pxd.
cdef void waking_set_listener(LocalCore *p, fb_event *e) noexcept nogil
cdef void waking_set_signal(LocalCore *p, int fd) noexcept nogil
