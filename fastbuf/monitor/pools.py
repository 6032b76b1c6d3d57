"""Flink's table that finds the slow task by pool usage.

Source: "Flink Network Stack Vol. 2: Monitoring, Metrics, and that Backpressure Thing" (Apache Flink's blog, 2019).
It needs no time measurements.  It shows where to look, but not the cause.
"""

from __future__ import annotations

HIGH = 0.5  #: a pool with at least this usage counts as full


def read_pools(
    in_pool: float,
    out_pool: float | None = None,
    exclusive: float = 0.0,
    floating: float = 0.0,
    upstream_out: float | None = None,
) -> str:
    """Classify a task by the table.

    Parameters
    ----------
    in_pool, out_pool
        ``inPoolUsage`` and ``outPoolUsage``, 0 to 1; ``None``: it writes to no exchange.
    exclusive, floating
        ``exclusiveBuffersUsage`` and ``floatingBuffersUsage``.
    upstream_out
        The highest ``outPoolUsage`` of the tasks that write to it; ``None``: not known.

    Returns
    -------
    str
        ``"ok"``; ``"held back"``: by tasks downstream; ``"held back, and holds back"``: by tasks downstream, and it
        holds back tasks upstream; ``"cause"``: it holds back tasks upstream; ``"cause for some"``: only some of its
        channels are full, as with skew; ``"may become the cause"``: no task is held back yet.
    """
    full_in, full_out = in_pool >= HIGH or floating >= HIGH, out_pool is not None and out_pool >= HIGH
    if full_out:
        return "held back, and holds back" if full_in else "held back"
    if not full_in:
        return "ok"
    if upstream_out is not None and upstream_out < HIGH:
        return "may become the cause"
    return "cause" if exclusive >= HIGH or in_pool >= HIGH else "cause for some"
