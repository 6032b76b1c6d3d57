"""Every use of what PySpark and Spark do not promise: names with ``_``, the JVM behind them, modules without docs.

Each function says what it relies on; it is there in PySpark 4.1 to 4.3, unless it names versions.  Where Spark lacks
it, a function with ``@unless`` gives a default, which costs speed or figures but is never wrong; one without fails with
Spark's own error, since there is no other way.  None of them is for Spark Connect, unless it says so.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.core.rdd import RDD
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("fastbuf_spark")

MOST_TASKS = 100_000  #: of a stage to search for one that ended well
MOST_ENDED = 1000  #: and for one that did not
P = ParamSpec("P")
R = TypeVar("R")


def unless(default: Any, level: int = logging.DEBUG) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Gives ``default`` where Spark lacks what the function uses, or has stopped; the log says so."""

    def wrapped(func: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(func)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return func(*args, **kwargs)
            except Exception as error:
                log.log(level, "%s%s is not known: %s", func.__name__, args[1:], error)
                return default

        return call

    return wrapped


# The SparkContext in Python


def active_context() -> Any:
    """The SparkContext of this process, or None.  ``SparkContext._active_spark_context``."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


@unless(True)
def is_stopped(sc: Any) -> bool:
    """Whether Python has stopped it (``SparkContext._jsc`` is None then), or Spark itself, or its JVM is gone."""
    return sc._jsc is None or bool(_scala(sc).isStopped())


def is_pinned(sc: Any) -> bool:
    """Whether each thread of Python has one of the JVM's, with local properties of its own.  ``_gateway``, py4j."""
    from py4j.clientserver import ClientServer

    return isinstance(sc._gateway, ClientServer)


def setting(sc: Any, name: str, default: Any = None) -> Any:
    """One setting; ``sc.getConf()`` would fetch all of them, with a call into the JVM for each.  ``_conf``."""
    return sc._conf.get(name, default)


@unless("")
def default_file_system() -> str:
    """The URI of Hadoop's default file system; empty: that of this host, or no SparkContext is here.  ``_jsc``."""
    sc = active_context()
    uri = "" if sc is None else str(sc._jsc.hadoopConfiguration().get("fs.defaultFS") or "")
    return "" if uri.lower().startswith("file:") else uri


def own_directory(sc: Any) -> str:
    """The directory that Spark removes at the driver's end.  ``_temp_dir``."""
    return str(sc._temp_dir)


def take_broadcasts(sc: Any) -> list[Any]:
    """The broadcast variables of what has been pickled last, which Spark would take for the next function's.

    ``_pickled_broadcast_vars``.
    """
    taken = list(sc._pickled_broadcast_vars)
    sc._pickled_broadcast_vars.clear()
    return taken


def pickled(what: Any) -> bytes:
    """A function or object pickled as Spark pickles them, with its errors.  ``CloudPickleSerializer``."""
    from pyspark.serializers import CloudPickleSerializer

    return CloudPickleSerializer().dumps(what)


def spark_loads() -> Callable[[bytes], Any]:
    """What loads records that Spark has pickled.  ``CPickleSerializer``."""
    from pyspark.serializers import CPickleSerializer

    return CPickleSerializer().loads


def cloud_dumps() -> Callable[[Any], bytes]:
    """PySpark's copy of cloudpickle, which knows classes of the driver's ``__main__``.  ``pyspark.cloudpickle``."""
    from pyspark.cloudpickle import dumps

    return dumps


def properties_of(context: Any) -> dict[str, str]:
    """All local properties of a task.  ``TaskContext._localProperties``."""
    return context._localProperties or {}


@unless(True)
def has_accumulators() -> bool:
    """Whether this driver has accumulators: who adds to them is known to the workers alone.

    ``_accumulatorRegistry``; numbers below 0 are PySpark's own, for profiles.
    """
    from pyspark import accumulators

    return any(number >= 0 for number in accumulators._accumulatorRegistry)


def has_setting(spark: Any, text: str) -> bool:
    """Whether a name of a session's settings may have this text.  ``RuntimeConf._jconf``; on Connect: yes.

    To read all settings is a call into the JVM for each, but for all names together it is one.
    """
    java = getattr(spark.conf, "_jconf", None)
    return java is None or text in java.getAllAsJava().keySet().toString()


# The scheduler.  All of it by ``_jsc.sc()``, Scala's SparkContext, of which much is private[spark]


def _scala(sc: Any) -> Any:
    return sc._jsc.sc()


def forget_properties(sc: Any) -> None:
    """Take away all local properties of this thread, those that it has inherited too."""
    _scala(sc).setLocalProperties(sc._jvm.java.util.Properties())


@unless(None)
def concurrent_tasks(sc: Any) -> int | None:
    """Tasks that Spark can run at once now, as it counts them for barrier stages.  ``maxNumConcurrentTasks``."""
    scala = _scala(sc)
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


@unless(None, logging.WARNING)
def cancel_stage(sc: Any, stage: int, reason: str) -> None:
    """End the jobs of a stage.  ``cancelStage`` with a reason."""
    _scala(sc).cancelStage(stage, reason)


@unless(None)
def stage_tasks(sc: Any, stage: int) -> tuple[int, int, int] | None:
    """Tasks of a stage in all, running, and done, as Spark counts them now; None: it does not know the stage yet."""
    info = _scala(sc).statusTracker().getStageInfo(stage)
    if not info.isDefined() or info.get().numTasks() <= 0:
        return None
    counts = info.get()
    return int(counts.numTasks()), int(counts.numActiveTasks()), int(counts.numCompletedTasks())


@unless(None)
def tasks_of_first_attempt(sc: Any, stage: int) -> int | None:
    """Number of tasks of a stage; later attempts of it count only those that were left."""
    info = _scala(sc).statusTracker().getStageInfo(stage)
    is_first = info.isDefined() and info.get().currentAttemptId() == 0
    return int(info.get().numTasks()) if is_first else None


@unless(None)
def tasks_with_tag(sc: Any, tag: str) -> tuple[int, int] | None:
    """Tasks that are done, and that run, of the jobs with this tag."""
    tracker = _scala(sc).statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
    infos = [tracker.getStageInfo(stage) for job in jobs if job.isDefined() for stage in job.get().stageIds()]
    stages = [info.get() for info in infos if info.isDefined()]
    return sum(each.numCompletedTasks() for each in stages), sum(each.numActiveTasks() for each in stages)


@unless(())
def caches_filled(sc: Any, stage: int) -> tuple[str, ...]:
    """Names of the cached RDDs and DataFrames whose blocks a stage computes."""
    persistent = _scala(sc).getPersistentRDDs()
    if persistent.isEmpty():
        return ()
    rdds = _scala(sc).statusStore().lastStageAttempt(stage).rddIds()
    return tuple(f"cache {rdd}" for rdd in map(int, _each(rdds)) if persistent.contains(rdd))


@unless(None)
def fate(sc: Any, stage: int, attempt: int) -> str | None:
    """How Spark's task ``attempt`` of ``stage`` ended: ``failed: `` and its error, ``killed: ``, ``success: ``.

    None: not known (yet).  Tasks of a stage are killed when one fails for the last time: gives the error of that one.
    """
    info = _scala(sc).statusTracker().getStageInfo(stage)
    for number in range(info.get().currentAttemptId() if info.isDefined() else -1, -1, -1):
        tasks = _tasks(sc, stage, number, MOST_ENDED, "FAILED", "KILLED")
        mine = next((task for task in tasks if task.taskId() == attempt), None)
        if mine is not None:
            failed = [task for task in tasks if task.status() == "FAILED"]
            cause = mine if mine.status() == "FAILED" or not failed else failed[0]
            words = cause.errorMessage().get() if cause.errorMessage().isDefined() else ""
            return f"{cause.status().lower()}: {words}"
        if any(task.taskId() == attempt for task in _tasks(sc, stage, number, MOST_ENDED, "SUCCESS")):
            return "success: "
    return None


@unless("", logging.WARNING)
def executor_of(sc: Any, stage: int, partition: int) -> str:
    """Where a task has ended well; empty: not in this stage."""
    last = int(_scala(sc).statusStore().lastStageAttempt(stage).attemptId())
    for attempt in range(last, -1, -1):
        for task in _tasks(sc, stage, attempt, MOST_TASKS, "SUCCESS"):
            if int(task.partitionId()) == partition:
                return str(task.executorId())
    return ""


@unless(None, logging.WARNING)
def replace_executor(sc: Any, executor: str) -> None:
    """End an executor, so that Spark forgets what its tasks gave to shuffles.  ``killAndReplaceExecutor``."""
    _scala(sc).killAndReplaceExecutor(executor)


@unless(False)
def is_active(sc: Any, executor: str) -> bool:
    """Whether Spark counts on an executor.  ``AppStatusStore.executorSummary``."""
    return bool(_scala(sc).statusStore().executorSummary(executor).isActive())


def _tasks(sc: Any, stage: int, attempt: int, most: int, *statuses: str) -> list[Any]:
    """Tasks of a stage's attempt that have one of these statuses.  ``AppStatusStore.taskList``."""
    wanted, status_of = sc._jvm.java.util.ArrayList(), sc._jvm.org.apache.spark.status.api.v1.TaskStatus
    for status in statuses:
        wanted.add(getattr(status_of, status))
    nothing = sc._jvm.scala.Option.empty()
    return list(_each(_scala(sc).statusStore().taskList(stage, attempt, 0, most, nothing, True, wanted)))


def _each(sequence: Any) -> Iterator[Any]:
    """The items of a Seq of Scala's."""
    return (sequence.apply(i) for i in range(sequence.size()))


@unless(None)
def shuffle_of(sc: Any, stage: int) -> Any:
    """A weak reference to the shuffle that a running stage writes; None: not known.  ``DAGScheduler``."""
    stages = _scala(sc).dagScheduler().shuffleIdToMapStage().valuesIterator()
    while stages.hasNext():
        each = stages.next()
        if int(each.id()) == stage:
            return weak_reference(sc, each.shuffleDep())
    return None


@unless(None)
def weak_reference(sc: Any, what: Any) -> Any:
    """The JVM's, to an object of the JVM; None: there is none."""
    return sc._jvm.java.lang.ref.WeakReference(what)


@unless(None)
def is_garbage(reference: Any) -> bool | None:
    """Whether what it refers to is gone; None: not known, as after Spark's end."""
    return bool(reference.refersTo(None))


@unless(False)
def is_indeterminate(sc: Any, stage: int) -> bool:
    """Whether Spark itself knows that a stage's rows may differ each time, and so runs it again as a whole."""
    entry = _scala(sc).dagScheduler().stageIdToStage().get(stage)
    return entry.isDefined() and str(entry.get().rdd().outputDeterministicLevel()) == "INDETERMINATE"


def is_cached(sc: Any, rdd: Any) -> bool:
    """Whether all of an RDD of the JVM is cached.  ``getRDDStorageInfo``."""
    if not rdd.getStorageLevel().isValid():
        return False
    mine = [info for info in _scala(sc).getRDDStorageInfo() if int(info.id()) == int(rdd.id())]
    return bool(mine) and mine[0].numCachedPartitions() == mine[0].numPartitions()


# Plans of DataFrames.  All of it by ``_jdf.queryExecution()``, whose plans are Catalyst's


def optimized_plan(df: Any) -> Any:
    """Catalyst's optimized plan."""
    return df._jdf.queryExecution().optimizedPlan()


def analyzed_plan(df: Any) -> Any:
    """Catalyst's plan with columns resolved."""
    return df._jdf.queryExecution().analyzed()


def partitions_of(df: Any) -> int | None:
    """Number of partitions of a DataFrame; None if finding it would run a job.

    With adaptive execution and a shuffle in the plan it would run the stages before the shuffle; but then Spark itself
    combines small partitions.
    """
    execution = df._jdf.queryExecution()
    plan = execution.executedPlan()
    if "AdaptiveSparkPlan" in plan.getClass().getSimpleName():
        return None
    count = int(plan.outputPartitioning().numPartitions())
    return count if count > 0 else int(execution.toRdd().getNumPartitions())


@unless(0)
def average_bytes(df: DataFrame) -> int:
    """Average bytes of a row, if Spark has measured them: for a cached DataFrame.  Else 0."""
    plan = optimized_plan(df)
    if plan.getClass().getSimpleName() != "InMemoryRelation" or not plan.cacheBuilder().isCachedColumnBuffersLoaded():
        return 0
    stats = plan.stats()
    rows = int(stats.rowCount().get()) if stats.rowCount().isDefined() else 0
    return -(-int(str(stats.sizeInBytes())) // rows) if rows else 0


@unless(None)
def of_unknown_size(rows: DataFrame) -> tuple[DataFrame, Any] | None:
    """The same rows in a DataFrame whose size Spark does not know, and their RDD.  ``internalCreateDataFrame``."""
    from pyspark.sql import DataFrame

    spark: Any = rows.sparkSession
    rdd = rows._jdf.queryExecution().toRdd()
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, rows._jdf.schema(), False), spark), rdd


