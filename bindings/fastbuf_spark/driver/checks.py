"""Checks on the driver, before anything runs, whether a pipelined shuffle can run on this Spark."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import replace
from typing import Any

import numpy as np

from fastbuf.errors import ConfigError, PreflightError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.cluster import Cluster, Preflight, judged
from fastbuf_spark.driver.mode import choose
from fastbuf_spark.errors import ArgumentError, ArgumentTypeError, PartitionCountError
from fastbuf_spark.pyspark_private import concurrent_tasks, is_pinned, is_stopped, own_directory, setting
from fastbuf_spark.worker.held import HeldRows

_LOCAL = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?$")
APART = "FASTBUF_EXECUTORS_APART"  #: in the environment: tests on one host have file servers, and read from them alone
ENCRYPTED = "spark.io.encryption.enabled"
NO_DRIVER = "Spark Connect has no driver process to meet in: use mode='blocking'"
MAX_PARTITIONS = 1 << 30  #: limit of a division of a 32-bit hash
#: Objects that users pass instead of a DataFrame: start of the module's name, class, and advice.
_NO_FRAMES = (
    ("pyspark.core.rdd", "", "use fastbuf_spark.partition_by for pairs, or rdd.toDF()"),
    ("pyspark.pandas", "", "give df.to_spark()"),
    ("pandas", "DataFrame", "give spark.createDataFrame(df)"),
    ("polars", "LazyFrame", "give spark.createDataFrame(df.collect().to_arrow())"),
    ("polars", "", "give spark.createDataFrame(df.to_arrow())"),
    ("pyarrow", "Table", "give spark.createDataFrame(table)"),
)
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,")


def check_dataframe(df: Any) -> None:
    """ConfigError unless this is a Spark DataFrame, classic or Connect; the message says how to get one."""
    from pyspark.sql import DataFrame

    if is_connect(df):
        return None
    if isinstance(df, DataFrame):
        return check_session(df.sparkSession)
    kind = type(df)
    for base in kind.__mro__:
        for module, name, what in _NO_FRAMES:
            if base.__module__.startswith(module) and name in ("", base.__name__):
                words = f"df is a {kind.__module__}.{kind.__name__}, not a DataFrame of Spark's: {what}"
                raise ArgumentTypeError.of(words, "df", "DataFrame", df)
    words = f"df is a {kind.__module__}.{kind.__name__}: give a pyspark.sql.DataFrame"
    raise ArgumentTypeError.of(words, "df", "DataFrame", df)


def check_session(spark: Any) -> None:
    """ConfigError if the session, or SparkContext, has been stopped."""
    if not is_connect(spark) and is_stopped(getattr(spark, "sparkContext", spark)):
        raise ConfigError(
            "the SparkSession of this input has been stopped: make one (SparkSession.builder.getOrCreate()), and read "
            "the input with it again"
        )


def check_function(name: str, func: Any, what: str = "takes an iterator of pyarrow.RecordBatch and gives one") -> None:
    """ConfigError unless ``func`` is callable; the message says ``what`` it must do."""
    if not callable(func):
        words = f"{name} is {func!r:.100} ({type(func).__name__}): give a function that {what}"
        raise ArgumentTypeError.of(words, name, "function", func)


def check_conf(conf: Any) -> None:
    """ConfigError unless these are settings or None."""
    if isinstance(conf, dict):
        words = "conf is a dict: give ShuffleConf(**conf), whose names are memory_bytes and so on"
        raise ArgumentTypeError.of(words, "conf", "ShuffleConf", conf)
    if conf is not None and not isinstance(conf, ShuffleConf):
        words = f"conf is a {type(conf).__name__}: give a ShuffleConf, or none for the session's settings"
        raise ArgumentTypeError.of(words, "conf", "ShuffleConf", conf)


def check_mode(mode: Any, modes: tuple[str, ...]) -> None:
    """ConfigError unless this is one of the modes."""
    if not isinstance(mode, str) or mode not in modes:
        allowed = ", ".join(modes)
        parameters = {"arg_name": "mode", "allowed_values": allowed}
        raise ArgumentError(f"mode is {mode!r}: it must be one of {allowed}", "VALUE_NOT_ALLOWED", parameters)


def special_tasks(barrier: Any, profile: Any) -> str:
    """What is special about tasks with these arguments of Spark's ``mapInArrow``; empty if nothing is.

    Such tasks cannot be the consumers of a pipelined shuffle, whose slots are counted as those of ordinary ones.

    Raises
    ------
    ConfigError
        An argument of another type.
    """
    from pyspark.resource import ResourceProfile

    if not isinstance(barrier, bool):
        raise ConfigError(f"barrier is {barrier!r:.100}: give True or False")
    if profile is not None and not isinstance(profile, ResourceProfile):
        raise ConfigError(f"profile is {profile!r:.100}: give a pyspark.resource.ResourceProfile")
    if profile is not None:
        return "its tasks have a resource profile"
    return "its tasks are a barrier stage" if barrier else ""


def partition_count(num_partitions: Any, name: str = "num_partitions") -> int:
    """The number of partitions, as an int.  ``name``: the argument's.

    Raises
    ------
    ConfigError
        It is not an integer, or out of range.
    """
    try:
        count = None if isinstance(num_partitions, bool | np.bool_) else operator.index(num_partitions)
    except TypeError:
        count = None
    if count is not None and 1 <= count <= MAX_PARTITIONS:
        return count
    words = f"{name} is {num_partitions if count is not None else repr(num_partitions)}: it must be a number from 1 up"
    if name == "num_partitions":
        words += ", and is never guessed"
    if count is not None:
        raise PartitionCountError(f"{words}; {MAX_PARTITIONS} (2**30) at most")
    example = "it stands before the keys, as in repartition(df, 8, 'key')"
    words += f"; {example if name == 'num_partitions' else f'as in {name}=8'}"
    raise ArgumentTypeError.of(words, name, "int", num_partitions)


def partition_count_or_none(partitions: Any, name: str = "partitions") -> int | None:
    """As :func:`partition_count`, or None: it is not asked for."""
    return None if partitions is None else partition_count(partitions, name)


def is_connect(spark: Any) -> bool:
    """Whether a session or DataFrame is of Spark Connect, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def preflight(spark: Any, num_partitions: int, mode: str = "pipelined", conf: ShuffleConf | None = None) -> Preflight:
    """Checks whether a stage of ``num_partitions`` can run here; tells the settings to change.

    Parameters
    ----------
    spark
        A SparkSession, classic or Connect, or a SparkContext; or a :class:`Cluster` that is not there.
    num_partitions
        Number of partitions after the shuffle (consumers).
    mode
        ``"pipelined"``, or ``"barrier"`` for the bare :class:`ShuffleStage`; ``"blocking"`` always runs; ``"auto"``:
        what that means here (``spark.fastbuf.mode``), blocking unless something else is set.
    conf
        Settings of the shuffle; None: the session's.

    Returns
    -------
    Preflight
        Empty, and false, if the stage can run.

    Raises
    ------
    ConfigError
        Another mode, no number of partitions, or no session.
    """
    check_mode(mode, ("auto", "pipelined", "blocking", "barrier"))
    num_partitions = partition_count(num_partitions)
    if isinstance(spark, Cluster):
        conf = conf or ShuffleConf()
        return judged(spark, num_partitions, _meant(mode, conf), conf)
    if is_connect(spark):
        slots = None
        mode = _meant(mode, conf or _conf_of(spark))
        problems = [NO_DRIVER] if mode != "blocking" else []
        return Preflight(mode, num_partitions, slots, tuple(problems))
    sc = getattr(spark, "sparkContext", spark)
    if not hasattr(sc, "master"):
        words = f"spark is {spark!r:.100} ({type(spark).__name__}): give a SparkSession or a SparkContext"
        raise ArgumentTypeError.of(words, "spark", "SparkSession", spark)
    check_session(sc)
    conf = conf or _conf_of(spark)
    return judged(cluster_of(sc, conf), num_partitions, _meant(mode, conf), conf)


