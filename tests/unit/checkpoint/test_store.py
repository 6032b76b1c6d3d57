"""The directory of checkpoints: what is there after a crash at any step, what is kept, and who may write."""

from __future__ import annotations

import errno
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nights import LONG

from fastbuf.checkpoint import store as module
from fastbuf.checkpoint.store import (
    CheckpointError,
    CheckpointInUse,
    CheckpointStore,
    StateFile,
    read_piece,
    verify_pieces,
)

RUNS = 2_000 if LONG else 60


def state_file(store: CheckpointStore, checkpoint: int, data: bytes) -> list[Any]:
    file = StateFile(store.state_folder, f"{checkpoint}-{store.generation}-0")
    piece = file.add(data)
    file.close()
    return piece.entry()


def metadata(*entries: list[Any]) -> dict[str, Any]:
    return {"operators": {"sum": {"pieces": {str(i): entry for i, entry in enumerate(entries)}}}, "rows": {}}


def begun(path: Path) -> CheckpointStore:
    store = CheckpointStore(path)
    store.open_generation()
    return store


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = begun(tmp_path)
    entry = state_file(store, 1, b"abc" * 100)
    store.write(1, metadata(entry))
    again = CheckpointStore(tmp_path)
    assert again.job == store.job
    found = again.latest()
    assert found is not None
    assert found["operators"] == metadata(entry)["operators"]
    assert (found["checkpoint"], found["generation"]) == (1, store.generation)
    assert read_piece(store.state_folder, entry) == b"abc" * 100


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(12))
def test_a_crash_between_any_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The checkpoint is there as a whole, or not at all, and the next start goes on and leaves nothing over."""
    store = begun(tmp_path)
    store.write(1, metadata(state_file(store, 1, b"one")))
    calls = [0]

    def crashing(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if calls[0] >= step:
                raise Crash
            calls[0] += 1
            return real(*args, **kwargs)

        return call

    for name in ("fsync", "link", "unlink", "open"):
        monkeypatch.setattr(os, name, crashing(name))
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: os.unlink(path))
    try:
        store.write(2, metadata(state_file(store, 2, b"two")))
        store.prune()
    except Crash:
        pass
    monkeypatch.undo()
    again = begun(tmp_path)
    found = again.latest()
    assert found is not None
    assert found["checkpoint"] in (1, 2)
    again.sweep()
    verify_pieces(again.state_folder, found)
    assert again.numbers() == list(range(1, found["checkpoint"] + 1))
    assert len(os.listdir(again.state_folder)) == len(again.numbers())
    assert not [name for name in os.listdir(tmp_path / "checkpoints") if name.startswith(".")]
    again.write(again.last() + 1, metadata())


@pytest.mark.parametrize("what", ["state", "checkpoints"])
def test_a_flipped_byte_gives_the_older_one_loudly(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    store = begun(tmp_path)
    for number in (1, 2):
        store.write(number, metadata(state_file(store, number, b"%d" % number * 1000)))
    name = max(os.listdir(tmp_path / what))
    data = bytearray((tmp_path / what / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / what / name).write_bytes(data)
    with caplog.at_level(logging.ERROR, "fastbuf"):
        found = store.latest()
    assert found is not None
    assert found["checkpoint"] == 1
    assert "checkpoint 2 cannot be restored" in caplog.text
    assert "will come again" in caplog.text
    store.drop_after(1)
    assert store.numbers() == [1]
    assert store.last() == 2  # its number is not given out again: sinks go by numbers


def test_none_of_several_can_be_restored(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for number in (1, 2):
        store.write(number, metadata(state_file(store, number, b"x")))
    for name in os.listdir(store.state_folder):
        os.truncate(Path(store.state_folder, name), 0)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be restored"):
        store.latest()


def test_metadata_that_are_torn(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for number in (1, 2):
        store.write(number, metadata(state_file(store, number, b"x")))
    os.truncate(tmp_path / "checkpoints" / "0000000002.json", 30)
    found = store.latest()
    assert found is not None
    assert found["checkpoint"] == 1


def test_nothing_is_removed_while_it_is_unknown_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata that cannot be read now, as where a network drive hangs, may be read later."""
    store = begun(tmp_path)
    for number in (1, 2, 3):
        store.write(number, metadata(state_file(store, number, b"x")))

    def unreadable(path: Path) -> Any:
        if path.name.startswith("0000000002"):
            raise CheckpointError("an error of the network")
        return real(path)

    real = module.read_metadata
    monkeypatch.setattr(module, "read_metadata", unreadable)
    store.prune()
    store.sweep()
    monkeypatch.undo()
    for number in (1, 2, 3):
        verify_pieces(store.state_folder, store.read(number))


def test_what_is_kept_and_what_is_in_progress_keeps_its_files(tmp_path: Path) -> None:
    """Random checkpoints, some of which fail, against what they named: no needed file goes, no other stays for long."""
    dice = random.Random(1)
    for run in range(RUNS):
        store = begun(tmp_path / str(run))
        held: dict[int, list[Any]] = {}  # pieces of the last completed one
        complete: dict[int, dict[str, Any]] = {}
        for number in range(1, dice.randint(2, 12)):
            new = {
                group: state_file(store, number, b"%d" % dice.randrange(9)) for group in range(4) if dice.random() < 0.5
            }
            pieces = {**held, **new}
            if dice.random() < 0.3:
                store.prune()  # of the one before, late
                for entry in pieces.values():
                    read_piece(store.state_folder, entry)
            if dice.random() < 0.3:
                continue  # it fails; groups that it wrote are written again
            told = {"operators": {"sum": {"pieces": {str(g): e for g, e in pieces.items()}}}}
            store.write(number, told)
            complete[number] = told
            held = pieces
            store.prune()
            kept = sorted(complete)[-store.kept :]
            assert store.numbers() == kept
            for each in kept:
                verify_pieces(store.state_folder, store.read(each))
            named = {e[0] for each in kept for e in complete[each]["operators"]["sum"]["pieces"].values()}
            assert set(os.listdir(store.state_folder)) == named


