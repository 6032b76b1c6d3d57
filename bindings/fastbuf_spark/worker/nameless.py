"""A file without a name, for data that does not fit into memory: it vanishes with its process in any case."""

from __future__ import annotations

import os
import tempfile

from fastbuf.checks import spill_directory
from fastbuf.errors import ResourceError


class NamelessFile:
    """Is appended to, and read at any offset; closed when nothing refers to it.

    Parameters
    ----------
    directory
        Its directory; empty: the one where Spark's Python workers spill.

    Raises
    ------
    ResourceError
        The directory does not exist, or has no space.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory or local_directory()
        self.nbytes = 0
        try:
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._refused(error) from error

    def append(self, data: bytes | memoryview) -> tuple[int, int]:
        """Append bytes; returns their offset and length."""
        view = memoryview(data)
        place = self.nbytes, len(view)
        self.nbytes += len(view)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise self._refused(error) from error
        return place

    def read(self, offset: int, length: int) -> bytearray:
        """Read bytes that were written."""
        data = bytearray(length)
        view = memoryview(data)
        while view:
            read = os.preadv(self._file.fileno(), [view], offset)
            if not read:
                raise ResourceError(f"a spilled run ends {len(view)} bytes early: was its file in use elsewhere?")
            view, offset = view[read:], offset + read
        return data

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def _refused(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"rows that do not fit into memory_bytes cannot be written to {self._directory} ({self.nbytes} bytes are "
            f"there already): {error}; set spark.fastbuf.spillDirectory to a directory with room, or raise "
            "spark.fastbuf.memoryBytes"
        )


def local_directory() -> str:
    """The directory where Spark's Python workers spill; else the one for temporary files."""
    for directory in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if directory and os.path.isdir(directory):
            return directory
    return spill_directory(None, "spark.fastbuf.spillDirectory")
