"""Files that the workers read with pyarrow, so that no row goes through the JVM on its way into a shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastbuf_spark.api.pipelines import Pipeline
from fastbuf_spark.driver.checks import check_conf
from fastbuf_spark.driver.delta import delta_source
from fastbuf_spark.driver.reader_options import read_options
from fastbuf_spark.driver.sources import Asked, dataset_source, files_source
from fastbuf_spark.driver.store_options import storage_of
from fastbuf_spark.formats import format_of
from fastbuf_spark.schema import struct_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from fastbuf_spark.conf import ShuffleConf


def read_parquet(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    schema: StructType | str | None = None,
    partition_types: Mapping[str, str] | None = None,
    filesystem: Any = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Pipeline:
    """Read Parquet files, with the same columns, types and values as ``spark.read.parquet``.

    Parameters
    ----------
    spark
        A SparkSession.
    path
        A file, a directory (read recursively), a URI, or several of them, also with wildcards (``*``, ``?``, ``[ab]``,
        ``{a,b}``).  Directories named ``key=value`` below such a path are columns; names in the path itself are not, as
        in Spark.
    columns
        Names of the columns to read; default: all.
    filter
        A ``pyarrow.compute`` expression over the columns of the files.  Row groups that cannot contain such rows are
        skipped.  Comparisons are Arrow's: NaN equals nothing.
    schema
        A StructType or DDL text; default: the schema of the first file, or of all with ``mergeSchema``.  A column that
        a file does not have is null.
    partition_types
        Spark types of columns from directory names; default: inferred as in Spark.
    filesystem
        A file system of pyarrow or fsspec; default: that of the URI, or the local one.  Workers must be able to reach
        it.
    conf
        The pipeline's settings, as for :func:`pipeline`, with ``storage_options`` for a store of objects.
    **options
        Options of Spark's reader, such as ``mergeSchema=True``, ``recursiveFileLookup``, ``pathGlobFilter`` and
        ``basePath``.  One that is not honoured is refused by name, and so is a setting of the session; the docs have a
        table of them.

    Returns
    -------
    Pipeline
        Pass it to a function that takes a DataFrame, use its own methods, or call ``to_df()``.

    Raises
    ------
    SchemaError
        A type or a calendar that is not supported; the message names it.
    ConfigError
        A column, a filter or a path is not valid.
    """
    from pyspark.sql.types import DataType

    types = {name: DataType.fromDDL(kind) for name, kind in dict(partition_types or {}).items()}
    return _read(spark, "parquet", path, schema, columns, filter, filesystem, options, types, conf)


def _read(
    spark: Any,
    name: str,
    path: Any,
    schema: StructType | str | None,
    columns: Iterable[str] | None,
    filter: Any,
    filesystem: Any,
    options: Mapping[str, Any],
    types: Mapping[str, DataType] | None = None,
    conf: ShuffleConf | None = None,
) -> Pipeline:
    """Files of the format of this name."""
    check_conf(conf)
    honoured = read_options(spark, name, options)
    struct = None if schema is None else struct_type(schema)
    asked = Asked(spark, f"read_{name}", path, columns, filter, filesystem, honoured, storage_of(spark, conf))
    return Pipeline(files_source(asked, format_of(name, honoured), struct, types), conf=conf)


def read_csv(
    spark: Any,
    path: Any,
    schema: StructType | str | None = None,
    *,
    header: bool = False,
    sep: str = ",",
    escape: str | None = None,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    filesystem: Any = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Pipeline:
    """Read files of comma-separated values, like ``spark.read.csv`` with these arguments.

    Parameters
    ----------
    schema
        The columns in the files' order: a StructType or DDL text; default: all are strings, as in Spark.
    header
        Whether the first line of each file has names.
    sep
        The character between values.
    escape
        How a quote within a quoted value is written: doubled, in any case.  By default a file with a quote behind a
        backslash is refused, as Spark writes and reads quotes so; ``'"'``: a backslash is a character like others.

    Notes
    -----
    Other parameters are those of :func:`read_parquet`; options are ``nullValue``, ``quote``, ``comment``,
    ``dateFormat``, ``timestampFormat``, ``encoding``, ``lineSep`` and others.

    Values are those of Spark.  Where Spark finds no value of a type, or another number of values, and returns nulls, an
    error is raised, as by Spark with ``mode="FAILFAST"``.  Quoted values may have line breaks in them, as for Spark
    with ``multiLine=True``.  An empty value is null, in quotes too.  Each file is read by one task.  Lines: at most
    16 MiB.
    """
    settings = {"header": header, "sep": sep, "escape": escape, **options}
    return _read(spark, "csv", path, schema, columns, filter, filesystem, settings, conf=conf)


def read_json(
    spark: Any,
    path: Any,
    schema: StructType | str,
    *,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    filesystem: Any = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Pipeline:
    """Read files with one JSON object per line, like ``spark.read.schema(schema).json``.

    Parameters
    ----------
    schema
        A StructType or DDL text; other fields are ignored.  ``spark.read.json(path).schema`` infers one.

    Other parameters are those of :func:`read_parquet`; options are ``dateFormat``, ``timestampFormat`` and others.

    Notes
    -----
    A value of a wrong type, a name that occurs twice in an object, or a line without an object, is an error; Spark
    returns nulls, or the last value.  Each file is read by one task.  Lines: at most 16 MiB.
    """
    return _read(spark, "json", path, schema, columns, filter, filesystem, options, conf=conf)


def read_ipc(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Pipeline:
    """Read Arrow IPC files (``.arrow``, ``.feather``), which Spark cannot read.

    Parameters are those of :func:`read_parquet`.  Types are those of Spark for Parquet files with the same columns:
    unsigned ones become the next wider ones, and timestamps without a zone ``timestamp_ntz``.
    """
    return _read(spark, "ipc", path, None, columns, filter, filesystem, options, conf=conf)


def read_orc(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    schema: StructType | str | None = None,
    filesystem: Any = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Pipeline:
    """Read ORC files, with the same columns, types and values as ``spark.read.orc``.

    Parameters are those of :func:`read_parquet`.  Each file is read by one task.

    Notes
    -----
    A timestamp that Arrow does not have, before 1677 or after 2262, is an error, and so is one of an hour that a clock
    in the zone of Spark's JVM shows twice: only Spark tells which one it is.
    """
    return _read(spark, "orc", path, schema, columns, filter, filesystem, options, conf=conf)


def read_avro(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    schema: StructType | str | None = None,
    filesystem: Any = None,
    conf: ShuffleConf | None = None,
    **options: Any,
) -> Pipeline:
    """Read Avro files, with the columns and types of Spark's own reader; needs the package fastavro, on workers too.

    Parameters are those of :func:`read_parquet`.  Each file is read by one task.

    Notes
    -----
    A union is read if it is of one type and null, of ``int`` and ``long``, or of ``float`` and ``double``; a column of
    another one is refused, and so is one of times of a day, nanoseconds or durations.
    """
    return _read(spark, "avro", path, schema, columns, filter, filesystem, options, conf=conf)


def scan(spark: Any, dataset: Any, columns: Iterable[str] | None = None, filter: Any = None) -> Pipeline:
    """Read a ``pyarrow.dataset.Dataset`` of files, or a deltalake table; :func:`read_delta` skips more of its files.

    Other parameters are those of :func:`read_parquet`, and types those of :func:`read_ipc`.
    """
    return Pipeline(dataset_source(spark, dataset, columns, filter))


def read_delta(
    spark: Any,
    path: Any,
    version: int | None = None,
    timestamp: Any = None,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, str] | None = None,
    conf: ShuffleConf | None = None,
) -> Pipeline:
    """Read a Delta table, or a version of it; needs the package deltalake on the driver.

    Parameters
    ----------
    path
        Path or URI of the table.
    version, timestamp
        A version by its number, or the one of that time (a datetime, UTC if it has no zone, or text in ISO 8601);
        default: the newest.
    columns, filter
        As for :func:`read_parquet`.  Files whose values cannot match, as the table's log knows them, are not opened.
    filesystem
        A file system of pyarrow or fsspec by which workers read; default: that of the URI and of
        ``storage_options``, or the local one.
    storage_options
        What deltalake takes to open the table; workers read from S3 by it, too.  It is not shown.  Default: those of
        ``conf``, or what the session has for Spark's own reader of S3.
    conf
        The pipeline's settings, as for :func:`pipeline`.

    Returns
    -------
    Pipeline
        With the table's types; any column may be null.

    Raises
    ------
    ConfigError
        The table asks for a feature of Delta that is not honoured: the message names it.
    ResourceError
        There is no such table, or version.
    """
    check_conf(conf)
    given = storage_options or storage_of(spark, conf)(str(path))
    return Pipeline(delta_source(spark, path, version, timestamp, columns, filter, filesystem, given), conf=conf)