def remedy(sc: Any, slots: int) -> str:
    """See :meth:`Cluster.remedy`."""
    return _cluster(sc).remedy(slots)


def _cluster(sc: Any) -> Cluster:
    here = machine_cores() if str(sc.master).startswith("local") else None
    return Cluster(master=str(sc.master), task_cpus=int(setting(sc, "spark.task.cpus", "1")), here=here)


def cluster_of(sc: Any, conf: ShuffleConf) -> Cluster:
    """The figures of a Spark that is there."""
    slots, storage = slots_of(sc), held_rows(sc, conf)
    return replace(
        _cluster(sc),
        now=slots,
        most=slots_to_come(sc),
        tasks=tasks_of_executor(sc, slots),
        is_pinned=is_pinned(sc),
        is_dynamic=is_dynamic(sc),
        has_servers=storage is not None and bool(storage.service),
    )


def check_barrier(spark: Any, barrier: bool, tasks: Any) -> None:
    """PreflightError if Spark could not run a barrier stage of so many tasks; it would say so, late on a cluster."""
    if barrier and not is_connect(spark) and (stopped := preflight(spark, tasks, "barrier")):
        raise PreflightError(f"barrier=True cannot run: {stopped}")


def _meant(mode: str, conf: ShuffleConf) -> str:
    return choose(mode, conf.mode, tuple) if mode == "auto" else mode


