"""A Delta table as a sink: files that no version has, until their checkpoint is complete and the task adds them.

Each commit carries the transaction of an application, Delta's own way to be idempotent: its name is that of the writer,
a task of a run for one output, its version the checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.store import sync_directory
from fastbuf.errors import ConfigError
from fastbuf_spark.driver.delta import location
from fastbuf_spark.driver.delta_commit import Added, DeltaCommit, check_columns, check_table, existing
from fastbuf_spark.driver.file_systems import absolute
from fastbuf_spark.driver.file_types import of_arrow
from fastbuf_spark.driver.writer_options import codec, directories, listed
from fastbuf_spark.formats.parquet import file_schema
from fastbuf_spark.streams.delta_upsert import Merges, MergingWriter, application_of
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.parquet import MEMORY_BYTES, FileWriter, parted, sync_file
from fastbuf_spark.streams.sink import CommitFailed, Committable, SinkContext, SinkWriter, StagedRows
from fastbuf_spark.worker.delta import DeltaWrite

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class DeltaSink:
    """See :func:`fastbuf_spark.to_delta`."""

    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    keys: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What waits to be committed: files of the table, or rows to merge."""
        return "DeltaSink with keys" if self.keys else "DeltaSink"

    @property
    def output_modes(self) -> tuple[str, ...]:
        """Rows replace earlier ones by their keys alone."""
        return ("append", "update") if self.keys else ("append",)

    @property
    def name(self) -> str:
        """For the plan."""
        return f"Delta table {self.path}"

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        """The table takes such rows, or can be made."""
        import pyarrow as pa

        rows = of_arrow(schema)
        check_columns(rows)
        directories(self.partition_by, schema.names)
        for key in self.keys:
            if schema.names.count(key) != 1:
                raise ConfigError(f"the key {key!r} is no column of the rows, or is two: they have {schema.names}")
            kind = schema.field(key).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise ConfigError(f"the key {key!r} is a {kind}, which two rows cannot be told to have alike")
        uri = self._location()[2]
        table = existing(uri, self.storage_options)
        if table is None:
            self._commit(schema).append(())
            return
        names = check_table(table, uri, rows, self.partition_by, False)
        if names != schema.names:
            raise ConfigError(f"the rows have {schema.names}, and the table {names}: rename them")

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        """Files of the table that no checkpoint knows are in no version of it, and VACUUM removes them."""
        if self.keys:
            StagedRows.keep_only(context, committables)

    def writer(self, context: SinkContext) -> SinkWriter:
        """Writes into a directory of this stream's; with keys, into the checkpoint's until the rows are merged."""
        if self.keys:
            return MergingWriter(context, Merges(self._location()[2], self.storage_options, self.keys, context))
        return _DeltaWriter(self, context)

    def _location(self) -> tuple[Any, str, str]:
        return location(self.path, None, self.storage_options)

    def _commit(self, schema: pa.Schema) -> DeltaCommit:
        return DeltaCommit(self._location()[2], self.storage_options, of_arrow(schema), self.partition_by)


class _DeltaWriter(FileWriter):
    def __init__(self, sink: DeltaSink, context: SinkContext) -> None:
        from pyarrow import fs

        self._system, self._root, _ = sink._location()
        self._is_local = isinstance(self._system, fs.LocalFileSystem)
        self._application = application_of(context)
        self._folder = f"fastbuf-{context.job}"
        self._to = sink._commit(context.schema)
        shape, columns, by = parted(context.schema, sink.partition_by)
        at = f"{self._root}/{self._folder}"
        self._system.create_dir(at, recursive=True)
        self._write = DeltaWrite(self._system, at, file_schema(shape, {}), columns, by, sink.compression, MEMORY_BYTES)

    def prepare(self, checkpoint: int) -> list[Committable]:
        files = [
            Added.of(self._folder, attempt, path, size, statistics)
            for attempt, path, _, size, statistics in self.take_files()
        ]
        if not files:
            return []
        if self._is_local:
            for file in files:
                sync_file(Path(self._root, file.path))
            for folder in {parent for file in files for parent in Path(file.path).parents}:
                sync_directory(Path(self._root, folder))
        # One for all files: they are committed together, whichever task does it
        return [{"application": self._application, "version": checkpoint, "files": [asdict(file) for file in files]}]

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        for each in committables:
            files = [Added(**file) for file in each["files"]]
            self._to.append(files, (each["application"], each["version"]), self._check)
            reach("in commit", checkpoint)

    def _check(self, files: Sequence[Added]) -> None:
        infos = self._system.get_file_info([f"{self._root}/{file.path}" for file in files])
        for info, file in zip(infos, files, strict=True):
            if info.size != file.size:
                raise CommitFailed(
                    f"rows of a complete checkpoint are at risk: {info.path} has {info.size} bytes, {file.size} were "
                    "written, and no version of the table has it"
                )


def to_delta(
    path: str | os.PathLike[str],
    partition_by: str | Iterable[str] | None = None,
    *,
    keys: str | Iterable[str] = (),
    compression: str = "snappy",
    storage_options: Mapping[str, str] | None = None,
) -> DeltaSink:
    """Write a stream's rows to a Delta table, in a version for each task and checkpoint.

    Parameters
    ----------
    path
        Path or URI of the table, which all hosts see; made if it is missing.  Rows are added to what it has.
    partition_by
        Columns of a new table's partitions; those of one that is there must be these.
    keys
        Columns by which a row replaces the table's earlier one (Delta's MERGE; null keys are equal): with them
        ``output_mode="update"`` is possible.  Rows of a key must come from one task, as they do behind a group or a
        shuffle by it.  Empty: all rows are added.
    compression
        As for :meth:`Pipeline.write_delta`.
    storage_options
        What deltalake takes to open the table; workers write to S3 by it, too.  It is not shown.

    Notes
    -----
    Workers need the package deltalake.  Each task adds at least one file for each checkpoint in which it has rows:
    choose the interval by the size of files that readers like.  With keys each task writes files anew that have rows of
    its keys, one task after the other: give the stage in front of it few tasks.

    Raises
    ------
    ConfigError
        When the stream is started: the table has other columns, or a key is none of them, nested, or a float.
    """
    return DeltaSink(absolute(path), listed(partition_by), codec(compression), storage_options, listed(keys))
