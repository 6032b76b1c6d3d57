"""What would stop a pipelined or fused stage on this Spark, seen on the driver before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_LOCAL = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,")


@dataclass(frozen=True)
class Preflight:
    """What stands in the way.  True if anything does, so that ``if preflight(...):`` reads as "is it stopped".

    Attributes
    ----------
    problems
        Each with its figures and what to set.
    slots
        Tasks that Spark runs at once; None if that cannot be known.
    """

    mode: str
    num_partitions: int
    slots: int | None
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Nothing stands in the way."""
        return not self.problems

    def __bool__(self) -> bool:
        return bool(self.problems)

    def __iter__(self) -> Iterator[str]:
        return iter(self.problems)

    def __str__(self) -> str:
        if self.problems:
            return "; ".join(self.problems)
        known = "an unknown number of" if self.slots is None else str(self.slots)
        return f"mode='{self.mode}' can run: {self.num_partitions} partitions, {known} slots"


def is_connect(spark: Any) -> bool:
    """Whether a session or DataFrame is Spark Connect's, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def preflight(spark: Any, num_partitions: int, mode: str = "pipelined") -> Preflight:
    """What would stop a stage of ``num_partitions`` here, and what to set.

    Parameters
    ----------
    spark
        A SparkSession, classic or Connect, or a SparkContext.
    num_partitions
        Partitions out (consumers).
    mode
        ``"pipelined"`` or ``"fused"``; nothing stops ``"blocking"``.

    Returns
    -------
    Preflight
        Empty, and false, if nothing does.
    """
    if is_connect(spark):
        slots = None
        problems = ["Spark Connect has no driver process to meet in: use mode='blocking'"] if mode != "blocking" else []
        return Preflight(mode, num_partitions, slots, tuple(problems))
    sc = getattr(spark, "sparkContext", spark)
    slots = slots_of(sc)
    problems = []
    if mode != "blocking":
        extra = 1 if mode == "pipelined" else 0
        if slots is not None and num_partitions + extra > slots:
            producers = " and producers need one more" if extra else ""
            problems.append(
                f"{num_partitions} consumers hold a slot each{producers}: {num_partitions + extra} > {slots} slots; "
                f"use {remedy(sc, num_partitions + extra)}, num_partitions={max(1, slots - extra)}, or mode='blocking'"
            )
        if _true(sc, "spark.dynamicAllocation.enabled"):
            problems.append(
                "Spark refuses barrier stages under dynamic allocation: set spark.dynamicAllocation.enabled=false, "
                "or use mode='blocking'"
            )
        if _true(sc, "spark.speculation") and mode == "fused":
            problems.append("a fused stage cannot be speculated: set spark.speculation=false, or use mode='blocking'")
    return Preflight(mode, num_partitions, slots, tuple(problems))


def remedy(sc: Any, slots: int) -> str:
    """How to get so many slots here."""
    if str(sc.master).startswith("local-cluster"):
        return f"local-cluster with {slots} cores in all"
    return f"local[{slots}]" if str(sc.master).startswith("local") else f"executors with {slots} cores in all"


def setting(sc: Any, name: str, default: Any = None) -> Any:
    """One setting of a SparkContext; ``sc.getConf()`` would fetch all of them, each by a call into the JVM."""
    return sc._conf.get(name, default)


def slots_of(sc: Any) -> int | None:
    """Tasks that Spark runs at once, as far as it can be known.

    ``local[n]``: n.  Else the executors there are (or, while there are none, those asked for) times their cores.
    """
    master = str(sc.master)
    task_cpus = max(1.0, float(setting(sc, "spark.task.cpus", "1")))
    local = _LOCAL.match(master)
    if local:
        threads = local[1] or "1"
        return int((sc.defaultParallelism if threads == "*" else int(threads)) // task_cpus)
    cluster = _LOCAL_CLUSTER.match(master)
    if cluster:
        return int(cluster[1]) * int(int(cluster[2]) // task_cpus)
    cores = setting(sc, "spark.executor.cores")
    try:
        executors = len(sc.statusTracker().getExecutorInfos()) - 1  # the driver is listed too
    except Exception:
        executors = 0
    executors = max(executors, int(setting(sc, "spark.executor.instances", "0")))
    if executors > 0 and cores is not None:
        return executors * int(int(cores) // task_cpus)
    total = setting(sc, "spark.cores.max")
    return int(int(total) // task_cpus) if total is not None else None


def attempts_of(sc: Any) -> int:
    """Attempts that Spark gives a task."""
    local = _LOCAL.match(str(sc.master))
    return int(local[2] or 1) if local else int(setting(sc, "spark.task.maxFailures", "4"))


def _true(sc: Any, name: str) -> bool:
    return str(setting(sc, name, "false")).strip().lower() == "true"


def partitions_of(df: Any) -> int | None:
    """Partitions of a DataFrame, if they can be had without running anything.

    With a shuffle in the plan and adaptive execution on, asking the RDD would run the stages below it.
    """
    plan = df._jdf.queryExecution().executedPlan()
    count = int(plan.outputPartitioning().numPartitions())
    if count > 0:
        return count
    if "AdaptiveSparkPlan" in plan.toString():
        return None
    return int(df.rdd.getNumPartitions())
