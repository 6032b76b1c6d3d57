"""A task that reads files itself with pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ResourceError, SchemaMismatch
from fastbuf_spark.schema import conform

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 64 << 10
BATCH_BYTES = 8 << 20  #: approximate size limit of a batch of long rows
LEAST_ROWS = 1 << 10


@dataclass(frozen=True)
class Piece:
    """A file, or some of its row groups.

    Attributes
    ----------
    fragment
        A fragment of ``pyarrow.dataset``.
    rows, nbytes
        Rows (0: unknown), and bytes of the requested columns.
    size, changed
        Size and modification time of the file when the driver listed it; -1: not checked.
    """

    fragment: Any
    rows: int
    nbytes: int
    size: int = -1
    changed: int = -1

    def check(self) -> None:
        """Check that the file is still the one that the driver listed: the plan is not valid for another one.

        Raises
        ------
        ResourceError
            The file was replaced.
        """
        if self.size < 0:
            return
        info = self.fragment.filesystem.get_file_info(self.fragment.path)
        if (info.size, changed(info)) != (self.size, self.changed):
            raise ResourceError(
                f"{self.fragment.path} has been changed since it was planned: it had {self.size} bytes, and now has "
                f"{info.size}; read it again (fbs.read_...)"
            )


def changed(info: Any) -> int:
    """When a file was last written, in nanoseconds; 0 if its file system does not say."""
    return int(info.mtime_ns or 0)


@dataclass(frozen=True)
class Read:
    """Yields the rows of one split for each row of its input, which has the split's number.

    Attributes
    ----------
    files
        The schema to read files with: missing columns are null, others are cast.
    shown
        Schema of the output, with its order of columns.
    filter
        A ``pyarrow.compute.Expression``.
    texts
        Columns that are read as text and parsed here: timestamps that may lack a zone.
    zone
        The zone of such timestamps.
    """

    splits: tuple[tuple[Piece, ...], ...]
    files: pa.Schema
    shown: pa.Schema
    filter: Any = None
    texts: tuple[str, ...] = ()
    zone: str = "UTC"

    def __call__(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Read the whole input first: a reader left behind could take the next task's input
        for split in [int(i) for batch in source for i in batch.column(0).to_pylist()]:
            for piece in self.splits[split]:
                yield from self._piece(piece)

    def _piece(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds

        piece.check()
        rows = BATCH_ROWS
        if piece.rows and piece.nbytes:
            rows = max(LEAST_ROWS, min(rows, BATCH_BYTES * piece.rows // piece.nbytes))
        late = bool(self.texts)
        scanner = ds.Scanner.from_fragment(
            piece.fragment,
            schema=self.files,
            columns=None if late else self.shown.names,
            filter=None if late else self.filter,
            batch_size=rows,
            # A task has one core, and memory for reading ahead is not accounted for
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        for batch in scanner.to_batches():
            if late:
                batch = self._told(batch)
            if batch.num_rows:
                yield conform(batch, self.shown, "the source")

    def _told(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.texts:
            at = batch.schema.get_field_index(name)
            made = instants(batch.column(at), self.shown.field(name).type, self.zone, name)
            batch = batch.set_column(at, name, made)
        if self.filter is not None:
            batch = batch.filter(self.filter)
        return batch.select(self.shown.names)


def instants(texts: pa.Array, kind: pa.DataType, zone: str, name: str) -> pa.Array:
    """Parses timestamps in ISO 8601; one without a zone is in ``zone``, as in Spark.

    Raises
    ------
    SchemaMismatch
        A text is not a timestamp (Spark returns null), or is in an hour skipped by daylight saving (Spark shifts it).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if kind.tz is None:
            return texts.cast(pa.timestamp("us"))
        with_zone = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}(:?\d{2})?)$")
        # A date without time ends like an offset
        with_zone = pc.and_(with_zone, pc.match_substring_regex(texts, r"\d:\d{2}"))
        nothing = pa.scalar(None, texts.type)
        told = pc.if_else(with_zone, texts, nothing).cast(pa.timestamp("us", tz="UTC")).cast(kind)
        local = pc.if_else(with_zone, nothing, texts).cast(pa.timestamp("us"))
        local = pc.assume_timezone(local, zone, ambiguous="earliest").cast(kind)
        return pc.coalesce(told, local)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"column {name} has a text that is not a timestamp in ISO 8601, or an hour that does not exist in {zone}: "
            f"{error}; read it as a string, and convert it in a function of your own"
        ) from error
