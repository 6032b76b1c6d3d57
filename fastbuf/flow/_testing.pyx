"""Functions for tests only: loops over a ledger's operations without the GIL, so that threads run in parallel."""

from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport fb_cpu_relax, fb_i64_load_acquire, fb_now_ns
from fastbuf.flow.credit_ledger cimport CreditLedger

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef int64_t LONG_ENOUGH_NS = 3 * <int64_t> 1_000_000_000      # a busy machine may do fewer operations


def announce_loop(CreditLedger ledger, int channel, int64_t wanted, int64_t total):
    """The receiver: keeps `wanted` credits available until `total` were announced or three seconds have passed.

    Returns how many were announced.
    """
    cdef int64_t done = fb_i64_load_acquire(&ledger.row(channel).announced)
    cdef int64_t deadline = fb_now_ns() + LONG_ENOUGH_NS
    cdef int64_t missing
    with nogil:
        while done < total and fb_now_ns() < deadline:
            missing = min(wanted - fb_i64_load_acquire(&ledger.rows[channel].available), total - done)
            if missing > 0:
                done += ledger.grant(&ledger.rows[channel], missing)
            else:
                sched_yield()
    return done


def take_loop(CreditLedger ledger, int channel, int64_t total):
    """A sender: takes credits until the channel's senders have taken `total`, or three seconds have passed.

    Returns how many this sender took.
    """
    cdef int64_t mine = 0
    cdef int64_t deadline = fb_now_ns() + LONG_ENOUGH_NS
    ledger.row(channel)
    with nogil:
        while fb_i64_load_acquire(&ledger.rows[channel].used) < total and fb_now_ns() < deadline:
            if ledger.use(&ledger.rows[channel]):
                mine += 1
            else:
                fb_cpu_relax()
                sched_yield()
    return mine
