"""Watermarks: the flow control that credit replaced, beside it to compare with.

A connection is writable until the bytes that wait to be sent reach the high mark, and again when they have fallen to
the low one.  Nothing tells it whether the receiver has memory for the channel a buffer belongs to: a receiver without a
segment stops reading, and then every channel of the connection waits.
"""

from libc.stdint cimport int64_t

from fastbuf.checks import MOST_SEGMENT_BYTES, whole
from fastbuf.config import SEGMENT_BYTES
from fastbuf.errors import ConfigError


cdef class WatermarkPolicy:
    """Whether a connection is writable, by the bytes that wait to be sent.

    Parameters
    ----------
    segment_size : int
        Bytes; the marks are ``2 * segment_size`` and ``segment_size + 1``.

    Attributes
    ----------
    high, low, queued : int
        Bytes.
    writable : bool
        False from the moment ``queued >= high`` to the moment ``queued <= low``.

    Notes
    -----
    Source: Flink before 1.5, on Netty's ``WriteBufferWaterMark``.
    """

    cdef Watermark mark

    def __init__(self, segment_size=SEGMENT_BYTES):
        watermark_init(&self.mark, whole("segment_size", segment_size, 1, MOST_SEGMENT_BYTES))

    @property
    def high(self):
        return self.mark.high

    @property
    def low(self):
        return self.mark.low

    @property
    def queued(self):
        return self.mark.queued

    @property
    def writable(self):
        return self.mark.writable

    def add(self, int64_t n):
        """`n` bytes more wait to be sent; whether it is still writable."""
        if n < 0:
            raise ConfigError(f"add({n}): not a number of bytes")
        watermark_add(&self.mark, n)
        return self.mark.writable

    def remove(self, int64_t n):
        """`n` bytes have been sent; whether it is writable."""
        if not 0 <= n <= self.mark.queued:
            raise ConfigError(f"remove({n}): {self.mark.queued} bytes are queued")
        watermark_remove(&self.mark, n)
        return self.mark.writable
