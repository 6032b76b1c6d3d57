"""What a file system refuses to a write: the error names the reason, and what to change."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from fastbuf.errors import ResourceError
from fastbuf_spark.driver.commit import Commit
from fastbuf_spark.worker.writing import Write, refusals

LOCAL = fs.LocalFileSystem()
SCHEMA = pa.schema({"n": pa.int64()})


class Full:
    """The local file system, whose files take no bytes."""

    create_dir = staticmethod(LOCAL.create_dir)

    def open_output_stream(self, path: str) -> Any:
        return LOCAL.open_output_stream("/dev/full")


def test_a_value_too_long_for_a_directory(tmp_path: Path) -> None:
    write = Write(LOCAL, str(tmp_path), SCHEMA, (0,), (("name", 1),), "none", 1 << 20)
    with pytest.raises(ResourceError, match=r"partition_by: .*305 bytes, 'name=xxx.*255 at most.*shorten its values"):
        list(write([pa.record_batch({"n": [1], "name": ["x" * 300]})]))


def test_a_full_disk(tmp_path: Path) -> None:
    write = Write(Full(), str(tmp_path), SCHEMA, (0,), (), "none", 1 << 20)
    with pytest.raises(ResourceError, match=rf"no room .* {tmp_path}, where [0-9,]+ bytes are free.*No space left"):
        list(write([pa.record_batch({"n": [1]})]))


def test_a_directory_that_may_not_be_written() -> None:
    with (
        pytest.raises(ResourceError, match=r"this process may not write to /data/out: .*other/made"),
        refusals("/data/out"),
    ):
        raise PermissionError(13, "Permission denied", "/data/other/made")


def test_what_is_gone_is_no_refusal() -> None:
    """Another write has taken it away: the driver tells it."""
    with pytest.raises(FileNotFoundError), refusals("/data/out"):
        raise FileNotFoundError(2, "No such file or directory")


def test_a_function_that_fails_with_an_os_error_is_the_users(tmp_path: Path) -> None:
    def failing() -> Any:
        yield pa.record_batch({"n": [1]})
        raise PermissionError("the user's own")

    write = Write(LOCAL, str(tmp_path), SCHEMA, (0,), (), "none", 1 << 20)
    with pytest.raises(PermissionError, match="the user's own"):
        list(write(failing()))


@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_a_link_to_nothing(tmp_path: Path, mode: str) -> None:
    """Said before a task runs; it failed at the end, when all rows were written."""
    os.symlink(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ResourceError, match=r"out is a link to .*nowhere, which is not there"):
        Commit(LOCAL, str(tmp_path / "out"), mode)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_write_that_fails_amid_a_file_says_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of the file is let go: it writes nothing behind the end, also where the disk is full."""
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(str(unraisable.exc_value)))

    def failing() -> Any:
        yield pa.record_batch({"n": [1]})
        raise KeyError("the user's own")

    with pytest.raises(KeyError):
        list(Write(LOCAL, str(tmp_path), SCHEMA, (0,), (), "none", 0)(failing()))
    with pytest.raises(ResourceError, match="no room"):
        list(Write(Full(), str(tmp_path), SCHEMA, (0,), (), "none", 0)([pa.record_batch({"n": [1]})]))
    gc.collect()
    assert said == []