@unless(None)
def with_nothing(rows: DataFrame) -> DataFrame | None:
    """The rows in a union with none, of an unknown size.  ``internalCreateDataFrame``."""
    from pyspark.sql import DataFrame

    spark: Any = rows.sparkSession
    nothing = spark.sparkContext._jsc.emptyRDD().rdd()
    empty = spark._jsparkSession.internalCreateDataFrame(nothing, rows._jdf.schema(), False)
    return DataFrame(rows._jdf.union(empty), spark)


def sort_order(column: Any, session: Any, connect: bool) -> tuple[Any, bool, bool] | None:
    """Of ``F.desc("x")`` and the like what is sorted by, whether descending, and with nulls first; else None.

    ``Column._jc``, a Catalyst ``SortOrder``; of Connect ``Column._expr``.
    """
    if connect:
        order = column._expr
        if type(order).__name__ != "SortOrder":
            return None
        child = order._child
        # A plain column name needs no additional column; a column of a certain DataFrame (df.x) is not a plain name
        name = None if getattr(child, "_plan_id", None) is not None else getattr(child, "_unparsed_identifier", None)
        return type(column)(child) if name is None else name, not order._ascending, order._nullsFirst
    order = column._jc.node()
    if order.getClass().getSimpleName() != "SortOrder":
        return None
    bare = type(column)(session._jvm.org.apache.spark.sql.Column(order.child()))
    down, first = order.sortDirection().getClass().getName(), order.nullOrdering().getClass().getName()
    return bare, "Descending" in down, "NullsFirst" in first