HOLDER = """
import sys
from fastbuf.checkpoint.store import CheckpointStore
store = CheckpointStore(sys.argv[1])
store.lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_two_processes(tmp_path: Path) -> None:
    """The second is refused, and told who the first is; it may as soon as the first is dead."""
    store = CheckpointStore(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(CheckpointInUse, match=f"in use by process {holder.pid} on "):
            store.lock()
    finally:
        holder.kill()
        holder.communicate()
    store.lock()
    with pytest.raises(CheckpointInUse, match=f"process {os.getpid()}"):
        CheckpointStore(tmp_path).lock()
    store.unlock()
    second = CheckpointStore(tmp_path)
    second.lock()
    second.unlock()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.lock()
    ready, tell = os.pipe()
    stay, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.write(tell, b"x")
        os.read(stay, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        store.unlock()
        other = CheckpointStore(tmp_path)
        other.lock()
        other.unlock()
    finally:
        os.close(go)
        os.waitpid(child, 0)
        for descriptor in (ready, tell, stay):
            os.close(descriptor)


def test_an_older_run_is_refused(tmp_path: Path) -> None:
    old = begun(tmp_path)
    new = begun(tmp_path)
    assert new.generation > old.generation
    with pytest.raises(CheckpointInUse, match=f"run {new.generation} of the job"):
        old.write(1, metadata())
    new.write(1, metadata())
    with pytest.raises(CheckpointInUse, match="is there already"):
        new.write(1, metadata())
    for _ in range(30):
        new.open_generation()
    assert len(os.listdir(tmp_path / "generations")) <= 12


def test_two_that_begin_a_job_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the directory empty, and the job when it writes."""
    real = module._write

    def slow(path: Path, data: bytes, exclusive: bool = False) -> None:
        monkeypatch.setattr(module, "_write", real)
        others.append(CheckpointStore(tmp_path))
        real(path, data, exclusive)

    others: list[CheckpointStore] = []
    monkeypatch.setattr(module, "_write", slow)
    store = CheckpointStore(tmp_path)
    assert store.job == others[0].job


def test_savepoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a", key_groups=16)
    store.open_generation()
    entry = state_file(store, 7, b"state")
    store.write(7, {**metadata(entry), "rows": {"sink": [[7, [{"file": "x"}]]]}})
    store.export(7, tmp_path / "saved")
    with pytest.raises(CheckpointError, match="is not empty"):
        store.export(7, tmp_path / "saved")
    new = CheckpointStore(tmp_path / "b", key_groups=128)
    with pytest.raises(CheckpointError, match=r"rows of checkpoint 7 in .*saved wait for their sink"):
        new.begin_from(tmp_path / "saved")
    store.settle(7, tmp_path / "saved")  # the old job has committed them
    new.begin_from(tmp_path / "saved")
    assert "committed" not in store.latest()  # type: ignore[operator]
    store.settle(7)
    assert store.latest()["committed"]  # type: ignore[index]
    assert new.key_groups == 16
    assert new.job != store.job
    found = new.latest()
    assert found is not None
    assert found["checkpoint"] == 7
    assert found["rows"] == {}
    assert read_piece(new.state_folder, entry) == b"state"
    assert CheckpointStore(tmp_path / "b").key_groups == 16
    new.begin_from(tmp_path / "nothing")  # it has a checkpoint
    with pytest.raises(CheckpointError, match="has no savepoint"):
        CheckpointStore(tmp_path / "c").begin_from(tmp_path / "nothing")


def test_a_savepoint_that_fails_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = begun(tmp_path / "a")
    store.write(1, metadata(state_file(store, 1, b"state")))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.export(1, tmp_path / "saved")
    monkeypatch.undo()
    store.export(1, tmp_path / "saved")


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint does not exist, nothing is left of it, and the next one may."""
    store = begun(tmp_path)
    store.write(1, metadata())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write(2, metadata())
    file = StateFile(store.state_folder, "2-1-0")
    file.add(b"x")
    with pytest.raises(OSError, match="No space"):
        file.close()
    file.abandon()
    monkeypatch.undo()
    assert store.numbers() == [1]
    assert os.listdir(tmp_path / "checkpoints") == ["0000000001.json"]
    assert os.listdir(store.state_folder) == []
    store.write(3, metadata())


def test_what_is_no_directory_of_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"s3://bucket/x.*give a directory"):
        CheckpointStore("s3://bucket/x")
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(CheckpointError, match="does not describe checkpoints"):
        CheckpointStore(tmp_path)
    (tmp_path / "job.json").write_text('{"format": 99, "job": "x", "key_groups": 1}')
    with pytest.raises(CheckpointError, match="of format 99"):
        CheckpointStore(tmp_path)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ENOENT])
def test_a_directory_that_nobody_can_look_at_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Such as a mount that is stale, which may come back."""

    def stale(*args: Any, **named: Any) -> None:
        raise OSError(number, os.strerror(number))

    store = begun(tmp_path)
    assert store.is_there()
    monkeypatch.setattr(os, "stat", stale)
    assert not store.is_there()
    monkeypatch.undo()
    assert store.is_there()


def test_a_lock_whose_mount_is_stale_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stale:
        def close(self) -> None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    store = begun(tmp_path)
    monkeypatch.setattr(store, "_lock", Stale())
    store.unlock()
    store.lock()
    store.unlock()
