"""Streams as users write them: verbs of pipelines over sources that do not end.  Each gives a new one; nothing runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from fastbuf.checkpoint.key_groups import DEFAULT_KEY_GROUPS
from fastbuf.checkpoint.store import CheckpointStore
from fastbuf.errors import ConfigError
from fastbuf_spark.api.functions import pandas_rules
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.checks import check_function, partition_count_or_none, slots_of
from fastbuf_spark.driver.file_systems import shared_folder
from fastbuf_spark.driver.selection import Selection
from fastbuf_spark.errors import ArgumentTypeError
from fastbuf_spark.pyspark_private import pickled
from fastbuf_spark.results import iterables
from fastbuf_spark.schema import arrow_schema, large_types, not_carried, session_zone, struct_type
from fastbuf_spark.shipping import AsItIs
from fastbuf_spark.streams.absent import OF_STREAMS, refuse
from fastbuf_spark.streams.compatible import check_sinks, fit
from fastbuf_spark.streams.drafts import Draft, Duration, millis_of, name_of_column, seconds_of
from fastbuf_spark.streams.event_times import Marks, TimeSpec
from fastbuf_spark.streams.joins import JoinSpec
from fastbuf_spark.streams.query import CheckpointConf, StreamingQuery, check_tasks
from fastbuf_spark.streams.running import RunningSpec
from fastbuf_spark.streams.sink import Sink, check_sink
from fastbuf_spark.streams.spec import Output, StreamSpec, StreamStage
from fastbuf_spark.streams.task import LATE, RESULTS
from fastbuf_spark.streams.windows import WindowSpec
from fastbuf_spark.worker.chains import Chain, Link
from fastbuf_spark.worker.steps import Filter, PandasMap

if TYPE_CHECKING:
    import datetime as dt

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf.event_time.watermarks import Strategy
    from fastbuf_spark.schema import BatchFunction
    from fastbuf_spark.streams.groups import StreamGroups

LATENCY_S = 0.005  #: buffer timeout of a stream, unless settings are given
WATERMARKS = ("split", "spark")
GUARANTEES = ("exactly_once", "at_least_once")
OUTPUT_MODES = ("append", "update", "complete")


class Stream:
    """A chain of stages over a source that need not end, made by :func:`stream_files` and its like.

    Functions are called once for each *epoch*, from one checkpoint's barrier to the next: their input ends there, and
    their output is drained.  What a function has to remember longer is state
    (:meth:`StreamGroups.transform_with_state`); what is expensive to make is kept by an object with ``open()`` and
    ``close()``, which is called with the iterator.
    """

    def __init__(self, spark: Any, drafts: tuple[Draft, ...], conf: ShuffleConf | None = None) -> None:
        self._spark = spark
        self._drafts = drafts
        self._conf = conf

    if not TYPE_CHECKING:  # to type checkers it would have every name

        def __getattr__(self, name: str) -> NoReturn:
            refuse(self, "a stream has", name, OF_STREAMS)

    # ---- verbs

    def with_watermark(
        self,
        column: str,
        delay: Duration = 0.0,
        *,
        idle: Duration | None = "1 minute",
        watermark: str = "split",
        align: Duration | None = None,
        punctuated: Callable[[pa.RecordBatch], dt.datetime | pa.TimestampScalar | None] | None = None,
    ) -> Stream:
        """Say which column has the time of rows, and how late they may come; behind the source, or select and filter.

        Each split has a watermark of its own, the greatest time less the delay; the stream's is the least of them.

        Parameters
        ----------
        column
            A timestamp.  ``select`` makes one of other types: of milliseconds since 1970
            ``pc.field("ms").cast(pa.timestamp("ms", "UTC"))``.
        delay
            How far behind the greatest time so far of its split a row may come: seconds, a timedelta, or text with
            units, as ``"1 minute 30 seconds"``.
        idle
            A split without rows for so long holds nothing back, nor does a source of files without a new one.  None:
            they hold back for ever.
        watermark
            "split": as above.  "spark": the greatest time of all splits up to a checkpoint, less the delay, holds
            behind the rows of the next one, as from batch to batch in Spark; ``idle`` means nothing then.
        align
            A split whose watermark is further ahead of the least one of all sources with ``align`` is not read until
            the others have caught up, so that the windows of later stages stay few; None: all are read.  Not for files,
            which are read one after the other.
        punctuated
            Where the rows say it themselves: a function that is called with each batch of a split in which a row has a
            time, and returns a moment up to which, itself included, no further row of this split will come, or None:
            the batch does not say.  A ``datetime`` without a zone is in UTC.  It stands in place of ``delay``.
        """
        from pyspark.sql.types import TimestampNTZType, TimestampType

        from fastbuf.event_time.watermarks import BoundedOutOfOrderness, Punctuated

        first = self._source_draft("with_watermark")
        if name_of_column("with_watermark", column) not in self.schema.names:
            raise ConfigError(f"with_watermark: {column!r} is no column of {self.schema.names}")
        kind = self.schema[column].dataType
        if not isinstance(kind, TimestampType | TimestampNTZType):
            raise ConfigError(
                f"with_watermark: column {column!r} is {kind.simpleString()}: it must be a timestamp; select makes one "
                "before, as of milliseconds: select(..., t=pc.field('ms').cast(pa.timestamp('ms', 'UTC')))"
            )
        if watermark not in WATERMARKS:
            raise ConfigError(f"watermark is {watermark!r}: it must be one of {', '.join(WATERMARKS)}")
        strategy: Strategy = BoundedOutOfOrderness(millis_of("delay", delay))
        if punctuated is not None:
            check_function("punctuated", punctuated, "takes a batch and returns a time, or None")
            if delay or watermark == "spark":
                what = f"delay={delay!r}" if delay else "watermark='spark'"
                raise ConfigError(f"punctuated= says the watermark, and so does {what}: leave one out")
            strategy = Punctuated(Marks(self._as_it_is(punctuated)))
        if align is not None and watermark == "spark":
            raise ConfigError("align= goes by the watermarks of splits, and watermark='spark' has none: leave one out")
        if align is not None and getattr(first.source, "one_at_a_time", False):
            raise ConfigError(
                "align= lets splits wait for those behind them, and files are read one after the other, in the order "
                "of their times: leave it out"
            )
        drift = None if align is None else millis_of("align", align)
        time = TimeSpec(column, strategy, None if idle is None else seconds_of("idle", idle), watermark, drift)
        draft = dataclasses.replace(first, time=time, computed=(*first.computed, *first.links), links=())
        return Stream(self._spark, (draft,), self._conf)

    def with_ingestion_time(self, name: str = "ingested") -> Stream:
        """Add a column with the moment at which each row came into the source's task, and let time go by it.

        No row is late, and windows end by the clock, even if no further row comes.  Where ``with_watermark`` may stand.
        Times never fall, through restarts too, whatever the clocks of machines show.  Rows that are read again after a
        failure, as no checkpoint had them yet, have later times than before.

        Parameters
        ----------
        name
            Of the column, which is a timestamp.
        """
        from pyspark.sql.types import StructType, TimestampType

        from fastbuf.event_time.watermarks import Monotonous

        first = self._source_draft("with_ingestion_time")
        if name_of_column("name", name) in self.schema.names:
            raise ConfigError(f"with_ingestion_time: there is a column {name!r} already: give another name")
        schema = StructType([*self.schema.fields]).add(name, TimestampType())
        time = TimeSpec(name, Monotonous(), None, arrives=self._arrow(schema).field(name))
        computed = (*first.computed, *first.links)
        draft = dataclasses.replace(first, time=time, computed=computed, links=(), schema=schema)
        return Stream(self._spark, (draft,), self._conf)

    def _source_draft(self, verb: str) -> Draft:
        """The stage of the source, where its rows still come as they are read."""
        first = self._drafts[0]
        if len(self._drafts) > 1 or not first.computes:
            raise ConfigError(
                f"{verb} stands behind functions or a shuffle: call it behind the source, or behind its select and "
                "filter, where the rows of each split still come in their order"
            )
        if first.time is not None and (first.time.arrives is not None or verb == "with_ingestion_time"):
            raise ConfigError(f"{verb}: the time of this stream is {first.time.column!r} already: leave one out")
        return first

    def map_in_arrow(self, func: BatchFunction, schema: StructType | str) -> Stream:
        """Call a function over an iterator of record batches, once for each epoch.

        Parameters
        ----------
        func
            Takes and returns an iterator of ``pyarrow.RecordBatch``; rows leave as it gives them.
        schema
            Output schema of ``func``: a StructType or DDL text.
        """
        check_function("func", func)
        return self._mapped(self._as_it_is(func), struct_type(schema), func)

    def map_in_pandas(
        self, func: Callable[[Iterator[pd.DataFrame]], Iterable[pd.DataFrame]], schema: StructType | str
    ) -> Stream:
        """Call a function over an iterator of pandas frames, once for each epoch; see :meth:`map_in_arrow`."""
        check_function("func", func, "takes an iterator of pandas.DataFrame and returns one")
        result = struct_type(schema)
        rules = pandas_rules(self._spark, result, self._arrow(result))
        return self._mapped(PandasMap(self._as_it_is(func), rules, at_once=True), result, func)

    def filter(self, expression: Any) -> Stream:
        """Keep the rows for which a ``pyarrow.compute`` expression is true."""
        from fastbuf_spark.expressions import check_filter

        check_filter(expression, self._arrow(self.schema))
        return self._mapped(Filter(expression), self.schema, None, "filter", computes=True)

    def select(self, *columns: str, **expressions: Any) -> Stream:
        """Keep some columns, and compute others by ``pyarrow.compute`` expressions; see :meth:`Pipeline.select`."""
        func, schema = Selection.of(columns, expressions).of_rows(self._spark, self.schema)
        return self._mapped(func, schema, None, "select", computes=True)

    def shuffle(self, *keys: str, partitions: int | None = None) -> Stream:
        """Send the rows to the tasks of another stage by keys: equal keys to one task, in the order of their source."""
        if not keys:
            raise ConfigError("shuffle has no keys: name a column, or use rebalance() to distribute rows in turn")
        return self._exchange(f"shuffle by {', '.join(keys)}", self._keys(keys), partitions)

    def rebalance(self, partitions: int | None = None) -> Stream:
        """Distribute the rows over the tasks of another stage, batch by batch in turn."""
        return self._exchange("rebalance", (), partitions)

    def union(self, other: Stream, partitions: int | None = None) -> Stream:
        """The rows of this and of another stream with the same columns, in the tasks of another stage.

        A shuffle or ``group_by`` that follows at once is that stage.

        Parameters
        ----------
        other
            Its columns are taken by their places, as by Spark's ``union``; they have the same types.
        """
        if not isinstance(other, Stream):
            words = f"union takes another stream, not a {type(other).__name__}: one of stream_files(...) or its like"
            raise ArgumentTypeError.of(words, "other", "Stream", other)
        kinds = [[field.dataType for field in each.schema.fields] for each in (self, other)]
        if kinds[0] != kinds[1]:
            raise ConfigError(f"union of {self.schema.simpleString()} and {other.schema.simpleString()}: other types")
        if other.schema.names != self.schema.names:
            from fastbuf_spark.driver.staged import Renamed

            other = other._mapped(Renamed(self.schema.names), self.schema, None, "renamed")
        return self._beside(other, "union", partitions, None, self.schema, (), ())

    def _beside(
        self,
        other: Stream,
        label: str,
        partitions: int | None,
        operator: Any,
        schema: StructType,
        keys: tuple[str, ...],
        other_keys: tuple[str, ...],
    ) -> Stream:
        """A stage that reads two streams, whose last stages give rows of one schema."""
        shift = len(self._drafts)
        moved = [
            dataclasses.replace(draft, inputs=tuple(number + shift for number in draft.inputs))
            for draft in other._drafts
        ]
        left = (*self._drafts[:-1], dataclasses.replace(self._drafts[-1], keys=keys))
        right = (*moved[:-1], dataclasses.replace(moved[-1], keys=other_keys, schema=self.schema))
        inputs = (shift - 1, shift + len(moved) - 1)
        count = partition_count_or_none(partitions)
        behind = Draft(label, count, schema, self.schema, operator=operator, inputs=inputs)
        return Stream(self._spark, (*left, *right, behind), self._conf)

    def group_by(self, *keys: str, partitions: int | None = None) -> StreamGroups:
        """Group the rows by key columns, for state that each key has.

        Without keys all rows are one group, in one task: for windows of all rows.
        """
        from fastbuf_spark.streams.groups import StreamGroups

        if not keys and partitions not in (None, 1):
            raise ConfigError(f"group_by without keys has one group, and partitions={partitions}: leave it out")
        return StreamGroups(self, self._keys(keys), partitions if keys else 1)

    def write_stream(
        self,
        sink: Sink,
        checkpoint: str,
        every: Duration = "10 seconds",
        *,
        output_mode: str = "append",
        guarantee: str = "exactly_once",
        name: str | None = None,
        timeout: Duration = "10 minutes",
        min_pause: Duration = 0.0,
        tolerated_failures: int = 3,
        discover_every: Duration = "1 second",
        key_groups: int = DEFAULT_KEY_GROUPS,
        restore_from: str | None = None,
    ) -> StreamingQuery:
        """Start the stream; its tasks hold a slot each until it ends.

        Parameters
        ----------
        sink
            What :func:`fastbuf_spark.to_parquet` gives, or another function ``to_...`` of ours, or a sink of your own
            (:class:`fastbuf_spark.streams.sink.Sink`).
        checkpoint
            A directory that driver and all tasks have mounted.  If it has checkpoints, the stream goes on from the
            newest.
        every
            Interval of checkpoints: seconds, a timedelta, or text with units.  With ``exactly_once`` rows are seen when
            their checkpoint is complete.
        output_mode
            "append", "update" or "complete".
        guarantee
            "exactly_once", or "at_least_once": rows are seen at once, and after a failure some again.
        name
            For logs and pages.
        timeout, min_pause, tolerated_failures
            A checkpoint that takes longer is given up; least seconds from one to the next; failures in a row before the
            run is started again.
        discover_every
            How often the source looks for new splits.
        key_groups
            Most tasks that a stage with state may ever have; fixed by the first start: another one is refused then.
        restore_from
            A savepoint to begin from, if there is no checkpoint yet.

        Returns
        -------
        StreamingQuery

        Raises
        ------
        ConfigError
            Too few slots, a sink that cannot do what is asked, a source that cannot be read again.
        CheckpointInUse
            Another driver runs the stream of these checkpoints.
        """
        if guarantee not in GUARANTEES:
            raise ConfigError(f"guarantee is {guarantee!r}: it must be one of {', '.join(GUARANTEES)}")
        if output_mode not in OUTPUT_MODES:
            raise ConfigError(f"output_mode is {output_mode!r}: it must be one of {', '.join(OUTPUT_MODES)}")
        check_sink("sink", sink)
        if output_mode not in sink.output_modes:
            raise ConfigError(f"{sink.name} cannot do output_mode={output_mode!r}: it takes {sink.output_modes}")
        sources = [draft.source for draft in self._drafts if draft.source is not None]
        for source in sources if guarantee == "exactly_once" else ():
            if source.replayable:
                continue
            raise ConfigError(
                f"the source {source.name} cannot be read again, so exactly once cannot be: use "
                "guarantee='at_least_once', or a source that keeps its rows"
            )
        sc = self._spark.sparkContext
        stages = self._stages(output_mode)
        checkpoints = CheckpointConf(
            seconds_of("every", every),
            seconds_of("timeout", timeout),
            seconds_of("min_pause", min_pause),
            tolerated_failures,
        )
        outputs = self._outputs(sink, stages)
        for output in outputs:
            output.sink.check(output.schema, guarantee == "exactly_once")
        from fastbuf_spark.driver.exchanges import server_of

        conf = self._settings()
        # A channel may be blocked for as long as a barrier is waited for: who waits too long is the checkpoint's to say
        patience = checkpoints.timeout_s * (checkpoints.tolerated + 2)
        conf = dataclasses.replace(conf, stall_timeout=max(conf.stall_timeout, patience))
        server = server_of(sc, conf)
        store = CheckpointStore(shared_folder("checkpoint", checkpoint), key_groups)
        spec = StreamSpec(
            "",
            name or f"{' and '.join(source.name for source in sources)} to {sink.name}",
            stages,
            conf,
            server.address,
            0,
            store.job,
            store.state_folder,
            tuple(dataclasses.replace(each, folder=store.rows_folder(each.name)) for each in outputs),
            store.key_groups,
            guarantee == "exactly_once",
        )
        if key_groups not in (DEFAULT_KEY_GROUPS, store.key_groups):
            raise ConfigError(
                f"key_groups={key_groups}, and the checkpoints have {store.key_groups}, which the first start fixed: "
                "leave it out, or begin with another directory"
            )
        check_tasks(sc, spec)
        pickled(spec)  # a source or a sink that cannot be is refused here, and not by each run anew
        store.lock()
        try:
            if restore_from is not None:
                store.begin_from(shared_folder("restore_from", restore_from))
                spec = dataclasses.replace(spec, key_groups=store.key_groups)  # the savepoint's
            for stage in stages:
                if stage.operator is not None and stage.tasks > store.key_groups:
                    raise ConfigError(
                        f"stage {stage.name!r} has {stage.tasks} tasks and the checkpoints have {store.key_groups} key "
                        "groups: give it fewer partitions, or begin anew with more key_groups"
                    )
            if (restored := store.latest(verify=False)) is not None:
                check_sinks(outputs, restored)
                spec = dataclasses.replace(spec, stages=fit(stages, restored))
            return StreamingQuery(
                sc, server, spec, store, checkpoints, max(0.05, seconds_of("discover_every", discover_every))
            )
        except BaseException:
            store.unlock()
            raise

    def explain(self) -> None:
        """Print the plan: stages, their tasks and functions, slots."""
        print(self._text())

    @property
    def schema(self) -> StructType:
        """Schema of the rows."""
        return self._drafts[-1].schema

    def __repr__(self) -> str:
        names = [draft.source.name for draft in self._drafts if draft.source is not None]
        return f"Stream({' and '.join(names)}, {len(self._drafts)} stages)"

    # ---- making

    def _arrow(self, schema: StructType) -> pa.Schema:
        return arrow_schema(schema, session_zone(self._spark), large_types(self._spark))

    def _as_it_is(self, func: Any) -> Any:
        return AsItIs(self._spark.sparkContext, func)

    def _keys(self, keys: tuple[Any, ...]) -> tuple[str, ...]:
        from fastbuf_spark.driver.keys import unhashable

        for key in keys:
            if not isinstance(key, str) or key not in self.schema.names:
                raise ConfigError(f"key {key!r:.80} is no column of {self.schema.names}")
            if why := unhashable(self.schema[key].dataType):
                raise ConfigError(f"column {key!r} cannot be a key: {why}")
        return tuple(keys)

    def _mapped(self, func: Any, schema: StructType, users: Any, words: str = "", computes: bool = False) -> Stream:
        last = self._drafts[-1]
        link = Link(func, self._arrow(schema), users is not None, iterables(self._spark) if users else Iterable)
        draft = dataclasses.replace(
            last,
            schema=schema,
            links=(*last.links, link),
            functions=(*last.functions, getattr(func, "func", func)) if users is not None else last.functions,
            words=(*last.words, words or getattr(users, "__name__", type(users).__name__)),
            computes=last.computes and computes,
        )
        return Stream(self._spark, (*self._drafts[:-1], draft), self._conf)

    def _exchange(self, label: str, keys: tuple[str, ...], partitions: int | None, operator: Any = None) -> Stream:
        if why := not_carried(self.schema, self._arrow(self.schema)):
            raise ConfigError(f"the rows cannot be sent: {why}")
        count = partition_count_or_none(partitions)
        last = self._drafts[-1]
        if len(last.inputs) > 1 and last.operator is None and not last.links and last.tasks is None:
            # A union that does nothing: what it reads from sends to this stage at once
            before = (
                dataclasses.replace(draft, keys=keys) if number in last.inputs else draft
                for number, draft in enumerate(self._drafts[:-1])
            )
            behind = dataclasses.replace(last, label=label, tasks=count, operator=operator)
            return Stream(self._spark, (*before, behind), self._conf)
        last = dataclasses.replace(last, keys=keys)
        inputs = (len(self._drafts) - 1,)
        behind = Draft(label, count, self.schema, self.schema, operator=operator, inputs=inputs)
        return Stream(self._spark, (*self._drafts[:-1], last, behind), self._conf)

    def _settings(self) -> ShuffleConf:
        conf = ShuffleConf.of(self._spark, self._conf)
        if self._conf is None and self._spark.conf.get("spark.fastbuf.bufferTimeout", "") == "":
            conf = dataclasses.replace(conf, buffer_timeout=LATENCY_S)
        return conf

    def _tasks(self) -> list[int]:
        """Tasks of each stage: as asked for, the others share the slots that are left."""
        slots = slots_of(self._spark.sparkContext) or len(self._drafts)
        asked = [draft.tasks for draft in self._drafts]
        left = slots - sum(filter(None, asked))
        share = max(1, left // max(1, asked.count(None)))
        return [share if count is None else count for count in asked]

    def _outputs(self, sink: Sink, stages: tuple[StreamStage, ...]) -> list[Output]:
        outputs = [Output(RESULTS, len(stages) - 1, sink, stages[-1].gives, "")]
        late = [
            (n, draft.operator.late) for n, draft in enumerate(self._drafts) if getattr(draft.operator, "late", None)
        ]
        if len(late) > 1:
            raise ConfigError("several windows of this stream have late=: one of them can have it")
        return outputs + [Output(LATE, number, to, stages[number].input_schema, "") for number, to in late]

    def _stages(self, output_mode: str) -> tuple[StreamStage, ...]:
        stages, counts, conf = [], self._tasks(), self._settings()
        names: dict[str, int] = {}
        for draft, tasks in zip(self._drafts, counts, strict=True):
            names[draft.label] = names.get(draft.label, 0) + 1
            name = draft.label if names[draft.label] == 1 else f"{draft.label} ({names[draft.label]})"
            operator = draft.operator
            if isinstance(operator, RunningSpec) and output_mode != "update":
                operator = operator.windows
            if isinstance(operator, WindowSpec | JoinSpec):
                memory = conf.held_bytes(self._spark.conf.get)
                operator = dataclasses.replace(operator, memory_bytes=memory, spill_directory=conf.spill_directory)
            if isinstance(operator, WindowSpec):
                operator = dataclasses.replace(operator, output_mode=output_mode)
                operator.operator(1)  # raises what its rules do not allow
            stages.append(
                StreamStage(
                    name,
                    tasks,
                    self._arrow(draft.input_schema),
                    self._arrow(draft.schema),
                    draft.source,
                    draft.inputs,
                    operator,
                    Chain(draft.links),
                    draft.functions,
                    draft.keys,
                    draft.time,
                    Chain(draft.computed) if draft.computed else None,
                )
            )
        if output_mode == "complete" and not any(isinstance(stage.operator, WindowSpec) for stage in stages):
            raise ConfigError(
                "output_mode='complete' has the results of all windows at each change, and this stream has no windows: "
                "leave it out"
            )
        return tuple(stages)

    def _text(self) -> str:
        counts = self._tasks()
        lines = []
        for number, (draft, tasks) in enumerate(zip(self._drafts, counts, strict=True), 1):
            words = " -> ".join([draft.label, *draft.words])
            lines.append(f"stage {number}  {tasks} {'task' if tasks == 1 else 'tasks'}, each holds a slot: {words}")
        slots = slots_of(self._spark.sparkContext)
        lines.append(f"slots   {sum(counts)} of {slots}, held for as long as the query runs")
        conf = self._settings()
        lines.append(
            f"memory  {conf.memory_bytes / (1 << 20):g} MiB of segments for a task, besides state and functions"
        )
        return "\n".join(lines)
