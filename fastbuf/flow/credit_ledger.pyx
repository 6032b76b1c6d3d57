"""The credit ledger: how many buffers each sender may send.

The policy is arithmetic on one row of counters per channel; the exchange (``flow.buffer_manager``) and this class use
the same rows.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from fastbuf._native.atomics cimport *

import numpy as np

from fastbuf.checks import whole
from fastbuf.errors import FastbufError

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    SPIN = 64                   # tries on a ledger that others change before the thread yields


cdef CreditLedger ledger_of_gate(int channels, int exclusive, int floating):
    """Rows for a gate, which opens them one by one."""
    cdef CreditLedger ledger = CreditLedger.__new__(CreditLedger)
    _make(ledger, channels, exclusive, floating)
    ledger.of_gate = True
    return ledger


cdef int _make(CreditLedger ledger, int channels, int exclusive, int floating) except -1:
    cdef int64_t[:, ::1] view
    ledger.channels = channels
    ledger.exclusive = exclusive
    ledger.floating = floating
    fb_i64_init(&ledger.floating_out, 0)
    ledger.counters = np.zeros((channels, sizeof(CreditRow) // 8), dtype=np.int64)
    view = ledger.counters
    ledger.rows = <CreditRow *> &view[0, 0]
    return 0


cdef class CreditLedger:
    """CreditLedger(channels, exclusive=2, floating=8)\n--\n
    Credits of a gate's channels, in a NumPy array; no method waits or takes a lock.

    Parameters
    ----------
    channels : int
        Number of input channels.
    exclusive : int
        Segments of each channel alone; at least 1.
    floating : int
        Segments shared by all channels.

    Attributes
    ----------
    counters : numpy.ndarray
        int64, shape (channels, 8): announced, used, available, backlog, exclusive, floating, and two counts that show a
        reader whether the row changed while it was read.  These are the counters themselves, not a copy; a gate's are
        in ``gate.ledger.counters``: read them, never write.

    Notes
    -----
    Invariants, checked by :meth:`audit`: for every channel ``announced == used + available`` and ``0 <= available <=
    exclusive + floating``, so that each buffer in flight has a segment reserved for it; channels together never hold
    more than `floating` floating segments; a channel holds ``max(0, available - exclusive)`` of them.  Source: Flink's
    credit-based flow control (1.5 and later).
    """

    def __init__(self, channels, exclusive=2, floating=8):
        channels = whole("channels", channels, 1)
        exclusive, floating = whole("exclusive", exclusive, 1), whole("floating", floating, 0)
        _make(self, channels, exclusive, floating)
        for i in range(channels):
            credit_init(&self.rows[i], exclusive)
            credit_announce(&self.rows[i], exclusive, 0)

    def __repr__(self):
        return f"<CreditLedger: {self.channels} channels, exclusive {self.exclusive}, floating {self.floating}>"

    cdef CreditRow *row(self, channel) except NULL:
        if type(channel) is not int:
            channel = whole("channel", channel, 0, self.channels - 1)
        if not 0 <= channel < self.channels:
            raise IndexError(f"channel {channel} of {self.channels}")
        return &self.rows[<int> channel]

    cdef int64_t share(self, int64_t wanted) noexcept nogil:
        """Claims up to `wanted` floating segments, as many as there are; returns how many."""
        cdef int64_t out = fb_i64_load_relaxed(&self.floating_out)
        cdef int64_t n
        while True:
            n = min(wanted, self.floating - out)
            if n <= 0:
                return 0
            if fb_i64_cas_acq_rel(&self.floating_out, &out, out + n):
                return n

    cdef int64_t grant(self, CreditRow *r, int64_t n) noexcept nogil:
        # Called by one thread at a time for a channel: its receiver.  Senders may take credit meanwhile, so the number
        # of exclusive segments among the `n` depends on `available` at the moment of the exchange.  Floating segments
        # are counted before that, so that a sender never returns one that is not counted yet.
        cdef int64_t available
        cdef int64_t own
        cdef int64_t shared
        cdef int64_t back
        fb_i64_add_acq_rel(&r.begun, 1)
        available = fb_i64_load_acquire(&r.available)
        own = credit_own(r, available, n)
        shared = self.share(n - own)
        fb_i64_add_acq_rel(&r.floating, shared)
        while not fb_i64_cas_acq_rel(&r.available, &available, available + own + shared):
            own = credit_own(r, available, n)
            back = max(<int64_t> 0, shared - (n - own))
            if back:
                fb_i64_sub_acq_rel(&r.floating, back)
                fb_i64_sub_acq_rel(&self.floating_out, back)
                shared -= back
        fb_i64_add_acq_rel(&r.announced, own + shared)
        fb_i64_add_acq_rel(&r.ended, 1)
        return own + shared

    cdef bint use(self, CreditRow *r) noexcept nogil:
        # Called by any number of threads.
        cdef int64_t n = fb_i64_load_acquire(&r.available)
        cdef bint took = False
        if n <= 0:
            return False
        fb_i64_add_acq_rel(&r.begun, 1)
        while n > 0 and not took:
            took = fb_i64_cas_acq_rel(&r.available, &n, n - 1)
        if took:
            fb_i64_add_acq_rel(&r.used, 1)
            # Credit above the exclusive segments is floating and is used first: `n` tells which kind this credit was.
            if n > fb_i64_load_relaxed(&r.exclusive):
                fb_i64_sub_acq_rel(&r.floating, 1)
                fb_i64_sub_acq_rel(&self.floating_out, 1)
        fb_i64_add_acq_rel(&r.ended, 1)
        return took

    def announce(self, channel, n=1):
        """Announce `n` more segments to the sender; those beyond the exclusive ones are floating.

        One thread at a time for each channel; senders may take credit meanwhile.

        Returns
        -------
        int
            Credits announced: fewer than `n` if no floating segments are left.
        """
        return self.grant(self.row(channel), whole("n", n, 0))

    def take(self, channel):
        """Use one credit to send a buffer; ``False`` if there is none.  For any number of threads."""
        return self.use(self.row(channel))

    def available(self, channel):
        """Credits that the sender of `channel` may still use."""
        return fb_i64_load_acquire(&self.row(channel).available)

    def backlog(self, channel, queued=None):
        """Buffers queued at the sender; with `queued`, set that number and return how many more credits are needed."""
        cdef CreditRow *r = self.row(channel)
        if queued is None:
            return fb_i64_load_acquire(&r.backlog)
        fb_i64_store_release(&r.backlog, whole("queued", queued, 0))
        return max(0, credit_required(r) - fb_i64_load_acquire(&r.available))

    cdef bint snapshot(self, CreditFigures *out) noexcept nogil:
        """Copies all rows as they are at one moment; False: a row changed meanwhile."""
        cdef int64_t ended = 0
        cdef int64_t begun = 0
        cdef int i
        for i in range(self.channels):
            ended += fb_i64_load_acquire(&self.rows[i].ended)
        for i in range(self.channels):
            credit_look(&self.rows[i], &out[i])
        for i in range(self.channels):
            begun += fb_i64_load_acquire(&self.rows[i].begun)
        return begun == ended

    def audit(self):
        """Check the invariants at one moment, while other threads go on.

        Raises
        ------
        FastbufError
            An invariant is broken; the message names the channel.
        """
        cdef CreditFigures *f = <CreditFigures *> malloc(self.channels * sizeof(CreditFigures))
        cdef int64_t shared = 0
        cdef int64_t out
        cdef int tries
        if f == NULL:
            raise MemoryError
        try:
            while True:
                with nogil:
                    for tries in range(SPIN):
                        if self.snapshot(f):
                            break
                        fb_cpu_relax()
                    else:
                        tries = -1
                        sched_yield()
                if tries >= 0:
                    break
            for i in range(self.channels):
                if not credit_holds(&f[i]):
                    raise FastbufError(
                        f"channel {i}: announced {f[i].announced} is not used {f[i].used} + available "
                        f"{f[i].available}, or that is more than exclusive {f[i].exclusive} + floating {f[i].floating}")
                if not self.of_gate and f[i].floating != max(<int64_t> 0, f[i].available - f[i].exclusive):
                    raise FastbufError(
                        f"channel {i}: of {f[i].available} available and exclusive {f[i].exclusive}, "
                        f"{f[i].floating} are floating")
                shared += f[i].floating
        finally:
            free(f)
        if shared > self.floating:
            raise FastbufError(f"channels hold {shared} floating segments of {self.floating}")
        out = fb_i64_load_acquire(&self.floating_out)
        if not self.of_gate and not 0 <= out <= self.floating:
            raise FastbufError(f"{out} floating segments are claimed of {self.floating}")
        return True
