"""Plans a pipeline: functions that share a task, exchanges that run at the same time, and their memory."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf_spark.conf import WORKER_MEMORY, ShuffleConf
from fastbuf_spark.driver.checks import check_barrier, is_connect, slots_of, special_tasks, tasks_of_executor
from fastbuf_spark.driver.cluster import ports_of
from fastbuf_spark.driver.input_batches import MAX_BYTES, NO_LIMIT, is_measured
from fastbuf_spark.driver.plan import SPARKS_OWN, Shuffle, limits_of
from fastbuf_spark.driver.sources import Source, counted
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.worker.chains import Called, Chain
from fastbuf_spark.worker.groups import Limits
from fastbuf_spark.worker.steps import Copies, Drawn, Hashed, WithoutLast

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.driver.selection import Selection

#: Tasks behind an exchange whose partitions nobody counts: enough that a slow one holds up few; each costs Spark 8 ms
TASKS_OF_SLOT = 4
PARTITION_BYTES = 64 << 20  #: of the input's files, for a partition of which nobody has said how many there are
LEAST_SEGMENTS = 8  #: an exchange's memory is not divided below this
ADDED = "__fastbuf_step"  #: name of a column that a step adds only for its shuffle, unless the rows have it


class Step(Protocol):
    """One step of a pipeline."""

    def build(self, at: Staged, plan: Plan) -> Staged:
        """The stage after this step."""


@dataclasses.dataclass
class Stage:
    """A stage as the plan shows it: the functions of one task, in order, and the exchange before them."""

    links: list[str]
    tasks: int | None = None
    exchange: str = ""
    mode: str = ""
    why: str = ""


class Plan:
    """State while the steps of a pipeline become stages.

    Parameters
    ----------
    exchanges
        Number of exchanges in the pipeline.
    shared
        Whether the result is an ordinary DataFrame, which may be used twice in one action, as in a join: then slots
        must be left for that.
    """

    def __init__(self, spark: Any, conf: ShuffleConf, exchanges: int, shared: bool) -> None:
        self.spark = spark
        self.exchanges = exchanges
        self.planned = 0  # of these
        self.shared = shared
        self.stages: list[Stage] = []
        self.frames: dict[int, DataFrame] = {}  # what comes through the JVM, by the number of its stage
        self.held_slots = 0
        self.nbytes = 0  # of the input's files, as far as they are known
        self.partitions = 0
        self.special: Special | None = None  # asked for by a map in the stage that the next exchange begins
        self.holds_rows = False  # whether a task sorts rows, in memory as far as they fit
        self.given = conf
        self.conf = _halved(conf) if exchanges > 1 else conf
        self.slots = None if is_connect(spark) else slots_of(spark.sparkContext)

    def count(self, partitions: int | None, mode: str) -> int:
        """Partitions of an exchange: the number requested, else that of the previous exchange, else the default."""
        self.partitions = partitions or self.partitions or self._default(mode)
        return self.partitions

    def _default(self, mode: str) -> int:
        """Chosen by cores and bytes; of pipelined exchanges so that all can run at the same time."""
        if self.slots is None:
            return int(self.spark.conf.get("spark.sql.shuffle.partitions", "200"))
        if "pipelined" in (mode, mode == "auto" and self.conf.mode):
            return max(1, min(self.slots // 2, (self.slots - 1) // max(1, self.exchanges)))
        return max(self.slots, -(-self.nbytes // PARTITION_BYTES))

    def follow(self, start: Source | DataFrame, steps: Iterable[Step]) -> Staged:
        """The last stage of an input and its steps."""
        if isinstance(start, Source):
            at = start.staged()
            self.nbytes += start.nbytes
            self.stages.append(Stage([start.about], len(start.read.splits)))
        else:
            at = Staged(start, start.schema)
            self.stages.append(Stage(["a DataFrame of Spark's, through the JVM"]))
            self.frames[len(self.stages)] = start
        steps = tuple(steps)
        for number, step in enumerate(steps):
            # A special map's stage begins with the last exchange before it
            behind = itertools.takewhile(lambda step: isinstance(step, Map), steps[number + 1 :])
            asked = (step.special for step in behind if isinstance(step, Map))
            self.special = next(filter(None, asked), None)
            at = step.build(at, self)
        return at

    def follow_beside(self, start: Source | DataFrame, steps: Iterable[Step]) -> Staged:
        """The same for another input of the next exchange, whose partitions are counted by themselves."""
        partitions, special, self.partitions = self.partitions, self.special, 0
        stage = self.follow(start, steps)
        self.partitions, self.special = partitions, special
        return stage

    def entered(self, stage: Staged, what: str, partitions: int) -> Staged:
        """Record a planned exchange."""
        self.planned += 1
        if stage.mode == "pipelined":
            self.held_slots += partitions
        self.stages.append(Stage([], partitions, what, stage.mode, stage.why))
        return stage

    def exchange(self, at: Staged, what: str, keys: Any, partitions: int | None, mode: str) -> Staged:
        """The stage after a shuffle of ``at``."""
        count = self.count(partitions, mode)
        return self.entered(self.shuffle(at, keys, count, mode).moved(what), what, count)

    def shuffle(self, at: Staged, keys: Any, partitions: int, mode: str) -> Shuffle:
        """The next exchange, of as many partitions, with what the plan knows."""
        tasks = partitions
        # The partitions of a DataFrame are counted; those in front of another exchange, or of an action of the
        # pipeline itself, are not
        if self.planned + 1 < self.exchanges or not self.shared:
            tasks = min(partitions, TASKS_OF_SLOT * (self.slots or partitions))
        obstacle = "" if self.special is None else self.special.why
        return Shuffle(at, keys, partitions, mode, self.conf, self.held_slots, tasks, obstacle)

    def limits(self) -> Limits:
        """The limits of a task that sorts its rows."""
        self.holds_rows = True
        return limits_of(self.spark, self.conf)

    def linked(self, name: str) -> None:
        """Record a function of the last stage."""
        self.stages[-1].links.append(name)

    def text(self) -> str:
        """The plan as text."""
        lines = []
        for number, stage in enumerate(self.stages, 1):
            if stage.exchange:
                why = f" ({stage.why})" if stage.why else ""
                into = "" if stage.tasks is None else f" -> {counted(stage.tasks, 'partition')}"
                lines.append(f"    == {stage.exchange}{into}: {stage.mode}{why}")
            tasks = "" if stage.tasks is None else counted(stage.tasks, "task")
            if stage.mode == "pipelined":
                tasks += ", each holds a slot from the beginning"
            tasks += ": " if tasks else ""
            lines.append(f"stage {number}  {tasks}{' -> '.join(stage.links) or 'rows as they come'}")
        need = (2 if self.shared else 1) * self.held_slots + 1
        have = "an unknown number" if self.slots is None else str(self.slots)
        twice = " (two uses of the result in one action included)" if self.shared else ""
        used = f"{need} at the same time{twice}, of {have}"
        if not self.held_slots:
            used = f"as many of {have} as a stage has tasks; no exchange holds some from beginning to end"
        lines.append(f"slots   {used}")
        lines += [*self._measured(), self._memory()]
        return "\n".join(lines)

    def _measured(self) -> list[str]:
        """A line that names the inputs of which Spark measures each batch after every row; none if there are none."""
        numbers = []
        for number, frame in self.frames.items():
            mode = next((stage.mode for stage in self.stages[number:] if stage.exchange), "")
            if is_measured(frame, self.given.max_row_bytes, mode == "pipelined"):
                numbers.append(str(number))
        if not numbers:
            return []
        return [
            f"input   of stage {' and '.join(numbers)}: Spark adds up the bytes of an Arrow batch after every row. If "
            f"rows are known to be short, set {MAX_BYTES}={NO_LIMIT}; files are read faster without the JVM, by "
            "read_parquet"
        ]

    def _memory(self) -> str:
        mib = self.conf.memory_bytes / (1 << 20)
        divided = ""
        if self.conf is not self.given:
            divided = f": half of memory_bytes ({self.given.memory_bytes >> 20} MiB), for a task may be in two"
        words = f"memory  {mib:g} MiB of segments for a task and an exchange{divided}"
        tasks = None if is_connect(self.spark) else tasks_of_executor(self.spark.sparkContext, self.slots)
        if tasks is not None:
            words += f"; {self.given.memory_bytes * tasks / (1 << 20):g} MiB in {tasks} tasks of one executor"
        lines = [f"{words}, besides what functions hold"]
        if self.holds_rows:
            rows = limits_of(self.spark, self.conf).memory_bytes / (1 << 20)
            setting = "memory_bytes" if self.given.memory_was_set else WORKER_MEMORY
            words = f"rows    {rows:g} MiB for a task that sorts them, as groups do ({setting})"
            words += "" if tasks is None else f", {rows * tasks:g} MiB in {tasks} tasks"
            lines.append(f"{words}; what is more is spilled to files")
        return "\n".join(lines if is_connect(self.spark) else [*lines, f"ports   {ports_of(self.given)}"])


def _halved(conf: ShuffleConf) -> ShuffleConf:
    """Settings for an exchange whose tasks are in another one too: both share the memory of one task."""
    least = LEAST_SEGMENTS * conf.segment_size
    if conf.memory_bytes < 2 * least:
        return conf
    return dataclasses.replace(conf, memory_bytes=type(conf.memory_bytes)(conf.memory_bytes // 2))  # Unset stays so


def build(
    start: Source | DataFrame, steps: Iterable[Step], conf: ShuffleConf | None, shared: bool
) -> tuple[Staged, Plan]:
    """Build the last stage of a pipeline, and its plan."""
    steps = tuple(steps)
    spark = start.spark if isinstance(start, Source) else start.sparkSession
    plan = Plan(spark, ShuffleConf.of(spark, conf), exchanges_of(steps), shared)
    return plan.follow(start, steps), plan


def exchanges_of(steps: Iterable[Step]) -> int:
    """Number of exchanges in these steps."""
    return sum(getattr(step, "exchanges", 0) for step in steps)


@dataclasses.dataclass(frozen=True)
class Special:
    """What a map asks of its stage: to be a barrier stage, or a resource profile.

    Attributes
    ----------
    why
        What is special about its tasks.
    """

    barrier: bool
    profile: ResourceProfile | None
    why: str

    @classmethod
    def of(cls, barrier: bool, profile: ResourceProfile | None) -> Special | None:
        """None if nothing is asked."""
        why = special_tasks(barrier, profile)
        return cls(barrier, profile, why) if why else None


@dataclasses.dataclass(frozen=True)
class Map:
    """A function over record batches, in the existing tasks."""

    func: Callable[..., Any]
    schema: StructType | None
    name: str
    #: Makes the function from the input's schema and the session, if it depends on them
    make: Callable[[Any, StructType], Callable[..., Any]] | None = None
    special: Special | None = None

    def build(self, at: Staged, plan: Plan) -> Staged:
        plan.linked(self.name)
        func = self.func if self.make is None else self.make(plan.spark, at.schema)
        stage = at.then(func, self.schema or at.schema, is_users=self.schema is not None)
        if self.special is None:
            return stage
        if plan.stages[-1].tasks is not None:
            check_barrier(plan.spark, self.special.barrier, plan.stages[-1].tasks)
        df = stage.to_df(self.special.barrier, self.special.profile)
        plan.stages.append(Stage([], None, "a new chain, through the JVM", "Spark's own", self.special.why))
        return Staged(df, df.schema, in_order=stage.in_order)


@dataclasses.dataclass(frozen=True)
class Select:
    """Some of the columns, and computed ones, in the existing tasks."""

    selection: Selection

    def build(self, at: Staged, plan: Plan) -> Staged:
        plan.linked("select")
        return at.then(*self.selection.of_rows(plan.spark, at.schema))


@dataclasses.dataclass(frozen=True)
class NewChain:
    """The following functions run in Python workers of their own."""

    def build(self, at: Staged, plan: Plan) -> Staged:
        df = at.to_df()
        plan.stages.append(Stage([], None, "a new chain, through the JVM", SPARKS_OWN, "as asked for"))
        return Staged(df, df.schema, in_order=at.in_order)


@dataclasses.dataclass(frozen=True)
class Repartition:
    """Rows by key, or distributed in turn."""

    keys: tuple[Any, ...]
    partitions: int | None
    mode: str
    exchanges = 1

    def build(self, at: Staged, plan: Plan) -> Staged:
        by = ", ".join(map(str, self.keys))
        what = f"shuffle by {by}" if self.keys else "rebalance"
        return plan.exchange(at, what, self.keys, self.partitions, self.mode)


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """All rows to every partition."""

    partitions: int | None
    mode: str
    exchanges = 1

    def build(self, at: Staged, plan: Plan) -> Staged:
        from pyspark.sql.types import IntegerType, StructType

        count, shape = plan.count(self.partitions, self.mode), at.schema
        added = _added(shape)
        wide = StructType([*shape.fields]).add(added, IntegerType())
        sent = at.then(Copies(targets(count), added), wide)
        stage = plan.exchange(sent, "broadcast", (added,), count, self.mode)
        return stage.then(WithoutLast(), shape)


def _added(schema: StructType) -> str:
    """A name that no column of the rows has, in any case."""
    names, name = {each.casefold() for each in schema.names}, ADDED
    while name in names:
        name += "_"
    return name


def targets(partitions: int) -> tuple[int, ...]:
    """For each partition a number that Spark's hash maps to it."""
    import numpy as np
    import pyarrow as pa

    from fastbuf.serializers.partition import HashPartitioner

    number_of: dict[int, int] = {}
    start = 0
    while len(number_of) < partitions:
        numbers = np.arange(start, start + 64 * partitions, dtype=np.int32)
        indices = HashPartitioner((0,), partitions).partition(pa.record_batch({"n": pa.array(numbers)}))
        for number, partition in zip(numbers.tolist(), indices.tolist(), strict=True):
            number_of.setdefault(partition, number)
        start += 64 * partitions
    return tuple(number_of[partition] for partition in range(partitions))


@dataclasses.dataclass(frozen=True)
class RandomShuffle:
    """Rows in random order, the same for the same seed and the same rows."""

    seed: int
    partitions: int | None
    mode: str
    exchanges = 1

    def build(self, at: Staged, plan: Plan) -> Staged:
        from pyspark.sql.types import LongType, StructType

        shape, head = at.schema, at.head
        added = _added(shape)
        wide = StructType([*shape.fields]).add(added, LongType())
        if at.in_order and isinstance(head, Called) and at.name == "fastbuf_read":
            # By row position, so that equal rows do not move together
            bare = dataclasses.replace(at, head=Called(Chain()))
            sent = bare.then(Drawn(head.chain, self.seed, added), wide)
        else:
            sent = at.then(Hashed(self.seed, added), wide)
        stage = plan.exchange(sent, f"random shuffle, seed {self.seed}", (added,), self.partitions, self.mode)
        return stage.then(WithoutLast(plan.limits()), shape)
