"""How a stream ends, and goes on: stop, drain, savepoints, restarts with other partitions, errors of all kinds."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numbered
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nights import nightly
from numbered import check, nothing_waits

import fastbuf_spark as fbs
from fastbuf.checkpoint.store import CheckpointError, CheckpointInUse, CheckpointStore
from fastbuf.errors import ConfigError, StallTimeout
from fastbuf_spark.streams.memory import MemorySink
from fastbuf_spark.streams.progress import progress_of
from fastbuf_spark.streams.query import StreamFailed

ROWS, RATE = 3000, 3000.0


def until(fits: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def seen(query: Any, state: str = "completed") -> int:
    """Checkpoints of the run that ended so."""
    return sum(each["state"] == state for each in query.progress().get("checkpoints", ()))


def test_other_partitions_and_a_savepoint(spark: Any, tmp_path: Path) -> None:
    """Stopped and started with 1, 2 and 1 tasks of state; a savepoint begins another stream, which ends the same.

    Two are 2 p, as many as there are slots for; ``test_more_partitions_than_twice_as_many`` has 2 p + 1.
    """
    sink = fbs.to_memory()
    for partitions in (1, 2):
        query = numbered.numbered(spark, ROWS, 100.0, partitions).write_stream(sink, tmp_path / "chk", every=0.2)
        until(lambda: seen(query) >= 2)  # noqa: B023
        if partitions == 2:
            query.savepoint(str(tmp_path / "saved"))
            seen_there = sink.table().num_rows
        query.stop()
        assert query.status["state"] == "stopped"
        assert query.exception() is None
    with pytest.raises(CheckpointError, match="the stream has ended, it is stopped"):
        query.savepoint(str(tmp_path / "late"))
    query = numbered.numbered(spark, ROWS, 0, 1).write_stream(sink, tmp_path / "chk", every=0.2)
    assert query.await_termination(60)
    check(sink.table(), ROWS)
    nothing_waits(tmp_path / "chk")
    other = fbs.to_memory()
    query = numbered.numbered(spark, ROWS, 0, 2).write_stream(
        other, tmp_path / "other", every=0.2, restore_from=str(tmp_path / "saved"), key_groups=64
    )
    assert query.await_termination(60)
    rest = other.table()
    assert rest.num_rows <= ROWS - seen_there + 1000
    done = sink.table()
    last = {
        v: (n, total) for v, n, total in zip(*(done.column(c).to_pylist() for c in ("v", "n", "total")), strict=True)
    }
    assert rest.num_rows
    for v, n, total in zip(*(rest.column(c).to_pylist() for c in ("v", "n", "total")), strict=True):
        assert last[v] == (n, total)


def test_more_partitions_than_twice_as_many(spark: Any, tmp_path: Path) -> None:
    """Stopped and started with 1, 3 and 1 tasks of state, which are those of the sink too."""
    sink = fbs.to_memory()
    for partitions, rate in ((1, 300.0), (3, 300.0), (1, 0)):
        stream = numbered.keyed_sums(spark, ROWS, rate, partitions)
        query = stream.write_stream(sink, tmp_path / "chk", every=0.1)
        if rate:
            until(lambda: seen(query) >= 3)  # noqa: B023
            query.stop()
        assert query.await_termination(60)
    check(sink.table(), ROWS)
    nothing_waits(tmp_path / "chk")


def test_a_driver_whose_job_another_takes_over_is_fenced(spark: Any, tmp_path: Path) -> None:
    """As where a lock does not hold, on a network's file system: the first ends, and completes no checkpoint more."""
    sink = fbs.to_memory()
    query = numbered.numbered(spark, None, RATE).write_stream(sink, tmp_path / "chk", every=0.1)  # type: ignore[arg-type]
    until(lambda: seen(query) >= 2)
    CheckpointStore(tmp_path / "chk").open_generation()
    with pytest.raises(StreamFailed, match="run 2 of the job"):
        query.await_termination(60)
    numbers = sorted(path.name for path in (tmp_path / "chk" / "checkpoints").iterdir())
    assert not query.is_active
    assert sorted(path.name for path in (tmp_path / "chk" / "checkpoints").iterdir()) == numbers


