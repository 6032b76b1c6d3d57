# Waiting and wake-ups.  The head of pool_waking.pyx has the pairing of atomics.
from fastbuf._native.atomics cimport fb_event
from fastbuf.memory.pool_types cimport LocalCore, PoolCore

# R1: from now on a thread that makes something available to p will notify.
cdef void arm(LocalCore *p) noexcept nogil
# L3: notifies all who wait for p, once per arming.
cdef void wake(LocalCore *p) noexcept nogil
# The same for every pool that may now take from the global list.
cdef void pool_wake_waiting(PoolCore *g) noexcept nogil

# After local_try_acquire* on this pool has failed, `e` is notified (fb_event_notify) once when a segment may be free:
# one was recycled, a limit rose, or the pool was destroyed.  The next failed try arms it again.  So:
#     key = fb_event_prepare(e); i = local_try_acquire(p); if i < 0: fb_event_wait(e, key, deadline)
# loses nothing.  NULL removes the listener.  After the call returns no thread uses the old event, so it may be freed.
cdef void local_set_listener(LocalCore *p, fb_event *e) noexcept nogil
# Sets an eventfd that is written whenever the listener would be notified; -1 removes it.  After the call returns no
# thread uses the old eventfd, so it may be closed.
cdef void local_set_signal(LocalCore *p, int fd) noexcept nogil
