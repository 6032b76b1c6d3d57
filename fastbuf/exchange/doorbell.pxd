# Map of a doorbell: the event on which a gate's reader or a partition's writer sleeps.
#
# If peers in other processes shall ring it, it is a page of a memfd (they get `fd`), else ordinary memory.  Each gate
# and each partition has its own, so that a peer can only disturb the one that it exchanges data with.  A faulty peer
# can only delay or cause a wake-up, since a sleeper checks its condition at intervals anyway.
from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport fb_au32, fb_event

cdef enum:
    SPIN_NS = 20000             # about the cost of a sleep and a wake-up
    LEAST_SPIN_NS = 2000        # what remains of it after many spins in vain


cdef struct Bell:
    fb_event event
    fb_au32 armed               # 1: the next ring also writes to the reader's eventfd (gate_notify)


cdef struct Spin:
    int64_t most                # 0: there is only one core
    int64_t ns                  # how long to spin before sleeping, where peers share memory


cdef inline void spin_init(Spin *s, bint is_alone) noexcept nogil:
    s.ns = s.most = 0 if is_alone else SPIN_NS


cdef inline void spin_ended(Spin *s, bint in_vain) noexcept nogil:
    s.ns = max(s.ns // 2, LEAST_SPIN_NS) if in_vain else s.most


cdef void bell_ring(Bell *bell, fb_au32 *wake_fd) noexcept nogil
cdef void bell_arm(Bell *bell) noexcept nogil


cdef class Doorbell:
    cdef Bell *bell
    cdef size_t length          # bytes mapped, 0: ordinary memory
    cdef readonly int fd        # memfd, -1: ordinary memory, or mapped from another process
