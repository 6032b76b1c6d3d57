# Map of the sampler, which samples the states of writers without the GIL.
from fastbuf._native.atomics cimport fb_event


cdef class Sampler:
    cdef fb_event stopped       # notified once, by stop()
    cdef bint over              # stop() was called.  Guarded by the GIL