# RDDs


def jvm_rdd(rdd: Any) -> Any:
    """Scala's RDD of one of PySpark's.  ``_jrdd``."""
    return rdd._jrdd.rdd()


def as_pickles(rdd: RDD[Any]) -> RDD[Any] | None:
    """The RDD as the pickled lists that Spark stores (cached, parallelized or shuffled); None: Python computes it.

    ``_jrdd_deserializer``, its classes, and ``_is_pipelinable``.
    """
    from pyspark.core.rdd import RDD, PipelinedRDD
    from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, CPickleSerializer, NoOpSerializer

    serializer: Any = rdd._jrdd_deserializer
    if type(serializer) not in (BatchedSerializer, AutoBatchedSerializer):
        return None
    inner = serializer.serializer
    if type(inner) is not CPickleSerializer or getattr(inner, "allowed_names", None) is not None:
        return None
    made_here = isinstance(rdd, PipelinedRDD) and rdd._is_pipelinable()
    if made_here or rdd._is_barrier() or rdd.has_resource_profile:
        return None
    return RDD(rdd._jrdd, rdd.context, NoOpSerializer())


def with_function(rdd: RDD[Any], wrap: Callable[[Any], Any]) -> RDD[Any]:
    """The RDD whose function is what ``wrap`` makes of it, if that is pickled with a later one.  ``PipelinedRDD``."""
    from pyspark.core.rdd import RDD, PipelinedRDD

    if not isinstance(rdd, PipelinedRDD) or not rdd._is_pipelinable():
        return rdd
    source: Any = RDD(rdd._prev_jrdd, rdd.context, rdd._prev_jrdd_deserializer)
    return PipelinedRDD(source, wrap(rdd.func), rdd.preservesPartitioning, rdd.is_barrier)


