"""What would stop a pipelined shuffle on this Spark, seen on the driver before anything runs."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf

_LOCAL = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?$")
MAX_PARTITIONS = 1 << 30  #: what a hash of 32 bits is divided by
#: What may be given for a DataFrame by mistake: the beginning of its module, its class, and what to do.
_NO_FRAMES = (
    ("pyspark.core.rdd", "", "use fastbuf_spark.partition_by for pairs, or rdd.toDF()"),
    ("pyspark.pandas", "", "give df.to_spark()"),
    ("pandas", "DataFrame", "give spark.createDataFrame(df)"),
    ("polars", "LazyFrame", "give spark.createDataFrame(df.collect().to_arrow())"),
    ("polars", "", "give spark.createDataFrame(df.to_arrow())"),
    ("pyarrow", "Table", "give spark.createDataFrame(table)"),
)
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
    needed
        Slots that it takes: one for each consumer, and one for a producer in pipelined mode.
    tasks
        That one executor runs at once; None if that cannot be known.
    memory_bytes
        Of segments that these tasks may hold together.
    ports
        That executors reach each other by, one for each consumer, and that of the driver.
    """

    mode: str
    num_partitions: int
    slots: int | None
    problems: tuple[str, ...] = field(default=())
    needed: int = 0
    tasks: int | None = None
    memory_bytes: int | None = None
    ports: str = ""

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
        words = f"mode='{self.mode}' can run: {self.num_partitions} partitions, {self.needed} of {known} slots"
        if self.tasks is not None and self.memory_bytes is not None:
            words += f"; an executor of {self.tasks} tasks holds up to {self.memory_bytes >> 20} MiB of segments"
        return words + (f"; ports {self.ports}" if self.ports and self.mode != "blocking" else "")


def check_dataframe(df: Any) -> None:
    """ConfigError unless this is a DataFrame of Spark's, classic or Connect; the message says how to get one."""
    from pyspark.sql import DataFrame

    if isinstance(df, DataFrame) or is_connect(df):
        return
    kind = type(df)
    for base in kind.__mro__:
        for module, name, what in _NO_FRAMES:
            if base.__module__.startswith(module) and name in ("", base.__name__):
                raise ConfigError(f"df is a {kind.__module__}.{kind.__name__}, not a DataFrame of Spark's: {what}")
    raise ConfigError(f"df is a {kind.__module__}.{kind.__name__}: give a pyspark.sql.DataFrame")


def check_function(name: str, func: Any, what: str = "takes an iterator of pyarrow.RecordBatch and gives one") -> None:
    """ConfigError unless ``func`` can be called; ``what`` it has to do is told."""
    if not callable(func):
        raise ConfigError(f"{name} is {func!r:.100} ({type(func).__name__}): give a function that {what}")


def check_conf(conf: Any) -> None:
    """ConfigError unless these are settings, or None."""
    if isinstance(conf, dict):
        raise ConfigError("conf is a dict: give ShuffleConf(**conf), whose names are memory_bytes and so on")
    if conf is not None and not isinstance(conf, ShuffleConf):
        raise ConfigError(f"conf is a {type(conf).__name__}: give a ShuffleConf, or none for the session's settings")


def check_mode(mode: Any, modes: tuple[str, ...]) -> None:
    """ConfigError unless this is one of the modes."""
    if not isinstance(mode, str) or mode not in modes:
        raise ConfigError(f"mode is {mode!r}: it must be one of {', '.join(modes)}")


def partition_count(num_partitions: Any) -> int:
    """The number of partitions, of any integer type.

    Raises
    ------
    ConfigError
        It is none, or out of range.
    """
    try:
        count = None if isinstance(num_partitions, bool) else operator.index(num_partitions)
    except TypeError:
        count = None
    if count is None:
        raise ConfigError(
            f"num_partitions is {num_partitions!r}: it must be a number from 1 up, and is never guessed; it stands "
            "before the keys, as in repartition(df, 8, 'key')"
        )
    if not 1 <= count <= MAX_PARTITIONS:
        raise ConfigError(
            f"num_partitions is {count}: it must be a number from 1 up, and is never guessed; {MAX_PARTITIONS} (2**30) "
            "at most"
        )
    return count


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
        ``"pipelined"``, or ``"barrier"`` for the bare :class:`ShuffleStage`; nothing stops ``"blocking"``.

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
        most = slots_to_come(sc) if extra else slots
        if most is not None and num_partitions + extra > most:
            producers = " and producers need one more" if extra else ""
            fewer = f"num_partitions={most - extra}, " if most > extra else ""
            problems.append(
                f"{num_partitions} consumers hold a slot each{producers}: {num_partitions + extra} > {most} slots; "
                f"use {remedy(sc, num_partitions + extra)}, {fewer}or mode='blocking'"
            )
    if mode == "barrier":
        if is_dynamic(sc):
            problems.append("Spark refuses barrier stages under dynamic allocation: spark.dynamicAllocation.enabled")
        if _true(sc, "spark.speculation"):
            problems.append("a barrier stage cannot be speculated: set spark.speculation=false")
    conf = ShuffleConf.from_context(spark) if sc is spark else ShuffleConf.from_session(spark)
    tasks = tasks_of_executor(sc, slots)
    needed = 1 if mode == "blocking" else num_partitions + (mode == "pipelined")
    memory = None if tasks is None else tasks * conf.memory_bytes
    return Preflight(mode, num_partitions, slots, tuple(problems), needed, tasks, memory, ports_of(conf))


