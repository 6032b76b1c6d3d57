"""Lending segments of a memfd arena to another process, which may be killed at any instruction (see lending.pxd)."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close as posix_close

import os
import select

import numpy

from fastbuf._native.atomics cimport *
from fastbuf._native.files cimport fb_map_shared, fb_memfd, fb_unmap
from fastbuf.checks import seconds_or_none, whole
from fastbuf.errors import ConfigError, FastbufError, ResourceError, SegmentExported, SegmentStateError
from fastbuf.memory.arena cimport Arena
from fastbuf.memory.layout import require_sealed
from fastbuf.memory.memory_segment cimport MemorySegment
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.memory.pool_core cimport segment_recycle, segment_retain
from fastbuf.memory.pool_setup cimport fork_count


cdef uint64_t MAGIC = 0x31736e616f4c6266u               # "fbLoans1"
cdef uint32_t VERSION = 2
cdef enum:
    MOST_CAPACITY = 1 << 20
    SLICE_NS = 200000000            # while waiting, check for signals and the other process's death this often
    SPIN_NS = 20000                 # about what a sleep and a wake-up cost


cdef inline uint64_t *lent_entries(LoanRings *r) noexcept nogil:
    return <uint64_t *>(r + 1)


cdef inline uint64_t *back_entries(LoanRings *r, uint32_t capacity) noexcept nogil:
    return lent_entries(r) + capacity


cdef int doze(fb_event *e, uint32_t epoch, int64_t deadline_ns) except -1:
    """Waits one slice for a notification later than `epoch`; 1: the deadline has passed."""
    cdef int64_t now = fb_now_ns()
    cdef int64_t until = now + SLICE_NS
    if 0 <= deadline_ns <= now:
        return 1
    if 0 <= deadline_ns < until:
        until = deadline_ns
    with nogil:
        if not fb_event_spin(e, epoch, min(<int64_t>SPIN_NS, until - now)):
            if fb_event_prepare(e) == epoch:
                fb_event_wait(e, epoch, until)
    PyErr_CheckSignals()
    return 0


cdef int64_t deadline_of(timeout) except? -1:
    timeout = seconds_or_none("timeout", timeout, 0)
    if timeout is None:
        return -1
    return fb_now_ns() + <int64_t>min(timeout * 1e9, 4e18)


cdef size_t rings_length(uint32_t capacity):
    return sizeof(LoanRings) + 2 * <size_t>capacity * sizeof(uint64_t)


@cython.final
@cython.no_gc_clear                 # __dealloc__ needs `network` alive: it owns the memory of core
cdef class Lender:
    """Lender(network, pid, capacity=64)\n--\n
    Lends segments of one pool to one other process.

    Parameters
    ----------
    network : NetworkBufferPool
        Made with ``memfd=True``.
    pid : int
        The borrower.  The process is watched from now on through a pidfd, so its death is detected reliably.
    capacity : int
        Most segments lent at once.

    Attributes
    ----------
    lent : int
        Segments lent now, as of the last `collect`.
    refused : int
        Returned entries that named no open loan.  Only a faulty borrower writes them; they have no effect.

    Raises
    ------
    ConfigError
        `capacity` is out of range.
    FastbufError
        The pool has no memfd.
    ProcessLookupError
        There is no such process.
    ResourceError
        No memory or no descriptor for the rings.

    Notes
    -----
    The two sides share only memory: neither makes a system call to lend, take or give back, unless the other sleeps in
    `wait`.  Only one thread at a time may call methods.  A forked child of the borrower that goes on using the mapping
    is not watched; the loans it has inherited are not given back by it.
    """

    def __cinit__(self, *args, **kwargs):
        self.fd = self.pidfd = -1
        self.forks = fork_count()

    def __init__(self, NetworkBufferPool network not None, pid, capacity=64):
        cdef LoanRings *r
        if self.rings != NULL:
            raise FastbufError("a Lender is made once")
        capacity = whole("capacity", capacity, 1, MOST_CAPACITY)
        pid = whole("pid", pid, 1)
        network.arena.fileno()                          # raises if there is none
        try:
            self.pidfd = os.pidfd_open(pid)
        except PermissionError as error:
            raise ResourceError(f"pidfd_open of process {pid}: {error.strerror}; a sandbox must allow it for a Lender, "
                                f"which is told by it that a borrower has died") from error
        self.capacity = capacity
        self.length = rings_length(capacity)
        self.loans = <uint32_t *>calloc(network.core.count, sizeof(uint32_t))
        self.fd = fb_memfd("fastbuf-loans", self.length)
        if self.loans == NULL or self.fd < 0:
            raise ResourceError(f"no memory for the rings of {capacity} loans: {os.strerror(errno)}")
        r = <LoanRings *>fb_map_shared(self.length, self.fd, True)
        if r == NULL:
            raise ResourceError(f"mapping the rings of {capacity} loans: {os.strerror(errno)}")
        fb_event_init_shared(&r.lent)
        fb_event_init_shared(&r.back)
        r.magic = MAGIC
        r.version = VERSION
        r.capacity = capacity
        self.network = network
        self.core = network.core
        self.rings = r

    def __reduce__(self):
        raise TypeError("a Lender belongs to its process and cannot be copied: "
                        "give network.arena.fileno() and lender.fileno() to the borrower")

    def __dealloc__(self):
        # Loans of a live borrower are never ended here: another user must not get memory that it reads.  The pool
        # reports these segments when it is closed.
        if self.rings != NULL:
            fb_unmap(self.rings, self.length)
        free(self.loans)
        for fd in (self.fd, self.pidfd):
            if fd >= 0:
                posix_close(fd)

    def __del__(self):
        if self.rings != NULL and self.lent and self.forks == fork_count() and not self.borrower_lives:
            self.take_back()

    cdef int check_process(self) except -1:
        if self.forks != fork_count():
            raise FastbufError("this is a fork of the process that lends: make a Lender of its own after fork()")
        return 0

    def fileno(self):
        """The memfd of the rings, for `Borrower`; the lender owns it."""
        return self.fd

    @property
    def sentinel(self):
        """A descriptor that becomes readable when the borrower is dead, for ``select`` and event loops."""
        return self.pidfd

    @property
    def borrower_lives(self):
        """Whether the borrower is still alive."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def lend(self, MemorySegment segment not None):
        """Lend a segment.

        Parameters
        ----------
        segment : MemorySegment
            The loan has a reference of its own: you may recycle the handle or go on using it.

        Returns
        -------
        bool
            False: `capacity` segments are lent already; nothing was done.

        Raises
        ------
        SegmentStateError
            The segment was recycled, is already lent, or belongs to another pool.
        FastbufError
            This process is a fork of the lender.
        """
        cdef uint32_t i = <uint32_t>segment.number
        cdef uint64_t put = fb_u64_load_relaxed(&self.rings.lent_put)
        self.check_process()
        segment.check()
        if segment.core != self.core:
            raise SegmentStateError(f"segment {i} is of another pool than the lender's")
        if self.loans[i] != 0:
            raise SegmentStateError(f"segment {i} is lent already: it can be lent again after its return")
        if self.lent >= self.capacity:                  # so neither ring can overflow
            return False
        self.last_loan = self.last_loan + 1 if self.last_loan != 0xFFFFFFFFu else 1
        segment_retain(self.core, i)
        self.loans[i] = self.last_loan
        self.lent += 1
        lent_entries(self.rings)[put % self.capacity] = <uint64_t>self.last_loan << 32 | i
        fb_u64_store_release(&self.rings.lent_put, put + 1)
        fb_event_notify(&self.rings.lent)
        return True

    def wait(self, timeout=None):
        """Wait, without the GIL, until `collect` has something to do.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None: as long as the borrower lives.

        Returns
        -------
        bool
            True: `collect` will find something.  False: the timeout has passed, or the borrower is dead.
        """
        cdef LoanRings *r = self.rings
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint32_t epoch
        while True:
            epoch = fb_event_epoch(&r.back)
            if fb_u64_load_acquire(&r.back_put) != fb_u64_load_relaxed(&r.back_got):
                return True
            if doze(&r.back, epoch, deadline) or not self.borrower_lives:
                return fb_u64_load_acquire(&r.back_put) != fb_u64_load_relaxed(&r.back_got)

    cdef uint32_t end_loan(self, uint32_t segment) noexcept:
        self.loans[segment] = 0
        self.lent -= 1
        segment_recycle(self.core, <int32_t>segment)
        return 1

    def collect(self):
        """End the loans that the borrower has given back; their segments go back to the pool.

        Returns
        -------
        int
            How many loans ended.

        Raises
        ------
        FastbufError
            The borrower has overwritten its counters, so nothing it writes is used any more: end the process and call
            `take_back`.  Or this process is a fork of the lender.
        """
        cdef LoanRings *r = self.rings
        cdef uint64_t got = fb_u64_load_relaxed(&r.back_got)
        cdef uint64_t put = fb_u64_load_acquire(&r.back_put)
        cdef uint64_t entry
        cdef uint32_t i
        cdef uint32_t ended = 0
        self.check_process()
        if put - got > self.capacity:
            raise FastbufError(
                f"the borrower claims to have returned {put} segments, after {got} that were collected; at most "
                f"{self.capacity} can be new: end it and call take_back()"
            )
        while got != put:
            entry = back_entries(r, self.capacity)[got % self.capacity]
            i = <uint32_t>entry
            if i < self.core.count and self.loans[i] != 0 and self.loans[i] == entry >> 32:
                ended += self.end_loan(i)
            else:
                self.refused += 1
            got += 1
        fb_u64_store_release(&r.back_got, got)
        return ended

    def take_back(self):
        """End all loans of a dead borrower.

        Returns
        -------
        int
            How many loans ended, including those given back but not yet collected.

        Raises
        ------
        FastbufError
            The borrower is alive and may be reading its segments.  Or this process is a fork of the lender.
        """
        cdef uint32_t i
        cdef uint32_t ended = 0
        self.check_process()
        if self.borrower_lives:
            raise FastbufError("the borrower lives, and may be using its segments: end it first, or collect()")
        for i in range(self.core.count):
            if self.loans[i] != 0:
                ended += self.end_loan(i)
        return ended