def test_progress_has_its_stages_before_the_first_run_begins(spark: Any, tmp_path: Path) -> None:
    query = numbered.numbered(spark, ROWS, RATE).write_stream(fbs.to_memory(), tmp_path / "chk")
    told = query.progress()  # mostly of no run yet
    query.stop()
    ended = query.progress()
    assert [stage["name"] for stage in told["stages"]] == [stage["name"] for stage in ended["stages"]]
    assert told["checkpoints"] == []
    before = progress_of(query, query._spec, None)
    assert [(stage["tasks"], stage["rows_in"]) for stage in before["stages"]] == [
        (stage["tasks"], 0) for stage in ended["stages"]
    ]
    assert set(before) == set(ended)


def test_a_stream_whose_spark_is_stopped_says_so(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = numbered.numbered(spark, None, RATE).write_stream(fbs.to_memory(), tmp_path / "chk", every=0.2)  # type: ignore[arg-type]
    until(lambda: seen(query) > 0)
    monkeypatch.setattr("fastbuf_spark.streams.query.is_stopped", lambda sc: True)
    spark.sparkContext.cancelAllJobs()  # as stop() does
    with pytest.raises(StreamFailed, match="Spark was stopped while the stream ran: call stop"):
        query.await_termination(60)
    assert query.status["restarts"] == 0
    assert "starts again" not in caplog.text


def test_a_drained_stream_has_all_rows_that_were_read(spark: Any, tmp_path: Path) -> None:
    sink = fbs.to_memory()
    query = numbered.numbered(spark, None, RATE).write_stream(sink, tmp_path / "chk", every=600)  # type: ignore[arg-type]
    until(lambda: query.progress().get("stages", [{}])[0].get("rows_in", 0) > 100)
    query.stop(drain=True)
    assert query.status["state"] == "stopped"
    assert sink.table().num_rows > 100
    check(sink.table(), sink.table().num_rows)


class Fails:
    """Raises at a value, so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = str(folder), times

    def __call__(self, batches: Any) -> Any:
        for batch in batches:
            if 500 in batch.column("v").to_pylist() and len(os.listdir(self.folder)) < self.times:
                Path(self.folder, str(time.time_ns())).touch()
                raise ValueError("the five hundredth is bad")
            yield batch


@pytest.mark.parametrize("times", [1, 100])
def test_an_error_of_a_function(spark: Any, tmp_path: Path, times: int) -> None:
    """Once: the stream goes on; again and again: it gives up, and says the function's own words first."""
    (tmp_path / "failed").mkdir()
    sink = fbs.to_memory()
    stream = numbered.numbered(spark, ROWS, 0).map_in_arrow(Fails(tmp_path / "failed", times), numbered.SCHEMA)
    query = stream.write_stream(sink, tmp_path / "chk", every=30)
    if times == 1:
        assert query.await_termination(60)
        assert query.status["restarts"] == 1
        check(sink.table(), ROWS)
        return
    with pytest.raises(StreamFailed, match=r"\AValueError: the five hundredth is bad"):
        query.await_termination(60)
    assert query.status["state"] == "failed"
    assert len(os.listdir(tmp_path / "failed")) == 3
    assert isinstance(query.exception(), StreamFailed)


class OnTheDriver:
    """A function whose class is not to be had in the workers."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __call__(self, batches: Any) -> Any:
        return batches

    def __reduce__(self) -> Any:
        return (eval, (self.error,))


@pytest.mark.parametrize(
    ("raising", "words"),
    [
        ("__import__('of_the_driver_alone')", "ModuleNotFoundError: No module named 'of_the_driver_alone'"),
        ("{}['a\\tb\\nat c']", "KeyError: "),
        ("1 // 0", "ZeroDivisionError: "),
    ],
)
def test_a_function_that_cannot_be_loaded(spark: Any, tmp_path: Path, raising: str, words: str) -> None:
    """The tasks fail before they can say so: Spark says it, and the stream ends as by any error of theirs."""
    stream = numbered.numbered(spark, ROWS, 0).map_in_arrow(OnTheDriver(raising), numbered.SCHEMA)
    query = stream.write_stream(fbs.to_memory(), tmp_path / "chk")
    with pytest.raises(StreamFailed) as failed:
        query.await_termination(60)
    assert str(failed.value).startswith(words), str(failed.value)
    assert "Traceback" in str(failed.value)
    assert query.status["restarts"] == 2


def closed(table: Any, batch: int) -> None:
    raise OSError(f"closed {chr(97 + time.time_ns() % 26)}{chr(97 + time.time_ns() // 26 % 26)}")


class Always:
    """Raises at any row, each time in other words."""

    def __call__(self, batches: Any) -> Any:
        for _ in batches:
            raise ValueError(f"bad {chr(97 + time.time_ns() % 26)}{chr(97 + time.time_ns() // 26 % 26)}")
        raise ValueError(f"no {chr(97 + time.time_ns() % 26)}{chr(97 + time.time_ns() // 26 % 26)}")
        yield


@nightly(failing="sink")
@pytest.mark.parametrize("failing", ["function", "sink"])
def test_a_stream_that_fails_always_is_drained(spark: Any, tmp_path: Path, failing: str) -> None:
    """It ends by its error, though the words of that are other ones each time."""
    stream = fbs.stream_rate(spark, 1000.0, tasks=1)
    if failing == "function":
        stream = stream.map_in_arrow(Always(), "timestamp timestamp, value long")
    sink: Any = fbs.to_memory() if failing == "function" else fbs.to_function(closed)
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1)
    until(lambda: query.status["restarts"] or seen(query))
    with pytest.raises(StreamFailed, match="bad|no " if failing == "function" else "could not be committed in 6 tries"):
        query.stop(drain=True)
    assert query.status["state"] == "failed"
    assert query.status["restarts"] < 6


def test_a_stream_that_is_drained_in_no_time(spark: Any, tmp_path: Path) -> None:
    """Who drains it hears that it has not ended yet."""
    (tmp_path / "slow").mkdir()

    def slow(batches: Any) -> Any:
        for batch in batches:
            while (tmp_path / "slow").exists():
                time.sleep(0.01)
            yield batch

    stream = fbs.stream_rate(spark, 1000.0, tasks=1).map_in_arrow(slow, "timestamp timestamp, value long")
    query = stream.write_stream(fbs.to_memory(), tmp_path / "chk", every=0.1)
    until(lambda: query.progress().get("stages", [{}])[0].get("rows_in", 0) > 0)
    with pytest.raises(StallTimeout, match=r"has not ended within 0\.1 s: it is draining; wait with await_termination"):
        query.stop(drain=True, timeout=0.1)
    (tmp_path / "slow").rmdir()
    assert query.await_termination(60)
    assert query.status["state"] == "stopped"


class HurtSink(MemorySink):
    """Memory that fails so many times, in whatever process; files in a folder count."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __reduce__(self) -> Any:
        return type(self), (self.folder,)

    def fail(self, times: int, error: OSError) -> None:
        failed = len(list(self.folder.glob("failed-*")))
        if failed < times:
            (self.folder / f"failed-{failed}").touch()
            raise error


class FlakySink(HurtSink):
    """Its commit fails three times, and its process dies at the first commit of a last checkpoint."""

    def writer(self, context: Any) -> Any:
        made = super().writer(context)
        real, killed = made.commit, self.folder / "killed"

        def commit(checkpoint: int, committables: Any) -> None:
            self.fail(3, OSError("the place is closed"))
            if committables and committables[-1]["rows"] and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), 9)
            real(checkpoint, committables)

        made.commit = commit  # type: ignore[method-assign]
        return made


