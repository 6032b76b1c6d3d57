"""What a checkpoint or a savepoint says of the rows of its sinks, and where the rows of a next start go."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from test_streams_ends import seen, until
from test_streams_functions import LONGS, Lists

import fastbuf_spark as fbs
from fastbuf.checkpoint.store import CheckpointError


def test_a_savepoint_is_taken_when_its_rows_are_committed(spark: Any, tmp_path: Path) -> None:
    """It was answered when it was written; `stop` came before the sink's turn, and no stream ever wrote those rows."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()

    def into(folder: Path, wait: float) -> Any:
        def write(rows: Any, batch: int) -> None:
            time.sleep(wait)
            (folder / str(batch)).write_text(json.dumps(rows["v"].to_pylist()))

        return fbs.to_function(write)

    def rows(folder: Path) -> list[int]:
        return [value for path in folder.iterdir() for value in json.loads(path.read_text())]

    stream = fbs.stream(spark, Lists(1, 1000, 0.05), LONGS, tasks=1)
    query = stream.write_stream(into(first, 1.0), tmp_path / "chk", every=30)
    until(lambda: query.progress()["stages"][0]["rows_in"] >= 10)
    query.savepoint(tmp_path / "savepoint")
    query.stop()
    again = stream.write_stream(into(second, 0.0), tmp_path / "other", every=0.2, restore_from=tmp_path / "savepoint")
    assert again.await_termination(60)
    assert sorted(rows(first) + rows(second)) == list(range(1000))
    assert len(rows(first)) >= 10


def test_checkpoints_whose_rows_wait_are_no_savepoint(spark: Any, tmp_path: Path) -> None:
    """They were taken for one, and their last rows were lost."""

    def never(rows: Any, batch: int) -> None:
        raise ConnectionError("it is away")

    stream = fbs.stream(spark, Lists(1, 200, 0.1), LONGS, tasks=1)
    query = stream.write_stream(fbs.to_function(never), tmp_path / "chk", every=0.2)
    until(lambda: seen(query) >= 1 and query.progress()["stages"][0]["rows_in"] >= 1)
    query.stop()
    with pytest.raises(CheckpointError, match=r"rows of checkpoint \d+ in .*chk wait for their sink, and only the str"):
        stream.write_stream(fbs.to_memory(), tmp_path / "other", restore_from=tmp_path / "chk")


def test_a_bounded_stream_each_day_into_a_directory_of_its_own(spark: Any, tmp_path: Path) -> None:
    """The second day never started: the first one's rows, all in their place, were taken to be at risk."""
    folder = tmp_path / "in"
    folder.mkdir()
    for day in range(3):
        (folder / f"{day}.json").write_text(f'{{"v": {day}}}\n')
        stream = fbs.stream_files(spark, str(folder), "json", "v long", tasks=1, bounded=True)
        query = stream.write_stream(fbs.to_parquet(tmp_path / f"day={day}"), tmp_path / "chk", every=30)
        assert query.await_termination(60)
    rows = [row["v"] for day in range(3) for row in pq.read_table(tmp_path / f"day={day}").to_pylist()]
    assert rows == [0, 1, 2]