def numbers_of(sc: Any, num_partitions: int, place: Callable[[Any], int]) -> RDD[int]:
    """An RDD whose partitions each contain their own number, partitioned by ``place``.  ``PythonPartitioner``."""
    from pyspark.serializers import BatchedSerializer, CPickleSerializer

    serializer = BatchedSerializer(CPickleSerializer())
    pairs = sc._jvm.java.util.ArrayList()
    for partition in range(num_partitions):
        pairs.add(sc._jvm.scala.Tuple2(partition, bytearray(serializer.serializer.dumps([partition]))))
    return _values_by_partition(sc, sc._jsc.parallelizePairs(pairs, 1), num_partitions, place, serializer)


def keyed(task: Callable[[Any], Iterable[tuple[int, bytes]]]) -> Callable[[Any], Iterable[bytes]]:
    """A function that gives each (partition, block) of another as two items, as ``PairwiseRDD`` reads them."""
    from pyspark.serializers import pack_long

    def run(source: Any) -> Iterator[bytes]:
        for partition, block in task(source):
            yield pack_long(partition)
            yield block

    return run


def moved(rdds: list[RDD[bytes]], num_partitions: int, place: Callable[[Any], int]) -> RDD[bytes]:
    """The blocks that :func:`keyed` functions gave, moved by Spark.  ``PairwiseRDD``, ``_bypass_serializer``."""
    from pyspark.serializers import NoOpSerializer

    every: list[Any] = list(rdds)
    for rdd in every:
        rdd._bypass_serializer = True
    sc = every[0].context
    blocks = functools.reduce(lambda left, right: left.union(right), (rdd._jrdd for rdd in every))
    pairs = sc._jvm.PairwiseRDD(blocks.rdd()).asJavaPairRDD()
    return _values_by_partition(sc, pairs, num_partitions, place, NoOpSerializer())


