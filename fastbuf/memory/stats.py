"""Figures of the pools at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalPoolStats:
    """Figures of one `LocalBufferPool`; counts are segments.

    Parameters
    ----------
    name
        As given to ``create_local_pool``.
    required, maximum, overdraft
        The pool's parameters: guaranteed segments, upper bound, and segments that may be lent beyond the limit.
    limit
        Segments that it may hold now.
    held
        Segments that it holds: `in_use` + `available`.
    in_use
        Requested and not yet recycled.
    available
        Free in this pool.
    peak
        Largest `in_use` so far.
    waits
        Requests that had to wait.
    wait_s
        Total time that they waited, in seconds.
    destroyed
        Whether `destroy` has run.
    """

    name: str
    required: int
    maximum: int
    overdraft: int
    limit: int
    held: int
    in_use: int
    available: int
    peak: int
    waits: int
    wait_s: float
    destroyed: bool

    @property
    def usage(self) -> float:
        """`in_use` as a part of `limit`; above 1 with overdraft or after the limit fell."""
        return self.in_use / self.limit if self.limit else float(self.in_use > 0)


@dataclass(frozen=True)
class NetworkPoolStats:
    """Figures of one `NetworkBufferPool`; counts are segments.

    Parameters
    ----------
    total
        All segments.
    segment_size
        Bytes of each segment.
    available
        On the global list.
    required
        Sum of the segments guaranteed to local pools.
    limits
        Sum of the limits of local pools; at most `total`.
    in_use
        Requested and not yet recycled, in all pools, including destroyed ones.
    pools
        Local pools that are not destroyed.
    looks
        Local pools visited so far to make other pools and to redistribute segments: the cost of having many pools.
    waits
        Requests to these pools that had to wait.
    wait_s
        Total time that they waited, in seconds.
    """

    total: int
    segment_size: int
    available: int
    required: int
    limits: int
    in_use: int
    pools: int
    looks: int
    waits: int
    wait_s: float
