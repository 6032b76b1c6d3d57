"""Who may hold how many segments: a pure function of what the pools ask for."""

from __future__ import annotations

from collections.abc import Sequence


def redistribute(total: int, pools: Sequence[tuple[int, int]]) -> list[int]:
    """Share the segments beyond what is required out among all pools.

    Each pool's share is in proportion to what it may still take, and never takes it past its maximum.  What a pool may
    still take counts up to the number of segments there are to share, so that a pool without a maximum does not push
    the others' shares to nothing.

    Parameters
    ----------
    total
        Segments there are.
    pools
        ``(required, maximum)`` of each pool; the sum of `required` is at most `total`.

    Returns
    -------
    list of int
        The limit of each pool, in the same order: at least its required, at most its maximum; their sum is at most
        `total`, and equal to it unless every pool is at its maximum.

    Notes
    -----
    The rounding of Flink's ``NetworkBufferPool.redistributeBuffers``: the shares are differences of a running total
    that is rounded down, so nothing is lost to rounding.
    """
    spare = total - sum(required for required, _ in pools)
    if spare < 0:
        raise ValueError(f"the pools require {total - spare} of {total} segments")
    room = [min(spare, maximum - required) for required, maximum in pools]
    capacity = sum(room)
    share = min(spare, capacity)
    limits = []
    parts = given = 0
    for (required, _), part in zip(pools, room, strict=True):
        parts += part
        size = share * parts // capacity - given if part else 0
        given += size
        limits.append(required + size)
    return limits
