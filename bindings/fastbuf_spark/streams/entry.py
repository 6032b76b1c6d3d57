"""How streams begin: files, numbered rows, Kafka, a source of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.checks import check_conf, is_connect, partition_count, partition_count_or_none
from fastbuf_spark.schema import struct_type
from fastbuf_spark.streams.drafts import Draft, Duration, seconds_of
from fastbuf_spark.streams.source import StreamSource
from fastbuf_spark.streams.stream import Stream
from fastbuf_spark.streams.user_source import UserSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def _first(spark: Any, source: StreamSource, tasks: int | None, conf: ShuffleConf | None) -> Stream:
    check_conf(conf)
    if is_connect(spark):
        raise ConfigError("streams need a SparkContext, which Spark Connect has not: run the driver on the cluster")
    count = partition_count_or_none(tasks, "tasks")
    return Stream(spark, (Draft("source", count, source.schema, source.schema, source, words=(source.name,)),), conf)


def stream_files(
    spark: Any,
    path: str,
    format: str = "parquet",
    schema: StructType | str | None = None,
    *,
    bounded: bool = False,
    max_file_age: Duration = "7 days",
    tasks: int | None = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Stream:
    """A stream of the rows of files that appear in a directory, in the order of their times.

    A task reads one file after the other; with several tasks, rows of several files come side by side.  By event time
    a file that waits for its turn holds the watermark back: a Parquet file to its least time, any other one altogether,
    as it may have the oldest rows.  Behind a backlog of those windows come when its last file is being read; with
    ``with_watermark(..., watermark="spark")`` they come on the way.

    Parameters
    ----------
    path
        A directory that all hosts see, or the URI of one in a store.  Files must appear whole, as objects of a store
        do: elsewhere write them under another name and rename them, as Spark and fastbuf do.
    format
        That of a reader: "parquet" for what :func:`fastbuf_spark.read_parquet` reads, and so on.
    schema
        A StructType or DDL text, in this order.  Names of directories, ``key=value``, have the values of the columns
        that it names so, as for :func:`fastbuf_spark.read_parquet`: these are of the types that it gives.
    bounded
        Whether to end behind the files that are there now.  All windows end with them: of rows that come at a later
        start, a window has a second result.
    max_file_age
        Files older than the newest one by more than this are passed over.  The files that are there at first are all
        read, whatever their age.  A file that is moved into the directory keeps its time; one from the future counts as
        if it were written now.
    tasks
        Tasks that read; each file is read by one.
    **options
        As for :func:`fastbuf_spark.read_csv` and its like.  With ``ignoreMissingFiles=True`` the stream goes on
        without files that were removed before it read them.
    """
    from fastbuf_spark.streams.files import files_source

    if schema is None:
        raise ConfigError("stream_files needs schema=: files that come later must have one that is known now")
    age = seconds_of("max_file_age", max_file_age)
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
        ``bounded`` (False) whether its first splits are all and each ends, ``name`` (that of
        its class) is what a checkpoint knows it by: give one to each of several of a class.  Each split is read in a
        thread beside the task's, one item ahead, so ``read`` may wait for messages; of more than 16 in a task some
        share a thread.  Or a :class:`fastbuf_spark.streams.source.StreamSource`.
    schema
        Of the batches, whose columns are taken by their places; default: ``source.schema``.
    """
    if hasattr(source, "reader"):
        return _first(spark, source, tasks, conf)
    shape = getattr(source, "schema", None) if schema is None else schema
    if shape is None:
        raise ConfigError("stream needs schema=, or a source that has one")
    return _first(spark, UserSource(source, struct_type(shape)), tasks, conf)


def stream_kafka(
    spark: Any,
    servers: str,
    topics: Any,
    schema: StructType | str | None = None,
    *,
    format: str = "json",
    tasks: int | None = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Stream:
    """A stream of the records of Kafka topics; each partition is read by one task, in its order.

    Parameters
    ----------
    servers, topics, schema, format, **options
        As for :func:`fastbuf_spark.streams.kafka.kafka_source`: ``metadata``, ``start``, ``bounded``, ``group``,
        ``on_bad``, ``on_lost_offsets``, and ``options`` of librdkafka's.
    tasks
        Tasks that read; more than the topics have partitions are idle.
    """
    from fastbuf_spark.streams.kafka import kafka_source

    return _first(spark, kafka_source(servers, topics, schema, format=format, **options), tasks, conf)
