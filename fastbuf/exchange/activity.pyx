"""What a writer or a gate is doing, and how long it spent in each state, the current one included."""

from libc.stdint cimport int64_t

from fastbuf._native.activity cimport FB_RUNS, FB_STATES, fb_activity, fb_activity_picture, fb_activity_read
from fastbuf._native.atomics cimport fb_now_ns

STATES = ("runs", "credit", "link", "segment", "input")     # the order of fb_activity.h; all but the first are waits


cdef dict activity_figures(fb_activity *a):
    """state, target, since_s (how long it has been in that state), seconds and longest_s (both by state).

    The time that fastbuf itself spends on encoding and decoding is not in ``runs``, but in ``codec``.
    """
    cdef fb_activity_picture p
    cdef int64_t now = fb_now_ns()
    fb_activity_read(a, now, &p)
    seconds = {STATES[i]: p.total[i] / 1e9 for i in range(FB_STATES)}
    seconds["runs"] = (p.total[FB_RUNS] - p.coded) / 1e9
    seconds["codec"] = p.coded / 1e9
    return {
        "state": STATES[p.state],
        "target": p.target - 1 if p.target else None,
        "since_s": max(0, now - p.since) / 1e9,
        "seconds": seconds,
        "longest_s": {STATES[i]: p.longest[i] / 1e9 for i in range(FB_STATES)},
    }


cdef double activity_waited_s(fb_activity *a) noexcept nogil:
    cdef fb_activity_picture p
    cdef int64_t total = 0
    cdef int i
    fb_activity_read(a, fb_now_ns(), &p)
    for i in range(FB_RUNS + 1, FB_STATES):
        total += p.total[i]
    return total / 1e9
