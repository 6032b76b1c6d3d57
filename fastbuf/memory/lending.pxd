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
# lent and back are events (fb_event.h).  The borrower sleeps on `lent` and the lender notifies it; for `back` the roles
# are reversed.  Wrong values written by the other process can only delay a wake-up, so each side sleeps in short
# slices.
#
# Only the lender's own table decides who has a segment (`loans` of Lender: the loan number of each lent segment); the
# borrower cannot write to it.  A returned entry is accepted once, and only if it names a loan that is open.  So the
# borrower may die at any instruction: segments that it has returned are free again, and the others are still in the
# lender's table.
#
# No exchange uses it: a channel gives segments back in order, and needs no return ring (exchange/shared_block.pxd).
# What it gains whoever has a protocol of their own: frames of 256 KiB and 1 MiB that one process fills and another one
# sums up take 1.6 and 1.8 times as long through an exchange, 1.3 and 1.2 times with their numbers through a socket.
# Shorter ones are for an exchange: 32 KiB take half of the time there, 64 bytes a fifth
# (docs/explanation/what-stays.md).
#
# Forbidden: a loan that ends twice; a loan that never ends although the borrower is dead; a segment that is freed while
# the borrower lives and has not returned it.
#
# Only one process writes each counter.  A forked child has copies of the objects and its garbage collector destroys
# them.  These copies must write nothing (`forks`), or the child would return loans that its parent still reads.
from libc.stdint cimport uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au64, fb_event
from fastbuf.memory.arena cimport Arena
from fastbuf.memory.pool_types cimport PoolCore


cdef struct LoanRings:
    uint64_t magic
    uint32_t version
    uint32_t capacity               # entries of each ring
    char room[48]
    fb_au64 lent_put                # entries written by the lender so far
    char room1[56]
    fb_au64 lent_got                # entries read by the borrower so far
    char room2[56]
    fb_au64 back_put                # entries written by the borrower so far
    char room3[56]
    fb_au64 back_got                # entries read by the lender so far
    char room4[56]
    fb_event lent                   # the borrower sleeps on it
    char room5[56]
    fb_event back                   # the lender sleeps on it
    char room6[56]


cdef class Lender:
    cdef object network             # the NetworkBufferPool: keeps core alive
    cdef PoolCore *core
    cdef LoanRings *rings
    cdef size_t length              # bytes mapped
    cdef int fd                     # memfd of the rings
    cdef int pidfd
    cdef readonly uint32_t capacity
    cdef readonly uint32_t lent     # open loans
    cdef readonly uint64_t refused  # returned entries that named no open loan
    cdef uint32_t *loans            # by segment: the number of its loan; 0: not lent
    cdef uint32_t last_loan
    cdef uint32_t forks             # fork_count() when this object was made

    cdef int check_process(self) except -1
    cdef uint32_t end_loan(self, uint32_t segment) noexcept


cdef class Borrower:
    cdef readonly Arena arena
    cdef LoanRings *rings
    cdef size_t length
    cdef uint32_t capacity
    cdef uint32_t forks             # fork_count() when this object was made

    cdef int check_process(self) except -1
    # The next entry; 0: none.  The caller owns it until it writes it back.
    cdef uint64_t next_loan(self) noexcept nogil
    cdef void put_back(self, uint64_t entry) noexcept nogil


cdef class Loan:
    cdef Borrower borrower
    cdef uint64_t entry             # 0: given back
    cdef uint32_t exports           # buffers exported.  Under the GIL
