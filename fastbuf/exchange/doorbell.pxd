# Map of a doorbell: the event on which a gate's reader or a partition's writer sleeps.
#
# If peers in other processes shall ring it, it is a page of a memfd (they get `fd`), else ordinary memory.  Each gate
# and each partition has its own, so that a peer can only disturb the one that it exchanges data with.  A faulty peer
# can only delay or cause a wake-up, since a sleeper checks its condition at intervals anyway.
from fastbuf._native.atomics cimport fb_au32, fb_event


cdef struct Bell:
    fb_event event
    fb_au32 armed               # 1: the next ring also writes to the reader's eventfd (gate_notify)


cdef void bell_ring(Bell *bell, fb_au32 *wake_fd) noexcept nogil
cdef void bell_arm(Bell *bell) noexcept nogil


cdef class Doorbell:
    cdef Bell *bell
    cdef size_t length          # bytes mapped, 0: ordinary memory
    cdef readonly int fd        # memfd, -1: ordinary memory, or mapped from another process
