"""Assigns files and row groups to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastbuf_spark.driver.directory_names import value_of
from fastbuf_spark.driver.files import File
from fastbuf_spark.expressions import Skipping
from fastbuf_spark.formats.base import READERS, Format
from fastbuf_spark.worker.reading import Piece

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 128 << 20  #: most bytes of a task's split, as in ``spark.sql.files.maxPartitionBytes``
LEAST_BYTES = 4 << 20  #: cost of opening a file, in bytes, as in Spark
#: If there are more files than this, none is split: the driver would have to read all their footers
MOST_FOOTERS = 4096


def fragments(
    system: Any, files: Sequence[File], format: Format, types: dict[str, pa.DataType]
) -> list[tuple[File, Any]]:
    """Files as fragments, with the values of their directories in columns of these types."""
    import pyarrow.compute as pc

    made = []
    for file in files:
        known = pc.scalar(True)
        for name, (_, value) in zip(types, file.values, strict=True):
            if value is None:
                known = known & pc.field(name).is_null()
            else:
                known = known & (pc.field(name) == value_of(value, types[name], name))
        made.append((file, format.fragment(file.path, system, known)))
    return made


def pieces(
    found: Sequence[tuple[File | None, Format, Any]], schema: pa.Schema, skipping: Skipping | None
) -> list[Piece]:
    """The parts of files that may have rows which match: row groups, or a file as a whole."""
    cut = len(found) <= MOST_FOOTERS

    def of(each: tuple[File | None, Format, Any]) -> list[Piece]:
        file, format, fragment = each
        size, when, kept = (-1, -1, None) if file is None else (file.size, file.changed, file.kept)
        checked = size if when >= 0 else -1
        if skipping is not None and skipping.skips(fragment.partition_expression):
            return []
        whole = not cut or kept is not None
        parts = [(fragment, 0, size)] if whole else format.split(fragment, size, schema, skipping)
        return [Piece(format, part, rows, max(0, nbytes), checked, when, kept) for part, rows, nbytes in parts]

    with ThreadPoolExecutor(READERS) as readers:
        return [piece for made in readers.map(of, found) for piece in made]


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
    """Join parts of one file into one piece, of which what the file tells of itself is read once."""
    made: list[Piece] = []
    for piece in split:
        last = made[-1] if made else None
        both = last.format.joined(last.fragment, piece.fragment) if last and last.rows and piece.rows else None
        if last is None or both is None:
            made.append(piece)
        else:
            rows, nbytes = last.rows + piece.rows, last.nbytes + piece.nbytes
            made[-1] = Piece(piece.format, both, rows, nbytes, piece.size, piece.changed)
    return made
