"""Waiting for a segment, and the wake-ups.

A failed request sets ``waiting`` of its pool.  A thread that then makes a segment, a higher limit or the end of the
pool visible clears it; ``PoolCore.waiting`` counts the pools where it is set.  So a recycle costs one load and no
system call when no thread waits.  All steps named here are seq_cst, and they form two Dekker pairs:

    requester                                       releaser
    R1  global waiting += 1, pool's waiting = 1     L1  push / limit / destroyed bit
    R2  look again: lists, limit                    L2  pool's waiting (own list), global waiting (global list)
    R3  sleep on the event (or return -1)           L3  clear it, notify (event, listener, eventfd of the tasks)

Either R2 sees L1, or L2 sees R1.  The global count rises before the pool's flag is set and falls after it is cleared,
so a set flag is always counted.  R2 finds a free segment of its pool on one list, of others on the global list or, if
they hold more than their limits, on their lists (``reclaim``).  It misses one that a thread has popped to move it
elsewhere; that thread pushes it again and is then the releaser (``trim``).

The second pair is a push to a local list and a falling limit.  Recycle pushes first and then reads ``limit``;
redistribution stores ``limit`` first, and then those it wakes read the lists (``reclaim``).  So one of them sees the
surplus.

    atomic                        pairs with
    ``waiting`` (both) seq_cst    push, ``limit``, ``word``: the two pairs above
    ``listener_pins`` seq_cst     ``listener`` and ``signal``, stored and then fenced (``wait_for_pins``)

Forbidden outcomes: a requester sleeps although a segment that it may have is free, and no wake-up is on its way; a
thread notifies a listener that was taken off.
"""

from libc.stdint cimport uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf.memory.pool_setup cimport fork_count
from fastbuf.memory.pool_types cimport WORD_DESTROYED, LocalCore, PoolCore


cdef void arm(LocalCore *p) noexcept nogil:
    cdef uint32_t expected
    if fb_u32_load_seq_cst(&p.waiting) != 0:
        return
    fb_u32_add_seq_cst(&p.pool.waiting, 1)
    while True:
        expected = 0
        if fb_u32_cas_seq_cst(&p.waiting, &expected, 1):
            return
        if expected != 0:                               # another thread set it first, and counted it
            fb_u32_sub_seq_cst(&p.pool.waiting, 1)
            return


cdef void wake(LocalCore *p) noexcept nogil:
    cdef uint32_t expected, signal
    cdef fb_event *e
    while True:
        expected = 1
        if fb_u32_cas_seq_cst(&p.waiting, &expected, 0):
            break
        if expected == 0:
            return
    fb_u32_sub_seq_cst(&p.pool.waiting, 1)
    fb_event_notify(&p.available)
    # The pin and the load pair (seq_cst) with local_set_listener's store and its load of the pins: either this thread
    # sees that the listener is gone, or the setter waits until the pin is removed.
    fb_u32_add_seq_cst(&p.listener_pins, 1)
    e = <fb_event *><size_t>fb_u64_load_seq_cst(&p.listener)
    if e != NULL:
        fb_event_notify(e)
    signal = fb_u32_load_seq_cst(&p.signal)
    if signal != 0:
        fb_event_signal(<int>signal - 1)
    fb_u32_sub_seq_cst(&p.listener_pins, 1)


cdef void pool_wake_waiting(PoolCore *g) noexcept nogil:
    # A pool at its limit is not woken: its held count falls only by its own recycle to the global list, and its limit
    # rises only in redistribution; both call this function afterwards.  Claims in flight do not count here, since they
    # may still be undone.
    cdef LocalCore *p
    cdef uint64_t w, most
    if fb_u32_load_seq_cst(&g.waiting) == 0:
        return
    p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    while p != NULL:
        if fb_u32_load_seq_cst(&p.waiting) != 0:
            w = fb_u64_load_seq_cst(&p.word)
            most = <uint64_t>fb_u32_load_seq_cst(&p.limit) + fb_u32_load_relaxed(&p.overdraft)
            if w & WORD_DESTROYED or <uint32_t>w < most:
                wake(p)
        p = p.following


# Waits until no thread uses the previous listener or signal.  In a fork of the process that made the pool, threads that
# had a pin do not exist and never remove it.  tests/models/test_listener_model.py checks every interleaving.
cdef void wait_for_pins(LocalCore *p) noexcept nogil:
    fb_fence_seq_cst()
    while fb_u32_load_seq_cst(&p.listener_pins) != 0 and fork_count() == p.pool.forks:
        fb_cpu_relax()


cdef void local_set_listener(LocalCore *p, fb_event *e) noexcept nogil:
    fb_u64_store_release(&p.listener, <uint64_t><size_t>e)
    wait_for_pins(p)


cdef void local_set_signal(LocalCore *p, int fd) noexcept nogil:
    fb_u32_store_release(&p.signal, <uint32_t>(fd + 1))
    wait_for_pins(p)
