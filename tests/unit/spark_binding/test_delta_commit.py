"""Commits to Delta tables: by drivers that are killed at every step, and behind another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from killed_steps import lines_of

deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
pytest.importorskip("pyspark", reason="pip install 'fastbuf[spark]'")

from pyspark.sql.types import LongType, StructType  # noqa: E402

from fastbuf_spark.driver import delta, delta_commit  # noqa: E402


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("append", [1, 2], [1, 2, 3]),
        pytest.param("overwrite", [1, 2], [3], marks=pytest.mark.nightly),
        pytest.param("create", [], [3], marks=pytest.mark.nightly),
    ],
)
def test_a_write_that_is_killed(tmp_path: Path, mode: str, old: list[int], new: list[int]) -> None:
    """Is seen whole or not at all; the next one is as ever, and takes away what no version has."""
    seen = lines_of("delta_killed.py", str(tmp_path), mode)
    assert [later for _, later, _ in seen] == [[*rows, 4] for rows, _, _ in seen]
    assert [remains for _, _, remains in seen] == [[]] * len(seen)
    first = [rows for rows, _, _ in seen].index(new)
    assert [rows for rows, _, _ in seen] == [old] * first + [new] * (len(seen) - first)
    assert first >= 9, "before and behind the directories, the note, the files, and before the log"
    assert len(seen) - first >= 4, "behind the log, before and behind the note's end, and not at all"


def test_a_commit_that_is_tried_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another write makes the table between the look at it and the commit."""
    path = str(tmp_path)
    commit = delta_commit.DeltaCommit(path, None, StructType().add("x", LongType()), [])
    looks = iter([lambda: deltalake.write_deltalake(path, pa.table({"x": [1]}))])
    look = delta_commit.existing

    def behind(uri: str, options: None) -> Any:
        there = look(uri, options)
        next(looks, lambda: None)()
        return there

    monkeypatch.setattr(delta_commit, "existing", behind)
    caplog.set_level("INFO", "fastbuf_spark")
    commit.append([])
    assert deltalake.DeltaTable(path).version() == 1
    assert [record.getMessage() for record in caplog.records] == [f"{path}: another write came first: commit 2 of 3"]


def test_a_look_at_a_table_whose_answer_is_cut_off() -> None:
    """Is tried some times; another error is none to try again."""
    answers = iter([OSError("x: error reading a body from connection")] * 3 + ["there"])

    def look() -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert delta.again("t", look) == "there"
    for words, left in (("error reading a body", 1), ("access denied", 4)):
        errors = iter([OSError(words)] * 5)

        def fails(errors: Any = errors) -> None:
            raise next(errors)

        with pytest.raises(OSError, match=words):
            delta.again("t", fails)
        assert len(list(errors)) == left
