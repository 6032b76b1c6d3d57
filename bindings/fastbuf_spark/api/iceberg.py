"""Iceberg tables that the workers read and write themselves, so that no row goes through the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastbuf.errors import ResourceError
from fastbuf_spark.api.pipelines import Pipeline, pipeline
from fastbuf_spark.api.sinks import Written, _columns, _files
from fastbuf_spark.api.tables import MODES, check_overwrites, committed
from fastbuf_spark.driver.checks import check_mode
from fastbuf_spark.driver.file_types import nullable
from fastbuf_spark.driver.iceberg import iceberg_source
from fastbuf_spark.driver.iceberg_commit import IcebergCommit, check_columns
from fastbuf_spark.driver.table_columns import renamed
from fastbuf_spark.driver.writer_options import codec


def read_iceberg(
    spark: Any,
    catalog: Any,
    table: Any,
    snapshot: Any = None,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
) -> Pipeline:
    """Read an Iceberg table, or a snapshot of it; needs the package pyiceberg on the driver.

    Parameters
    ----------
    catalog
        Name of a catalog in pyiceberg's configuration, a dict of its properties (``name`` among them, if it has one),
        or a catalog of pyiceberg.  Properties are not shown.
    table
        Name of the table, as in ``"space.table"``.
    snapshot
        A snapshot by its number, by the name of a branch or tag, or the one of a time (a datetime, UTC if it has no
        zone); default: the newest.
    columns, filter
        As for :func:`read_parquet`.  Files whose values cannot match, as the table's manifests know them, are not
        opened.
    filesystem
        A file system of pyarrow or fsspec by which workers read; default: that of the files' locations, with the
        catalog's properties, or the local one.

    Returns
    -------
    Pipeline
        With the table's types; any column may be null.

    Raises
    ------
    ConfigError
        The table has something that is not honoured, or the catalog's properties are no good: the message names it.
    ResourceError
        There is no such table, or snapshot.
    """
    return Pipeline(iceberg_source(spark, catalog, table, snapshot, columns, filter, filesystem))


def write_iceberg(
    df: Any,
    catalog: Any,
    table: Any,
    mode: str = "append",
    partition_by: str | Iterable[str] | None = None,
    *,
    predicate: Sequence[tuple[str, str, Any]] | None = None,
    read_snapshot: Any = None,
    compression: str | None = None,
    filesystem: Any = None,
) -> Written:
    """Write a DataFrame or a pipeline to an Iceberg table, in one snapshot; runs at once.

    Parameters
    ----------
    df
        A DataFrame, or a :class:`Pipeline`, whose last functions are called in the tasks that write.
    catalog, table
        As for :func:`read_iceberg`; the table is made if it is missing, in a namespace that is there.
    mode
        What to do with a table that is there: ``"append"``, ``"overwrite"`` (its rows, or those of ``predicate``),
        ``"error"`` or ``"ignore"``.
    partition_by
        Partitions of a new table: names of columns, or transforms of them, as ``"day(time)"``, ``"bucket(16, id)"`` or
        ``"truncate(4, name)"``; default for one that is there: its own.
    predicate
        Which partitions an overwrite replaces, as ``[("day", "=", "2026-01-31")]``; ``in`` takes a list.  The
        table must be partitioned by the column's plain values (identity).
    read_snapshot
        The snapshot of the table that the rows come from, as for :func:`read_iceberg`: an overwrite replaces what that
        snapshot has, and what others have added since stays.  A branch or a time is looked up when this is called:
        what came between reading and that is replaced, so give the number or a tag.
    compression
        As for :func:`write_parquet`; default: what the table asks for, else ``"zstd"``.
    filesystem
        A file system of pyarrow or fsspec by which workers write; default: as for :func:`read_iceberg`.

    Returns
    -------
    Written

    Raises
    ------
    SchemaError
        A column is not one of the table's, has another type there, or one that Iceberg does not have.
    ConfigError
        The table has something that is not written here; the message names it.
    ResourceError
        The table is there already, or another write has changed what this one replaces.

    Notes
    -----
    Tasks write files that no reader sees until the driver commits them all.  A run that fails removes its own; those of
    a killed driver go with the next write from the same host, or by Iceberg's ``remove_orphan_files``, as no snapshot
    has them.  Workers need pyiceberg for ``bucket`` and ``truncate`` alone.
    """
    source = pipeline(df)
    check_mode(mode, MODES)
    compression = None if compression is None else codec(compression)
    check_overwrites(mode, predicate=predicate, read_snapshot=read_snapshot)
    at, plan = source._terminal()
    schema, every = at.schema, tuple(range(len(at.schema)))
    check_columns(schema)
    _columns(schema, (), False)
    by = (partition_by,) if isinstance(partition_by, str) else partition_by
    commit = IcebergCommit(catalog, table, schema, _files(plan.spark, nullable(schema), every), by)
    if commit.is_there and mode == "error":
        raise ResourceError(f"{commit.name} is there already: use mode='append' or 'overwrite', or another name")
    if commit.is_there and mode == "ignore":
        return Written(0, 0, 0)
    chosen, read = commit.predicate(predicate), commit.read_snapshot(read_snapshot)
    files = _files(plan.spark, renamed(schema, commit.names), every)
    system, root, write = commit.write(files, filesystem, compression, plan.conf.memory_bytes)

    def add(folder: str, rows: Sequence[Any]) -> None:
        data_files = commit.files(folder, rows)
        commit.check_predicate(data_files, chosen)
        if data_files or mode == "overwrite" or not commit.is_there:
            commit.commit(folder, data_files, mode, chosen, read)

    return committed(plan.spark, at, system, root, write, add, commit.has)
