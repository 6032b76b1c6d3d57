"""Where a command reads and writes: a path of this host, a URI, or a Delta table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from fastbuf_spark.api.pipelines import Pipeline

DELTA = "delta:"
LOG = "_delta_log"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Place:
    """A place as it was given.

    Attributes
    ----------
    where
        Without ``delta:``.
    is_delta
        Whether it is a Delta table: as ``delta:`` says, or as its log is there.
    """

    where: str
    is_delta: bool

    @classmethod
    def of(cls, text: str) -> Place:
        """The place; of a URI it is asked what is there.

        Raises
        ------
        ConfigError
            There is no such file system, or the URI has credentials in it.
        """
        where = text.removeprefix(DELTA)
        place = cls(where, where != text)
        return place if place.is_delta else cls(where, place.has(LOG))

    @property
    def path(self) -> Path | None:
        """That of a file or directory of this host; None of a URI."""
        return None if _URI.match(self.where) else Path(self.where)

    def files(self) -> tuple[Any, str]:
        """Its file system, and the path in it."""
        from fastbuf_spark.driver.file_systems import file_system

        system, [path] = file_system(self.where, None)
        return system, path

    def has(self, name: str = "") -> bool:
        """Whether it is there, or a directory of this name in it."""
        from pyarrow import fs

        if self.path is not None:
            return (self.path / name).is_dir() if name else self.path.exists()
        system, path = self.files()
        info = system.get_file_info(f"{path.rstrip('/')}/{name}" if name else path)
        if name or info.type != fs.FileType.NotFound:
            return bool(info.type == fs.FileType.Directory if name else True)
        return bool(system.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def columns(self) -> list[str]:
        """The names of its columns.

        Raises
        ------
        ConfigError
            It cannot be read.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds
        from pyarrow import fs

        if self.is_delta:
            from fastbuf_spark.driver.delta import location, opened

            return [field.name for field in opened(location(self.where)[2], None).schema().fields]
        try:
            system, path = (fs.LocalFileSystem(), str(self.path)) if self.path is not None else self.files()
            # Of the directories above a file nothing is read
            parts = "hive" if system.get_file_info(path).type == fs.FileType.Directory else None
            return list(ds.dataset(path, format="parquet", partitioning=parts, filesystem=system).schema.names)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{self.where} cannot be read as Parquet: {error}") from error

    def read(self, spark: SparkSession) -> Pipeline:
        """A pipeline of its rows."""
        import fastbuf_spark as fbs

        if self.is_delta:
            return fbs.read_delta(spark, self.where)
        # Readers take some characters of names for a pattern, as Spark does
        return fbs.read_parquet(spark, self.where if self.path is None else literal(self.path))

    def write(self, rows: Pipeline, overwrite: bool) -> int:
        """Write to it; the number of rows."""
        mode = "overwrite" if overwrite else "error"
        write = rows.write_delta if self.is_delta else rows.write_parquet
        return write(self.where, mode=mode).rows


@dataclass(frozen=True)
class Folder:
    """A directory of a command's own, at a path or URI."""

    where: str

    def __str__(self) -> str:
        return self.where

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.where.rstrip('/')}/{name}")

    def write(self, table: pa.Table, name: str) -> int:
        """Write a table to a Parquet file in it; the bytes of the file."""
        import pyarrow.parquet as pq

        system, path = Place(self.where, False).files()
        system.create_dir(path)
        with system.open_output_stream(f"{path}/{name}") as stream:
            pq.write_table(table, stream)
            return int(stream.tell())

    def read(self) -> pa.Table:
        """The rows of the Parquet files in it."""
        import pyarrow.parquet as pq

        system, path = Place(self.where, False).files()
        return pq.read_table(path, filesystem=system)

    def remove(self) -> None:
        """Delete it, if it is there."""
        from pyarrow import fs

        system, path = Place(self.where, False).files()
        if system.get_file_info(path).type == fs.FileType.Directory:
            from fastbuf_spark.worker.stores import delete_dir

            delete_dir(system, path)


def literal(path: Path) -> str:
    """The path without links, as a pattern that it alone matches."""
    return re.sub(r"([\\*?{}\[\]])", r"\\\1", str(path.resolve()))
