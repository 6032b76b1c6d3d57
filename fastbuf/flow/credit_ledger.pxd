# Map of the credit counters of one input channel, and the arithmetic on them.
#
# A row is one cache line of int64 in a NumPy array, one row per channel.  The CreditLedger of a gate (gate.ledger) has
# the rows of its channels; any thread may read them at any time.
#
# Unit: buffers.  Source: Flink's credit-based flow control (FLIP "credit-based network stack", RemoteInputChannel /
# BufferManager), with the counters kept as totals, so that they can be audited:
#
#     announced = used + available                    (always)
#   0 <= available <= exclusive + floating      (each buffer in flight has a segment reserved for it)
#   sum of floating <= the gate's floating      (segments are shared, not created)
#
# Rows have no lock.  The `credit_` functions are for rows that one thread at a time writes (a gate's: the gate has a
# lock for its segments).  The methods of CreditLedger may be called from any thread: by senders, which take credit, and
# by the receiver, which announces it.
#
# Two counts allow reading a row as it was at one moment, like a seqlock with several writers at once: a writer adds to
# `begun` before its first change and to `ended` after its last.
#     writer  W1 begun   W2 changes, each with release   W3 ended, release
#     reader  R1 ended, acquire   R2 the counters, acquire   R3 begun
# A reader that saw a change of W2 sees its W1 at R3; a reader that saw W3 at R1 sees all of its W2.  So if begun (R3) =
# ended (R1), no change was seen in part.  The same holds for all rows together, with the sums of both counts.
#
# Takers and the receiver both change `available`, each by a compare-and-swap.  The value it replaced tells whether a
# credit was of an exclusive or a floating segment.  Forbidden: a credit used twice; a floating segment returned that
# was not held, or never returned; more credit available than segments reserved (tests/models/checker/ledger.c).
from libc.stdint cimport int64_t

from fastbuf._native.atomics cimport *


cdef struct CreditRow:      # one cache line
    fb_ai64 announced       # credit announced to the sender so far
    fb_ai64 used            # buffers received for it so far
    fb_ai64 available       # credit the sender may still use
    fb_ai64 backlog         # buffers queued at the sender behind the last one it sent
    fb_ai64 exclusive       # segments of this channel alone; 0: the row is not in use yet
    fb_ai64 floating        # floating segments this channel holds now
    fb_ai64 begun           # number of changes that began
    fb_ai64 ended           # number of changes that ended


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


# ---- rows with one writer at a time


cdef inline void credit_begin(CreditRow *r) noexcept nogil:
    fb_i64_store_release(&r.begun, fb_i64_load_relaxed(&r.begun) + 1)


cdef inline void credit_end(CreditRow *r) noexcept nogil:
    fb_i64_store_release(&r.ended, fb_i64_load_relaxed(&r.ended) + 1)


cdef inline void credit_add(fb_ai64 *counter, int64_t n) noexcept nogil:
    # Call it between credit_begin and credit_end.
    fb_i64_store_release(counter, fb_i64_load_relaxed(counter) + n)


cdef inline void credit_announce(CreditRow *r, int64_t n, int64_t floating) noexcept nogil:
    """Announces `n` credits; `floating` of them are for floating segments."""
    credit_begin(r)
    credit_add(&r.floating, floating)
    credit_add(&r.announced, n)
    credit_add(&r.available, n)
    credit_end(r)


cdef inline bint credit_take(CreditRow *r) noexcept nogil:
    # False: the sender sent without credit (receiver), or the caller must wait (sender).
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
    """The sender can no longer use its credit: take it back, so that announced = used + available still holds."""
    cdef int64_t n = fb_i64_load_relaxed(&r.available)
    credit_begin(r)
    credit_add(&r.available, -n)
    credit_add(&r.announced, -n)
    credit_end(r)


cdef inline void credit_return(CreditRow *r) noexcept nogil:
    """The sender gives back one credit that it did not use."""
    credit_begin(r)
    credit_add(&r.available, -1)
    credit_add(&r.announced, -1)
    credit_end(r)


# ---- any thread


cdef inline int64_t credit_floating(CreditRow *r) noexcept nogil:
    return fb_i64_load_relaxed(&r.floating)


cdef inline int64_t credit_required(CreditRow *r) noexcept nogil:
    # Flink's rule: a receiver needs its exclusive segments plus one for each buffer in the sender's backlog.
    return fb_i64_load_relaxed(&r.exclusive) + fb_i64_load_relaxed(&r.backlog)


cdef inline int64_t credit_own(CreditRow *r, int64_t available, int64_t n) noexcept nogil:
    """How many of `n` new credits are for exclusive segments, if `available` credits are there already."""
    return min(max(<int64_t> 0, fb_i64_load_relaxed(&r.exclusive) - available), n)


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


cdef class CreditLedger:
    cdef readonly object counters       # int64 array of shape (channels, 8): the rows, for reading
    cdef readonly int channels
    cdef readonly int exclusive
    cdef readonly int floating
    cdef CreditRow *rows                # points into `counters`
    cdef fb_ai64 floating_out           # claimed floating segments; for a gate's ledger the gate counts them
    cdef bint of_gate
    cdef CreditRow *row(self, channel) except NULL
    cdef int64_t share(self, int64_t wanted) noexcept nogil
    cdef int64_t grant(self, CreditRow *r, int64_t n) noexcept nogil
    cdef bint use(self, CreditRow *r) noexcept nogil
    cdef bint snapshot(self, CreditFigures *out) noexcept nogil


cdef CreditLedger ledger_of_gate(int channels, int exclusive, int floating)
