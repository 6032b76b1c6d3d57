"""Streams as users write them: verbs of pipelines over sources that do not end.  Each gives a new one; nothing runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.key_groups import DEFAULT_KEY_GROUPS
from fastbuf.checkpoint.store import CheckpointStore
from fastbuf.errors import ConfigError
from fastbuf_spark.api.functions import pandas_rules
from fastbuf_spark.conf import ShuffleConf, parse_seconds
from fastbuf_spark.driver.checks import check_conf, check_function, is_connect, partition_count, slots_of
from fastbuf_spark.results import iterables
from fastbuf_spark.schema import arrow_schema, large_types, not_carried, session_zone, struct_type
from fastbuf_spark.shipping import AsItIs
from fastbuf_spark.streams.event_times import TimeSpec
from fastbuf_spark.streams.query import CheckpointConf, StreamingQuery, check_slots
from fastbuf_spark.streams.sink import Sink
from fastbuf_spark.streams.source import StreamSource, UserSource
from fastbuf_spark.streams.spec import Output, StreamSpec, StreamStage
from fastbuf_spark.streams.task import LATE, RESULTS
from fastbuf_spark.streams.windows import WindowSpec
from fastbuf_spark.worker.chains import Chain, Link
from fastbuf_spark.worker.steps import Filter, PandasMap

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

LATENCY_S = 0.005  #: buffer timeout of a stream, unless settings are given
GUARANTEES = ("exactly_once", "at_least_once")
OUTPUT_MODES = ("append", "update", "complete")


@dataclasses.dataclass(frozen=True)
class _Draft:
    """A stage while a stream is written."""

    label: str
    tasks: int | None
    schema: StructType  # of what it gives so far
    given: StructType
    source: StreamSource | None = None
    operator: Any = None
    links: tuple[Link, ...] = ()
    functions: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    time: TimeSpec | None = None


class Stream:
    """A chain of stages over a source that need not end, made by :func:`stream_files` and its like.

    Functions are called once for each *epoch*, from one checkpoint's barrier to the next: their input ends there, and
    their output is drained.  What a function has to remember longer is state
    (:meth:`StreamGroups.transform_with_state`); what is expensive to make is kept by an object with ``open()`` and
    ``close()``, which is called with the iterator.
    """

    def __init__(self, spark: Any, drafts: tuple[_Draft, ...], conf: ShuffleConf | None = None) -> None:
        self._spark = spark
        self._drafts = drafts
        self._conf = conf

    # ---- verbs

    def with_watermark(self, column: str, delay: float | str = 0.0, *, idle: float | str | None = "1 minute") -> Stream:
        """Say which column has the time of rows, and how late they may come; directly behind the source.

        Each split has a watermark of its own, the greatest time less the delay; the stream's is the least of them.

        Parameters
        ----------
        column
            A timestamp.
        delay
            How far behind the greatest time so far of its split a row may come: seconds, or text with a unit.
        idle
            A split without rows for so long holds nothing back; None: it holds back for ever.
        """
        from pyspark.sql.types import TimestampNTZType, TimestampType

        from fastbuf.event_time.watermarks import BoundedOutOfOrderness

        first = self._drafts[0]
        if len(self._drafts) > 1 or first.links:
            raise ConfigError(
                "with_watermark stands behind functions or a shuffle: call it directly behind the source, where the "
                "rows of each split still come in their order"
            )
        if column not in self.schema.names:
            raise ConfigError(f"with_watermark: {column!r} is no column of {self.schema.names}")
        kind = self.schema[column].dataType
        if not isinstance(kind, TimestampType | TimestampNTZType):
            raise ConfigError(f"with_watermark: column {column!r} is {kind.simpleString()}: it must be a timestamp")
        strategy = BoundedOutOfOrderness(round(_seconds("delay", delay) * 1000))
        made = TimeSpec(column, strategy, None if idle is None else _seconds("idle", idle))
        return Stream(self._spark, (dataclasses.replace(first, time=made),), self._conf)

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
        from fastbuf_spark.driver.sources import check_filter

        check_filter(expression, self._arrow(self.schema))
        return self._mapped(Filter(expression), self.schema, None, "filter")

    def shuffle(self, *keys: str, partitions: int | None = None) -> Stream:
        """Send the rows to the tasks of another stage by keys: equal keys to one task, in the order of their source."""
        if not keys:
            raise ConfigError("shuffle has no keys: name a column, or use rebalance() to distribute rows in turn")
        return self._exchange(f"shuffle by {', '.join(keys)}", self._keys(keys), partitions)

    def rebalance(self, partitions: int | None = None) -> Stream:
        """Distribute the rows over the tasks of another stage, batch by batch in turn."""
        return self._exchange("rebalance", (), partitions)

    def group_by(self, *keys: str, partitions: int | None = None) -> StreamGroups:
        """Group the rows by key columns, for state that each key has."""
        if not keys:
            raise ConfigError("group_by has no keys: name a column")
        return StreamGroups(self, self._keys(keys), partitions)

    def write_stream(
        self,
        sink: Sink,
        checkpoint: str,
        every: float | str = "10 seconds",
        *,
        output_mode: str = "append",
        guarantee: str = "exactly_once",
        name: str | None = None,
        timeout: float | str = "10 minutes",
        min_pause: float | str = 0.0,
        tolerated_failures: int = 3,
        discover_every: float | str = "1 second",
        key_groups: int = DEFAULT_KEY_GROUPS,
        restore_from: str | None = None,
    ) -> StreamingQuery:
        """Start the stream; its tasks hold a slot each until it ends.

        Parameters
        ----------
        sink
            What ``to_parquet``, ``to_postgres``, ``to_kafka``, ``to_function``, ``to_memory`` give, or a sink of your
            own (:class:`fastbuf_spark.streams.sink.Sink`).
        checkpoint
            A directory that driver and all tasks see.  If it has checkpoints, the stream goes on from the newest.
        every
            Interval of checkpoints: seconds, or text with a unit.  With ``exactly_once`` rows are seen when their
            checkpoint is complete.
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
            Most tasks that a stage with state may ever have; fixed by the first start.
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
        if output_mode not in sink.output_modes:
            raise ConfigError(f"{sink.name} cannot do output_mode={output_mode!r}: it takes {sink.output_modes}")
        source = self._drafts[0].source
        assert source is not None
        if guarantee == "exactly_once" and not source.replayable:
            raise ConfigError(
                f"the source {source.name} cannot be read again, so exactly once cannot be: use "
                "guarantee='at_least_once', or a source that keeps its rows"
            )
        sc = self._spark.sparkContext
        stages = self._stages(output_mode)
        checkpoints = CheckpointConf(
            _seconds("every", every), _seconds("timeout", timeout), _seconds("min_pause", min_pause), tolerated_failures
        )
        outputs = self._outputs(sink, stages)
        for output in outputs:
            output.sink.check(output.schema, guarantee == "exactly_once")
        from fastbuf_spark.driver.exchanges import server_of

        conf = self._settings()
        server = server_of(sc, conf)
        store = CheckpointStore(checkpoint, key_groups)
        spec = StreamSpec(
            "",
            name or f"{source.name} to {sink.name}",
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
        check_slots(sc, spec)
        store.lock()
        try:
            if restore_from is not None:
                store.begin_from(restore_from)
                spec = dataclasses.replace(spec, key_groups=store.key_groups)  # the savepoint's
            for stage in stages:
                if stage.operator is not None and stage.tasks > store.key_groups:
                    raise ConfigError(
                        f"stage {stage.name!r} has {stage.tasks} tasks and the checkpoints have {store.key_groups} key "
                        "groups: give it fewer partitions, or begin anew with more key_groups"
                    )
            self._check_restorable(store, stages)
            return StreamingQuery(
                sc, server, spec, store, checkpoints, max(0.05, _seconds("discover_every", discover_every))
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
        source = self._drafts[0].source
        return f"Stream({source.name if source else ''}, {len(self._drafts)} stages)"

    # ---- making

    @staticmethod
    def _check_restorable(store: CheckpointStore, stages: tuple[StreamStage, ...]) -> None:
        """State of an operator that the stream does not have any more is never dropped in silence."""
        restored = store.latest(verify=False)
        if restored is None:
            return
        names = {stage.name for stage in stages if stage.operator is not None}
        lost = [name for name, held in restored["operators"].items() if held["pieces"] and name not in names]
        if lost:
            raise ConfigError(
                f"the checkpoints have state of {lost}, and the stream's stages with state are {sorted(names)}: give "
                "them their old names (name= of the verb), or begin with another directory"
            )

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

    def _mapped(self, func: Any, schema: StructType, users: Any, words: str = "") -> Stream:
        last = self._drafts[-1]
        link = Link(func, self._arrow(schema), users is not None, iterables(self._spark) if users else Iterable)
        made = dataclasses.replace(
            last,
            schema=schema,
            links=(*last.links, link),
            functions=(*last.functions, getattr(func, "func", func)) if users is not None else last.functions,
            words=(*last.words, words or getattr(users, "__name__", type(users).__name__)),
        )
        return Stream(self._spark, (*self._drafts[:-1], made), self._conf)

    def _exchange(self, label: str, keys: tuple[str, ...], partitions: int | None, operator: Any = None) -> Stream:
        if why := not_carried(self.schema, self._arrow(self.schema)):
            raise ConfigError(f"the rows cannot be sent: {why}")
        count = None if partitions is None else partition_count(partitions, "partitions")
        last = dataclasses.replace(self._drafts[-1], keys=keys)
        behind = _Draft(label, count, self.schema, self.schema, operator=operator)
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
        made = [Output(RESULTS, len(stages) - 1, sink, stages[-1].gives, "")]
        late = [
            (n, draft.operator.late) for n, draft in enumerate(self._drafts) if getattr(draft.operator, "late", None)
        ]
        if len(late) > 1:
            raise ConfigError("several windows of this stream have late=: one of them can have it")
        return made + [Output(LATE, number, to, stages[number].given, "") for number, to in late]

    def _stages(self, output_mode: str) -> tuple[StreamStage, ...]:
        made, counts = [], self._tasks()
        names: dict[str, int] = {}
        for draft, tasks in zip(self._drafts, counts, strict=True):
            names[draft.label] = names.get(draft.label, 0) + 1
            name = draft.label if names[draft.label] == 1 else f"{draft.label} ({names[draft.label]})"
            operator = draft.operator
            if isinstance(operator, WindowSpec):
                operator = dataclasses.replace(operator, output_mode=output_mode)
                operator.operator(1)  # raises what its rules do not allow
            made.append(
                StreamStage(
                    name,
                    tasks,
                    self._arrow(draft.given),
                    self._arrow(draft.schema),
                    draft.source,
                    operator,
                    Chain(draft.links),
                    draft.functions,
                    draft.keys,
                    draft.time,
                )
            )
        return tuple(made)

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


@dataclasses.dataclass(frozen=True)
class StreamGroups:
    """Rows of a stream by key, made by :meth:`Stream.group_by`."""

    _before: Stream
    _keys: tuple[str, ...]
    _partitions: int | None

    def window(
        self,
        size: float | str,
        *,
        slide: float | str | None = None,
        offset: float | str = 0.0,
        lateness: float | str = 0.0,
        zone: str | None = None,
        early_rows: int | None = None,
        early_every: float | str | None = None,
        accumulate: bool = True,
        late: Sink | None = None,
    ) -> StreamWindows:
        """Windows of event time.

        Parameters
        ----------
        size
            Their length: seconds, or text with a unit.
        slide
            One begins each so long; None: each where the one before it ends.
        offset
            They begin at multiples of the slide plus this.
        lateness
            How long behind its end a window takes rows that come late.  Later ones are counted, and left out.
        zone
            As ``"Europe/Berlin"``: days and hours are those of clocks there.
        early_rows, early_every
            Results before the end: when so many rows have come, or so long has passed by the clock.
        accumulate
            Whether a result has all rows of its window so far, or those since the last one.
        late
            A sink for the rows that come too late, as they came; else they are only counted.
        """
        from fastbuf.event_time.windows import Sliding, Tumbling

        long, shift = _micros("size", size), _micros("offset", offset)
        if slide is None:
            assigner: Any = Tumbling(long, shift, zone)
        else:
            assigner = Sliding(long, _micros("slide", slide), shift, zone)
        words = f"windows of {size}" + ("" if slide is None else f" by {slide}")
        return self._windows(assigner, words, lateness, early_rows, early_every, accumulate, late)

    def session(
        self,
        gap: float | str,
        *,
        lateness: float | str = 0.0,
        early_rows: int | None = None,
        early_every: float | str | None = None,
        accumulate: bool = True,
        late: Sink | None = None,
    ) -> StreamWindows:
        """Windows of rows of a key that are at most ``gap`` apart; other parameters are those of :meth:`window`."""
        from fastbuf.event_time.windows import Session

        assigner = Session(_micros("gap", gap))
        return self._windows(assigner, f"sessions of {gap}", lateness, early_rows, early_every, accumulate, late)

    def global_window(
        self, *, early_rows: int | None = 1, early_every: float | str | None = None, accumulate: bool = True
    ) -> StreamWindows:
        """One window for all rows of a key: running results, by default behind each batch that has rows of the key.

        Parameters are those of :meth:`window`; results have no ``window_start`` and ``window_end``.
        """
        from fastbuf.event_time.windows import Global

        return self._windows(Global(), "all rows", 0.0, early_rows, early_every, accumulate)

    def _windows(
        self,
        assigner: Any,
        words: str,
        lateness: float | str,
        early_rows: int | None,
        early_every: float | str | None,
        accumulate: bool,
        late: Sink | None = None,
    ) -> StreamWindows:
        from fastbuf.event_time.rules import Trigger
        from fastbuf.event_time.windows import Global

        time = self._before._drafts[0].time
        if time is None and not isinstance(assigner, Global):
            raise ConfigError(f"{words} go by event time: say with_watermark behind the source first")
        column = "" if time is None or isinstance(assigner, Global) else time.column
        if column and column not in self._before.schema.names:
            raise ConfigError(
                f"{words} go by the column {column!r} of with_watermark, which the functions before group_by leave "
                f"out: they give {self._before.schema.names}"
            )
        every = None if early_every is None else round(_seconds("early_every", early_every) * 1000)
        made = WindowSpec(
            self._keys,
            column,
            self._before._arrow(self._before.schema),
            assigner,
            dict,  # what is done with rows is said by the verb
            _micros("lateness", lateness),
            Trigger(early_rows, every),
            accumulate,
            late=late,
        )
        return StreamWindows(self, made, words)

    def transform_with_state(
        self,
        processor: Any,
        schema: StructType | str,
        output_mode: str = "update",
        time_mode: str = "none",
        *,
        name: str | None = None,
        arrow: bool = False,
    ) -> Stream:
        """Call a ``StatefulProcessor`` of Spark's for the rows of each key, as ``transformWithStateInPandas`` does.

        Parameters
        ----------
        processor
            An instance of ``pyspark.sql.streaming.StatefulProcessor``.
        schema
            Schema of what it gives.
        output_mode
            For a job that is moved from Spark; here what the processor gives is written as it is.
        time_mode
            "none", "processing_time" or "event_time": what its timers go by.
        name
            Of its state in checkpoints: keep it for as long as the state shall be found.
        arrow
            Whether ``handleInputRows`` takes and gives record batches, and no frames.
        """
        from fastbuf_spark.streams.stateful import TIME_MODES, StatefulSpec, shapes_of

        for method in ("init", "handleInputRows", "handleExpiredTimer", "close"):
            if not callable(getattr(processor, method, None)):
                raise ConfigError(f"processor needs a method {method}(), as Spark's StatefulProcessor has")
        mode = {"processingtime": "processing_time", "eventtime": "event_time"}.get(
            time_mode.lower(), time_mode.lower()
        )
        if mode not in TIME_MODES:
            raise ConfigError(f"time_mode is {time_mode!r}: it must be one of {', '.join(TIME_MODES)}")
        result, spark = struct_type(schema), self._before._spark
        rules = pandas_rules(spark, result, self._before._arrow(result))
        sent = self._before._as_it_is(processor)
        given = self._before._arrow(self._before.schema)
        label = name or f"{type(processor).__name__} by {', '.join(self._keys)}"
        operator = StatefulSpec(sent, self._keys, given, rules, mode, arrow, shapes_of(processor))
        return self._with(operator, result, label)

    def transform_batches_with_state(
        self,
        func: Callable[[pa.RecordBatch, Any, pa.RecordBatch], tuple[Any, Any]],
        schema: StructType | str,
        state: StructType | str,
        *,
        ttl: float | str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Call a function for each batch of rows with the state of its keys in columns: for many keys, all at once.

        Parameters
        ----------
        func
            Takes a batch; an int64 array with the number of each row's key, from 0 on; and the state of these keys, a
            batch with a row for each (nulls for a new one).  Returns their new state, in the same order, and a batch of
            results, or None.  A key whose state is nulls alone is forgotten.
        schema
            Schema of the results.
        state
            Schema of the state of a key.
        ttl
            A key without rows for so long is forgotten.
        name
            Of its state in checkpoints: keep it for as long as the state shall be found.
        """
        from fastbuf_spark.streams.running import BatchStateSpec

        check_function("func", func, "takes a batch, numbers of keys, and their state")
        before, result, kept = self._before, struct_type(schema), struct_type(state)
        operator = BatchStateSpec(
            self._keys,
            before._arrow(before.schema),
            before._as_it_is(func),
            before._arrow(result),
            before._arrow(kept),
            None if ttl is None else round(_seconds("ttl", ttl) * 1000),
        )
        return self._with(operator, result, name or f"{_label(func)} by {', '.join(self._keys)}")

    def _with(self, operator: Any, schema: StructType, label: str, words: str = "") -> Stream:
        made = self._before._exchange(label, self._keys, self._partitions, operator)
        last = dataclasses.replace(made._drafts[-1], schema=schema, words=(words,) if words else ())
        return Stream(self._before._spark, (*made._drafts[:-1], last), made._conf)


@dataclasses.dataclass(frozen=True)
class StreamWindows:
    """Windows of a stream's groups, made by :meth:`StreamGroups.window` and its like."""

    _groups: StreamGroups
    _spec: WindowSpec
    _words: str

    def agg_arrow(self, aggregates: Iterable[tuple[Any, str]], *, name: str | None = None) -> Stream:
        """Aggregate columns with functions of pyarrow.

        Parameters
        ----------
        aggregates
            Pairs of a column and one of sum, product, min, max, any, all, count, mean; ``([], "count_all")`` counts
            rows.
        name
            Of its state in checkpoints.

        Returns
        -------
        Stream
            The keys, ``window_start``, ``window_end``, and for each pair a column as ``amount_sum``.
        """
        from fastbuf.event_time.rules import Trigger
        from fastbuf.event_time.work import agg_arrow
        from fastbuf_spark.driver.sources import of_arrow
        from fastbuf_spark.streams.running import RunningSpec

        pairs = tuple((column or "", function) for column, function in aggregates)
        if not self._spec.time and self._spec.accumulate and self._spec.trigger == Trigger(1):
            running = RunningSpec(self._groups._keys, self._spec.given, pairs)
            return self._placed(running, of_arrow(running.results()), "agg_arrow", name)
        return self._with(partial(agg_arrow, pairs), "agg_arrow", None, name)

    def reduce(
        self, func: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]], *, name: str | None = None
    ) -> Stream:
        """Make one row of two: ``func`` takes and returns dicts of the columns besides keys and time."""
        from fastbuf.event_time.work import reduce

        check_function("func", func, "takes two rows as dicts and returns one")
        return self._with(partial(reduce, self._groups._before._as_it_is(func)), _label(func), None, name)

    def apply_in_arrow(self, func: Any, schema: StructType | str, *, name: str | None = None) -> Stream:
        """Call ``func(key, window, table)`` with all rows of a window; it returns a ``pyarrow.Table``.

        The key is a tuple of Arrow's scalars; ``window.start`` and ``window.end`` are microseconds since 1970.  Rows
        are kept until the window ends.
        """
        return self._applied(func, schema, "arrow", name)

    def apply_in_pandas(self, func: Any, schema: StructType | str, *, name: str | None = None) -> Stream:
        """Call ``func(key, window, frame)``; it returns a ``pandas.DataFrame``.  See :meth:`apply_in_arrow`."""
        return self._applied(func, schema, "pandas", name)

    def apply_in_polars(self, func: Any, schema: StructType | str, *, name: str | None = None) -> Stream:
        """Call ``func(key, window, frame)``; it returns a ``polars.DataFrame``.  See :meth:`apply_in_arrow`."""
        return self._applied(func, schema, "polars", name)

    def _applied(self, func: Any, schema: StructType | str, form: str, name: str | None) -> Stream:
        from fastbuf_spark.streams.window_functions import Applied

        check_function("func", func, "takes a key, a window and its rows")
        before, result = self._groups._before, struct_type(schema)
        rules = pandas_rules(before._spark, result, before._arrow(result)) if form == "pandas" else None
        work = Applied(before._as_it_is(func), form, before._arrow(result), rules)
        return self._with(work, _label(func), result, name)

    def _with(self, work: Any, label: str, result: StructType | None, name: str | None) -> Stream:
        from fastbuf_spark.driver.sources import of_arrow

        spec = dataclasses.replace(self._spec, work=work)
        shape = self._shape(spec)
        if not spec.time:
            shape = shape.remove(shape.get_field_index("window_start"))
            shape = shape.remove(shape.get_field_index("window_end"))
        schema = of_arrow(shape)
        if result is not None:  # of Spark's own types, such as user-defined ones
            schema = type(schema)([*schema.fields[: len(schema.fields) - len(result.fields)], *result.fields])
        return self._placed(spec, schema, label, name)

    def _placed(self, operator: Any, schema: StructType, label: str, name: str | None) -> Stream:
        words = f"{self._words} by {', '.join(self._groups._keys)}"
        return self._groups._with(operator, schema, name or words, label)

    @staticmethod
    def _shape(spec: WindowSpec) -> pa.Schema:
        """The schema of its results, which no output mode changes."""
        return dataclasses.replace(spec, output_mode="update").operator(1).schema


def _label(func: Any) -> str:
    return getattr(func, "__name__", type(func).__name__)


def _micros(name: str, value: float | str) -> int:
    return round(_seconds(name, value) * 1_000_000)


def _seconds(name: str, value: float | str) -> float:
    if isinstance(value, str):
        return parse_seconds(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{name} is {value!r}: give seconds, or text with a unit, as in '10 seconds'")
    return float(value)


def _first(spark: Any, source: StreamSource, tasks: int | None, conf: ShuffleConf | None) -> Stream:
    check_conf(conf)
    if is_connect(spark):
        raise ConfigError("streams need a SparkContext, which Spark Connect has not: run the driver on the cluster")
    count = None if tasks is None else partition_count(tasks, "tasks")
    return Stream(spark, (_Draft("source", count, source.schema, source.schema, source, words=(source.name,)),), conf)


def stream_files(
    spark: Any,
    path: str,
    format: str = "parquet",
    schema: StructType | str | None = None,
    *,
    bounded: bool = False,
    max_file_age: float | str = "7 days",
    tasks: int | None = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Stream:
    """A stream of the rows of files that appear in a directory, in the order of their times.

    Parameters
    ----------
    path
        A directory that all hosts see.  Files must appear whole: write elsewhere and rename, as Spark and fastbuf do.
    format
        "parquet", "csv", "json" or "ipc".
    schema
        A StructType or DDL text.
    bounded
        Whether to end behind the files that are there now.
    max_file_age
        Files older than the newest one by more than this are not looked for, and forgotten.
    tasks
        Tasks that read; each file is read by one.
    **options
        As for :func:`fastbuf_spark.read_csv` and its like.
    """
    from fastbuf_spark.streams.files import files_source

    if schema is None:
        raise ConfigError("stream_files needs schema=: files that come later must have one that is known now")
    age = _seconds("max_file_age", max_file_age)
    return _first(spark, files_source(spark, path, format, schema, bounded, age, options), tasks, conf)


def stream_rate(
    spark: Any,
    rows_per_second: float,
    *,
    splits: int = 1,
    rows: int | None = None,
    tasks: int | None = None,
    conf: ShuffleConf | None = None,
) -> Stream:
    """Numbered rows, ``timestamp`` and ``value``, for trying a stream out.

    Parameters
    ----------
    rows_per_second
        0: as fast as they go.
    splits
        Row k of split i has the value ``k * splits + i``.
    rows
        Values end below this; None: never.
    tasks
        Tasks that make them.
    """
    from fastbuf_spark.streams.rate import RateSource

    source = RateSource(float(rows_per_second), partition_count(splits, "splits"), rows)
    return _first(spark, source, tasks, conf)


def stream(
    spark: Any,
    source: Any,
    schema: StructType | str | None = None,
    *,
    tasks: int | None = None,
    conf: ShuffleConf | None = None,
) -> Stream:
    """A stream of a source of your own.

    Parameters
    ----------
    source
        An object with ``splits()``, which gives names of splits or a mapping of names to first offsets, and
        ``read(split, offset)``, which yields pairs of a record batch (None: nothing is there now) and the offset behind
        it, any value that JSON can say.  ``replayable`` (True) says whether a split can be read again from an offset,
        ``bounded`` (False) whether its first splits are all and each ends.  Or a
        :class:`fastbuf_spark.streams.source.StreamSource`.
    schema
        Of the batches; default: ``source.schema``.
    """
    if hasattr(source, "reader"):
        return _first(spark, source, tasks, conf)
    given = getattr(source, "schema", None) if schema is None else schema
    if given is None:
        raise ConfigError("stream needs schema=, or a source that has one")
    return _first(spark, UserSource(source, struct_type(given)), tasks, conf)
