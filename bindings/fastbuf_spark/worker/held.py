"""Rows that stay where a map task wrote them: its file, and the descriptions of it that go through Spark's shuffle.

A map attempt writes its blocks into one file, once, front to back, with an index behind them.  Spark gets a row for
each *section*, the partitions that one reduce task serves: the name of the file.  It is the same for all attempts that
place the same rows, in whatever order: the name has a digest of the keys and of each partition's rows.  So an attempt
replaces the file of the one before, a reader finds that of either, and Spark, which compares what attempts give, sees
no difference.  Files of other hosts are read from their file servers (:mod:`.file_server`, :mod:`.fetching`).  Where
there can be no files, blocks go through Spark.  docs/format.md draws it all.

Source: Flink's sort-merge blocking shuffle (FLIP-148), one data file and an index for each producer; here the names go
through Spark's shuffle, so its lineage and retries hold for the rows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbuf.errors import BlockCorrupt, ResourceError
from fastbuf.serializers.block import MAGIC as BLOCK_MAGIC

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Row = tuple[int, bytes]  #: a section, and a description or a block

SECTION, DESCRIPTION = "section", "description"
DESCRIBED = f"{SECTION} int, {DESCRIPTION} binary"
FOLDER = "fastbuf-held"  #: the files lie below a directory of this name

MAGIC = b"FBHD"
VERSION = 1
EXECUTION = "spark.sql.execution.id"  #: a local property: Spark's number of the action that a DataFrame's task serves
#: Magic, version, section, its partitions that have rows, run, number of the map task, digest
_DESCRIPTION = struct.Struct("<4sHxxIIiI8s")
DESCRIPTION_BYTES = _DESCRIPTION.size
#: The end of a file: digest, where the index begins, number of partitions, version, magic
_FOOTER = struct.Struct("<8sQIH2x4s")
ENTRY = [("offset", "<u8"), ("length", "<u8")]  #: of the index: where a block is
ENTRY_BYTES = 16

PENDING_BYTES = 1 << 20  #: small blocks are written together, of about this size
DIRECT_BYTES = 16 << 10  #: longer blocks are written at once
OUT_BYTES = 1 << 20  #: rows are given to Spark in batches of about this size
READ_BYTES = 4 << 20  #: most bytes of neighbouring blocks that are read at once
MOST_VECTORS = 1024  #: of one write: IOV_MAX of Linux


@dataclass(frozen=True)
class Sections:
    """Which partitions each reduce task serves: neighbours, of about the same number."""

    partitions: int
    tasks: int

    @property
    def is_one_each(self) -> bool:
        """Whether each task serves one partition."""
        return self.tasks == self.partitions

    def of(self, partitions: np.ndarray) -> np.ndarray:
        """The section of each partition."""
        return partitions.astype("int64") * self.tasks // self.partitions

    def range(self, section: int) -> range:
        """The partitions of a section."""
        return range(-(-section * self.partitions // self.tasks), -(-(section + 1) * self.partitions // self.tasks))


@dataclass(frozen=True)
class HeldRows:
    """Where the map tasks of an exchange keep their rows; sent to the workers.

    Attributes
    ----------
    directories
        Separated by commas.  Empty: those that Spark gives its Python workers, and removes with the executor.
    service, secret
        The name under which readers prove the secret to the application's file servers; empty: there are none, all
        tasks see each other's files.
    apart
        Read all files from their servers, on the same host too: tests act as several hosts by it.
    """

    directories: str = ""
    service: str = ""
    secret: bytes = field(default=b"", repr=False)
    apart: bool = False

    def roots(self) -> list[str]:
        """The directories of this task's executor in which exchanges have folders.

        Where executors have servers, each has directories of its own, which its server removes with it.
        """
        paths = _split(self.directories)
        if not self.service:
            return [os.path.join(each, FOLDER) for each in paths]
        own = executor_directories()
        if not paths:
            return [os.path.join(each, FOLDER) for each in own]
        return [os.path.join(each, FOLDER, os.path.basename(own[0])) for each in paths]


def executor_directories() -> list[str]:
    """Spark's local directories of this task's executor.

    Raises
    ------
    ResourceError
        Spark has named none.
    """
    own = _split(os.environ.get("SPARK_LOCAL_DIRS", ""))
    if not own:
        raise ResourceError(
            "Spark has named no local directory for this task's rows (SPARK_LOCAL_DIRS is not set in its worker): "
            "set spark.fastbuf.fileServers=false, so that rows go through Spark's shuffle"
        )
    return own


def _split(directories: str) -> list[str]:
    return [each.strip() for each in directories.split(",") if each.strip()]


class HeldFile:
    """The blocks of one map attempt.

    Parameters
    ----------
    root
        Directory of the exchange's files; empty: there are none, and blocks go through Spark.
    run
        Number of the action that needs the rows; see :func:`run_of_task`.
    number
        Number of the map task.
    """

    def __init__(self, root: str, sections: Sections, run: int, number: int) -> None:
        self._root = root
        self._sections = sections
        self._run = run
        self.number = number
        self._path = ""  # while it is written
        self._fd = -1
        self._size = 0
        self._entries: list[tuple[int, int, int]] = []  # offset, length and partition of each block
        self._pending: list[tuple[int, Any]] = []
        self._pending_bytes = 0
        self.nbytes = 0
        self.server = ""  #: which file server has the file, once it is known
        #: Called when the file has been made
        self.on_open: Callable[[], None] = lambda: None

    def write(self, partition: int, block: Any) -> None:
        """Take a block; its memory may be used again afterwards.

        Raises
        ------
        ResourceError
            The directory has no room.
        """
        length = len(block)
        self.nbytes += length
        self._pending_bytes += length
        if self._root and length >= DIRECT_BYTES:
            self._flush([*self._pending, (partition, block)])  # in the order in which they came
            return
        self._pending.append((partition, bytes(block)))
        if self._root and self._pending_bytes >= PENDING_BYTES:
            self._flush(self._pending)

    def figures(self) -> dict[str, Any]:
        """What the driver is told: bytes; of files the action's number, and where this one is, if there are rows."""
        figures: dict[str, Any] = {"bytes": self.nbytes, **({"run": self._run} if self._root else {})}
        if self._path:
            figures["folder"] = os.path.dirname(self._path)
        if self.server:
            figures["server"] = self.server
        return figures

    @property
    def has_file(self) -> bool:
        """Whether there are rows in a file."""
        return bool(self._path)

    def ready(self) -> Iterator[Row]:
        """Blocks that have to go to Spark before the end, so that memory stays bounded."""
        if not self._root and self._pending_bytes >= OUT_BYTES:
            yield from self._pending
            self._pending, self._pending_bytes = [], 0

    def close(self, digest: bytes) -> Iterator[Row]:
        """Write what is left; yields the descriptions.

        Parameters
        ----------
        digest
            Eight bytes that all attempts of the task have in common if they place the same rows.
        """
        import numpy as np

        if not self._root:
            yield from self._pending
            return
        if self._pending:
            self._flush(self._pending)
        partitions = np.zeros(0, np.int64)
        if self._entries:
            partitions = self._finish(digest)
        with_rows = np.bincount(self._sections.of(partitions), minlength=self._sections.tasks).tolist()
        for section, count in enumerate(with_rows):  # those without rows too: so each task learns which it serves
            yield section, _DESCRIPTION.pack(MAGIC, VERSION, section, count, self._run, self.number, digest)

    def abandon(self) -> None:
        """Remove the file, unless it is whole."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _flush(self, blocks: list[tuple[int, Any]]) -> None:
        with self._refusals():
            if self._fd < 0:
                self._open()
            for start in range(0, len(blocks), MOST_VECTORS):
                some = blocks[start : start + MOST_VECTORS]
                for partition, block in some:
                    self._entries.append((self._size, len(block), partition))
                    self._size += len(block)
                self._write([memoryview(block).cast("B") for _, block in some])
        self._pending, self._pending_bytes = [], 0

    def _write(self, views: list[memoryview]) -> None:
        while views:
            written = os.writev(self._fd, views)
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def _open(self) -> None:
        folder = os.path.join(self._root, str(self._run))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._path = os.path.join(folder, f"{self.number}-{secrets.token_hex(8)}.part")
        self._fd = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self.on_open()

    def _finish(self, digest: bytes) -> np.ndarray:
        """Write the index, and give the file its name; returns the partitions that have rows."""
        import numpy as np

        offsets, lengths, partitions = map(np.array, zip(*self._entries, strict=True))
        order = np.argsort(partitions, kind="stable")
        entries = np.empty(len(order), ENTRY)
        entries["offset"], entries["length"] = offsets[order], lengths[order]
        # Places of each partition's entries: those of partition p begin at starts[p]
        starts = np.zeros(self._sections.partitions + 1, "<u4")
        np.cumsum(np.bincount(partitions, minlength=self._sections.partitions), out=starts[1:])
        footer = _FOOTER.pack(digest, self._size, self._sections.partitions, VERSION, MAGIC)
        with self._refusals():
            self._write([memoryview(entries.tobytes()), memoryview(starts.tobytes()), memoryview(footer)])
            os.rename(self._path, file_of(self._root, self._run, self.number, digest))
        os.close(self._fd)
        self._fd = -1
        return np.flatnonzero(np.diff(starts))

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"map task {self.number} cannot write its rows to {self._path or self._root} ({self._size} bytes are "
                f"there): {error.strerror}; give the disk room, or name another directory: "
                "spark.fastbuf.heldDirectory, or spark.local.dir"
            ) from error


def file_of(root: str, run: int, number: int, digest: bytes) -> str:
    """The file of a map task."""
    return os.path.join(root, str(run), f"{number}-{digest.hex()}")


def run_of_task(context: Any) -> int:
    """The number of the action that a task serves: Spark's of an execution; where it has none, below 0, of the stage.

    An adaptive plan runs a map stage in a job of its own, and what is lost of it in the next one, as another stage.
    """
    execution = context.getLocalProperty(EXECUTION)
    return int(execution) if execution else -1 - int(context.stageId())


def root_of(roots: list[str], exchange: str, number: int) -> str:
    """The directory of an exchange's files for map task ``number``: in one of several."""
    return os.path.join(roots[number % len(roots)], exchange)


