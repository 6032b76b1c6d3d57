"""Files that tasks have written become visible in one step, whatever is killed in between."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.driver import commit, unfinished
from fastbuf_spark.driver.commit import Commit
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.worker.writing import Write, folder_of

LOCAL = fs.LocalFileSystem()


def written(made: Commit, values: list[int], attempt: str = "a") -> list[tuple[str, str, int]]:
    """A file for each value, in a directory of its own, as a task writes them."""
    reports = []
    for value in values:
        path = Path(made.folder, attempt, f"k={value % 2}", f"{value}-{attempt}.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": [value]}), path)
        reports.append((attempt, f"k={value % 2}/{path.name}", path.stat().st_size))
    return reports


def seen(path: Path) -> list[int]:
    """What a reader sees; it passes over what is hidden."""
    if not path.exists():
        return []
    return sorted(ds.dataset(path, partitioning="hive").to_table(columns=["n"])["n"].to_pylist())


def save(path: Path, mode: str, values: list[int]) -> None:
    made = Commit(LOCAL, str(path), mode)
    made.commit(written(made, values))


def killed_at(step: int, action: Callable[[], Any]) -> bool:
    """Run it in a process that kills itself before its ``step``-th rename; whether it got there."""
    child = os.fork()
    if not child:
        count = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                nonlocal count
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            return call

        Commit._move = counted(Commit._move)  # type: ignore[method-assign]
        Commit._exchange = counted(Commit._exchange)  # type: ignore[method-assign]
        Commit.close = counted(Commit.close)  # type: ignore[method-assign]
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_a_new_directory_comes_whole(tmp_path: Path, mode: str) -> None:
    save(tmp_path / "out", mode, [1, 2, 3])
    assert seen(tmp_path / "out") == [1, 2, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_modes_of_a_directory_that_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    save(out, "error", [1, 2])
    with pytest.raises(ResourceError, match="mode='overwrite' or 'append'"):
        Commit(LOCAL, str(out), "error")
    save(out, "append", [3])
    assert seen(out) == [1, 2, 3]
    save(out, "overwrite", [4])
    assert seen(out) == [4]
    assert sorted(p.name for p in out.iterdir()) == ["_SUCCESS", "k=0"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two-renames"])
@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_kill_at_each_step_shows_the_old_or_the_new(
    tmp_path: Path, mode: str, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a part.  Where directories cannot be exchanged, nothing may be there for a moment."""
    if not exchange:
        monkeypatch.setattr(Commit, "_exchange", lambda self, one, other: False)
    for step in range(1, 30):
        out = tmp_path / str(step) / "out"
        out.parent.mkdir()
        if mode == "overwrite":
            save(out, "error", [1, 2])
        was_killed = killed_at(step, lambda out=out: save(out, mode, [3, 4, 5]))  # type: ignore[misc]
        old = [1, 2] if mode == "overwrite" else []
        shown = seen(out)
        assert shown in (old, [3, 4, 5], *([] if exchange else [[]]))
        save(out, "append", [6])
        assert seen(out) == [*(shown or old), 6]
        assert [p.name for p in out.parent.iterdir()] == ["out"]
        if not was_killed:
            assert step > 4
            return
    pytest.fail("it never ended")