def test_a_commit_that_fails_and_a_task_that_dies_before_the_last_one(spark: Any, tmp_path: Path) -> None:
    """The only checkpoint is the last one: it is complete, and its rows are not committed by who prepared them."""
    sink = FlakySink(tmp_path)
    query = numbered.numbered(spark, ROWS, 0).write_stream(sink, tmp_path / "chk", every=600)
    assert query.await_termination(120)
    assert (tmp_path / "killed").exists()
    assert query.status == {"state": "finished", "message": "", "restarts": 1}
    check(sink.table(), ROWS)


class FullDisk(HurtSink):
    """Four tasks cannot prepare rows, as on a disk that is full for a while."""

    def writer(self, context: Any) -> Any:
        made = super().writer(context)
        real = made.prepare

        def prepare(checkpoint: int) -> Any:
            self.fail(4, OSError(28, "No space left on device"))
            return real(checkpoint)

        made.prepare = prepare  # type: ignore[method-assign]
        return made


def test_a_disk_that_is_full_for_a_while_is_not_the_functions_error(spark: Any, tmp_path: Path) -> None:
    """The same error for the third time ended the query, within a second."""
    sink = FullDisk(tmp_path)
    query = numbered.numbered(spark, ROWS, 0).write_stream(sink, tmp_path / "chk", every=0.2)
    assert query.await_termination(120)
    assert query.status == {"state": "finished", "message": "", "restarts": 4}
    check(sink.table(), ROWS)


