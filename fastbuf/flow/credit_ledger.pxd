# Map of the credit counters of one input channel, and the arithmetic on them.
#
# A row is a cache line of int64 in a NumPy array, one row a channel: an exchange's gate has its channels' rows in its
# CreditLedger (gate.ledger), where anybody may look at them at any time.
#
# Unit: buffers.  Source: Flink's credit-based flow control (FLIP "credit-based network stack",
# RemoteInputChannel / BufferManager), with the counters kept as totals so that they can be audited:
#
#     announced = used + available                    (always)
#     0 <= available <= exclusive + floating          (nothing is in flight that no segment was set aside for)
#     sum of floating <= the gate's floating          (segments are shared, not made)
#
# Nobody locks a row.  The `credit_` functions are for rows of one writer at a time (a gate's, which has a lock of its
# own for its segments); a CreditLedger's methods may be called from any thread: of the sender, which takes, and of the
# receiver, which announces.
#
# Reading all of a row as it was at one moment is by two counts, as of a seqlock whose writers do not exclude one
# another: a writer adds to `begun` before its first change and to `ended` after its last.
#     writer  W1 begun   W2 changes, each with release   W3 ended, release
#     reader  R1 ended, acquire   R2 the counters, acquire   R3 begun
# A reader that saw a change of W2 sees its W1 at R3; one that saw W3 at R1 sees all of its W2.  So begun (R3) = ended
# (R1) forbids: a change that is half seen.  The same over all rows, with the sums of both counts.
#
# A taker and the receiver meet in `available` alone, each with a compare-and-swap: what that replaced says whether a
# credit was of an exclusive or of a floating segment.  Forbidden: a credit used twice; a floating segment given back
# that is not held, or never; more available than segments were set aside for (tests/models/checker/ledger.c).
from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport (
    fb_ai64,
    fb_i64_init,
    fb_i64_load_acquire,
    fb_i64_load_relaxed,
    fb_i64_store_release,
)


cdef struct CreditRow:      # one cache line
    fb_ai64 announced       # credit ever told to the sender
    fb_ai64 used            # buffers ever received against it
    fb_ai64 available       # credit the sender may still use
    fb_ai64 backlog         # buffers the sender had queued behind the last one it sent
    fb_ai64 exclusive       # segments that belong to this channel alone; 0: no channel has this row yet
    fb_ai64 floating        # floating segments this channel holds now
    fb_ai64 begun           # changes that began
    fb_ai64 ended           # changes that are done


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


# ---- one writer at a time


cdef inline void credit_begin(CreditRow *r) noexcept nogil:
    fb_i64_store_release(&r.begun, fb_i64_load_relaxed(&r.begun) + 1)


cdef inline void credit_end(CreditRow *r) noexcept nogil:
    fb_i64_store_release(&r.ended, fb_i64_load_relaxed(&r.ended) + 1)


cdef inline void credit_add(fb_ai64 *counter, int64_t n) noexcept nogil:
    # Between credit_begin and credit_end.
    fb_i64_store_release(counter, fb_i64_load_relaxed(counter) + n)


cdef inline void credit_announce(CreditRow *r, int64_t n, int64_t floating) noexcept nogil:
    """`n` credits, of which so many are floating segments."""
    credit_begin(r)
    credit_add(&r.floating, floating)
    credit_add(&r.announced, n)
    credit_add(&r.available, n)
    credit_end(r)


cdef inline bint credit_take(CreditRow *r) noexcept nogil:
    # False: the sender sent without credit, or the caller must wait.
    if fb_i64_load_relaxed(&r.available) <= 0:
        return False
    credit_begin(r)
    credit_add(&r.available, -1)
    credit_add(&r.used, 1)
    credit_end(r)
    return True


cdef inline void credit_drop_floating(CreditRow *r) noexcept nogil:
    """A floating segment has left the channel."""
    credit_begin(r)
    credit_add(&r.floating, -1)
    credit_end(r)


cdef inline void credit_close(CreditRow *r) noexcept nogil:
    """The sender can no longer use what it has: take it back, so that the account is even."""
    cdef int64_t n = fb_i64_load_relaxed(&r.available)
    credit_begin(r)
    credit_add(&r.available, -n)
    credit_add(&r.announced, -n)
    credit_end(r)


cdef inline void credit_return(CreditRow *r) noexcept nogil:
    """The sender gives one back that it did not use."""
    credit_begin(r)
    credit_add(&r.available, -1)
    credit_add(&r.announced, -1)
    credit_end(r)


# ---- any thread


cdef inline int64_t credit_floating(CreditRow *r) noexcept nogil:
    return fb_i64_load_relaxed(&r.floating)


cdef inline int64_t credit_required(CreditRow *r) noexcept nogil:
    # Flink's rule: a receiver wants its exclusive segments plus one for each buffer queued behind.
    return fb_i64_load_relaxed(&r.exclusive) + fb_i64_load_relaxed(&r.backlog)


cdef inline int64_t credit_own(CreditRow *r, int64_t available, int64_t n) noexcept nogil:
    """So many of `n` credits are the channel's own segments when so many are available."""
    return min(max(<int64_t> 0, fb_i64_load_relaxed(&r.exclusive) - available), n)


cdef inline void credit_look(CreditRow *r, CreditFigures *out) noexcept nogil:
    """The counters one by one: of one moment only if the caller sees to it."""
    out.announced = fb_i64_load_acquire(&r.announced)
    out.used = fb_i64_load_acquire(&r.used)
    out.available = fb_i64_load_acquire(&r.available)
    out.backlog = fb_i64_load_acquire(&r.backlog)
    out.exclusive = fb_i64_load_acquire(&r.exclusive)
    out.floating = fb_i64_load_acquire(&r.floating)


cdef inline bint credit_holds(CreditFigures *f) noexcept nogil:
    return (f.used >= 0 and f.floating >= 0 and f.announced == f.used + f.available
            and 0 <= f.available <= f.exclusive + f.floating)


cdef class CreditLedger:
    cdef readonly object counters       # int64, (channels, 8): the rows, for whoever wants to look
    cdef readonly int channels
    cdef readonly int exclusive
    cdef readonly int floating
    cdef CreditRow *rows                # in counters
    cdef fb_ai64 floating_out           # floating segments that are claimed; of a gate's ledger the gate counts them
    cdef bint of_gate
    cdef CreditRow *row(self, int channel) except NULL
    cdef int64_t share(self, int64_t wanted) noexcept nogil
    cdef int64_t grant(self, CreditRow *r, int64_t n) noexcept nogil
    cdef bint use(self, CreditRow *r) noexcept nogil
    cdef bint snapshot(self, CreditFigures *out) noexcept nogil


cdef CreditLedger ledger_of_gate(int channels, int exclusive, int floating)