def _values_by_partition(
    sc: Any, pairs: Any, num_partitions: int, place: Callable[[Any], int], serializer: Any
) -> RDD[Any]:
    """The values of a JVM RDD of (partition, value) pairs, each in its partition.

    As in PySpark's ``partitionBy``, the JVM identifies a partitioner by the address of its Python function.  So a join
    or union with an RDD that Spark has partitioned by the same function needs no further shuffle.
    """
    from pyspark.core.rdd import RDD

    partitioner = sc._jvm.PythonPartitioner(num_partitions, id(place))
    return RDD(sc._jvm.PythonRDD.valueOfPair(pairs.partitionBy(partitioner)), sc, serializer)


# Workers


def in_worker() -> bool:
    """Whether this is one of Spark's workers.  ``pyspark.worker``, which is their main module; on Connect too."""
    return "pyspark.worker" in sys.modules


def task_stream() -> Any:
    """The stream from which the task that calls this is fed, with ``peek``; None if it is not found.

    An argument ``infile`` of a function ``main`` further up; on Connect too.
    """
    stream = _of_main("infile")
    return stream if hasattr(stream, "peek") else None


def flush_output() -> None:
    """Send what the task that calls this has written for Spark; where its stream is not found, a full buffer does that.

    An argument ``outfile`` of a function ``main`` further up; on Connect too.
    """
    stream = _of_main("outfile")
    if hasattr(stream, "flush"):
        stream.flush()


def _of_main(argument: str) -> Any:
    frame: Any = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "main" and argument in code.co_varnames[: code.co_argcount]:
            return frame.f_locals[argument]
        frame = frame.f_back
    return None


def name_in_logs(context: Callable[[], dict[str, str]]) -> None:
    """Have Spark's logs of workers take the function's name from ``context``, where a session keeps such logs.

    ``JSONFormatterWithMarker`` and its ``_context_provider``, from 4.1; others keep none.
    """
    if "PYSPARK_SPARK_SESSION_UUID" not in os.environ:  # as Spark has it: the session's logs are not on
        return
    try:
        from pyspark.logger.worker_io import JSONFormatterWithMarker
    except ImportError:
        return
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    for formatter in (*formatters, getattr(sys.stdout, "_formatter", None), getattr(sys.stderr, "_formatter", None)):
        if isinstance(formatter, JSONFormatterWithMarker):
            formatter._context_provider = context


