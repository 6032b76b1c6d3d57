"""Files that appear in a directory as a source, read as the readers of pipelines read them."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.driver import files as listing
from fastbuf_spark.driver.directory_names import partition_types, value_of, values_of
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.file_types import nullable
from fastbuf_spark.driver.reader_options import is_true, read_options
from fastbuf_spark.driver.sources import Asked, check_zone, listed_source, with_directories
from fastbuf_spark.driver.splits import fragments
from fastbuf_spark.formats import CLASSES, format_of
from fastbuf_spark.formats.base import Format
from fastbuf_spark.schema import conform, struct_type
from fastbuf_spark.streams.outage import Away
from fastbuf_spark.streams.source import Polled, Split, SplitReader
from fastbuf_spark.worker.reading import Piece, Read
from fastbuf_spark.worker.stores import is_store, same_system

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LOOKERS = 4  #: threads of a task that read the footers of files which wait
MAX_AGE_S = 7 * 24 * 3600.0  #: Spark's maxFileAge


@dataclasses.dataclass
class FilesSource:
    """See :func:`fastbuf_spark.stream_files`.  A split is a file, its offset the number of rows that were read.

    The state is the files that were seen, but for those older than the newest one of the path by ``max_age_s``: they
    are forgotten, and what is older than them below that path (``passed``) is not looked at any more.

    Attributes
    ----------
    base, root
        The path, and that of ``basePath`` (empty: none), in their file system: below them names of directories are
        columns.
    """

    path: str
    base: str
    root: str
    format: Format
    schema: StructType
    read: Read
    options: dict[str, str]
    max_age_s: float
    bounded: bool
    replayable: bool = True
    one_at_a_time = True  #: a split is read to its end before the next one

    @property
    def name(self) -> str:
        """For the plan."""
        return f"{self.format.name} files of {self.path}"

    def splits(self, state: Any) -> tuple[list[Split], Any]:
        """Files by the times at which they were written."""
        seen = dict(state["seen"]) if state else {}
        # By path: times in another directory say nothing of those in this one.  A version before had one for all
        newest_of = dict(state.get("newest_of") or {self.base: state["newest"]}) if state else {}
        newest, most = int(newest_of.get(self.base, 0)), int(self.max_age_s * 1e9)
        passed = dict(state.get("passed") or {path: at - most for path, at in newest_of.items()}) if state else {}
        here = "\n".join([self.base, self.options.get("pathGlobFilter", ""), "*" * self._is_deep])
        files = listing.matching(listed := self._listed(bool(state)), self.options)
        times = {file.path: file.changed for file in files}
        # A file from the future (a clock that is ahead) would make those of the days after it too old
        now = time.time_ns()
        latest = max(min(at, now) for at in (newest, *times.values()))
        oldest = max(latest - most, passed.get(here, 0))

        def is_new(path: str, changed: int) -> bool:
            """As by Spark, the first ones are read whatever their age; but not again, where another path had them."""
            if path in seen or (newest and changed < oldest):
                return False
            return not any(changed < least and _finds(looked, path) for looked, least in passed.items())

        fresh = sorted((changed, path) for path, changed in times.items() if is_new(path, changed))
        if fresh:
            self._check(listed, {path for _, path in fresh})
        seen.update((path, changed) for changed, path in fresh)
        recent = {path: t for path, t in seen.items() if t >= oldest or not _finds(here, path)}
        passed[here] = oldest
        state = {"newest_of": {**newest_of, self.base: latest}, "passed": passed, "seen": recent}
        return [Split(path, 0) for _, path in fresh], state

    @property
    def _is_deep(self) -> bool:
        return is_true(self.options, "recursiveFileLookup")

    def _listed(self, before: bool) -> list[listing.File]:
        """All files; ``before``: they have been listed before."""
        try:
            return listing.listed(self.path, None, self.options).files
        except listing.NothingThere as error:
            if is_store(file_system(self.path, None)[0]):  # where a directory is no more than its objects
                return []
            if before:  # a mount may come back
                raise Away(str(error)) from None
            raise

    def _check(self, files: list[listing.File], fresh: Collection[str]) -> None:
        """Raise an error if names of directories are not as the schema has them, or differ."""
        named = {key for key, _ in files[0].values}
        types = {field.name: field.dataType for field in self.schema.fields if field.name in named}
        case = is_true(self.options, "caseSensitive")
        kinds = partition_types(files, False, types, case)
        with_directories(self.schema, kinds, case)
        check_zone(self.options, types)
        for key, value in sorted({pair for file in files if file.path in fresh for pair in file.values if pair[1]}):
            if key in types:
                value_of(str(value), self.read.shown.field(key).type, key)

    def reader(self, schema: pa.Schema) -> SplitReader:
        """One file after the other: in their order, and no more than one is open."""
        return _FilesReader(self, schema)

    def _named(self, path: str) -> dict[str, str | None]:
        """The values, escaped, that a file's directories have for columns of the schema."""
        if self._is_deep:
            return {}
        base = self.root or listing.base_of(self.base, path)
        folders = path.removeprefix(base).split("/")[:-1]
        if not path.startswith(base):  # half read when the source had another path: what its last directories say
            folders = list(takewhile(lambda folder: "=" in folder, reversed(folders)))
        values = values_of(folders)
        return {key: value for key, value in values if key in self.read.shown.names}

    def _piece(self, path: str) -> tuple[Read, Piece]:
        """One of the files, and how it is read."""
        import pyarrow as pa

        system, named = same_system(file_system(self.path, None)[0]), self._named(path)
        shown, format = self.read.shown, self.format.without_columns(named)
        types = {name: shown.field(name).type for name in named}
        pairs = fragments(system, [listing.File(path, -1, -1, tuple(named.items()))], format, types)
        files = pa.schema(shown.field(field.name) if field.name in named else field for field in self.read.files)
        texts = tuple(field for field in self.read.texts if field.name not in named)
        return dataclasses.replace(self.read, files=files, texts=texts), Piece(format, pairs[0][1], 0, 0)

    def least_time(self, path: str, field: pa.Field) -> int | None:
        """The least time of a file, as its format tells it, or its directory."""
        value = self._named(path).get(field.name)
        if value is not None:
            import pyarrow as pa

            micros = value_of(value, self.read.shown.field(field.name).type, field.name).cast(pa.timestamp("us", "UTC"))
            return int(micros.value) // 1000
        return self.format.least_time(self._piece(path)[1].fragment, field)

    def rows(self, path: str, offset: int) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        """Batches of a file from a row on, and the row behind each."""
        read, piece = self._piece(path)
        at = 0
        for batch in read.rows_of(piece):
            rows = batch.num_rows
            if at + rows > offset:
                batch = batch.slice(max(0, offset - at))
                yield batch, at + rows
            at += rows


