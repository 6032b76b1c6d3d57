"""A task that reads files itself, with pyarrow, whatever Spark calls it for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ResourceError, SchemaMismatch
from fastbuf_spark.schema import conform

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 64 << 10
BATCH_BYTES = 8 << 20  #: what a batch of long rows is kept to, about
LEAST_ROWS = 1 << 10


@dataclass(frozen=True)
class Piece:
    """A file, or some row groups of one.

    Attributes
    ----------
    fragment
        Of ``pyarrow.dataset``.
    rows, nbytes
        Rows (0: not known), and bytes of the columns that are asked for.
    size, changed
        Of the file when it was looked at; -1: not looked at.
    """

    fragment: Any
    rows: int
    nbytes: int
    size: int = -1
    changed: int = -1

    def check(self) -> None:
        """That the file is the one that the driver has looked at: what was planned holds for no other.

        Raises
        ------
        ResourceError
            It has been replaced.
        """
        if self.size < 0:
            return
        info = self.fragment.filesystem.get_file_info(self.fragment.path)
        if (info.size, changed(info)) != (self.size, self.changed):
            raise ResourceError(
                f"{self.fragment.path} has been changed since it was planned: it had {self.size} bytes, and has "
                f"{info.size}; read it anew (fbs.read_...)"
            )


def changed(info: Any) -> int:
    """When a file was written, in nanoseconds; 0 where its file system does not say."""
    return int(info.mtime_ns or 0)


@dataclass(frozen=True)
class Read:
    """Gives the rows of one split for each row of its input, which says which.

    Attributes
    ----------
    files
        The schema that files are read with: columns that one has not are null, and others are cast.
    shown
        Of what comes out, in its order.
    filter
        A ``pyarrow.compute.Expression``.
    texts
        Columns that are read as texts, and made of them here: instants, which may say no zone.
    zone
        Of these then.
    """

    splits: tuple[tuple[Piece, ...], ...]
    files: pa.Schema
    shown: pa.Schema
    filter: Any = None
    texts: tuple[str, ...] = ()
    zone: str = "UTC"

    def __call__(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # To its end, and first, as everywhere
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
            # A task has one core, and what is read ahead is in nobody's account
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
    """Timestamps of texts in ISO 8601; one that says no zone is of ``zone``, as Spark has it.

    Raises
    ------
    SchemaMismatch
        A text that is none, for which Spark gives a null, or one of an hour that a clock left out, which Spark moves.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if kind.tz is None:
            return texts.cast(pa.timestamp("us"))
        with_zone = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}(:?\d{2})?)$")
        # A date alone ends like an offset
        with_zone = pc.and_(with_zone, pc.match_substring_regex(texts, r"\d:\d{2}"))
        nothing = pa.scalar(None, texts.type)
        told = pc.if_else(with_zone, texts, nothing).cast(pa.timestamp("us", tz="UTC")).cast(kind)
        local = pc.if_else(with_zone, nothing, texts).cast(pa.timestamp("us"))
        local = pc.assume_timezone(local, zone, ambiguous="earliest").cast(kind)
        return pc.coalesce(told, local)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"column {name} has a text that is no timestamp in ISO 8601, or of an hour that {zone} has not: {error}; "
            "read it as a string, and convert it in a function of your own"
        ) from error
