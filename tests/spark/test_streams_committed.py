"""What a checkpoint or a savepoint says of the rows of its sinks, and where the rows of a next start go."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nights import nightly
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
            time.sleep(wait)  # a sink that takes its time
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


def delta_rows(path: Path) -> list[int]:
    import deltalake

    return sorted(deltalake.DeltaTable(str(path)).to_pyarrow_table()["v"].to_pylist())


class Moments:
    """Rows one by one, of which each second one comes too late."""

    bounded = True
    seconds = (100, 5, 300, 200, 400, 45, 600, 500)

    def splits(self) -> list[str]:
        return ["only"]

    def read(self, split: str, offset: Any) -> Any:
        for place in range(offset or 0, len(self.seconds)):
            time.sleep(0.2)  # watermarks are sent some times in a second
            at = pa.array([self.seconds[place]], pa.timestamp("s")).cast(pa.timestamp("us", "UTC"))
            yield pa.record_batch({"at": at, "v": [self.seconds[place]]}), place + 1


@nightly(but_one="keys")
@pytest.mark.parametrize("keys", [(), ("v",)], ids=["append", "upsert"])
def test_results_and_late_rows_in_one_delta_table(spark: Any, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Both outputs of a task had the same transactions: of two at one checkpoint one was taken to be made."""
    out = tmp_path / "out"
    stream = fbs.stream(spark, Moments(), "at timestamp, v long", tasks=1)
    keyed = stream.with_watermark("at", 0).group_by("v", partitions=1)
    windows = keyed.window("1 second", late=fbs.to_delta(out, keys=keys))
    results = windows.apply_in_arrow(lambda key, window, table: table, "at timestamp, v long")
    query = results.write_stream(fbs.to_delta(out, keys=keys), tmp_path / "chk", every=30)
    assert query.await_termination(60)
    assert query.progress()["stages"][1]["late_rows"] == 4
    assert delta_rows(out) == sorted(Moments.seconds)


@nightly(but_one="keys")
@pytest.mark.parametrize("keys", [(), ("v",)], ids=["append", "upsert"])
def test_an_older_copy_of_the_checkpoints_is_put_back(spark: Any, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Numbers of runs and checkpoints came again, and with them Delta's transactions: new rows were passed over."""
    folder, chk, out = tmp_path / "in", tmp_path / "chk", tmp_path / "out"
    folder.mkdir()

    def run(*values: int) -> None:
        for value in values:
            (tmp_path / "new").write_text(f'{{"v": {value}}}\n')
            (tmp_path / "new").rename(folder / f"{value}.json")
        stream = fbs.stream_files(spark, str(folder), "json", "v long", tasks=1, bounded=True)
        assert stream.write_stream(fbs.to_delta(out, keys=keys), chk, every=30).await_termination(60)

    run(1)
    shutil.copytree(chk, tmp_path / "copy")
    run(2)
    shutil.rmtree(chk)
    shutil.copytree(tmp_path / "copy", chk)
    run(3)
    rows = delta_rows(out)
    assert set(rows) == {1, 2, 3}  # 2 is read again: the copy does not know of it
    assert not keys or len(rows) == 3


def test_a_relative_path_is_that_of_the_driver(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers made directories in their own, and the query said that it had finished."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"v": 1}\n')
    monkeypatch.chdir(tmp_path)
    for name, sink in (("parquet", fbs.to_parquet("parquet")), ("delta", fbs.to_delta("delta"))):
        stream = fbs.stream_files(spark, "in", "json", "v long", tasks=1, bounded=True)
        assert stream.write_stream(sink, f"chk-{name}", every=30).await_termination(60)
    assert pq.read_table(tmp_path / "parquet").to_pydict() == {"v": [1]}
    assert delta_rows(tmp_path / "delta") == [1]
