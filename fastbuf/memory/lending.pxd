# Segments lent to one other process.  Two rings in a memfd, each with one writer and one reader (Lamport, "Proving the
# Correctness of Multiprocess Programs", IEEE TSE 3(2), 1977): the lender writes loans, the borrower writes what it
# gives back.  An entry is loan number << 32 | segment.
#
#   offset 0     64         128        192        256        320      384      448       448 + 8 * capacity
#   ┌───────────┬──────────┬──────────┬──────────┬──────────┬────────┬────────┬─────────┬────────────────┐
#   │ magic ... │ lent_put │ lent_got │ back_put │ back_got │ lent   │ back   │ loans   │ what came back │
#   └───────────┴──────────┴──────────┴──────────┴──────────┴────────┴────────┴─────────┴────────────────┘
#                 lender     borrower   borrower   lender     both     both     lender    borrower         writes
#
#   lent_put release (lender)    pairs with    the borrower's acquire of lent_put: it sees the entry and the segment
#   back_put release (borrower)  pairs with    the lender's acquire of back_put: it sees the entry, and that the
#                                              borrower has read its last of the segment
#
# lent and back are events (fb_event.h): the borrower sleeps on the one and the lender rings it, the other is reversed.
# What the other side writes into them can delay a wake-up and do nothing else, so each sleeps in slices.
#
# The truth about who has what stands with the lender alone (`loans` of Lender: the loan number of each segment that is
# lent), where the borrower cannot reach it.  An entry that comes back counts if it names a loan that stands, once.  So
# it does not matter at which instruction the borrower dies: what it gave back in full was taken home, and the rest is
# still in the lender's table.
#
# Forbidden: a loan that ends twice; one that never ends though the borrower is dead; a segment that goes home while
# the borrower lives and has not given it back.
#
# Each counter has one process that writes it.  A fork has copies of the objects, and the collector ends those: they
# write nothing (`forks`), or a loan that the borrower still reads would be given back by its child.
from libc.stdint cimport uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au64, fb_event
from fastbuf.memory.arena cimport Arena
from fastbuf.memory.pool_core cimport PoolCore


cdef struct LoanRings:
    uint64_t magic
    uint32_t version
    uint32_t capacity               # entries of each ring
    char room[48]
    fb_au64 lent_put                # entries written so far, by the lender
    char room1[56]
    fb_au64 lent_got                # read so far, by the borrower
    char room2[56]
    fb_au64 back_put                # written so far, by the borrower
    char room3[56]
    fb_au64 back_got                # read so far, by the lender
    char room4[56]
    fb_event lent                   # the borrower sleeps
    char room5[56]
    fb_event back                   # the lender sleeps
    char room6[56]


cdef class Lender:
    cdef object network             # the NetworkBufferPool: keeps core alive
    cdef PoolCore *core
    cdef LoanRings *rings
    cdef size_t length              # bytes mapped
    cdef int fd                     # memfd of the rings
    cdef int pidfd
    cdef readonly uint32_t capacity
    cdef readonly uint32_t lent     # loans that stand
    cdef readonly uint64_t refused  # entries that came back and named no loan
    cdef uint32_t *loans            # by segment: the loan's number, 0: not lent
    cdef uint32_t last_loan
    cdef uint32_t forks             # fork_count() when it was made

    cdef int check_process(self) except -1
    cdef uint32_t end_loan(self, uint32_t segment) noexcept


cdef class Borrower:
    cdef readonly Arena arena
    cdef LoanRings *rings
    cdef size_t length
    cdef uint32_t capacity
    cdef uint32_t forks             # fork_count() when it was made

    cdef int check_process(self) except -1
    # The next entry, 0: none.  It is the caller's until he writes it back.
    cdef uint64_t next_loan(self) noexcept nogil
    cdef void put_back(self, uint64_t entry) noexcept nogil


cdef class Loan:
    cdef Borrower borrower
    cdef uint64_t entry             # 0: given back
    cdef uint32_t exports           # buffers exported.  Under the GIL
