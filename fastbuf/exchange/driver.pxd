# Map of a driver: a transport's input and output as a thread that waits may do them itself.
#
# A reader that waits for a buffer, or a writer that waits for credit, then needs no other thread to fetch it.  Who
# waits calls, in this order:
#     enter   with the GIL, having seen that its gate or partition is not closed: the transport stays until `leave`
#     drive   True: something came after `key`.  False: it is to sleep on its event as anybody does
#     sleeps  before that: from now on the transport's own thread does what is to do
#     leave   slept: sleeps was called
# None of them takes the GIL; `serve` does what has been marked, if nobody else is at it, and never waits.
from libc.stdint cimport int64_t, uint32_t

from fastbuf._native.atomics cimport fb_event


cdef struct DriveState:         # what one who waits remembers from one time to the next; begins as zeros
    int64_t wait_ns             # how long it has taken, about
    uint32_t vain               # times in a row that nothing came
    uint32_t skip               # times that it will not be tried


cdef struct Driver:
    void *loop                  # the transport's
    void (*enter)(Driver *d) noexcept nogil
    bint (*drive)(Driver *d, DriveState *t, fb_event *e, uint32_t key, int64_t until_ns) noexcept nogil
    void (*sleeps)(Driver *d) noexcept nogil
    void (*leave)(Driver *d, bint slept) noexcept nogil
    void (*serve)(Driver *d) noexcept nogil
