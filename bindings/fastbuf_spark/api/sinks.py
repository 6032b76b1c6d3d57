"""Files that the workers write themselves, so that no row goes through the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver.checks import check_mode
from fastbuf_spark.driver.commit import MODES, Commit
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.jobs import cancelled_with
from fastbuf_spark.driver.reader_options import is_true
from fastbuf_spark.driver.store_options import storage_of
from fastbuf_spark.driver.writer_options import directories, writing
from fastbuf_spark.formats.base import BATCH_ROWS, Format
from fastbuf_spark.formats.ipc import Ipc
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.schema import session_zone, struct_type, types_in
from fastbuf_spark.worker.stores import client_words, is_store
from fastbuf_spark.worker.writing import REPORT, Limits, Write, refusals

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NOT_WRITTEN = ("void", "variant", "time(", "geo")
_NAMING = ("string", "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "date", "timestamp")


@dataclass(frozen=True)
class Written:
    """The result of a write: numbers of files, rows and bytes."""

    files: int
    rows: int
    bytes: int


def write_parquet(
    df: Any,
    path: Any,
    partition_by: str | Iterable[str] | None = None,
    mode: str = "error",
    *,
    compression: str | None = None,
    row_group_size: int | None = None,
    filesystem: Any = None,
) -> Written:
    """Write a DataFrame or a pipeline to Parquet files that Spark can read; runs at once.

    Parameters
    ----------
    df
        A DataFrame, or a :class:`Pipeline`, whose last functions are called in the tasks that write.
    path
        Path or URI of a directory on a file system that the driver and all workers share.
    partition_by
        Columns that are not stored in the files but give names to directories (``key=value``).
    mode
        What to do if the directory exists: ``"error"``, ``"overwrite"`` or ``"append"``.
    compression
        ``"snappy"``, ``"zstd"``, ``"gzip"``, ``"lz4"``, ``"brotli"`` or ``"none"``; default: as
        ``spark.sql.parquet.compression.codec`` says, else snappy.  Spark reads brotli only where somebody has added the
        codec to it.
    row_group_size
        Most rows of a row group.  One has also no more bytes in memory than ``spark.hadoop.parquet.block.size`` says,
        else 64 MiB, or than the writer's memory.
    filesystem
        A file system of pyarrow or fsspec; default: that of the URI, or the local one.

    Returns
    -------
    Written

    Raises
    ------
    ConfigError
        Unknown columns, or a file system whose renames are not atomic.
    ResourceError
        The directory exists already, or the driver does not see the files that workers wrote.

    Notes
    -----
    Tasks write to a place that readers ignore.  When all have ended, the driver renames the files of the successful
    attempts: a new or overwritten directory in one atomic step, appended files one after the other.  If the run fails,
    or the driver is killed, readers see nothing of it; if that happens while files are being appended, the next write
    to the directory removes those that are visible.
    """
    return _write(
        df, path, partition_by, mode, filesystem, Parquet(), lambda spark: writing(spark, compression, row_group_size)
    )


def write_ipc(
    df: Any,
    path: Any,
    partition_by: str | Iterable[str] | None = None,
    mode: str = "error",
    *,
    compression: str = "lz4",
    batch_size: int = BATCH_ROWS,
    filesystem: Any = None,
) -> Written:
    """Write a DataFrame or a pipeline to Arrow IPC files (Feather version 2); runs at once.

    Parameters
    ----------
    df, path, partition_by, mode, filesystem
        As for :func:`write_parquet`.
    compression
        ``"lz4"``, ``"zstd"``, or ``"none"``: readers map such files into memory as they are.
    batch_size
        Most rows of a record batch.  One has also no more bytes than the writer's memory.

    Returns
    -------
    Written

    Raises
    ------
    ConfigError, ResourceError
        As for :func:`write_parquet`.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size!r}: give the most rows of a record batch, 1 or more")
    format = Ipc()
    if compression not in format.codecs:
        raise ConfigError(f"compression is {compression!r}: it must be one of {', '.join(format.codecs)}")
    return _write(df, path, partition_by, mode, filesystem, format, lambda spark: (compression, Limits(batch_size)))


