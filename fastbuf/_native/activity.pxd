# Map of fb_activity.h.
from libc.stdint cimport int64_t, uint32_t

from fastbuf._native.atomics cimport fb_ai64


cdef extern from "fb_activity.h" nogil:
    cdef enum:
        FB_RUNS
        FB_WAIT_CREDIT
        FB_WAIT_LINK
        FB_WAIT_SEGMENT
        FB_WAIT_INPUT
        FB_STATES

    ctypedef struct fb_activity:
        pass

    ctypedef struct fb_activity_picture:
        uint32_t state
        uint32_t target
        int64_t since
        int64_t *total
        int64_t *longest
        int64_t coded

    void fb_activity_init(fb_activity *a, int64_t now)
    int64_t fb_activity_enter(fb_activity *a, uint32_t state, uint32_t target, int64_t now)
    uint32_t fb_activity_state(fb_activity *a)
    int64_t fb_activity_ran(fb_activity *a, int64_t now)
    void fb_activity_coded(fb_activity *a, int64_t ran, int64_t now)
    void fb_activity_read(fb_activity *a, int64_t now, fb_activity_picture *p)
