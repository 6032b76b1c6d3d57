"""The credit ledger: who may send how much, in whole buffers.

The policy is arithmetic on one row of counters a channel; the same inline functions serve the
exchange (``flow.buffer_manager``) and this class.
"""

import numpy as np

from fastbuf.errors import ConfigError, FastbufError


cdef class CreditLedger:
    """Credits of a gate's channels.

    Parameters
    ----------
    channels : int
        Number of input channels.
    exclusive : int
        Segments that belong to each channel alone; at least 1.
    floating : int
        Segments shared by all channels.

    Notes
    -----
    Invariants, checked by :meth:`audit`: for every channel ``announced == used + available``, and
    the floating segments that channels hold are never more than `floating`.  Source: Flink's
    credit-based flow control (1.5 and later).
    """

    def __init__(self, int channels, int exclusive=2, int floating=8):
        if channels < 1 or exclusive < 1 or floating < 0:
            raise ConfigError(
                f"CreditLedger(channels={channels}, exclusive={exclusive}, floating={floating}): "
                "at least 1 channel, 1 exclusive and 0 floating segments")
        self.channels = channels
        self.exclusive = exclusive
        self.floating = floating
        self.floating_out = 0
        self.counters = np.zeros((channels, sizeof(CreditRow) // 8), dtype=np.int64)
        cdef int64_t[:, ::1] view = self.counters
        self.rows = <CreditRow *> &view[0, 0]
        for i in range(channels):
            credit_init(&self.rows[i], exclusive)
            credit_announce(&self.rows[i], exclusive)

    cdef CreditRow *row(self, int channel) except NULL:
        if channel < 0 or channel >= self.channels:
            raise IndexError(f"channel {channel} of {self.channels}")
        return &self.rows[channel]

    def announce(self, int channel, int n=1):
        """Announce `n` more segments to the sender; what goes beyond the exclusive ones is floating.

        Returns
        -------
        int
            Credits announced: fewer than `n` when the floating segments are out.
        """
        cdef CreditRow *r = self.row(channel)
        if n < 0:
            raise ConfigError(f"announce({n}): not a number of segments")
        cdef int64_t own = r.exclusive - (r.available - r.floating)
        own = max(0, min(own, n))
        cdef int64_t shared = max(0, min(<int64_t> n - own, self.floating - self.floating_out))
        r.floating += shared
        self.floating_out += shared
        credit_announce(r, own + shared)
        return own + shared

    def take(self, int channel):
        """Use one credit: the sender sends a buffer.  ``False`` when there is none."""
        cdef CreditRow *r = self.row(channel)
        if not credit_take(r):
            return False
        # What is above the exclusive segments was floating and is used first.
        if r.floating > 0:
            r.floating -= 1
            self.floating_out -= 1
        return True

    def available(self, int channel):
        """Credits the sender of `channel` may still use."""
        return self.row(channel).available

    def backlog(self, int channel, queued=None):
        """Buffers queued at the sender; with `queued`, note that figure and return how many more credits are wanted."""
        cdef CreditRow *r = self.row(channel)
        if queued is None:
            return r.backlog
        if queued < 0:
            raise ConfigError(f"backlog({queued}): not a number of buffers")
        r.backlog = queued
        return max(0, credit_required(r) - r.available)

    def audit(self):
        """Prove the invariants; raises :class:`~fastbuf.errors.FastbufError` naming the channel that breaks one."""
        cdef int64_t shared = 0
        for i in range(self.channels):
            r = self.rows[i]
            if not credit_holds(&self.rows[i]):
                raise FastbufError(
                    f"channel {i}: announced {r.announced} is not used {r.used} + available {r.available}, "
                    f"floating {r.floating}")
            shared += r.floating
        if shared != self.floating_out or shared > self.floating:
            raise FastbufError(
                f"channels hold {shared} floating segments, {self.floating_out} are out of {self.floating}")
        return True
