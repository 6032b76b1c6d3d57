"""A task that reads files itself with pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ResourceError, SchemaMismatch
from fastbuf_spark.expressions import Skipping
from fastbuf_spark.formats.base import BATCH_ROWS, GONE, Format, missing, with_path
from fastbuf_spark.schema import conform
from fastbuf_spark.worker.stores import is_store, open_ahead, parts_of
from fastbuf_spark.worker.texts import of_text

if TYPE_CHECKING:
    import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"  #: in the metadata of a field of a table that knows its columns by ids, as in its files
NAMES = b"fastbuf:names"  #: there too: names, as JSON, that the field has in files without ids
NEEDED = b"fastbuf:needed"  #: there too: files must have the field
NOT_THERE = " (not in this file)"  #: at the end of a name that another field of the file has
BATCH_BYTES = 8 << 20  #: approximate size limit of a batch of long rows
LEAST_ROWS = 1 << 10


@dataclass(frozen=True)
class Piece:
    """A file, or some of its row groups.

    Attributes
    ----------
    fragment
        A fragment of ``pyarrow.dataset``, or one like it.
    rows, nbytes
        Rows (0: unknown), and bytes of the requested columns.
    size, changed
        Size and modification time of the file when the driver listed it; -1: not known, or not checked.
    mask
        Whether each of the first rows of the file is to be read, as an Arrow array; the others are.  None: all are.
    groups
        Of the file, that the piece is; empty: it is the whole file.
    """

    format: Format
    fragment: Any
    rows: int
    nbytes: int
    size: int = -1
    changed: int = -1
    mask: Any = None
    groups: tuple[int, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a task: where the file is.  The file is not read for it."""
        place = self.format.place_of(self.fragment) if self.size >= 0 else parts_of(self.fragment)
        return {**self.__dict__, "fragment": place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        place, size = state["fragment"], state["size"]
        fragment = state["format"].fragment_at(place, size, state["groups"]) if size >= 0 else place[0](*place[1])
        self.__dict__.update(state, fragment=fragment)

    def check(self, missing_ok: bool = False) -> None:
        """Check that the file is still the one that the driver listed: the plan is not valid for another one.

        Raises
        ------
        ResourceError
            The file was replaced, or is gone and ``missing_ok`` is False.
        """
        if self.changed < 0:
            return
        system = self.fragment.filesystem
        info = system.get_file_info(self.fragment.path)
        if info.type.name == "NotFound":
            if missing_ok:
                return
            raise ResourceError(f"{self.fragment.path} {GONE}")
        # Of one object stores tell whole seconds, which some list with their fractions
        apart = 10**9 if is_store(system) else 1
        if info.size != self.size or abs(changed(info) - self.changed) >= apart:
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
        Columns that are read as text and converted here, with their types: of lines of values all but strings, of JSON
        dates and timestamps.
    zone
        The zone of such timestamps.
    any_case
        Whether a file's columns may have names that differ in case.
    missing_ok
        Whether files that are gone when they are read have no rows, or no more: Spark's ``ignoreMissingFiles``.
    """

    splits: tuple[tuple[Piece, ...], ...]
    files: pa.Schema
    shown: pa.Schema
    filter: Any = None
    texts: tuple[pa.Field, ...] = ()
    zone: str = "UTC"
    any_case: bool = False
    missing_ok: bool = False

    def __call__(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Read the whole input first: a reader left behind could take the next task's input
        asked = [int(i) for batch in source for i in batch.column(0).to_pylist()]
        for piece in open_ahead([piece for split in asked for piece in self.splits[split]], self.missing_ok):
            yield from self.rows_of(piece)

    @cached_property
    def skipping(self) -> Skipping | None:
        """What is told of files by the filter, whose columns have the types that are shown."""
        import pyarrow as pa

        texts = {field.name: field for field in self.texts}
        schema = pa.schema([texts.get(field.name, field) for field in self.files])
        return None if self.filter is None else Skipping(self.filter, schema)

    def rows_of(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The rows of a piece, which is checked.

        Raises
        ------
        ResourceError
            The file is gone, and that is not to be ignored.
        """
        with missing(piece.fragment.path, piece.fragment.filesystem, self.missing_ok):
            yield from self._rows_of(piece)

    def _rows_of(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        format, skipping = piece.format, self.skipping
        if skipping is not None and skipping.skips(piece.fragment.partition_expression):
            return
        rows = BATCH_ROWS
        if piece.rows and piece.nbytes:
            rows = max(LEAST_ROWS, min(rows, BATCH_BYTES * piece.rows // piece.nbytes))
        fields, files = format.fields(piece.fragment), self.files
        if self.any_case and fields is not None:
            files = in_file(files, piece.fragment, list(fields))
        format.check_fragment(piece.fragment, fields, files)
        renamed = not files.equals(self.files)
        # Filters have the users' names, and their types
        late = renamed or bool(self.texts) or piece.mask is not None or not format.filters
        parts = [piece.fragment]
        if late:
            skipping = None
        elif skipping is not None and not piece.rows:
            parts = [part for part, _, _ in format.split(piece.fragment, 0, files, skipping)]
        names = files.names if late else self.shown.names
        for part in parts:
            batches = format.read(part, files, names, skipping, rows)
            with with_path(part.path):
                for batch in batches if piece.mask is None else _without_rows(batches, piece.mask):
                    if renamed:
                        batch = _with_names(batch, self.files)
                    if late:
                        batch = self._converted(batch, piece)
                    if batch.num_rows:
                        yield conform(batch, self.shown, part.path)

    def _converted(self, batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
        for field in self.texts:
            at = batch.schema.get_field_index(field.name)
            pattern = piece.format.pattern(field.type)
            try:
                values = of_text(batch.column(at), field.type, self.zone, field.name, pattern)
            except SchemaMismatch as error:
                raise SchemaMismatch(f"{piece.fragment.path}: {error}") from error
            batch = batch.set_column(at, field, values)
        if self.filter is not None:
            batch = batch.filter(self.filter)
        return batch.select(self.shown.names)


def _without_rows(batches: Iterable[pa.RecordBatch], mask: pa.Array) -> Iterator[pa.RecordBatch]:
    """The rows of a whole file, in order, without those that are not kept."""
    import pyarrow as pa

    start = 0
    for batch in batches:
        part = mask.slice(start, batch.num_rows)
        rest = pa.array([True] * (batch.num_rows - len(part)), pa.bool_())
        start += batch.num_rows
        yield batch.filter(pa.concat_arrays([part, rest]))


def in_file(wanted: pa.Schema, fragment: Any, theirs: list[pa.Field]) -> pa.Schema:
    """The schema with the names that a file has for its fields, at any depth.

    They belong together by their ids, where the schema has some; else by their names, which may differ in case.

    Raises
    ------
    SchemaMismatch
        Two columns of the file may be meant, or it has no ids.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    has_ids = any(FIELD_ID in (field.metadata or {}) for field in theirs)

    def by_id(field: pa.Field, theirs: list[pa.Field]) -> pa.Field | None:
        metadata = field.metadata
        if has_ids:
            return next((each for each in theirs if (each.metadata or {}).get(FIELD_ID) == metadata[FIELD_ID]), None)
        if NAMES not in metadata:
            raise SchemaMismatch(f"{fragment.path} has no ids of its columns, and the table no names for them")
        return next((each for each in theirs if each.name in json.loads(metadata[NAMES])), None)

    def by_name(field: pa.Field, theirs: list[pa.Field]) -> pa.Field | None:
        alike = [each for each in theirs if each.name.casefold() == field.name.casefold()]
        exact = [each for each in alike if each.name == field.name]
        if len(alike) > 1 and not exact:
            raise SchemaMismatch(
                f"{fragment.path} has the columns {[each.name for each in alike]}, and {field.name!r} may be any "
                "of them: write the name as in the file, or set spark.sql.caseSensitive=true"
            )
        return (exact or alike or [None])[0]

    def of(field: pa.Field, theirs: list[pa.Field]) -> pa.Field:
        other = (by_id if FIELD_ID in (field.metadata or {}) else by_name)(field, theirs)
        if other is not None:
            return field.with_name(other.name).with_type(inside(field.type, other.type))
        if NEEDED in (field.metadata or {}):
            raise SchemaMismatch(
                f"{fragment.path} has no column {field.name!r}, and what its partition says is rounded"
            )
        is_taken = any(each.name == field.name for each in theirs)  # by another field
        if is_taken and field.name in ds.get_partition_keys(fragment.partition_expression):
            raise SchemaMismatch(f"{fragment.path} has another column {field.name!r} than the one of its partition")
        return field.with_name(f"{field.name}{NOT_THERE}") if is_taken else field

    def inside(mine: pa.DataType, other: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(mine) and pa.types.is_struct(other):
            return pa.struct([of(field, list(other)) for field in mine])
        if pa.types.is_list(mine) and hasattr(other, "value_type"):
            return pa.list_(mine.value_field.with_type(inside(mine.value_type, other.value_type)))
        if pa.types.is_map(mine) and pa.types.is_map(other):
            key = mine.key_field.with_type(inside(mine.key_type, other.key_type))
            return pa.map_(key, mine.item_field.with_type(inside(mine.item_type, other.item_type)))
        return mine

    return pa.schema([of(field, theirs) for field in wanted])


def _with_names(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the names of a schema of the same types."""
    import pyarrow as pa

    pairs = zip(batch.columns, schema, strict=True)
    columns = [column if column.type.equals(field.type) else column.view(field.type) for column, field in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