def _conf_of(spark: Any) -> ShuffleConf:
    """The settings of a session or a SparkContext."""
    of_session = is_connect(spark) or hasattr(spark, "sparkContext")
    return ShuffleConf.from_session(spark) if of_session else ShuffleConf.from_context(spark)


def tasks_of_executor(sc: Any, slots: int | None) -> int | None:
    """Tasks that one executor runs at once; None if that depends on its host."""
    cluster = _LOCAL_CLUSTER.match(str(sc.master))
    if _LOCAL.match(str(sc.master)):
        return slots
    cores = cluster[2] if cluster else setting(sc, "spark.executor.cores")
    return None if cores is None else int(cores) // int(setting(sc, "spark.task.cpus", "1"))


def held_rows(spark: Any, conf: ShuffleConf) -> HeldRows | None:
    """Where map tasks of a blocking exchange keep their rows; None: these go through Spark's shuffle.

    Tasks on one host see each other's files.  The driver's directory is the same for all attempts of a task there, and
    Spark removes it at the driver's end.  On several hosts each executor has files of its own, and a server of them,
    whose name and secret are still to come.  No file of ours is encrypted.
    """
    context = getattr(spark, "sparkContext", spark)
    if _true(context, ENCRYPTED):
        return None
    apart = APART in os.environ
    if str(context.master).startswith("local") and not apart:
        return HeldRows(conf.held_directory or own_directory(context))
    if conf.file_servers and not outlives_executors(context):
        return HeldRows(conf.held_directory, "still to come", apart=apart)
    return HeldRows(conf.held_directory) if conf.held_directory else None


def outlives_executors(sc: Any) -> bool:
    """Whether what tasks give to Spark's shuffle stays when their executor goes.

    Then their descriptions would stay when their rows go, and Spark would not make them anew.
    """
    usual = {
        "spark.shuffle.manager": ("sort", "tungsten-sort"),
        "spark.shuffle.sort.io.plugin.class": ("org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",),
    }
    return (
        _true(sc, "spark.shuffle.service.enabled")
        or _true(sc, "spark.storage.decommission.enabled")
        or any(str(setting(sc, name, values[0])) not in values for name, values in usual.items())
    )


def machine_cores() -> int:
    """Cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0))


def slots_of(sc: Any) -> int | None:
    """Tasks that Spark can run at once now, as it counts them for barrier stages; None: unknown.

    Executors that are not started yet are not counted, except for ``local-cluster``, whose number is fixed.
    """
    cluster = _LOCAL_CLUSTER.match(str(sc.master))
    if cluster:
        task_cpus = int(setting(sc, "spark.task.cpus", "1"))
        return int(cluster[1]) * (int(cluster[2]) // task_cpus)
    return concurrent_tasks(sc)


def slots_to_come(sc: Any) -> int | None:
    """The same, counting all executors that Spark may start: with dynamic allocation it starts them when tasks wait."""
    now = slots_of(sc)
    if not is_dynamic(sc):
        return now
    most, cores = setting(sc, "spark.dynamicAllocation.maxExecutors"), setting(sc, "spark.executor.cores")
    if most is None or cores is None:
        return None  # there is no limit, or an executor takes all cores of its host
    return max(now or 0, int(most) * (int(cores) // int(setting(sc, "spark.task.cpus", "1"))))


def attempts_of(sc: Any) -> int:
    """How often Spark attempts a task."""
    local = _LOCAL.match(str(sc.master))
    return int(local[2] or 1) if local else int(setting(sc, "spark.task.maxFailures", "4"))


def is_dynamic(sc: Any) -> bool:
    """Whether Spark starts and stops executors as needed."""
    return _true(sc, "spark.dynamicAllocation.enabled")


def _true(sc: Any, name: str) -> bool:
    return str(setting(sc, name, "false")).strip().lower() == "true"
