"""What only tests call: a ledger's operations in loops without the GIL, so that threads do meet in them."""

from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport fb_cpu_relax, fb_i64_load_acquire, fb_now_ns
from fastbuf.flow.credit_ledger cimport CreditLedger

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef int64_t LONG_ENOUGH_NS = 3 * <int64_t> 1_000_000_000      # on a busy machine fewer credits have to do


def announce_loop(CreditLedger ledger, int channel, int64_t wanted, int64_t total):
    """The receiver: brings what is outstanding back to `wanted` until `total` were announced or three seconds are over.

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
    """A sender: takes until the channel's senders have taken `total`, or three seconds are over.

    Returns how many this one took.
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
