"""What of a Spark decides whether a shuffle can run there: of one that is there, or of one that is only thought of."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf

MOST_TASKS = 4  #: for each core of a machine: consumers wait most of the time, but each has a process
SPARE_DESCRIPTORS = 128  #: of a process beside its connections: libraries, files, pipes to the JVM


@dataclass(frozen=True)
class Cluster:
    """A Spark, in figures.  By hand for one that is not there: ``Cluster(executors=100, cores=16)``.

    Parameters
    ----------
    executors, cores
        Executors, and cores of each, which are its slots where a task takes one.
    task_cpus
        Cores of a task (``spark.task.cpus``).
    executors_per_host
        Executors on each host.
    descriptors
        That a worker's process may open (``ulimit -n``); None: unknown.
    driver_descriptors
        The same of the driver's; None: those of this process.

    Raises
    ------
    ConfigError
        No executor, or no slot in one.
    """

    executors: int | None = None
    cores: int | None = None
    task_cpus: int = 1
    executors_per_host: int = 1
    descriptors: int | None = None
    driver_descriptors: int | None = None
    master: str = field(default="", repr=False)
    now: int | None = field(default=None, repr=False)  #: slots, where they are not those of all executors
    most: int | None = field(default=None, repr=False)  #: slots, when Spark has started all executors that it may
    tasks: int | None = field(default=None, repr=False)  #: slots of an executor
    here: int | None = field(default=None, repr=False)  #: cores of this machine, where the executors are on it
    is_pinned: bool = field(default=True, repr=False)  #: whether each thread has one of the JVM's
    is_dynamic: bool = field(default=False, repr=False)
    has_servers: bool = field(default=True, repr=False)  #: whether held rows are read from file servers

    def __post_init__(self) -> None:
        if self.master:
            return
        for name in ("executors", "cores", "task_cpus", "executors_per_host"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}: give a whole number of at least 1")
        if self.cores is None or self.executors is None or self.cores < self.task_cpus:
            raise ConfigError(f"cores is {self.cores}, task_cpus {self.task_cpus}: no task fits into an executor")
        object.__setattr__(self, "tasks", self.cores // self.task_cpus)
        object.__setattr__(self, "now", self.executors * (self.cores // self.task_cpus))
        object.__setattr__(self, "most", self.now)

    @property
    def driver_limit(self) -> int:
        """Descriptors that the driver's process may open."""
        return self.driver_descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def remedy(self, slots: int) -> str:
        """How to get that many slots; empty where this machine would have to run too many tasks at once."""
        cpus = self.task_cpus
        cores, why = slots * cpus, f" (a task takes {cpus}: spark.task.cpus)" if cpus > 1 else ""
        if self.here is not None and cores > MOST_TASKS * self.here:
            return ""
        if self.master.startswith("local-cluster"):
            return f"local-cluster with {cores} cores in all{why}"
        return f"local[{cores}]{why}" if self.here is not None else f"executors with {cores} cores in all{why}"


