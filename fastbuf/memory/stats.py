"""Figures of the pools, frozen at one moment."""

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
        What it was made with: guaranteed, cap, and what may be lent beyond the limit.
    limit
        What it may hold now.
    held
        What it holds: `in_use` + `available`.
    in_use
        Requested and not yet recycled.
    available
        Home in this pool.
    peak
        Most `in_use` at any moment.
    waits
        Requests that had to wait.
    wait_s
        Time they waited, in seconds, sum.
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
        All.
    segment_size
        Bytes of each.
    available
        On the global list.
    required
        Guaranteed to the local pools, sum.
    limits
        Limits of the local pools, sum; at most `total`.
    in_use
        Requested and not yet recycled, of all pools, destroyed ones too.
    pools
        Local pools that are not destroyed.
    looks
        Local pools looked at so far, to make others and to share the segments out: the work that many pools cost.
    waits
        Requests that had to wait, of these pools.
    wait_s
        Time they waited, in seconds, sum.
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
