"""Who holds Spark's slots while producers wait for one, and whether that can end by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastbuf_spark.driver.run import Run

#: Spark gives on the slot of a worker that it reads no more, as after take(), before that worker has left: until then
#: the slot counts twice, so slots that are all held are looked at for so long
LINGER_S = 10.0


@dataclass
class Slots:
    """Of one Spark application, as an exchange asks for them.

    Attributes
    ----------
    known
        Tasks that Spark runs at once, when it has all executors that it may have; None where it does not say.
    caches
        Names of the caches that a stage fills.
    remedy
        From a number of slots to the words that say how to get them.
    """

    known: Callable[[], int | None]
    caches: Callable[[int], tuple[str, ...]]
    remedy: Callable[[int], str]

    def verdict(self, run: Run, live: Sequence[Run], now: float) -> str:
        """Why a run that has no producer running will have none; empty while it may still get one.

        It waits its turn as long as another run gets on.  Where consumers hold every slot and all of their runs wait
        for producers, nothing will ever move: then the run that came last is ended.  Where others hold slots, nobody
        knows how long: after ``stall_timeout`` that is an error too.
        """
        waited = now - max(other.moved for other in live)
        if waited < LINGER_S:
            return ""
        blocked = {other.epoch for other in live if other.starved}
        for _ in live:  # a run waits too if its producers read the result of one that waits
            blocked |= {other.parent for other in live if other.epoch in blocked}
        if any(other.epoch not in blocked for other in live) or run is not [o for o in live if o.starved][-1]:
            return ""
        held = {other.plan.name: 0 for other in live}
        for other in live:
            held[other.plan.name] += other.held_slots
        need, slots = sum(held.values()) + 1, self.known()
        who = ", ".join(f"'{name}' {count}" for name, count in held.items() if count)
        if slots is not None and need > slots:
            return (
                f"exchange '{run.plan.name}' waits for a slot that no one will free: consumers hold all ({who}), "
                f"and producers need one more: {need} > {slots} slots. Use {self.remedy(need)}, fewer partitions, or "
                "mode='blocking' for one of them"
            )
        if waited > run.plan.stall_timeout and not (run.job is not None and run.job.active()):
            return (
                f"no producer of exchange '{run.plan.name}' could run for {waited:.0f} s (stall_timeout): consumers "
                f"hold {need - 1} slots ({who}), other jobs the rest. Give Spark more slots ({self.remedy(need)}), use "
                "fewer partitions, or mode='blocking'"
            )
        return ""
