"""Which runs hold Spark's slots while producers wait for one, and whether that can end by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastbuf_spark.driver.cluster import either
from fastbuf_spark.driver.run import Run

#: When Spark stops reading a worker, as after take(), it gives its slot away before the worker has exited.  Until then
#: the slot counts twice, so slots must all be held for this long before a run is ended
LINGER_S = 10.0


@dataclass
class Slots:
    """Slots of a Spark application, from an exchange's point of view.

    Attributes
    ----------
    total
        Tasks that Spark runs at once when it has all its executors; None if unknown.
    caches
        Returns the names of the caches that a stage fills.
    remedy
        Returns the advice on how to get a number of slots.
    """

    total: Callable[[], int | None]
    caches: Callable[[int], tuple[str, ...]]
    remedy: Callable[[int], str]

    def verdict(self, run: Run, live: Sequence[Run], now: float) -> str:
        """Why a run without a running producer will never get one; empty if it still may.

        A run may wait as long as another run makes progress.  If consumers hold every slot and all of their runs wait
        for producers, nothing can ever move: then the youngest run is ended.  If others hold slots, nobody knows for
        how long: after ``stall_timeout`` that is an error too.
        """
        waited = now - max(other.moved for other in live)
        if waited < LINGER_S:
            return ""
        blocked = {other.epoch for other in live if other.without_producers}
        for _ in live:  # a run also waits if its producers read the result of a waiting run
            blocked |= {other.parent for other in live if other.epoch in blocked}
        waiting = [other for other in live if other.without_producers]
        if any(other.epoch not in blocked for other in live) or run is not waiting[-1]:
            return ""
        by_exchange: dict[str, list[int]] = {}  # by exchange name: the slots that each of its runs holds
        for other in live:
            if other.held_slots:
                by_exchange.setdefault(other.plan.name, []).append(other.held_slots)
        need, slots = sum(map(sum, by_exchange.values())) + 1, self.total()
        runs = {name: f" in {len(counts)} runs" if len(counts) > 1 else "" for name, counts in by_exchange.items()}
        who = ", ".join(f"'{name}' {sum(counts)}{runs[name]}" for name, counts in by_exchange.items())
        again = any(runs.values())
        fewer = "; or read a result less often at a time (in threads, in one union), or cache() it" if again else ""
        ways = either(self.remedy(need), "fewer partitions", "mode='blocking' for one of them")
        if slots is not None and need > slots:
            return (
                f"exchange '{run.plan.name}' waits for a slot that no one will free: consumers hold all ({who}), "
                f"and producers need one more: {need} > {slots} slots. Use {ways}{fewer}"
            )
        if waited > run.plan.stall_timeout and not (run.job is not None and run.job.active()):
            return (
                f"no producer of exchange '{run.plan.name}' could run for {waited:.0f} s (stall_timeout): consumers "
                f"hold {need - 1} slots ({who}), and other jobs the rest. Use {ways}"
            )
        return ""
