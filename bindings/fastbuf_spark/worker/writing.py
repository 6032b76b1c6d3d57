"""A task that writes its rows to files of its own, and returns their names."""

from __future__ import annotations

import datetime
import errno
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from fastbuf.errors import ResourceError
from fastbuf_spark.formats.base import Format
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.java_text import java_float
from fastbuf_spark.schema import cast
from fastbuf_spark.worker import serving
from fastbuf_spark.worker.order import codes, sorting, starts
from fastbuf_spark.worker.signs import GivesSigns, Signs
from fastbuf_spark.worker.stores import cause_of, client_words, same_system

if TYPE_CHECKING:
    import pyarrow as pa

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: Characters that Spark writes as %XX in names of directories.
_ESCAPED = frozenset([chr(i) for i in range(1, 32)] + list("\x7f\"#%'*/:=?\\{[]^"))
MOST_OPEN = 64  #: open files of a task; beyond this the least recently written one is closed
REPORT = "attempt string, path string, rows long, bytes long, details string"


@dataclass(frozen=True)
class Limits:
    """Most rows of a row group, its most bytes as held in memory before it is written, most rows of a file (0: any)."""

    group_rows: int = 1 << 20
    group_bytes: int = 64 << 20
    file_rows: int = 0


@dataclass(frozen=True)
class Write(GivesSigns):
    """Writes record batches below ``folder``, which readers ignore, and yields one row per file.

    Each attempt of a task has a directory of its own; the driver decides which attempts count.

    Attributes
    ----------
    schema
        Schema of the files: the columns at ``columns``.
    by
        Names and positions of the columns used for directories' names.
    memory_bytes
        Memory for rows that wait to be written.
    mark
        An object of a store that is there as long as the run: no directories are made.  Empty: ``folder`` is there.
    format
        Of the files.
    """

    system: Any
    folder: str
    schema: pa.Schema
    columns: tuple[int, ...]
    by: tuple[tuple[str, int], ...]
    compression: str
    memory_bytes: int
    limits: Limits = Limits()
    mark: str = ""
    format: Format = Parquet()  # noqa: RUF009

    #: What else pyarrow's writer is told
    options: ClassVar[Mapping[str, Any]] = {}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        names = ("attempt", "path", "rows", "bytes", "details")
        types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.string())
        signs = Signs(pa.schema(list(zip(names, types, strict=True))))
        attempt = Attempt(replace(self, system=same_system(self.system)))
        try:
            for batch in batches:
                for folder, part in self._parts(batch):
                    attempt.add(folder, part)
                yield from signs.due()
            written = attempt.close()
        except BaseException:
            attempt.abandon()
            raise
        columns = zip(*written, strict=True) if written else ((),) * len(names)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))

    def details(self, footer: Any) -> str:
        """What else is reported of a file, by what its writer tells of it."""
        return ""

    def _keys(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """What tells the rows of one directory from those of another, for each of ``by``."""
        return [batch.column(at) for _, at in self.by]

    def _folder(self, values: list[tuple[str, Any]]) -> str:
        return folder_of(values)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows for each directory, with the columns that are data in files."""
        import numpy as np
        import pyarrow as pa

        columns = [
            batch.column(at) if batch.column(at).type == field.type else cast(batch.column(at), field.type)
            for at, field in zip(self.columns, self.schema, strict=True)
        ]
        data = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if not self.by:
            yield "", data
            return
        keys = self._keys(batch)
        # The two zeros are equal, and name two directories
        signs = [_is_minus_zero(key) for key in keys if pa.types.is_floating(key.type)]
        numbers, bound = codes([*keys, *signs], batch.num_rows)
        order = sorting(numbers, bound)
        if order is None:
            order = np.arange(batch.num_rows)
        for start, stop in pairwise([*starts(numbers[order]), batch.num_rows]):
            rows = order[start:stop]
            values = [(name, _value(column[int(rows[0])])) for (name, _), column in zip(self.by, keys, strict=True)]
            yield self._folder(values), data if len(rows) == batch.num_rows else data.take(pa.array(rows))


def folder_of(values: Iterable[tuple[str, Any]]) -> str:
    """The directory for some values, named as in Spark; ends with a slash unless it is empty."""
    return "".join(f"{_escaped(name)}={_text(value)}/" for name, value in values)


def _is_minus_zero(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.view(pa.int32() if column.type == pa.float32() else pa.int64())
    return pc.equal(whole, -1 << (whole.type.bit_width - 1))


def _value(scalar: pa.Scalar) -> Any:
    """A value in Python; days and times of years that Python does not have are NumPy's, and so are floats."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if scalar.is_valid and pa.types.is_floating(scalar.type):
        return scalar.type.to_pandas_dtype()(scalar.as_py())
    try:
        return scalar.as_py()
    except OverflowError:
        if pa.types.is_date32(scalar.type):
            return np.datetime64(scalar.value, "D")
        return np.datetime64((scalar if scalar.type.tz is None else pc.local_timestamp(scalar)).value, "us")


def _text(value: Any) -> str:
    if type(value).__name__ == "datetime64":
        year, rest = re.findall(r"(-?\d+)(.*)", str(value).replace("T", " "))[0]
        text = f"{'+' if int(year) > 9999 else ''}{int(year):0{4 + (int(year) < 0)}d}{rest}"
        return _escaped(text.rstrip("0").rstrip(".") if "." in text else text)
    if value is None or value == "":
        return NO_VALUE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return _escaped(text.rstrip("0") if value.microsecond else text)
    if isinstance(value, Decimal):
        return format(value, "f")  # without an exponent, as Spark
    if type(value).__name__ in ("float32", "float64"):
        return java_float(value)
    return _escaped(str(value))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


class Attempt:
    """The files of one attempt of a task."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._name = secrets.token_hex(8)
        self._number = serving.partition()
        self._files: dict[str, _File] = {}
        self._count = 0
        self._nbytes = 0
        self._done: list[tuple[str, str, int, int, str]] = []

    def add(self, folder: str, part: pa.RecordBatch) -> None:
        """Add rows; if too many are held, write those of the directory with the most."""
        most = self._write.limits.file_rows
        while most and part.num_rows > (room := most - self._rows_in(folder)):
            if room:
                self._hold(folder, part.slice(0, room))
            self._close(folder)
            part = part.slice(room)
        self._hold(folder, part)

    def _rows_in(self, folder: str) -> int:
        file = self._files.get(folder)
        return 0 if file is None else file.all_rows

    def _hold(self, folder: str, part: pa.RecordBatch) -> None:
        limits = self._write.limits
        file = self._files.get(folder)
        if file is None:
            file = self._files[folder] = self._open(folder)
        self._nbytes += file.hold(part)
        if file.nbytes >= limits.group_bytes or file.rows >= limits.group_rows:
            self._flush(file)
        while self._nbytes > self._write.memory_bytes:
            self._flush(max(self._files.values(), key=lambda each: each.nbytes))

    def close(self) -> list[tuple[str, str, int, int, str]]:
        """Write the remaining rows; returns all files: attempt, path below it, rows, bytes, what is told."""
        for folder in list(self._files):
            self._close(folder)
        return self._done

    def abandon(self) -> None:
        """Close the files; the driver removes them."""
        for file in self._files.values():
            file.abandon()

    def _open(self, folder: str) -> _File:
        self._count += 1
        kind = f"{self._write.compression}.{self._write.format.suffix}"
        name = f"part-{self._number:05d}-{self._name}-c{self._count:03d}.{kind}"
        return _File(self._write, self._name, folder, name)

    def _flush(self, file: _File) -> None:
        opened = [each.folder for each in self._files.values() if each.is_open]
        if len(opened) >= MOST_OPEN and not file.is_open:
            self._close(opened[0])
        self._nbytes -= file.flush()
        # Move it to the end of the dict: the first of the open ones is the least recently written one
        self._files[file.folder] = self._files.pop(file.folder)

    def _close(self, folder: str) -> None:
        file = self._files[folder]
        self._nbytes -= file.flush()
        self._done.append(file.close())
        del self._files[folder]


class _File:
    """A file, opened when its first rows are written."""

    def __init__(self, write: Write, attempt: str, folder: str, name: str) -> None:
        self._write = write
        self._attempt = attempt
        self.folder = folder
        self._path = folder + name
        self._buffers: list[pa.Buffer] = []
        self.rows = self.nbytes = self._written = 0
        self._writer: Any = None
        self._sink: Any = None

    @property
    def all_rows(self) -> int:
        return self._written + self.rows

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def hold(self, part: pa.RecordBatch) -> int:
        # A copy: its rows may be few of a large batch, or in memory that a function goes on writing to
        copied = part.serialize()
        used = int(copied.size)
        self._buffers.append(copied)
        self.rows += part.num_rows
        self.nbytes += used
        return used

    def flush(self) -> int:
        """Write the held rows as a group; returns their bytes."""
        if not self._buffers:
            return 0
        with refusals(self._write.folder, self.folder):
            self._flush()
        used = self.nbytes
        self._written += self.rows
        self._buffers, self.rows, self.nbytes = [], 0, 0
        return used

    def _flush(self) -> None:
        import pyarrow as pa

        write = self._write
        if self._writer is None:
            self._make_folder()
            self._sink = write.system.open_output_stream(f"{write.folder}/{self._attempt}/{self._path}")
            self._writer = write.format.writer(self._sink, write.schema, write.compression, **write.options)
        batches = [pa.ipc.read_record_batch(copied, write.schema) for copied in self._buffers]
        self._writer.write(pa.Table.from_batches(batches), write.limits.group_rows)

    def _make_folder(self) -> None:
        """Make the file's directory, unless the run is over: then what was written has been removed for good."""
        from pyarrow import fs

        system, mark = self._write.system, self._write.mark
        if mark and system.get_file_info(mark).type == fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, "the run is over", mark)
        below = self._write.folder
        for name in () if mark else (self._attempt, *self.folder.split("/")[:-1]):
            below += f"/{name}"
            system.create_dir(below, recursive=False)

    def close(self) -> tuple[str, str, int, int, str]:
        with refusals(self._write.folder, self.folder):
            footer = self._writer.close()
            size = int(self._sink.tell())
            self._sink.close()
        return self._attempt, self._path, self.all_rows, size, self._write.details(footer)

    def abandon(self) -> None:
        self._buffers = []
        if self._writer is not None:
            self._writer.abandon()
        if self._sink is not None:
            self._sink.close()