@dataclass(frozen=True)
class Preflight:
    """Reasons why a shuffle cannot run.  True if there are any, so ``if preflight(...):`` reads as "is it stopped".

    Attributes
    ----------
    problems
        Each reason, with its figures and the setting to change.
    slots
        Tasks that Spark runs at once; None if unknown.
    needed
        Slots needed: one for each consumer, and one for a producer in pipelined mode.
    tasks
        Tasks that one executor runs at once; None if unknown.
    memory_bytes
        Bytes of segments that these tasks may hold together.
    ports
        Ports over which executors reach each other, one for each consumer, or file server in blocking mode, and the
        driver's port; empty: they need not.
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
        """Whether there is no problem."""
        return not self.problems

    def __bool__(self) -> bool:
        return bool(self.problems)

    def __iter__(self) -> Iterator[str]:
        return iter(self.problems)

    def __str__(self) -> str:
        if self.problems:
            return "; ".join(self.problems)
        slots = "an unknown number of" if self.slots is None else str(self.slots)
        takes = "as many" if self.mode == "blocking" else str(self.needed)
        takes += f" of {slots} slots{' as are free' if self.mode == 'blocking' else ''}"
        words = f"mode='{self.mode}' can run: {self.num_partitions} partitions, {takes}"
        if self.tasks is not None and self.memory_bytes is not None:
            words += f"; an executor of {self.tasks} tasks holds up to {self.memory_bytes >> 20} MiB of segments"
        return words + (f"; ports {self.ports}" if self.ports else "")


def judged(cluster: Cluster, num_partitions: int, mode: str, conf: ShuffleConf, held_slots: int = 0) -> Preflight:
    """Whether a stage can run on a cluster; ``mode`` is no ``"auto"`` any more.

    ``held_slots``: slots that consumers of earlier exchanges hold meanwhile.
    """
    problems, consumers = [], num_partitions + held_slots
    extra = 1 if mode == "pipelined" else 0
    if mode != "blocking":
        most = cluster.most if extra else cluster.now
        if most is not None and consumers + extra > most:
            producers = " and producers need one more" if extra else ""
            fewer = f"num_partitions={most - extra}" if most > extra else ""
            ways = either(cluster.remedy(consumers + extra), fewer, "mode='blocking'")
            problems.append(
                f"{consumers} consumers hold a slot each{producers}: {consumers + extra} > {most} slots; use {ways}"
            )
        if num_partitions + 1 > conf.segments:
            need = (num_partitions + 1) * conf.segment_size
            problems.append(
                f"a producer of {num_partitions} consumers needs {num_partitions + 1} segments of {conf.segment_size} "
                f"bytes, and has {conf.segments}: set spark.fastbuf.memoryBytes={-(-need >> 20)}m, a lower "
                "spark.fastbuf.segmentSize, fewer partitions, or mode='blocking'"
            )
        if consumers + extra + SPARE_DESCRIPTORS > cluster.driver_limit:
            problems.append(
                f"{consumers} consumers and their producers have a connection to the driver each, which may open "
                f"{cluster.driver_limit} descriptors and needs {SPARE_DESCRIPTORS} for itself: raise its limit "
                "(ulimit -n), use fewer partitions, or mode='blocking'"
            )
    own = num_partitions + SPARE_DESCRIPTORS
    if mode == "pipelined" and cluster.descriptors is not None and own > cluster.descriptors:
        problems.append(
            f"a producer of {num_partitions} consumers has as many connections, and its process may open "
            f"{cluster.descriptors} descriptors, of which {SPARE_DESCRIPTORS} are for others: raise the limit of "
            "the executors (ulimit -n), use fewer partitions, or mode='blocking'"
        )
    if mode == "pipelined" and not cluster.is_pinned:
        problems.append(
            "PYSPARK_PIN_THREAD=false: what is set for the producers' job, as its tags, would be set for jobs of yours "
            "too; do not set it, or use mode='blocking'"
        )
    if mode == "barrier" and cluster.is_dynamic:
        problems.append("Spark refuses barrier stages under dynamic allocation: spark.dynamicAllocation.enabled")
    needed = 1 if mode == "blocking" else consumers + extra
    memory = None if cluster.tasks is None else cluster.tasks * conf.memory_bytes
    ports = ports_of(conf) if mode != "blocking" or cluster.has_servers else ""
    return Preflight(mode, num_partitions, cluster.now, tuple(problems), needed, cluster.tasks, memory, ports)


def ports_of(conf: ShuffleConf) -> str:
    """Ports that must be open, as text."""
    between = f"{conf.port_min} to {conf.port_max}" if conf.port_max else "any"
    return (
        f"{between} between executors (spark.fastbuf.portMin to portMax), one for each consumer, or file server; "
        f"{conf.driver_port or 'any'} on the driver (spark.fastbuf.driverPort)"
    )


def either(*ways: str) -> str:
    """Ways out, as text; empty ones are none."""
    *first, last = filter(None, ways)
    return f"{', '.join(first)}{',' * (len(first) > 1)} or {last}" if first else last