class _FilesReader:
    """Files one after the other.  Those that wait are asked for their least times meanwhile."""

    def __init__(self, source: FilesSource, schema: pa.Schema) -> None:
        self._source, self._schema = source, schema
        self._open: dict[str, Generator[tuple[pa.RecordBatch, int], None, None]] = {}
        self._offsets: dict[str, int] = {}
        self._paused: frozenset[str] = frozenset()
        self._threads: ThreadPoolExecutor | None = None
        self._fresh: list[str] = []
        self._answers: deque[tuple[str, int]] = deque()

    def assign(self, splits: Sequence[Split]) -> None:
        for split in splits:
            self._open[split.name] = self._source.rows(split.name, split.offset)
            self._offsets[split.name] = split.offset
        # Where nobody asks for times, names of files that were read are not kept
        self._fresh = [name for name in self._fresh if name in self._open] + [split.name for split in splits]

    @property
    def waiting(self) -> list[str]:
        """The files that are not read before another one has ended."""
        return list(self._open)[1:]

    def pause(self, splits: Sequence[str]) -> None:
        self._paused = frozenset(splits)

    def poll(self, timeout_s: float) -> Polled | None:
        name = next((name for name in self._open if name not in self._paused), None)
        if name is None:
            return None
        batch, offset = next(self._open[name], (None, self._offsets[name]))
        if batch is None:
            del self._open[name], self._offsets[name]
            return Polled(name, None, offset, ended=True)
        self._offsets[name] = offset
        return Polled(name, conform(batch, self._schema, f"split {name}"), offset)

    def least_times(self, column: str) -> Mapping[str, int]:
        """What is known since it was asked last, in milliseconds since 1970."""
        if len(self._open) > 1 and self._fresh:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(LOOKERS, thread_name_prefix="fastbuf-footers")
            for name in self._fresh:
                self._threads.submit(self._look, name, self._schema.field(column))
            self._fresh = []
        return dict(self._answers.popleft() for _ in range(len(self._answers)))

    def _look(self, name: str, field: pa.Field) -> None:
        with suppress(Exception):  # it is read later, and what is wrong with it is told then
            least = self._source.least_time(name, field)
            if least is not None:
                self._answers.append((name, least))

    def checkpointed(self, offsets: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for rows in self._open.values():
            rows.close()
        self._open.clear()


def _finds(looked: str, path: str) -> bool:
    """Whether a listing finds a file.

    ``looked`` is what a checkpoint keeps of it, a line each: its path, ``pathGlobFilter``, and a star if it was deep.
    """
    base, name, deep = [*looked.split("\n"), "", ""][:3]
    folder = listing.base_of(base, path)
    *between, own = path.removeprefix(folder).split("/")
    below = path.startswith(folder) and (deep or all("=" in each for each in between))
    return bool(below and (not name or listing.matching([listing.File(own, -1, -1, ())], {"pathGlobFilter": name})))


def files_source(
    spark: Any,
    path: str,
    format: str,
    schema: StructType | str,
    bounded: bool,
    max_age_s: float,
    options: Mapping[str, Any],
) -> FilesSource:
    """A source of files; ``bounded``: of those that are there now."""
    if format not in CLASSES:
        raise ConfigError(f"format is {format!r}: it must be one of {', '.join(CLASSES)}")
    settings = read_options(spark, format, options, streams=True)
    asked, shape = Asked(spark, "stream_files", path, None, None, options=settings), nullable(struct_type(schema))
    kind = format_of(format, settings)
    kind.check(asked, shape)
    kind = kind.with_columns(asked, shape)
    read = listed_source(asked, kind, None, [], shape).read  # of no files, as there may be none yet
    base, root = (file_system(each, None)[1][0] if each else "" for each in (path, settings.get("basePath")))
    root = root.rstrip("/") + "/" if root else ""
    return FilesSource(str(path), base, root, kind, shape, read, settings, max_age_s, bounded)
