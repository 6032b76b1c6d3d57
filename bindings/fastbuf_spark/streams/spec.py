"""The description of a stream for its tasks, sent within the function that Spark pickles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.streams.sink import Sink, SinkContext
from fastbuf_spark.streams.source import StreamSource
from fastbuf_spark.worker.chains import Chain
from fastbuf_spark.worker.control import Control

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.streams.operators import KeyedOperator


@dataclass(frozen=True)
class StreamStage:
    """One stage: what its tasks do between their input and their output.

    Attributes
    ----------
    name
        Stable: state is kept under it.
    tasks
        Their number.
    given, gives
        Schemas of the input and of the output.
    source
        What a first stage reads; None: a gate.
    inputs
        The stages whose output it reads; each has one reader.
    operator
        Makes the operator with state that the rows of the gate meet first.
    chain
        Functions over batches, called once for each epoch.
    opened
        Functions of the chain that have ``open()`` or ``close()``.
    keys
        Columns by which the output is sent to the next stage; empty: in turn.
    """

    name: str
    tasks: int
    input_schema: pa.Schema
    gives: pa.Schema
    source: StreamSource | None = None
    inputs: tuple[int, ...] = ()
    operator: Callable[[], KeyedOperator] | None = None
    chain: Chain = field(default_factory=Chain)
    opened: tuple[Any, ...] = ()
    keys: tuple[str, ...] = ()
    time: Any = None  #: of a source: the event-time strategy of its rows, see streams/event_times.py
    computed: Chain | None = (
        None  #: of a source: what select and filter do with each batch before its time is looked at
    )


@dataclass(frozen=True)
class Output:
    """Where rows of a stage go: the results of the last one, or the late rows of one with windows.

    Attributes
    ----------
    name
        "results" or "late".
    stage
        Number of the stage whose tasks write it.
    folder
        Where rows wait in front of the sink.
    """

    name: str
    stage: int
    sink: Sink
    schema: pa.Schema
    folder: str

    def context(self, spec: StreamSpec, subtask: int) -> SinkContext:
        """For the sink, in a task or on the driver."""
        return SinkContext(spec.job, subtask, spec.generation, self.schema, self.folder, spec.exactly_once)


@dataclass(frozen=True)
class StreamSpec:
    """One run of a stream.

    Attributes
    ----------
    stages
        In an order in which each stands behind those that it reads from; the last gives the results.
    generation
        Number of the run since the stream was first started.
    job
        Name of the stream, in its checkpoints.
    folder
        Where state files are written.
    outputs
        The sinks, the one of the results first.
    """

    exchange: str
    name: str
    stages: tuple[StreamStage, ...]
    conf: ShuffleConf
    address: tuple[str, int]
    generation: int
    job: str
    folder: str
    outputs: tuple[Output, ...]
    key_groups: int
    exactly_once: bool
    fail_point: str = ""  #: see :mod:`fastbuf_spark.streams.fail_points`
    secret: bytes = field(default=b"", repr=False)

    @property
    def tasks(self) -> int:
        """Number of all tasks."""
        return sum(stage.tasks for stage in self.stages)

    def place(self, task: int) -> tuple[int, int]:
        """Stage and subtask of a task."""
        for number, stage in enumerate(self.stages):
            if task < stage.tasks:
                return number, task
            task -= stage.tasks
        raise ValueError(f"a stream of {self.tasks} tasks has none more")

    def numbers(self, stage: int) -> range:
        """The tasks of a stage."""
        first = sum(each.tasks for each in self.stages[:stage])
        return range(first, first + self.stages[stage].tasks)

    def reader(self, stage: int) -> int | None:
        """The stage that reads what this one gives; None: a sink does."""
        return next((number for number, each in enumerate(self.stages) if stage in each.inputs), None)

    def writers(self, stage: int) -> list[int]:
        """The tasks that a stage reads from, by the channels of its gates."""
        return [task for before in self.stages[stage].inputs for task in self.numbers(before)]

    def connect(self) -> Control:
        """A control connection to the driver."""
        return Control(self.address, self.exchange, self.secret, self.conf.connect_timeout)