def batches_of(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows in batches, of columns ``SECTION`` and ``DESCRIPTION``."""
    sections: list[int] = []
    values: list[bytes] = []
    size = 0
    for section, value in rows:
        sections.append(section)
        values.append(value)
        size += len(value)
        if size >= OUT_BYTES:
            yield _batch(sections, values)
            sections, values, size = [], [], 0
    if sections:
        yield _batch(sections, values)


def _batch(sections: list[int], values: list[bytes]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    # From buffers: pa.array would import pandas, which takes half a second of each new worker
    numbers = pa.Array.from_buffers(pa.int32(), len(sections), [None, pa.py_buffer(np.array(sections, np.int32))])
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    descriptions = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    return pa.RecordBatch.from_arrays([numbers, descriptions], names=[SECTION, DESCRIPTION])


class Description:
    """What one map task has for one section.

    Parameters
    ----------
    data
        What :class:`HeldFile` gave to Spark: a description, or a block of a section of one partition.

    Attributes
    ----------
    block
        The block; None: there is a file.
    with_rows
        How many of the section's partitions have rows.
    run, number, digest
        What names the file.

    Raises
    ------
    BlockCorrupt
        These bytes are no description that this version reads.
    """

    __slots__ = ("block", "digest", "number", "run", "section", "with_rows")

    def __init__(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self.block: memoryview | None = None
        self.section, self.with_rows, self.run, self.number, self.digest = 0, 0, 0, 0, b""
        if view[:4] == BLOCK_MAGIC:
            self.block = view
            return
        try:
            magic, version, *about = _DESCRIPTION.unpack(view)
        except struct.error as error:
            raise BlockCorrupt(f"a description of {view.nbytes} bytes: it has {_DESCRIPTION.size}") from error
        if magic != MAGIC or version != VERSION:
            raise BlockCorrupt(f"a description begins with {magic!r}, version {version}: this fastbuf reads {VERSION}")
        self.section, self.with_rows, self.run, self.number, self.digest = about


class Spoilt(Exception):
    """A file is not as it was written; the text goes on after its name."""


class WrittenFile:
    """The file of a map attempt, to be read.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def __enter__(self) -> WrittenFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def spans(self, partition: int, digest: bytes) -> tuple[list[int], list[int]]:
        """Offsets and lengths of the blocks of a partition.

        Raises
        ------
        Spoilt
            It is another file, or a part of one.
        """
        import numpy as np

        size = os.fstat(self.fd).st_size
        footer = self.read(max(0, size - _FOOTER.size), _FOOTER.size)
        written, index, partitions, version, magic = _FOOTER.unpack(footer)
        if (magic, version, written) != (MAGIC, VERSION, digest) or partition >= partitions:
            raise Spoilt("does not end as it was written")
        places = size - _FOOTER.size - 4 * (partitions + 1)
        start, stop = np.frombuffer(self.read(places + 4 * partition, 8), "<u4").tolist()
        if not start <= stop <= (places - index) // ENTRY_BYTES:
            raise Spoilt("has another index than it was written with")
        entries = np.frombuffer(self.read(index + start * ENTRY_BYTES, (stop - start) * ENTRY_BYTES), ENTRY)
        if (entries["offset"] > index).any() or (entries["length"] > index - entries["offset"]).any():
            raise Spoilt("has blocks behind its end")
        return entries["offset"].tolist(), entries["length"].tolist()

    def blocks(self, partition: int, digest: bytes) -> Iterator[memoryview]:
        """The blocks of a partition; raises :class:`Spoilt` as ``spans``."""
        offsets, lengths = self.spans(partition, digest)
        for at, after in neighbours(offsets, lengths, READ_BYTES):
            begin = offsets[at]
            data = memoryview(self.read(begin, offsets[after - 1] + lengths[after - 1] - begin))
            for i in range(at, after):
                yield data[offsets[i] - begin : offsets[i] - begin + lengths[i]]

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes; raises :class:`Spoilt` if they are not there."""
        data = os.pread(self.fd, length, offset)
        while len(data) < length:  # a signal, or the end
            more = os.pread(self.fd, length - len(data), offset + len(data))
            if not more:
                raise Spoilt(f"has {offset + len(data)} bytes: some are missing")
            data += more
        return data


def neighbours(offsets: list[int], lengths: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Blocks that stand together in the file, of about ``most`` bytes: from which one up to which one."""
    at = 0
    while at < len(offsets):
        after, end = at + 1, offsets[at] + lengths[at]
        while after < len(offsets) and offsets[after] == end and end - offsets[at] < most:
            end += lengths[after]
            after += 1
        yield at, after
        at = after


class HeldRowsLost(ResourceError):
    """The file of a map task cannot be read any more."""

    def __init__(self, where: str, run: int, number: int, why: str) -> None:
        self.run = run
        self.number = number
        super().__init__(
            f"the rows of map task {number} are lost: {where} {why}. Spark makes them anew where it can replace the "
            "executor that had them; if something cleans Spark's local directories while jobs run, have it leave those "
            f"named {FOLDER}, or set spark.fastbuf.heldDirectory"
        )
