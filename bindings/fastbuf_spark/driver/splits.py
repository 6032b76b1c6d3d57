"""Assigns files and row groups to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastbuf_spark.driver.directory_names import value_of
from fastbuf_spark.driver.files import File
from fastbuf_spark.worker.lines import with_path
from fastbuf_spark.worker.reading import FIELD_ID, Piece, check_calendar, check_variants, in_file

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 128 << 20  #: most bytes of a task's split, as in ``spark.sql.files.maxPartitionBytes``
LEAST_BYTES = 4 << 20  #: cost of opening a file, in bytes, as in Spark
#: If there are more files than this, none is split: the driver would have to read all their footers
MOST_FOOTERS = 4096
READERS = 16  #: threads that read footers


def fragments(system: Any, files: Sequence[File], layout: Any, types: dict[str, pa.DataType]) -> list[tuple[File, Any]]:
    """Files as fragments of ``pyarrow.dataset``, with the values of their directories in columns of these types."""
    import pyarrow.compute as pc

    made = []
    for file in files:
        known = pc.scalar(True)
        for name, (_, value) in zip(types, file.values, strict=True):
            if value is None:
                known = known & pc.field(name).is_null()
            else:
                known = known & (pc.field(name) == value_of(value, types[name], name))
        made.append((file, layout.make_fragment(file.path, system, partition_expression=known)))
    return made


def pieces(found: Sequence[tuple[File | None, Any]], schema: pa.Schema, needed: set[str], filter: Any) -> list[Piece]:
    """The row groups of Parquet files that may have rows matching the filter, and other files as a whole."""
    cut = len(found) <= MOST_FOOTERS
    has_ids = any(FIELD_ID in (field.metadata or {}) for field in schema)
    wanted = {name.casefold() for name in needed}  # an estimate, so a name in another case may count

    def of(pair: tuple[File | None, Any]) -> list[Piece]:
        file, fragment = pair
        size, when, kept = (-1, -1, None) if file is None else (file.size, file.changed, file.kept)
        checked = size if when >= 0 else -1
        if not cut or kept is not None or not hasattr(fragment, "split_by_row_group"):
            return [Piece(fragment, 0, max(0, size), checked, when, kept)]
        made = []
        with with_path(fragment.path):
            fragment.ensure_complete_metadata()
        check_calendar(fragment, schema)
        check_variants(fragment, schema)
        # Names in a table's old files may be those of other columns now
        pushed = filter if not has_ids or in_file(schema, fragment).equals(schema) else None
        for part in fragment.split_by_row_group(pushed, schema=schema):
            about = fragment.metadata.row_group(part.row_groups[0].id)
            columns = (about.column(i) for i in range(about.num_columns))
            used = sum(c.total_uncompressed_size for c in columns if _top(c) in wanted)
            made.append(Piece(part, about.num_rows, used, checked, when))
        return made

    with ThreadPoolExecutor(READERS) as readers:
        return [piece for made in readers.map(of, found) for piece in made]


def _top(column: Any) -> str:
    """The folded name of the column of a file that a column of its leaves belongs to."""
    return str(column.path_in_schema).partition(".")[0].casefold()


def shared_out(found: Sequence[Piece], tasks: int) -> tuple[tuple[Piece, ...], ...]:
    """Distribute pieces over splits of at most about 128 MB, enough to keep all tasks busy; at least one split."""
    total = sum(piece.nbytes for piece in found)
    each = max(LEAST_BYTES, min(MOST_BYTES, -(-total // max(1, tasks))))
    splits: list[list[Piece]] = [[]]
    held = 0
    for piece in found:
        # Round to the nearest: a split that is nearly full takes no more
        if splits[-1] and held + piece.nbytes // 2 >= each:
            splits.append([])
            held = 0
        splits[-1].append(piece)
        held += piece.nbytes
    return tuple(tuple(_joined(split)) for split in splits)


def _joined(split: list[Piece]) -> list[Piece]:
    """Join row groups of one file into one piece, whose footer is read once."""
    made: list[Piece] = []
    for piece in split:
        last = made[-1] if made else None
        if last is None or not _goes_on(last, piece):
            made.append(piece)
            continue
        ids = [group.id for part in (last, piece) for group in part.fragment.row_groups]
        both = piece.fragment.format.make_fragment(
            piece.fragment.path,
            piece.fragment.filesystem,
            partition_expression=piece.fragment.partition_expression,
            row_groups=ids,
        )
        made[-1] = Piece(both, last.rows + piece.rows, last.nbytes + piece.nbytes, piece.size, piece.changed)
    return made


def _goes_on(last: Piece, piece: Piece) -> bool:
    """Whether a piece has later row groups of the same file: a path may be of two file systems, or be given twice."""
    one, other = last.fragment, piece.fragment
    if not last.rows or not piece.rows or one.path != other.path or one.filesystem != other.filesystem:
        return False
    return bool(one.row_groups[-1].id < other.row_groups[0].id)