def test_a_kill_while_files_are_added_is_undone_by_the_next_write(tmp_path: Path) -> None:
    """Some of them may be seen until then, and all of them stay once the journal is gone."""
    undone = 0
    for step in range(1, 30):
        out = tmp_path / str(step)
        save(out, "error", [1])
        was_killed = killed_at(step, lambda out=out: save(out, "append", [2, 3, 4]))  # type: ignore[misc]
        half = was_killed and any(out.glob("_temporary*/journal.json"))
        undone += half
        kept = [2, 3, 4] if seen(out) == [1, 2, 3, 4] and not half else []
        save(out, "append", [9])
        assert seen(out) == [1, *kept, 9]
        assert not any(out.glob("_temporary*"))
        if not was_killed:
            assert kept
            assert undone > 1
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two-renames"])
@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_a_rename_that_fails_leaves_what_was_there(
    tmp_path: Path, mode: str, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them it is: nothing that was there is lost, and nothing new is seen."""
    if not exchange:
        monkeypatch.setattr(Commit, "_exchange", lambda self, one, other: False)
    real = Commit._move
    for step in range(1, 30):
        out = tmp_path / str(step) / "out"
        out.parent.mkdir()
        old = [] if mode == "error" else [1, 2]
        if old:
            save(out, "error", old)
        made = Commit(LOCAL, str(out), mode)
        reports = written(made, [3, 4, 5])
        count = 0

        def fails(self: Commit, source: str, target: str, at: int = step) -> None:
            nonlocal count
            count += 1
            if count == at:
                raise OSError("no room")
            real(self, source, target)

        monkeypatch.setattr(Commit, "_move", fails)
        try:
            made.commit(reports)
            failed = False
        except OSError:
            failed = True
        monkeypatch.setattr(Commit, "_move", real)
        made.close()
        assert seen(out) == (old if failed else sorted([3, 4, 5] + (old if mode == "append" else [])))
        assert [*out.parent.glob(".*"), *out.glob("_temporary*")] == []
        if not failed:
            assert step > 3
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_a_task_that_writes_on_stops_no_commit(tmp_path: Path, mode: str) -> None:
    """One that does not count, as of speculation: its files go away while it writes more, and it cannot go on then."""
    if mode != "error":
        save(tmp_path / "out", "error", [1])
    made = Commit(LOCAL, str(tmp_path / "out"), mode)
    reports = written(made, [3])
    write = Write(LOCAL, made.folder, pa.schema({"n": pa.int64()}), (0,), (("n", 0),), "none", 1)
    ended: list[BaseException] = []
    begun = threading.Event()

    def go_on() -> None:
        try:
            for number in range(1 << 30):
                list(write([pa.record_batch({"n": [number]})]))
                begun.set()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    assert begun.wait(20)
    made.commit(reports)
    thread.join(20)
    assert isinstance(ended[0], FileNotFoundError)
    assert seen(tmp_path / "out") == ([1, 3] if mode == "append" else [3])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not any((tmp_path / "out").glob("_temporary*"))


@pytest.mark.parametrize("by", [(), (("k", 1),)])
def test_rows_that_wait_are_copies(tmp_path: Path, by: tuple[tuple[str, int], ...]) -> None:
    """A function may write on to the memory of its batches, and give few rows of large ones."""
    write = Write(LOCAL, str(tmp_path), pa.schema({"n": pa.int64()}), (0,), by, "none", 1 << 30)
    numbers, before, most = np.zeros(1 << 17, np.int64), pa.total_allocated_bytes(), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(20):
            numbers[:] = number
            yield pa.record_batch({"n": numbers, "k": pa.nulls(len(numbers), pa.int64())}).slice(0, 2)
            copied = pa.array(numbers).take(pa.array(np.arange(len(numbers))))
            yield pa.record_batch({"n": copied, "k": copied}).slice(0, 1)
            del copied
            most = max(most, pa.total_allocated_bytes() - before)

    list(write(batches()))
    made = ds.dataset(tmp_path, format="parquet").to_table().column("n").to_pylist()
    assert sorted(made) == sorted([*range(20)] * 3)
    assert most < 8 << 20


def test_what_another_writer_does_is_left_alone(tmp_path: Path) -> None:
    """A driver that lives is not cleaned up after, nor one of another host."""
    out = tmp_path / "out"
    save(out, "error", [1])
    one, other = Commit(LOCAL, str(out), "append"), Commit(LOCAL, str(out), "append")
    reports = written(one, [2])
    other.commit(written(other, [3], "b"))
    one.commit(reports)
    assert seen(out) == [1, 2, 3]


@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
def test_two_writes_to_a_directory_that_neither_has_seen(tmp_path: Path, mode: str) -> None:
    """As threads begin that write a part each: the second commit finds the first one's directory."""
    path = tmp_path / "out"
    first, second = (Commit(LOCAL, str(path), mode) for _ in range(2))
    first.commit(written(first, [1, 2]))
    later = written(second, [3], "b")
    if mode == "error":
        with pytest.raises(ResourceError, match="out is there already: another write has made it meanwhile"):
            second.commit(later)
    else:
        second.commit(later)
    second.close()
    assert seen(path) == {"append": [1, 2, 3], "overwrite": [3], "error": [1, 2]}[mode]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
def test_so_do_two_where_a_rename_moves_into_a_directory(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on HDFS and with fsspec: the second one's files came below the first one's, and it told of a success."""
    fsspec = pytest.importorskip("fsspec")
    system = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file")))
    path = tmp_path / "out"
    first, second = (Commit(system, str(path), mode) for _ in range(2))
    later = written(second, [3], "b")
    real = Commit._move

    def just_before(self: Commit, source: str, target: str) -> None:
        if self is second and target == str(path) and not path.exists():
            monkeypatch.undo()
            first.commit(written(first, [1, 2]))
        real(self, source, target)

    monkeypatch.setattr(Commit, "_move", just_before)
    if mode == "error":
        with pytest.raises(ResourceError, match="out is there already: another write has made it meanwhile"):
            second.commit(later)
    else:
        second.commit(later)
    second.close()
    assert seen(path) == {"append": [1, 2, 3], "overwrite": [3], "error": [1, 2]}[mode]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not [p for p in path.iterdir() if p.name.startswith("made")]


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_an_append_that_meets_an_overwrite_says_so(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its commit, or before one of its renames: none of its rows are there, and the error names the reason."""
    path = tmp_path / "out"
    save(path, "error", [1])
    adds = Commit(LOCAL, str(path), "append")
    reports = written(adds, [2, 3])
    real, moves = Commit._move, 0

    def just_before(self: Commit, source: str, target: str) -> None:
        nonlocal moves
        if self is adds:
            moves += 1
            if moves == step:
                save(path, "overwrite", [7])
        real(self, source, target)

    monkeypatch.setattr(Commit, "_move", just_before)
    if not step:
        save(path, "overwrite", [7])
    with pytest.raises((OSError, ResourceError)) as caught:
        adds.commit(reports)
    assert re.match(f"{path} was replaced or removed by another write while this one ran", str(adds.lost(caught.value)))
    assert adds.lost(ValueError("the user's own")) is None
    adds.close()
    assert seen(path) == [7]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two-renames"])
def test_an_overwrite_of_what_is_gone_meanwhile(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has taken the directory away: it is made."""
    if not exchange:
        monkeypatch.setattr(Commit, "_exchange", lambda self, one, other: False)
    save(tmp_path / "out", "error", [1])
    made = Commit(LOCAL, str(tmp_path / "out"), "overwrite")
    reports = written(made, [2])
    shutil.rmtree(tmp_path / "out")
    made.commit(reports)
    assert seen(tmp_path / "out") == [2]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("inside", [False, True], ids=["fails", "moves-into"])
def test_an_append_between_the_two_renames_of_an_overwrite(
    tmp_path: Path, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is overwritten too, whatever the file system does where the directory is there already."""
    fsspec = pytest.importorskip("fsspec")
    system = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file"))) if inside else LOCAL
    monkeypatch.setattr(Commit, "_exchange", lambda self, one, other: False)
    path = tmp_path / "out"
    save(path, "error", [1])
    made = Commit(system, str(path), "overwrite")
    reports = written(made, [3])
    real, met = Commit._move, []

    def just_before(self: Commit, source: str, target: str) -> None:
        if self is made and target == str(path) and not met:
            met.append(path.exists())
            save(path, "append", [2])
        real(self, source, target)

    monkeypatch.setattr(Commit, "_move", just_before)
    made.commit(reports)
    assert met == [False]
    assert seen(path) == [3]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_interrupt_between_the_two_renames_of_an_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there is put back; nothing is taken away while that cannot be done."""
    monkeypatch.setattr(Commit, "_exchange", lambda self, one, other: False)
    path = tmp_path / "out"
    save(path, "error", [1])
    made = Commit(LOCAL, str(path), "overwrite")
    reports = written(made, [3])
    real, failing = Commit._move, [KeyboardInterrupt(), OSError("no answer")]

    def fails(self: Commit, source: str, target: str) -> None:
        if failing and target == str(path):
            raise failing.pop(0)
        real(self, source, target)

    monkeypatch.setattr(Commit, "_move", fails)
    with pytest.raises(KeyboardInterrupt):
        made.commit(reports)
    made.close()
    assert not path.exists()
    made.close()
    assert seen(path) == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_only_a_process_that_is_known_to_be_gone_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    me, gone = os.getpid(), subprocess.Popen(["true"])
    gone.wait()
    assert not unfinished.is_dead(unfinished.owner_of(me))
    assert unfinished.is_dead(f"{unfinished.owner_of(me)}9"), "another one had this number"
    assert unfinished.is_dead(f"{unfinished._host()}.{gone.pid}.5")
    assert not unfinished.is_dead(f"0123456789ab.{gone.pid}.5"), "another host's"
    assert not unfinished.is_dead("no owner")
    monkeypatch.setattr(unfinished, "_began", lambda pid: "")  # as where /proc hides the processes of other users
    assert not unfinished.is_dead(f"{unfinished._host()}.{me}.5")


def test_where_a_file_system_is_mounted_is_not_overwritten() -> None:
    """Said before anything runs; there is one on every Linux."""
    with pytest.raises(ResourceError, match="/proc is where a file system is mounted, which no rename can replace"):
        Commit(LOCAL, "/proc", "overwrite")


@pytest.mark.parametrize("path", ["", " ", "/", "///"])
def test_no_path_is_not_the_working_directory(path: str) -> None:
    """Of a variable that is not set; an overwrite would take that directory away."""

    def overwrite() -> Commit:
        return Commit(LOCAL, file_system(path, None)[1][0], "overwrite")

    with pytest.raises(ConfigError, match="give the path of"):
        overwrite()


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_a_name_as_long_as_can_be(tmp_path: Path, mode: str) -> None:
    """Has remains that the next write finds."""
    out = tmp_path / ("é" * 127)
    if mode == "overwrite":
        save(out, "error", [1])
    assert killed_at(3, lambda: save(out, mode, [2]))
    assert len(list(tmp_path.glob(".*"))) == 1
    save(out, "overwrite", [3])
    assert seen(out) == [3]
    assert list(tmp_path.iterdir()) == [out]


def test_paths_are_those_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URI of a file is taken as it is written: with "#" and "?" cut off, it would overwrite another directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("a#b", "a?b", "a%20b", "a b", "é"):
        for head in ("", "file:", "file://", "file://localhost", "FILE://"):
            assert file_system(f"{head}/tmp/{name}", None) == (LOCAL, [f"/tmp/{name}"])
    assert file_system(["x/../y", Path("z")], None)[1] == [f"{tmp_path}/y", f"{tmp_path}/z"]
    with pytest.raises(ConfigError, match="nor has fsspec such a file system"):
        file_system("nosuch://tmp/out", None)
    for wrong in ("file://tmp/out", "file:out"):
        with pytest.raises(ConfigError, match=rf"{wrong} is no absolute path of this host: give file:///path"):
            file_system(wrong, None)
    for odd in (None, b"out", 3, ["a", None]):
        with pytest.raises(ConfigError, match=r"give a str or os\.PathLike, not a "):
            file_system(odd, None)


def test_attempts_that_do_not_count_leave_nothing(tmp_path: Path) -> None:
    """Two attempts of a task have written: one of them is reported."""
    made = Commit(LOCAL, str(tmp_path / "out"), "error")
    written(made, [1, 2], "lost")
    made.commit(written(made, [1, 2], "won"))
    assert seen(tmp_path / "out") == [1, 2]
    assert {p.name.split("-")[1] for p in tmp_path.rglob("*.parquet")} == {"won.parquet"}


def test_what_the_driver_does_not_see_is_refused(tmp_path: Path) -> None:
    made = Commit(LOCAL, str(tmp_path / "out"), "error")
    reports = written(made, [1])
    with pytest.raises(ResourceError, match="share"):
        made.commit([*reports, ("a", "k=0/nowhere.parquet", 5)])
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_one_step_renames_is_refused(tmp_path: Path) -> None:
    """As stores of objects are."""
    import fsspec

    store = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("memory")))
    with pytest.raises(ConfigError, match="not atomic"):
        Commit(store, "out", "error")
    Commit(fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file"))), str(tmp_path / "a"), "error").close()
    inside = fs.SubTreeFileSystem(str(tmp_path), LOCAL)
    made = Commit(inside, "out", "error")
    made.commit([])
    assert (tmp_path / "out" / commit.DONE).exists()


def test_names_of_directories() -> None:
    """As Spark's ExternalCatalogUtils has them."""
    assert folder_of([("a", 1), ("b", None)]) == "a=1/b=__HIVE_DEFAULT_PARTITION__/"
    assert folder_of([("a", "x/y=z %"), ("b", True)]) == "a=x%2Fy%3Dz %25/b=true/"
