"""Tables that the workers write themselves, so that no row goes through the JVM."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.api.sinks import Written, _columns, _files
from fastbuf_spark.driver.checks import check_mode
from fastbuf_spark.driver.commit import GONE, CommitUnknown
from fastbuf_spark.driver.delta import location, opened
from fastbuf_spark.driver.delta_commit import Added, DeltaCommit, check_columns, check_table, existing
from fastbuf_spark.driver.jobs import cancelled_with
from fastbuf_spark.driver.store_options import storage_of
from fastbuf_spark.driver.table_columns import check_replaced, partition_values, renamed
from fastbuf_spark.driver.unfinished import is_dead, is_forgotten, owner_of
from fastbuf_spark.driver.uploads import end_uploads
from fastbuf_spark.driver.writer_options import directories, writing
from fastbuf_spark.schema import struct_type
from fastbuf_spark.worker.delta import DeltaWrite
from fastbuf_spark.worker.stores import UPLOAD_BYTES, check_sizes, children, delete_dir, is_store
from fastbuf_spark.worker.writing import REPORT, Write, refusals

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("fastbuf_spark")

#: Directory below a table, with a file for each run that may go on: its directory, and its driver
RUNNING = "_fastbuf"
MODES = ("append", "overwrite", "error", "ignore")
#: Notes of this process's runs whose files could not be taken away, as with credentials that have ended
_left_over: set[str] = set()


def write_delta(
    df: Any,
    path: Any,
    mode: str = "append",
    partition_by: str | Iterable[str] | None = None,
    *,
    predicate: Sequence[tuple[str, str, Any]] | None = None,
    read_version: int | None = None,
    compression: str | None = None,
    row_group_size: int | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> Written:
    """Write a DataFrame or a pipeline to a Delta table, in one commit; runs at once.

    Parameters
    ----------
    df
        A DataFrame, or a :class:`Pipeline`, whose last functions are called in the tasks that write.
    path
        Path or URI of the table, on a file system that the driver and all workers share; made if it is missing.
    mode
        What to do with a table that is there: ``"append"``, ``"overwrite"`` (its rows, or those of ``predicate``),
        ``"error"`` or ``"ignore"``.
    partition_by
        Columns of a new table's partitions; default for one that is there: its own.
    predicate
        Which partitions an overwrite replaces, as ``[("day", "=", "2026-01-31")]``; ``in`` takes a list.
    read_version
        The version of the table that the rows come from: an overwrite replaces what that version has, and what others
        have added since stays.
    compression, row_group_size
        As for :func:`write_parquet`.
    filesystem
        A file system of pyarrow or fsspec by which workers write; default: that of the URI and of
        ``storage_options``, or the local one.
    storage_options
        What deltalake takes to open the table; workers write to S3 by it, too.  It is not shown.  Default: those of the
        pipeline's settings, or what the session has for Spark's own reader of S3.

    Returns
    -------
    Written

    Raises
    ------
    SchemaError
        A column is not one of the table's, has another type there, or one that Delta does not have.
    ConfigError
        The table asks of its writers what is not done here; the message names it.
    ResourceError
        The table is there already, or another write has changed what this one replaces.

    Notes
    -----
    Tasks write files that no reader sees until the driver commits them all.  A run that fails removes its own; those of
    a killed driver go with the next write from the same host, with one from another host seven days later, or by
    Delta's VACUUM, as no version has them.
    """
    from fastbuf_spark.api.pipelines import pipeline

    at, plan = pipeline(df)._terminal()
    check_mode(mode, MODES)
    check_overwrites(mode, predicate=predicate, read_version=read_version)
    storage_options = storage_options or storage_of(plan.spark, plan.conf)(str(path))
    system, root, uri = location(path, filesystem, storage_options)
    table = existing(uri, storage_options) if read_version is None else opened(uri, storage_options, read_version)
    if table is not None and mode == "error":
        raise ResourceError(f"{uri} is there already: use mode='append' or 'overwrite', or another path")
    if table is not None and mode == "ignore":
        return Written(0, 0, 0)
    if table is None:
        _check_empty(system, root)
    schema: StructType = at.schema
    check_columns(schema)
    names = schema.names
    listed = None if partition_by is None and table is not None else list(directories(partition_by, names, False))
    if table is not None:
        names = check_table(table, uri, schema, listed, mode == "overwrite")
        listed = list(table.metadata().partition_columns)
    by = directories(listed, names, False)
    schema = renamed(schema, names)
    columns = _columns(schema, tuple(by.values()), False)
    chosen = None if predicate is None else partition_values(predicate, list(by))
    # As the log has them
    texts = None if chosen is None else [(name, "in", [str(value) for value in values]) for name, values in chosen]
    commit = DeltaCommit(uri, storage_options, schema, list(by))
    files = _files(plan.spark, schema, columns)
    codec, limits = writing(plan.spark, compression, row_group_size)

    def write(folder: str) -> DeltaWrite:
        return DeltaWrite(system, folder, files, columns, tuple(by.items()), codec, plan.conf.memory_bytes, limits)

    def add(folder: str, rows: Sequence[Any]) -> None:
        added = [Added.of(folder, row.attempt, row.path, row.bytes, row.details) for row in rows]
        for name, _, values in texts or ():
            for file in added:
                check_replaced(name, file.values[name], values)
        if table is None and mode in ("error", "ignore"):
            commit.create(added)
        elif mode == "overwrite":
            commit.replace(added, texts, read_version)
        elif added or table is None:
            commit.append(added)

    return committed(plan.spark, at, system, root, write, add, commit.has)


def committed(
    spark: Any,
    at: Any,
    system: Any,
    root: str,
    write: Callable[[str], Write],
    commit: Callable[[str, Sequence[Any]], None],
    has: Callable[[str], bool],
) -> Written:
    """Have tasks write files below a table, which nobody sees, and commit them; if that fails, they are removed.

    Parameters
    ----------
    at
        The stage whose rows are written.
    write
        Gives what tasks do, for a directory of this run's.
    commit
        Is given the name of that directory, and what tasks report of each file that counts.
    has
        Whether the table has files of a directory of this name: a commit may have been made whose answer was lost.
    """
    from pyarrow import fs

    folder = f"fastbuf-{secrets.token_hex(8)}"
    note = f"{root}/{RUNNING}/{folder}.{owner_of(os.getpid())}"
    rows: Sequence[Any] = ()
    with refusals(root):
        _drop_remains(system, root, has)
        for path in () if is_store(system) else (folder, RUNNING):
            system.create_dir(f"{root}/{path}", recursive=True)
        system.open_output_stream(note).close()
    try:
        with cancelled_with(spark):
            writes = replace(write(f"{root}/{folder}"), mark=note if is_store(system) else "")
            rows = at.then(writes, struct_type(REPORT)).to_df().collect()
        names = [f"{row.attempt}/{row.path}" for row in rows]
        check_sizes(system, f"{root}/{folder}", names, [row.bytes for row in rows])
        commit(folder, rows)
    except BaseException as error:
        if not (isinstance(error, CommitUnknown) or (rows and _may_have(has, folder))):
            _left_over.add(note)
            with contextlib.suppress(OSError):
                if not isinstance(system, fs.LocalFileSystem):
                    # Tasks may write on for seconds, and a store makes directories as it needs them
                    system.open_output_stream(f"{root}/{RUNNING}/{folder}.{GONE}").close()
                with contextlib.suppress(FileNotFoundError):  # in a store, of which no task has written anything
                    delete_dir(system, f"{root}/{folder}")
                system.delete_file(note)
                _left_over.discard(note)
        raise
    _drop_others(system, f"{root}/{folder}", {row.attempt for row in rows})
    if any(row.bytes > UPLOAD_BYTES for row in rows):  # a worker may have been killed, and its task tried again
        end_uploads(system, f"{root}/{folder}")
    with contextlib.suppress(OSError):
        system.delete_file(note)
    return Written(len(rows), sum(row.rows for row in rows), sum(row.bytes for row in rows))


def _may_have(has: Callable[[str], bool], folder: str) -> bool:
    """Whether a table has files of this directory, or does not say: then they stay."""
    try:
        return has(folder)
    except Exception as error:
        log.warning("%s: it is not known whether the table has its files, which stay: %r", folder, error)
        return True


def check_overwrites(mode: str, **options: Any) -> None:
    """ConfigError for arguments that say what an overwrite replaces, if there is none."""
    for name, value in options.items():
        if value is not None and mode != "overwrite":
            raise ConfigError(f"{name} says what an overwrite replaces, and mode is {mode!r}")


def _drop_remains(system: Any, root: str, has: Callable[[str], bool]) -> None:
    """Remove what runs of killed drivers, or tasks of runs that had failed, have left behind."""
    from pyarrow import fs

    for info in children(system, f"{root}/{RUNNING}"):
        folder, _, owner = info.base_name.partition(".")
        is_over = owner == GONE or info.path in _left_over or is_dead(owner)
        if not is_over and not is_forgotten(system, owner, info.path, f"{root}/{folder}"):
            continue
        is_there = system.get_file_info(f"{root}/{folder}").type != fs.FileType.NotFound
        with contextlib.suppress(FileNotFoundError):  # another driver has taken it away
            if owner == GONE or not has(folder):
                ended = end_uploads(system, f"{root}/{folder}")  # there may be some of files of which none is there
                log.info("%s/%s: removed the remains of a write%s", root, folder, ended)
                if is_there:
                    delete_dir(system, f"{root}/{folder}")
            if owner != GONE or not is_there:
                system.delete_file(info.path)
                _left_over.discard(info.path)


def _check_empty(system: Any, root: str) -> None:
    inside = children(system, root)
    seen = [info.base_name for info in inside if not info.base_name.startswith((".", "_", "fastbuf-"))]
    if seen:
        raise ResourceError(f"{root} is no Delta table, and has files ({seen[0]}): give another path, or remove them")


def _drop_others(system: Any, folder: str, counted: set[str]) -> None:
    """Remove what attempts wrote that did not count, and the run's directory if it is empty."""
    with contextlib.suppress(OSError):
        for info in children(system, folder):
            if info.base_name not in counted:
                delete_dir(system, info.path)
        if not counted:
            delete_dir(system, folder)
