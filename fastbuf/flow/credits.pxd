# Map of the credit counters of one input channel, and the arithmetic on them.
#
# A row is one cache line of int64, one row per channel.  A gate has the rows of its channels in a NumPy array, and
# gives them out as `gate.credits`: any thread may read them at any time.
#
# Unit: buffers.  Source: Flink's credit-based flow control (FLIP "credit-based network stack", RemoteInputChannel /
# BufferManager), with the counters kept as totals, so that they can be audited:
#
#     announced = used + available                    (always)
#   0 <= available <= exclusive + floating      (each buffer in flight has a segment reserved for it)
#   sum of floating <= the gate's floating      (segments are shared, not created)
#
# One thread at a time writes a row: the one that has the gate's lock.  Who reads without the lock sees each counter
# whole, but not all of one moment; `gate.audit` takes the lock (exchange/gate_report.pyx).
from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport *


cdef struct CreditRow:      # one cache line
    fb_ai64 announced       # credit announced to the sender so far
    fb_ai64 used            # buffers received for it so far
    fb_ai64 available       # credit the sender may still use
    fb_ai64 backlog         # buffers queued at the sender behind the last one it sent
    fb_ai64 exclusive       # segments of this channel alone; 0: the row is not in use yet
    fb_ai64 floating        # floating segments this channel holds now
    char room[16]


cdef struct CreditFigures:  # a row as it was at one moment
    int64_t announced
    int64_t used
    int64_t available
    int64_t backlog
    int64_t exclusive
    int64_t floating


cdef inline void credit_init(CreditRow *r, int64_t exclusive) noexcept nogil:
    fb_i64_init(&r.announced, 0)
    fb_i64_init(&r.used, 0)
    fb_i64_init(&r.available, 0)
    fb_i64_init(&r.backlog, 0)
    fb_i64_init(&r.floating, 0)
    fb_i64_store_release(&r.exclusive, exclusive)


cdef inline void credit_add(fb_ai64 *counter, int64_t n) noexcept nogil:
    fb_i64_store_release(counter, fb_i64_load_relaxed(counter) + n)


cdef inline void credit_announce(CreditRow *r, int64_t n, int64_t floating) noexcept nogil:
    """Announces `n` credits; `floating` of them are for floating segments."""
    credit_add(&r.floating, floating)
    credit_add(&r.announced, n)
    credit_add(&r.available, n)


cdef inline bint credit_take(CreditRow *r) noexcept nogil:
    """A buffer has come.  False: the sender sent it without credit."""
    if fb_i64_load_relaxed(&r.available) <= 0:
        return False
    credit_add(&r.available, -1)
    credit_add(&r.used, 1)
    return True


cdef inline void credit_drop_floating(CreditRow *r) noexcept nogil:
    """A floating segment has left the channel."""
    credit_add(&r.floating, -1)


cdef inline void credit_close(CreditRow *r) noexcept nogil:
    """The sender can no longer use its credit: take it back, so that announced = used + available still holds."""
    cdef int64_t n = fb_i64_load_relaxed(&r.available)
    credit_add(&r.available, -n)
    credit_add(&r.announced, -n)


cdef inline void credit_return(CreditRow *r) noexcept nogil:
    """The sender gives back one credit that it did not use."""
    credit_add(&r.available, -1)
    credit_add(&r.announced, -1)


cdef inline int64_t credit_floating(CreditRow *r) noexcept nogil:
    return fb_i64_load_relaxed(&r.floating)


cdef inline int64_t credit_required(CreditRow *r) noexcept nogil:
    # Flink's rule: a receiver needs its exclusive segments plus one for each buffer in the sender's backlog.
    return fb_i64_load_relaxed(&r.exclusive) + fb_i64_load_relaxed(&r.backlog)


cdef inline void credit_look(CreditRow *r, CreditFigures *out) noexcept nogil:
    """Reads the counters one by one; the caller makes sure that they are of one moment."""
    out.announced = fb_i64_load_acquire(&r.announced)
    out.used = fb_i64_load_acquire(&r.used)
    out.available = fb_i64_load_acquire(&r.available)
    out.backlog = fb_i64_load_acquire(&r.backlog)
    out.exclusive = fb_i64_load_acquire(&r.exclusive)
    out.floating = fb_i64_load_acquire(&r.floating)


cdef inline bint credit_holds(CreditFigures *f) noexcept nogil:
    return (f.used >= 0 and f.floating >= 0 and f.announced == f.used + f.available
            and 0 <= f.available <= f.exclusive + f.floating)