@contextmanager
def refusals(path: str, named: str = "") -> Iterator[None]:
    """What a file system refuses is told with what to change.

    But not what is missing: then another write has taken it away, and the driver says so.

    Parameters
    ----------
    path
        Where the files are written.
    named
        Directories that are named after values.
    """
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ResourceError(f"{_advice(error, path, named)}: {client_words(error)}") from cause_of(error)
    except pa.ArrowException as error:
        if type(error) is not pa.ArrowException:  # of the rows; a store's client has no kind of its own
            raise
        raise ResourceError(f"cannot write to {path}: {client_words(error)}") from error


def _advice(error: OSError, path: str, named: str) -> str:
    if error.errno == errno.ENAMETOOLONG and named:
        name = max(named.split("/"), key=len)
        return (
            f"partition_by: a value would name a directory of {len(name.encode()):,} bytes, {name!r:.60}..., and file "
            "systems take 255 at most. Leave this column out of partition_by, or shorten its values"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            room = f", where {shutil.disk_usage(path).free:,} bytes are free"
        except OSError:  # a path of another file system than the local one
            room = ""
        return (
            f"no room for the files of this write in {path}{room}. They need their room beside what is there until "
            "all are written: free some, or write to a path on another disk"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"this process may not write to {path}: change who may, or give another path"
    return f"cannot write to {path}"
