"""Assigns files and row groups to tasks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastbuf_spark.driver.directory_names import value_of
from fastbuf_spark.driver.files import File
from fastbuf_spark.expressions import Skipping
from fastbuf_spark.formats.base import READERS, Format, missing
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

    pairs = []
    for file in files:
        expression = pc.scalar(True)
        for name, (_, value) in zip(types, file.values, strict=True):
            if value is None:
                expression = expression & pc.field(name).is_null()
            else:
                expression = expression & (pc.field(name) == value_of(value, types[name], name))
        pairs.append((file, format.fragment(file.path, system, expression, file.size)))
    return pairs


def pieces(
    files: Sequence[tuple[File | None, Format, Any]],
    schema: pa.Schema,
    skipping: Skipping | None,
    missing_ok: bool = False,
) -> list[Piece]:
    """The parts of files that may have rows which match: row groups, or a file as a whole.

    Parameters
    ----------
    missing_ok
        Whether a file that is gone has none.

    Raises
    ------
    ResourceError
        A file is gone, and that is not to be ignored.
    """
    cut = len(files) <= MOST_FOOTERS

    def of(each: tuple[File | None, Format, Any]) -> list[Piece]:
        file, format, fragment = each
        size, when, mask = (-1, -1, None) if file is None else (file.size, file.changed, file.mask)
        if skipping is not None and skipping.skips(fragment.partition_expression):
            return []
        whole = not cut or mask is not None
        if whole:
            return [Piece(format, fragment, 0, max(0, size), size, when, mask)]
        with missing(fragment.path, fragment.filesystem, missing_ok):
            return [
                Piece(format, part, rows, max(0, nbytes), size, when, mask, format.groups(part))
                for part, rows, nbytes in format.split(fragment, size, schema, skipping)
            ]
        return []

    with ThreadPoolExecutor(READERS) as readers:
        return [piece for parts in readers.map(of, files) for piece in parts]


def shared_out(pieces: Sequence[Piece], tasks: int) -> tuple[tuple[Piece, ...], ...]:
    """Distribute pieces over splits of at most about 128 MB, enough to keep all tasks busy; at least one split."""
    total = sum(piece.nbytes for piece in pieces)
    each = max(LEAST_BYTES, min(MOST_BYTES, -(-total // max(1, tasks))))
    splits: list[list[Piece]] = [[]]
    nbytes = 0
    for piece in pieces:
        # Round to the nearest: a split that is nearly full takes no more
        if splits[-1] and nbytes + piece.nbytes // 2 >= each:
            splits.append([])
            nbytes = 0
        splits[-1].append(piece)
        nbytes += piece.nbytes
    return tuple(tuple(_joined(split)) for split in splits)


def _joined(split: list[Piece]) -> list[Piece]:
    """Join parts of one file into one piece, of which what the file tells of itself is read once."""
    pieces: list[Piece] = []
    for piece in split:
        last = pieces[-1] if pieces else None
        both: Any = None
        groups: tuple[int, ...] = ()
        if last and last.rows and piece.rows:
            groups = last.groups + piece.groups
            both = last.format.joined(last.fragment, piece.fragment, piece.size, groups)
        if last is None or both is None:
            pieces.append(piece)
        else:
            rows, nbytes = last.rows + piece.rows, last.nbytes + piece.nbytes
            pieces[-1] = Piece(piece.format, both, rows, nbytes, piece.size, piece.changed, groups=groups)
    return pieces
