# Map of a doorbell: the word that a gate's reader, or a partition's writer, sleeps on.
#
# A page of a memfd when peers of other processes are to ring it (`fd` is given to them), else ordinary memory.  Each
# gate and each partition has one of its own, so that a peer can disturb nobody but who deals with it; and all that it
# can do there is to delay or to cause a wake-up, since whoever sleeps looks at its condition in slices.
from fastbuf._native.atomics cimport fb_au32, fb_event


cdef struct Bell:
    fb_event event
    fb_au32 armed               # 1: the next notice writes to the reader's eventfd as well (gate_notify)


cdef void bell_ring(Bell *bell, fb_au32 *wake_fd) noexcept nogil
cdef void bell_arm(Bell *bell) noexcept nogil


cdef class Doorbell:
    cdef Bell *bell
    cdef size_t length          # bytes mapped, 0: ordinary memory
    cdef readonly int fd        # memfd, -1: ordinary memory, or mapped from another process
