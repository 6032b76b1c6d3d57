# What a writer or a gate is doing, for the monitor.  fb_activity.h has the states.
from fastbuf._native.activity cimport fb_activity

cdef dict activity_figures(fb_activity *a)
cdef double activity_waited_s(fb_activity *a) noexcept nogil