def hide_tracebacks(hidden: Callable[[BaseException | None], bool]) -> Callable[[], None]:
    """Have a worker show no traceback of such an error; gives what restores it.  It shows one by ``print_exc``."""
    shown = traceback.print_exc

    def show(*arguments: Any, **more: Any) -> None:
        if not hidden(sys.exc_info()[1]):
            shown(*arguments, **more)

    def restore() -> None:
        traceback.print_exc = shown

    traceback.print_exc = show
    return restore


def guarded(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with StopIteration turned into an error, as in Spark.  ``pyspark.util``."""
    from pyspark.util import fail_on_stopiteration

    return fail_on_stopiteration(func)


# Conversions, the same as Spark's own; all of them on Connect too


def to_arrow_schema(schema: StructType, zone: str, large: bool) -> pa.Schema:
    """Spark's Arrow schema; before 4.3 its times are in UTC, whatever the zone.  ``pyspark.sql.pandas.types``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    parameters = inspect.signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"prefers_large_types": True} if large and "prefers_large_types" in parameters else {}
    if "timezone" in parameters:
        options["timezone"] = zone
    return to_arrow_schema(schema, **options)


def from_arrow_type(kind: pa.DataType) -> DataType:
    """Spark's type; PySparkTypeError where there is none.  ``pyspark.sql.pandas.types``."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind)


def streams_groups(func: Callable[..., Any], pandas: bool) -> bool:
    """Whether a function of groups takes iterators, by its hints as Spark reads them.  ``typehints``."""
    from pyspark.sql.pandas import typehints
    from pyspark.util import PythonEvalType

    if pandas:
        eval_type = typehints.infer_group_pandas_eval_type_from_func(func)
        return eval_type == PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF
    return typehints.infer_group_arrow_eval_type_from_func(func) == PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF


def no_converters() -> str:
    """Why conversions to pandas cannot be done as in this version of Spark; empty if they can, as in 4.2 and 4.3."""
    try:
        from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion

        parameters = inspect.signature(PandasToArrowConversion.convert).parameters
        if "prefer_int_ext_dtype" in inspect.signature(ArrowBatchTransformer.to_pandas).parameters:
            return "" if "arrow_cast" in parameters else "this Spark converts results from pandas in another way"
    except (ImportError, AttributeError):
        pass
    return "this Spark lacks the converters to pandas that fastbuf uses (those of Spark 4.2)"


def to_series(part: pa.Table | pa.RecordBatch, zone: str, int_extension: bool) -> list[Any]:
    """The columns in pandas.  ``ArrowBatchTransformer``, see :func:`no_converters`."""
    from pyspark.sql.conversion import ArrowBatchTransformer

    return list(ArrowBatchTransformer.to_pandas(part, timezone=zone, prefer_int_ext_dtype=int_extension))


def to_frame(batch: pa.RecordBatch, zone: str, int_extension: bool) -> Any:
    """A batch in pandas, as one struct where Spark converts it so: types of all columns decide about each of them."""
    import pandas as pd
    from pyspark.sql.conversion import ArrowBatchTransformer

    convert = ArrowBatchTransformer.to_pandas
    if "df_for_struct" not in inspect.signature(convert).parameters:
        return pd.concat(to_series(batch, zone, int_extension), axis=1)
    struct = ArrowBatchTransformer.wrap_struct(batch)
    return convert(struct, timezone=zone, prefer_int_ext_dtype=int_extension, df_for_struct=True)[0]


def verify_pandas_result(frame: Any, result: StructType, by_name: bool, truncated: bool) -> None:
    """Raises Spark's errors for a frame of other columns.  ``pyspark.worker``; ``truncated``: the types in them."""
    from pyspark.worker import verify_pandas_result

    verify_pandas_result(frame, result, by_name, truncate_return_schema=truncated)


def from_pandas(frame: Any, result: StructType, cast: bool, **options: Any) -> pa.RecordBatch:
    """A frame as a batch.  ``PandasToArrowConversion``, see :func:`no_converters`."""
    from pyspark.sql.conversion import PandasToArrowConversion

    return PandasToArrowConversion.convert(frame, result, arrow_cast=cast, **options)
