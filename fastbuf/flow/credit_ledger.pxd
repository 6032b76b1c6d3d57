# Map of the credit counters of one input channel, and the arithmetic on them.
#
# Owner: whoever guards the channel (the gate's lock in an exchange, the GIL in a CreditLedger).
# Unit: buffers.  Source: Flink's credit-based flow control (FLIP "credit-based network stack",
# RemoteInputChannel / BufferManager), with the counters kept as totals so that they can be audited:
#
#     announced = used + available        (always)
#     0 <= available,  used <= announced  (a sender never sends without credit)
from libc.stdint cimport int64_t


cdef struct CreditRow:      # one cache line
    int64_t announced       # credit ever told to the sender
    int64_t used            # buffers ever received against it
    int64_t available       # credit the sender may still use
    int64_t backlog         # buffers the sender had queued behind the last one it sent
    int64_t exclusive       # segments that belong to this channel alone
    int64_t floating        # floating segments this channel holds now
    int64_t reserved_a      # keeps the row at 64 bytes
    int64_t reserved_b


cdef inline void credit_init(CreditRow *r, int64_t exclusive) noexcept nogil:
    r.announced = 0
    r.used = 0
    r.available = 0
    r.backlog = 0
    r.exclusive = exclusive
    r.floating = 0
    r.reserved_a = 0
    r.reserved_b = 0


cdef inline void credit_announce(CreditRow *r, int64_t n) noexcept nogil:
    r.announced += n
    r.available += n


cdef inline bint credit_take(CreditRow *r) noexcept nogil:
    # False: the sender sent without credit, or the caller must wait.
    if r.available <= 0:
        return False
    r.available -= 1
    r.used += 1
    return True


cdef inline int64_t credit_required(CreditRow *r) noexcept nogil:
    # Flink's rule: a receiver wants its exclusive segments plus one for each buffer queued behind.
    return r.exclusive + r.backlog


cdef inline bint credit_holds(CreditRow *r) noexcept nogil:
    return r.available >= 0 and r.used >= 0 and r.announced == r.used + r.available and r.floating >= 0


cdef class CreditLedger:
    cdef readonly object counters       # int64, (channels, 8): the rows, for whoever wants to look
    cdef readonly int channels
    cdef readonly int exclusive
    cdef readonly int floating
    cdef CreditRow *rows
    cdef int64_t floating_out
    cdef CreditRow *row(self, int channel) except NULL
