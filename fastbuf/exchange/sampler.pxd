# Map of the ticker: what writers do, looked at again and again by a thread without the GIL.
from fastbuf._native.atomics cimport fb_event


cdef class Sampler:
    cdef fb_event stopped       # notified once: whoever ticks ends at once
    cdef bint over              # the GIL
