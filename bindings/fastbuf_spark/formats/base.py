"""What a format of files is asked: by the driver, and by the tasks that read."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from fastbuf.errors import ConfigError, ResourceError, SchemaMismatch
from fastbuf_spark.schema import alters
from fastbuf_spark.worker.stores import same_system

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.driver.files import File
    from fastbuf_spark.driver.sources import Asked
    from fastbuf_spark.expressions import Skipping

BATCH_ROWS = 64 << 10
READERS = 16  #: threads that read what files tell of themselves
GONE = "is gone since files were listed: list them again, or ignoreMissingFiles=True reads on without it"

log = logging.getLogger("fastbuf_spark")


@dataclass(frozen=True)
class Fragment:
    """A file, as ``pyarrow.dataset`` has it, of a format that is none of pyarrow's.

    Attributes
    ----------
    partition_expression
        What is true of all its rows: the values in the names of its directories.
    """

    path: str
    filesystem: Any
    partition_expression: Any


class FileWriter(Protocol):
    """Writes the rows of one file."""

    def write(self, table: pa.Table, rows: int) -> None:
        """Write rows, as one group or as several of at most so many."""

    def close(self) -> Any:
        """End the file.  Returns its footer, or None if the format has none that is used."""

    def abandon(self) -> None:
        """Let go of a file that is not to be ended."""


@dataclass(frozen=True)
class Format:
    """A format of files.  One with its settings goes to the tasks that read and write.

    Attributes
    ----------
    name
        Of its module, and in the names of readers.
    title
        In messages.
    by_name
        Whether the columns of a schema are found by their names; else by their places.
    any_case
        Whether these names may differ in case, as for Spark unless it is told otherwise.
    filters
        Whether ``read`` leaves out rows that do not match the filter.
    suffix, codecs
        Of the names of files that are written, and their compressions; none: it is read alone.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    by_name: ClassVar[bool] = True
    any_case: ClassVar[bool] = True
    filters: ClassVar[bool] = False
    suffix: ClassVar[str] = ""
    codecs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The format as options of its reader have it."""
        return cls()

    # Of the driver

    def check(self, asked: Asked, schema: StructType) -> None:
        """Raise an error if files are not read with this schema, which a user has given."""

    def check_files(self, files: Sequence[File]) -> None:
        """Raise an error if one of these files is not read."""

    def with_columns(self, asked: Asked, schema: StructType) -> Self:
        """The format of files that have these columns."""
        return self

    def without_columns(self, names: Collection[str]) -> Self:
        """The same where these columns are not in the files, but in the names of directories."""
        return self

    def schema(self, asked: Asked, system: Any, files: Sequence[File], summaries: list[str]) -> StructType:
        """Spark's schema of files: that of the first one, or with ``mergeSchema`` those of all.

        Raises
        ------
        ConfigError
            There are no files.
        ResourceError
            A file is gone, and that is not to be ignored.
        """
        sizes, missing_ok = {file.path: file.size for file in files}, asked.is_set("ignoreMissingFiles")

        def of(path: str) -> tuple[str, StructType] | None:
            with missing(path, system, missing_ok), with_path(path):
                return path, self.schema_of(asked, self.fragment(path, system, size=sizes.get(path, -1)))
            return None

        at = self.tell(asked, [file.path for file in files], summaries)
        if asked.is_set("mergeSchema"):
            with ThreadPoolExecutor(READERS) as readers:
                schemas = [each for each in readers.map(of, at) if each is not None]
        else:
            schemas = list(islice(filter(None, map(of, at)), 1))
        if not schemas:
            raise ConfigError(f"{asked.path} has no {self.title} files to take the schema from: give schema=")
        if not asked.is_set("mergeSchema"):
            return schemas[0][1]
        from fastbuf_spark.driver.merged_schemas import merged

        return merged(schemas, asked.is_set("caseSensitive"))

    def tell(self, asked: Asked, files: list[str], summaries: list[str]) -> list[str]:
        """The paths of the files that tell the schema, in the order in which they count.

        Parameters
        ----------
        summaries
            Files that tell that of all Parquet files in a directory, best first.
        """
        return files

    def schema_of(self, asked: Asked, fragment: Any) -> StructType:
        """Spark's schema of a file.  A column that is not read stands refused (``driver.file_types``)."""
        from fastbuf_spark.driver.file_types import of_arrow

        fields = self.fields(fragment)
        assert fields is not None
        return of_arrow(fields)

    def fragment(self, path: str, system: Any, expression: Any = None, size: int = -1) -> Any:
        """A file.

        Parameters
        ----------
        expression
            Is true of all its rows.
        size
            Its bytes, so that a store need not be asked for them; -1: not known.
        """
        import pyarrow.compute as pc

        return Fragment(path, system, pc.scalar(True) if expression is None else expression)

    def split(
        self, fragment: Any, size: int, schema: pa.Schema, skipping: Skipping | None
    ) -> list[tuple[Any, int, int]]:
        """The parts of a file that may have rows to read, each with its rows (0: not known) and bytes."""
        return [(fragment, 0, size)]

    def groups(self, fragment: Any) -> tuple[int, ...]:
        """The row groups that a part of a file consists of; empty: the format has none."""
        return ()

    def joined(self, one: Any, other: Any, size: int, groups: tuple[int, ...]) -> Any:
        """Two parts as one, if the other goes on where the one ends; None if they are not to be joined.

        Parameters
        ----------
        size
            Of the file; -1: not known.
        groups
            Those of both.
        """
        return None

    # Of the tasks

    def place_of(self, fragment: Any) -> Any:
        """What goes to a task instead of a fragment of a file whose size is known."""
        return fragment

    def fragment_at(self, place: Any, size: int, groups: tuple[int, ...]) -> Any:
        """The fragment, from its place."""
        return place

    def fields(self, fragment: Any) -> pa.Schema | None:
        """Names and types of the columns of a file; None: they are not known before its rows are read."""
        return None

    def least_time(self, fragment: Any, field: pa.Field) -> int | None:
        """The least time in a column of a file in milliseconds since 1970, or before it; None: the file does not tell.

        Parameters
        ----------
        field
            The column, as it is read.
        """
        return None

    def check_fragment(self, fragment: Any, fields: pa.Schema | None, schema: pa.Schema) -> None:
        """SchemaMismatch if Arrow would read other values than a file has, where Spark refuses it.

        Parameters
        ----------
        fields
            Those of the file.
        schema
            To read it with.
        """
        import pyarrow.dataset as ds

        if fields is None:
            return
        named = ds.get_partition_keys(fragment.partition_expression)  # the directories' names have the values then
        theirs = {field.name: field.type for field in fields if field.name not in named}
        for field in schema:
            other = theirs.get(field.name, field.type)
            if alters(other, field.type, by_name=True):
                raise SchemaMismatch(
                    f"{fragment.path}: column {field.name!r} is {other} there, and to be read as {field.type}, the "
                    "type of the first file or of schema=; give a schema= that fits all files"
                )

    def read(
        self, fragment: Any, schema: pa.Schema, names: Sequence[str], skipping: Skipping | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file, or of a part of it.

        Parameters
        ----------
        schema
            Of what is read: columns that are missing are null, others are cast.
        names
            Of the columns to give, in this order.
        skipping
            The filter, if ``filters``; None: there is none, or it is not to be looked at.
        rows
            Of a batch, about.
        """
        raise NotImplementedError

    def schema_in_files(self, struct: StructType, zone: str, version: str) -> pa.Schema:
        """Arrow's schema of files with these columns.

        Parameters
        ----------
        zone
            The session's time zone.
        version
            Spark's.
        """
        raise NotImplementedError

    def writer(self, sink: Any, schema: pa.Schema, compression: str, **options: Any) -> FileWriter:
        """A writer of a file; ``options``: what else pyarrow's is told."""
        raise NotImplementedError

    def has_text(self, kind: pa.DataType) -> bool:
        """Whether a column of this type is read as text, and converted behind it."""
        return False

    def pattern(self, kind: pa.DataType) -> str:
        """Java's pattern of such texts; empty: as Spark writes them."""
        return ""


class Scanned(Format):
    """A format of which ``pyarrow.dataset`` has a class."""

    filters = True

    def layout(self) -> Any:
        """That class, with its settings."""
        raise NotImplementedError

    def fragment(self, path: str, system: Any, expression: Any = None, size: int = -1) -> Any:
        return fragment_of(self.layout(), path, system, size, partition_expression=expression)

    def place_of(self, fragment: Any) -> Any:
        """Its place alone: pyarrow's own form lacks the size, and asks the file for its row groups once more."""
        return Fragment(fragment.path, same_system(fragment.filesystem), fragment.partition_expression)

    def fragment_at(self, place: Any, size: int, groups: tuple[int, ...]) -> Any:
        return part_of(self.layout(), place, size, groups)

    def fields(self, fragment: Any) -> pa.Schema | None:
        return fragment.physical_schema

    def read(
        self, fragment: Any, schema: pa.Schema, names: Sequence[str], skipping: Skipping | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        columns: Any = list(names)
        if skipping is not None:
            # A column, and no filter of the scan: pyarrow would skip row groups by their bounds, which leave NaN out
            flag = max(["kept", *schema.names], key=len) + "?"
            columns = {name: pc.field(name) for name in names} | {flag: skipping.filter}
        scanner = ds.Scanner.from_fragment(
            fragment,
            schema=schema,
            columns=columns,
            batch_size=rows,
            # A task has one core, and memory for reading ahead is not accounted for
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        for batch in scanner.to_batches():
            yield batch if skipping is None else batch.select(list(names)).filter(batch.column(flag))


def fragment_of(layout: Any, path: str, system: Any, size: int, **more: Any) -> Any:
    """A fragment of a file, with its size if that is known and pyarrow takes it (17 and later)."""
    if size >= 0:
        try:
            return layout.make_fragment(path, system, file_size=size, **more)
        except TypeError:
            pass
    return layout.make_fragment(path, system, **more)


def part_of(layout: Any, fragment: Any, size: int, groups: tuple[int, ...]) -> Any:
    """Some row groups of a file, or all if none is named."""
    more: dict[str, Any] = {"row_groups": list(groups)} if groups else {}
    expression = fragment.partition_expression
    return fragment_of(layout, fragment.path, fragment.filesystem, size, partition_expression=expression, **more)


class OfDataset(Scanned):
    """A fragment of a dataset, which knows its own format."""

    name = "dataset"
    title = "dataset"

    def fields(self, fragment: Any) -> pa.Schema | None:
        guessed = fragment.format.default_extname in ("csv", "json")
        return None if guessed else super().fields(fragment)


@contextlib.contextmanager
def missing(path: str, system: Any, missing_ok: bool) -> Iterator[None]:
    """Leave a file out that is gone since it was listed.

    Raises
    ------
    ResourceError
        It is gone, and ``missing_ok`` is False.
    """
    try:
        yield
    except FileNotFoundError as error:
        if system.get_file_info(path).type.name != "NotFound":
            raise
        if not missing_ok:
            raise ResourceError(f"{path} {GONE}") from error
        log.warning("%s is gone, and is left out, as ignoreMissingFiles says", path)


@contextlib.contextmanager
def with_path(path: str) -> Iterator[None]:
    """SchemaMismatch with a file's path for an error of Arrow's, which mostly has none."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError | FileNotFoundError):
            raise  # of the file system, which names the file, or none of the file's
        hint = "; Hadoop's .lz4 is another format than Arrow's: use spark.read" if path.endswith(".lz4") else ""
        if "Failed to parse string" in str(error):  # Arrow does not say of which column
            hint = "; a column is text there, and is to be read as that type: give a schema= that fits all files"
        place = "" if path in str(error) else f"{path}: "
        raise SchemaMismatch(f"{place}{error}{hint}") from error