class StateDiskFull(numbered.Running):
    """Its worker cannot write its first two files of state."""

    def init(self, handle: Any) -> None:
        from pyspark import TaskContext

        super().init(handle)
        if TaskContext.get() is None:
            return  # the driver, where init is tried first
        from fastbuf.checkpoint.store import StateFile

        real, failures = StateFile.close, [2]

        def close(file: Any) -> int:
            if not failures[0]:
                StateFile.close = real  # type: ignore[method-assign]
                return real(file)
            failures[0] -= 1
            raise OSError(28, "No space left on device")

        StateFile.close = close  # type: ignore[method-assign]


def test_a_full_disk_at_a_file_of_state(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task declines two checkpoints, which is tolerated; nothing of them is left."""
    monkeypatch.setattr(numbered, "Running", StateDiskFull)
    sink = fbs.to_memory()
    query = numbered.numbered(spark, ROWS, RATE).write_stream(sink, tmp_path / "chk", every=0.2)
    assert query.await_termination(60)
    assert query.status["restarts"] == 0
    assert seen(query, "failed") == 2
    reasons = [each["reason"] for each in query.progress()["checkpoints"] if each["reason"]]
    assert "its state cannot be written: OSError: [Errno 28] No space left" in reasons[0]
    check(sink.table(), ROWS)
    nothing_waits(tmp_path / "chk")


def test_two_queries_on_one_checkpoint(spark: Any, tmp_path: Path) -> None:
    stream = numbered.numbered(spark, None, 10.0)  # type: ignore[arg-type]
    query = stream.write_stream(fbs.to_memory(), tmp_path / "chk", every=5)
    assert query._spec.conf.stall_timeout == 5 * 600  # back pressure is no stall before its checkpoints have failed
    with pytest.raises(CheckpointInUse, match=rf"in use by process {os.getpid()} on "):
        stream.write_stream(fbs.to_memory(), tmp_path / "chk", every=5)
    query.stop()
    assert query.await_termination(1)


def test_a_full_disk_at_the_metadata(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checkpoints fail, which is tolerated; then there is room again."""
    from fastbuf.checkpoint.store import CheckpointStore

    real, failures = CheckpointStore.write, [2]

    def write(store: Any, checkpoint: int, metadata: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(28, "No space left on device")
        real(store, checkpoint, metadata)

    monkeypatch.setattr(CheckpointStore, "write", write)
    sink = fbs.to_memory()
    query = numbered.numbered(spark, ROWS, RATE).write_stream(sink, tmp_path / "chk", every=0.2)
    assert query.await_termination(60)
    assert query.status["restarts"] == 0
    assert seen(query, "failed") == 2
    assert "No space" in next(each["reason"] for each in query.progress()["checkpoints"] if each["reason"])
    check(sink.table(), ROWS)
    nothing_waits(tmp_path / "chk")


def test_a_state_file_with_a_flipped_byte(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows come again from the older checkpoint, which is said; state is right all the same."""
    sink = fbs.to_memory()
    query = numbered.numbered(spark, ROWS, RATE).write_stream(sink, tmp_path / "chk", every=0.2)
    until(lambda: seen(query) >= 3)
    query.stop()
    newest = max(
        (tmp_path / "state").parent.joinpath("chk", "state").iterdir(), key=lambda p: int(p.name.split("-")[0])
    )
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    again = fbs.to_memory()
    query = numbered.numbered(spark, ROWS, 0).write_stream(again, tmp_path / "chk", every=0.2)
    assert query.await_termination(60)
    assert "cannot be restored, and rows that it committed will come again" in caplog.text
    values = set(sink.table().column("v").to_pylist()) | set(again.table().column("v").to_pylist())
    assert values == set(range(ROWS))
    first = pc.min(again.table()["v"])
    check(pa.concat_tables([sink.table().filter(pc.less(sink.table()["v"], first)), again.table()]), ROWS)


def test_what_is_refused(spark: Any, tmp_path: Path) -> None:
    class Once:
        replayable = False

        def splits(self) -> list[str]:
            return ["a"]

        def read(self, split: str, offset: Any) -> Any:
            yield None, offset

    stream = fbs.stream(spark, Once(), "v long")
    with pytest.raises(ConfigError, match="source Once cannot be read again, so exactly once cannot be"):
        stream.write_stream(fbs.to_memory(), tmp_path / "chk")
    for name, value in (("tolerated_failures", -1), ("timeout", 0)):
        setting: dict[str, Any] = {name: value}
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            numbered.numbered(spark, 1, 1).write_stream(fbs.to_memory(), tmp_path / "chk", **setting)
    with pytest.raises(ConfigError, match="give the path of a directory that driver and all tasks have mounted"):
        numbered.numbered(spark, 1, 1).write_stream(fbs.to_memory(), "s3://bucket/chk")
    for sink, like in (("/tmp/x", "'/tmp/x'"), (None, "None"), (fbs.to_memory, "<function"), (tmp_path, "PosixPath")):
        with pytest.raises(ConfigError, match=rf"sink is {like}.*: give a sink, as fbs\.to_parquet\(path\)"):
            numbered.numbered(spark, 1, 1).write_stream(sink, tmp_path / "chk")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "chk"):
        with pytest.raises(
            ConfigError, match=rf"checkpoint is '{path}': give a directory, and {tmp_path}/file is a file"
        ):
            numbered.numbered(spark, 1, 1).write_stream(fbs.to_memory(), path)
    with pytest.raises(ConfigError, match=r"path is .*: give a directory, and .*file is a file"):
        fbs.to_parquet(tmp_path / "file")
    for other in (spark.range(3), fbs.pipeline(spark.range(3)), None):
        with pytest.raises(ConfigError, match=rf"union takes another stream, not a {type(other).__name__}"):
            numbered.numbered(spark, 1, 1).union(other)  # type: ignore[arg-type]


def test_a_spark_without_converters_to_pandas_is_told_where_the_function_is_given(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark 4.1 such a stream started, and failed three times."""
    monkeypatch.setattr("fastbuf_spark.api.functions.no_converters", lambda: "this Spark has no converters")
    stream = fbs.stream_rate(spark, 1.0, rows=1)
    windows = stream.with_watermark("timestamp", "1 second").group_by("value", partitions=1).window("1 s")
    keys, running = stream.group_by("value", partitions=1), numbered.Running()
    wanted: tuple[Callable[[], Any], ...] = (
        lambda: stream.map_in_pandas(lambda frames: frames, "v long"),
        lambda: keys.transform_with_state(running, numbered.SCHEMA),
        lambda: windows.apply_in_pandas(lambda key, window, frame: frame, "v long"),
    )
    for make in wanted:
        with pytest.raises(ConfigError, match="functions of pandas cannot run: this Spark has no converters; give one"):
            make()
    keys.transform_with_state(running, numbered.SCHEMA, arrow=True)


def test_checkpoints_that_are_gone_for_long_end_the_stream(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the error says so: a directory that is mounted may come back, one that was deleted does not."""
    monkeypatch.setattr("fastbuf_spark.streams.query.GONE_S", 0.3)
    query = numbered.numbered(spark, 10**9, 1000.0, 1).write_stream(fbs.to_memory(), tmp_path / "chk", every=0.2)
    until(lambda: seen(query) >= 2)
    shutil.rmtree(tmp_path / "chk")
    with pytest.raises(StreamFailed, match=r"the checkpoints in .*chk are gone"):
        query.await_termination(60)
