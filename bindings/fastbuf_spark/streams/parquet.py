"""Parquet files as a sink: written under a hidden name, and renamed when their checkpoint is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.store import sync_directory
from fastbuf_spark.driver.file_systems import shared_folder
from fastbuf_spark.driver.writer_options import codec, directories, listed
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.sink import CommitFailed, Committable, SinkContext, SinkWriter
from fastbuf_spark.worker.writing import Attempt, Write

if TYPE_CHECKING:
    import pyarrow as pa

STAGING = "_fastbuf"  #: directory of files that are not to be seen: readers pass over such names
COMMITTED = "committed"  #: in the directory of files that have been renamed, while a checkpoint names them
MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class ParquetSink:
    """See :func:`fastbuf_spark.to_parquet`."""

    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    output_modes = ("append",)

    @property
    def name(self) -> str:
        """For the plan."""
        return f"Parquet files in {self.path}"

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        """The columns that name directories are there, and the directory can be made."""
        directories(self.partition_by, schema.names)
        Path(self.path).mkdir(parents=True, exist_ok=True)

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        """Remove what no checkpoint knows; what was written at least once only is seen already."""
        attempts = {each["from"].partition("/")[0] for each in committables}
        staging = self._staging(context)
        if staging.is_dir():
            for attempt in os.listdir(staging):
                if attempt not in attempts:
                    shutil.rmtree(staging / attempt, ignore_errors=True)

    def writer(self, context: SinkContext) -> SinkWriter:
        """Writes below the hidden directory."""
        staging = self._staging(context)
        staging.mkdir(parents=True, exist_ok=True)
        return _ParquetWriter(self, context, staging)

    def _staging(self, context: SinkContext) -> Path:
        return Path(self.path).absolute() / STAGING / context.job


class FileWriter:
    """The part of a sink's writer that puts rows into files of its own, from one checkpoint to the next."""

    _write: Write
    _attempt: Attempt | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if self._attempt is None:
            self._attempt = Attempt(self._write)
        for folder, part in self._write._parts(batch):
            self._attempt.add(folder, part)

    def take_files(self) -> list[Any]:
        """What each file since the last call has, as ``Attempt.close`` tells it."""
        attempt, self._attempt = self._attempt, None
        return [] if attempt is None else attempt.close()

    def close(self) -> None:
        """Leave what was not prepared."""
        if self._attempt is not None:
            self._attempt.abandon()


class _ParquetWriter(FileWriter):
    def __init__(self, sink: ParquetSink, context: SinkContext, staging: Path) -> None:
        import pyarrow.fs as fs

        self._target = Path(sink.path).absolute()
        self._staging = staging
        shape, columns, by = parted(context.schema, sink.partition_by)
        self._write = Write(fs.LocalFileSystem(), str(staging), shape, columns, by, sink.compression, MEMORY_BYTES)

    def prepare(self, checkpoint: int) -> list[Committable]:
        committables: list[Committable] = []
        for attempt, path, rows, size, _ in self.take_files():
            sync_file(self._staging / attempt / path)
            committables.append({"from": f"{attempt}/{path}", "to": path, "rows": rows, "bytes": size})
        for folder in {(self._staging / each["from"]).parent for each in committables}:
            sync_directory(folder)
        if committables:
            sync_directory(self._staging)
        return committables

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        folders = set()
        attempts = {self._staging / each["from"].partition("/")[0] for each in committables}
        for each in committables:
            source, target = self._staging / each["from"], self._target / each["to"]
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                source.rename(target)
            except FileNotFoundError:
                there = target.exists() and target.stat().st_size == each["bytes"]
                if not there and not (self._staging / each["from"].partition("/")[0] / COMMITTED).exists():
                    raise CommitFailed(
                        f"{each['rows']} rows of checkpoint {checkpoint} are at risk: neither {source} nor {target} is "
                        f"there with {each['bytes']} bytes"
                    ) from None
            folders.add(target.parent)
            reach("in commit", checkpoint)
        for folder in folders:
            sync_directory(folder)
        for attempt in attempts:  # whoever reads the files may move them away before a restart commits them again
            if attempt.is_dir():
                (attempt / COMMITTED).touch()

    def forget(self, committables: Sequence[Committable]) -> None:
        for attempt in {each["from"].partition("/")[0] for each in committables}:
            shutil.rmtree(self._staging / attempt, ignore_errors=True)


def parted(
    schema: pa.Schema, partition_by: Sequence[str]
) -> tuple[pa.Schema, tuple[int, ...], tuple[tuple[str, int], ...]]:
    """The columns of the files, with their places, and those that name directories, with theirs."""
    import pyarrow as pa

    by = directories(partition_by, schema.names)
    columns = tuple(place for place in range(len(schema)) if place not in by.values())
    return pa.schema([schema.field(place) for place in columns], schema.metadata), columns, tuple(by.items())


def sync_file(path: Path) -> None:
    """Have a file on its disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_parquet(
    path: str | os.PathLike[str], partition_by: str | Iterable[str] | None = None, *, compression: str = "snappy"
) -> ParquetSink:
    """Write a stream's rows to Parquet files, which are seen when their checkpoint is complete.

    Parameters
    ----------
    path
        A directory that all hosts have mounted; made if it is missing.  Rows are added to what it has.  To a store of
        objects rows go by :func:`to_delta`.
    partition_by
        Columns whose values name directories, as ``k=v``.
    compression
        As for :meth:`Pipeline.write_parquet`.

    Notes
    -----
    Each task writes at least one file for each checkpoint in which it has rows: choose the interval by the size of
    files that readers like.
    """
    instead = "; to_delta writes to stores"
    return ParquetSink(shared_folder("path", path, instead), listed(partition_by), codec(compression))
