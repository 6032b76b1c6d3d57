# Map of a driver: it lets a waiting thread do the transport's input and output itself.
#
# A reader that waits for a buffer, or a writer that waits for credit, then needs no switch to the I/O thread.  The
# waiting thread calls, in this order:
#     enter   with the GIL, after checking that its gate or partition is open; the transport then stays until `leave`
#     drive   does I/O; True: the event has moved since `key`.  False: sleep on the event, as without a driver
#     sleeps  before it sleeps: from now on the transport's own thread does the I/O
#     leave   slept: whether `sleeps` was called
# None of them takes the GIL.  `serve` handles marked channels unless another thread does, and never waits.
from libc.stdint cimport int64_t, uint32_t

from fastbuf._native.atomics cimport fb_event


cdef struct DriveState:         # what a waiting thread remembers from one wait to the next; starts as zeros
    int64_t wait_ns             # typical length of a wait
    uint32_t vain               # drives in a row in which nothing came
    uint32_t skip               # waits before driving is tried again


cdef struct Driver:
    void *loop                  # the transport's
    void (*enter)(Driver *d) noexcept nogil
    bint (*drive)(Driver *d, DriveState *t, fb_event *e, uint32_t key, int64_t until_ns) noexcept nogil
    void (*sleeps)(Driver *d) noexcept nogil
    void (*leave)(Driver *d, bint slept) noexcept nogil
    void (*serve)(Driver *d) noexcept nogil