def _write(
    df: Any,
    path: Any,
    partition_by: Any,
    mode: str,
    filesystem: Any,
    format: Format,
    how: Callable[[Any], tuple[str, Limits]],
) -> Written:
    """Write files of a format.

    Parameters
    ----------
    how
        Gives for a session the compression, and the most that groups and files have.
    """
    from fastbuf_spark.api.pipelines import pipeline

    source = pipeline(df)
    check_mode(mode, MODES)
    at, plan = source._terminal()
    system, paths = file_system(path, filesystem, storage_of(plan.spark, plan.conf))
    if len(paths) != 1:
        raise ConfigError(f"path is {path!r:.100}: give the path of one directory")
    if "*" in paths[0] or "?" in paths[0]:
        raise ConfigError(f"path {paths[0]!r:.100} has a wildcard: give the path of one directory")
    spark, schema = plan.spark, at.schema
    compression, limits = how(spark)
    case = is_true(spark.conf.getAll, "spark.sql.caseSensitive")
    by = directories(partition_by, schema.names, case)
    columns = _columns(schema, tuple(by.values()), case, format)
    if any(schema.fields[i].dataType.simpleString() == "timestamp" for i in by.values()):
        _check_zone(session_zone(spark))
    overwrites = str(spark.conf.get("spark.sql.sources.partitionOverwriteMode", "static")).lower()
    if by and mode == "overwrite" and overwrites == "dynamic":
        raise ConfigError(
            f"spark.sql.sources.partitionOverwriteMode is dynamic, and write_{format.name} replaces the whole "
            "directory: set it to static, or let Spark write, to_df().write.partitionBy(...).parquet(path)"
        )
    try:
        with refusals(paths[0]):
            commit = Commit(system, paths[0], mode)
    except FileNotFoundError as error:
        bucket = "its bucket is not there: " if is_store(system) else ""
        raise ResourceError(f"cannot write to {paths[0]}: {bucket}{client_words(error)}") from error
    try:
        write = Write(
            system,
            commit.folder,
            _files(spark, schema, columns, format),
            columns,
            tuple(by.items()),
            compression,
            plan.conf.memory_bytes,
            limits,
            commit.mark,
            format,
        )
        df = at.then(write, struct_type(REPORT)).to_df()
        with cancelled_with(spark):
            rows = df.collect()
        files = [(row.attempt, row.path, row.bytes) for row in rows]
        with refusals(paths[0]):
            if not files and not by:
                files = [_empty(write)]
            commit.commit(files)
    except Exception as error:
        if lost := commit.lost(error):
            raise lost from error
        raise
    finally:
        commit.close()
    return Written(len(files), sum(row.rows for row in rows), sum(size for _, _, size in files))


def _files(spark: Any, schema: StructType, columns: tuple[int, ...], format: Format = Parquet()) -> Any:  # noqa: B008
    """Arrow's schema of the files."""
    from pyspark.sql.types import StructType

    struct = StructType([schema.fields[i] for i in columns])
    return format.schema_in_files(struct, session_zone(spark), str(spark.version))


def _columns(
    schema: StructType,
    by: tuple[int, ...],
    case: bool,
    format: Format = Parquet(),  # noqa: B008
) -> tuple[int, ...]:
    """Positions of the columns that go into the files; ``case``: whether names that differ in case are two."""
    from pyspark.sql.types import StructType

    for each in types_in(schema):
        if not isinstance(each, StructType):
            continue
        if not each.names:
            raise SchemaError(
                f"{schema.simpleString():.1000} has a struct without fields, which {format.title} does not have"
            )
        if len(set(each.names if case else map(str.lower, each.names))) < len(each.names):
            raise SchemaError(
                f"{each.names} has a name twice: readers of {format.title} would not tell the columns apart"
            )
    for i, field in enumerate(schema.fields):
        kind = field.dataType.simpleString()
        if any(each.simpleString().startswith(_NOT_WRITTEN) for each in types_in(field.dataType)):
            raise SchemaError(f"field {field.name!r} has Spark's type {kind}, which write_{format.name} does not write")
        if i in by and kind not in (*_NAMING, "timestamp_ntz") and not kind.startswith("decimal("):
            raise SchemaError(f"partition_by: {field.name!r} has the type {kind}, which names no directory")
    return tuple(i for i in range(len(schema)) if i not in by)


def _check_zone(zone: str) -> None:
    """ConfigError if only Java knows this time zone: values of directories are times in it."""
    import pyarrow as pa

    try:
        pa.scalar(0, pa.timestamp("us", zone)).as_py()
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"partition_by has a timestamp, and Python does not know spark.sql.session.timeZone={zone!r}: set it to a "
            "region, as in 'Europe/Paris', or to an offset, as in '+05:30'"
        ) from error


def _empty(write: Write) -> tuple[str, str, int]:
    """Write a file without rows, which records the schema, if there is no other; as Spark, but for partition_by."""
    attempt, name = "empty", f"part-00000-empty.{write.compression}.{write.format.suffix}"
    if not write.mark:
        write.system.create_dir(f"{write.folder}/{attempt}")
    path = f"{write.folder}/{attempt}/{name}"
    with write.system.open_output_stream(path) as sink:
        write.format.writer(sink, write.schema, write.compression).close()
    return attempt, name, write.system.get_file_info(path).size