@cython.final
cdef class Borrower:
    """Borrower(arena, rings, *, writable=False)\n--\n
    The other end: takes segments that a `Lender` of another process lends.

    Parameters
    ----------
    arena : int or path
        Descriptor of the lender's arena, see `Arena.attach`.
    rings : int or path
        Descriptor of the lender's rings: ``Lender.fileno()``.
    writable : bool
        Whether loans may be written.

    Attributes
    ----------
    arena : Arena
        The lender's memory.

    Raises
    ------
    ConfigError, ResourceError, OSError
        See `Arena.attach`.

    Notes
    -----
    Only one thread at a time may call methods.
    """

    def __cinit__(self, *args, **kwargs):
        self.forks = fork_count()

    def __init__(self, arena, rings, *, writable=False):
        cdef LoanRings *r
        cdef int fd
        if self.rings != NULL:
            raise FastbufError("a Borrower is made once")
        self.arena = Arena.attach(arena, writable=writable)
        fd = os.dup(rings) if isinstance(rings, int) else os.open(rings, os.O_RDWR | os.O_CLOEXEC)
        try:
            require_sealed(fd, "Lender.fileno()")
            self.length = os.fstat(fd).st_size
            if self.length < sizeof(LoanRings):
                raise ConfigError(f"{self.length} bytes are no rings of a Lender")
            r = <LoanRings *>fb_map_shared(self.length, fd, True)
            if r == NULL:
                raise ResourceError(f"mapping the rings of a Lender: {os.strerror(errno)}")
        finally:
            os.close(fd)
        self.rings = r
        self.capacity = r.capacity
        if r.magic != MAGIC or r.version != VERSION or not 1 <= self.capacity <= MOST_CAPACITY:
            raise ConfigError("these are no rings of a Lender, or those of another version")
        if rings_length(self.capacity) != self.length:
            raise ConfigError(f"the rings of {self.capacity} loans do not take {self.length} bytes: they were altered")

    def __reduce__(self):
        raise TypeError("a Borrower belongs to its process and cannot be copied: make one in each process")

    def __dealloc__(self):
        if self.rings != NULL:
            fb_unmap(self.rings, self.length)

    cdef int check_process(self) except -1:
        if self.forks != fork_count():
            raise FastbufError("this is a fork of the borrower: what was lent is the borrower's alone")
        return 0

    cdef uint64_t next_loan(self) noexcept nogil:
        cdef LoanRings *r = self.rings
        cdef uint64_t got = fb_u64_load_relaxed(&r.lent_got)
        cdef uint64_t entry
        if fb_u64_load_acquire(&r.lent_put) == got:
            return 0
        entry = lent_entries(r)[got % self.capacity]
        fb_u64_store_release(&r.lent_got, got + 1)
        return entry

    cdef void put_back(self, uint64_t entry) noexcept nogil:
        cdef LoanRings *r = self.rings
        cdef uint64_t put = fb_u64_load_relaxed(&r.back_put)
        back_entries(r, self.capacity)[put % self.capacity] = entry
        fb_u64_store_release(&r.back_put, put + 1)
        fb_event_notify(&r.back)

    def wait(self, timeout=None):
        """Wait, without the GIL, until there is a segment to take.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None: no limit.  A dead lender never notifies: if you cannot learn of its death elsewhere, wait in
            slices.

        Returns
        -------
        bool
            False: the timeout has passed.
        """
        cdef LoanRings *r = self.rings
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint32_t epoch
        while True:
            epoch = fb_event_epoch(&r.lent)
            if fb_u64_load_acquire(&r.lent_put) != fb_u64_load_relaxed(&r.lent_got):
                return True
            if doze(&r.lent, epoch, deadline):
                return False

    def take(self):
        """The next lent segment, or None.  Never waits.

        Returns
        -------
        Loan or None

        Raises
        ------
        FastbufError
            The lender's entry names no segment of the arena, or this process is a fork of the borrower.
        """
        cdef uint64_t entry
        cdef Loan loan
        self.check_process()
        entry = self.next_loan()
        if entry == 0:
            return None
        if <uint32_t>entry >= self.arena.segments:
            raise FastbufError(f"the lender lends segment {<uint32_t>entry}, and there are {self.arena.segments}")
        loan = Loan.__new__(Loan)
        loan.borrower = self
        loan.entry = entry
        return loan