def tasks_of_executor(sc: Any, slots: int | None) -> int | None:
    """Tasks that one executor runs at once; None if its host decides."""
    cluster = _LOCAL_CLUSTER.match(str(sc.master))
    if _LOCAL.match(str(sc.master)):
        return slots
    cores = cluster[2] if cluster else setting(sc, "spark.executor.cores")
    return None if cores is None else int(cores) // int(setting(sc, "spark.task.cpus", "1"))


def ports_of(conf: ShuffleConf) -> str:
    """Ports that must be open, in words."""
    between = f"{conf.port_min} to {conf.port_max}" if conf.port_max else "any"
    return (
        f"{between} between executors (spark.fastbuf.portMin to portMax), one for each consumer; "
        f"{conf.driver_port or 'any'} on the driver (spark.fastbuf.driverPort)"
    )


def spare_problem(sc: Any, num_partitions: int, held: int) -> str:
    """Why ``auto`` leaves pipelined alone: there is to be room for two such shuffles, as a join has, and a producer.

    ``held``: slots that consumers of exchanges before it hold at the same time.
    """
    slots, need = slots_of(sc), num_partitions + max(num_partitions, held) + 1
    if slots is None or slots < 1:
        return "Spark does not say how many tasks it runs at once (no executor yet?)"
    if need <= slots:
        return ""
    most = min((slots - 1) // 2, slots - 1 - held)
    instead = f"; num_partitions={most} would be pipelined" if most > 0 else ""
    who = "two such shuffles, as a join has,"
    if held > num_partitions:
        who = f"{held} consumers of shuffles before it, {num_partitions} of its own"
    return f"{who} and one producer take {need} slots, and there are {slots}{instead}"


def remedy(sc: Any, slots: int) -> str:
    """How to get so many slots here."""
    if str(sc.master).startswith("local-cluster"):
        return f"local-cluster with {slots} cores in all"
    return f"local[{slots}]" if str(sc.master).startswith("local") else f"executors with {slots} cores in all"


def setting(sc: Any, name: str, default: Any = None) -> Any:
    """One setting of a SparkContext; ``sc.getConf()`` would fetch all of them, each by a call into the JVM."""
    return sc._conf.get(name, default)


def slots_of(sc: Any) -> int | None:
    """Tasks that Spark runs at once now, as it counts them itself for its barrier stages; None: it does not say.

    Executors that are still to come are not counted, but those of ``local-cluster``, whose number is fixed.
    """
    cluster = _LOCAL_CLUSTER.match(str(sc.master))
    if cluster:
        task_cpus = int(setting(sc, "spark.task.cpus", "1"))
        return int(cluster[1]) * (int(cluster[2]) // task_cpus)
    try:
        scala = sc._jsc.sc()
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # not public: another version may not have it
        return None


def slots_to_come(sc: Any) -> int | None:
    """The same when Spark has all executors that it may have: under dynamic allocation they come when tasks wait."""
    now = slots_of(sc)
    if not is_dynamic(sc):
        return now
    most, cores = setting(sc, "spark.dynamicAllocation.maxExecutors"), setting(sc, "spark.executor.cores")
    if most is None or cores is None:
        return None  # no bound is set, or an executor has what its host gives
    return max(now or 0, int(most) * (int(cores) // int(setting(sc, "spark.task.cpus", "1"))))


def attempts_of(sc: Any) -> int:
    """Attempts that Spark gives a task."""
    local = _LOCAL.match(str(sc.master))
    return int(local[2] or 1) if local else int(setting(sc, "spark.task.maxFailures", "4"))


def is_dynamic(sc: Any) -> bool:
    """Whether executors come and go as Spark needs them."""
    return _true(sc, "spark.dynamicAllocation.enabled")


def _true(sc: Any, name: str) -> bool:
    return str(setting(sc, name, "false")).strip().lower() == "true"