# no_gc: a loan refers only to its borrower, which does not refer to loans, so there is no cycle to find.
@cython.final
@cython.no_gc
cdef class Loan:
    """A borrowed segment: read (or write) it in place, then give it back.

    A loan that is garbage-collected is given back too, except in a forked child of the borrower.
    """

    def __init__(self):
        raise TypeError("a Loan comes from Borrower.take")

    def __dealloc__(self):
        if self.entry != 0 and self.borrower is not None and self.borrower.forks == fork_count():
            self.borrower.put_back(self.entry)          # no view can exist now: each would hold this object

    def __reduce__(self):
        raise TypeError("a Loan belongs to its process and cannot be copied: "
                        "copy its bytes, as in bytes(loan.view())")

    @property
    def index(self):
        """Number of the segment in the arena."""
        return <uint32_t>self.entry

    @property
    def size(self):
        """Bytes."""
        return self.borrower.arena.segment_size

    def __len__(self):
        return self.borrower.arena.segment_size

    def view(self):
        """The segment's bytes, in place; `give_back` is refused while a view is held.

        Returns
        -------
        memoryview
        """
        return memoryview(self)

    def array(self, dtype="uint8"):
        """The segment as a NumPy array of shape (size // itemsize,), in place; same rules as `view`.

        Parameters
        ----------
        dtype : numpy dtype
            Type of the items.

        Returns
        -------
        numpy.ndarray
        """
        kind = numpy.dtype(dtype)
        return numpy.frombuffer(self, kind, len(self) // kind.itemsize)

    def give_back(self):
        """Give the segment back.

        Raises
        ------
        SegmentExported
            Views of the segment are still held.
        SegmentStateError
            The loan was given back already.
        FastbufError
            This process is a fork of the borrower.
        """
        cdef uint64_t entry = self.entry
        self.borrower.check_process()
        if entry == 0:
            raise SegmentStateError("the segment was given back already")
        if self.exports != 0:
            raise SegmentExported(f"segment {self.index} has {self.exports} views still held: release them first")
        self.entry = 0
        self.borrower.put_back(entry)

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef Arena arena = self.borrower.arena
        if self.entry == 0:
            raise SegmentStateError("the segment was given back already")
        if arena.base == NULL:
            raise FastbufError("the arena is closed")
        PyBuffer_FillInfo(
            view,
            self,
            arena.base + <size_t><uint32_t>self.entry * <size_t>arena.stride,
            arena.segment_size,
            not arena.writable,
            flags,
        )
        self.exports += 1
        arena.exports += 1                              # so that it cannot be closed while a view is held

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1
        self.borrower.arena.exports -= 1
