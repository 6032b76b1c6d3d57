"""What readers of a directory see of the writes that are not at their end, and who takes these away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from fastbuf_spark.driver import commit, unfinished
from fastbuf_spark.driver.commit import JOURNAL, Commit
from fastbuf_spark.driver.files import list_files
from fastbuf_spark.driver.unfinished import complete, is_forgotten

LOCAL = fs.LocalFileSystem()


def seen(path: Path) -> list[str]:
    return [Path(file.path).name for file in list_files(LOCAL, [str(path)]).files]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "k=1").mkdir(parents=True)
    (folder / "k=1" / "old").write_text("x")
    return folder


def appended(out: Path, *names: str) -> tuple[Commit, list[tuple[str, str, int]]]:
    made = Commit(LOCAL, str(out), "append")
    for name in names:
        Path(made.folder, "1", "k=1").mkdir(parents=True, exist_ok=True)
        Path(made.folder, "1", "k=1", name).write_text("x")
    return made, [("1", f"k=1/{name}", 1) for name in names]


def test_a_reader_sees_all_files_of_a_write_or_none(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step of an append, of the directory itself and of one above it."""
    made, written = appended(out, "a", "b")
    steps = []

    def move(self: Commit, source: str, target: str) -> None:
        real(self, source, target)
        steps.append((seen(out), sorted(p.name for p in (out / "k=1").iterdir())))
        assert [
            Path(file.path).name for file in list_files(LOCAL, [str(out)], {"recursiveFileLookup": "true"}).files
        ] == ["old"]

    real = Commit._move
    monkeypatch.setattr(Commit, "_move", move)
    made.commit(written)
    assert [shown for shown, _ in steps] == [["old"]] * len(steps)
    assert ["a", "b", "old"] in [there for _, there in steps]
    assert seen(out) == ["a", "b", "old"]


def test_a_write_that_ends_while_a_directory_is_listed(out: Path) -> None:
    """The list has one of its files, and its journal names none any more: the directory is listed again."""
    made, written = appended(out, "a", "b")
    made._note(JOURNAL, [path for _, path, _ in written])
    (out / "k=1" / "a").write_text("x")
    ends = iter([lambda: made.commit(written)])

    def listing() -> Iterator[Any]:
        yield from LOCAL.get_file_info(fs.FileSelector(str(out), recursive=True))
        next(ends, lambda: None)()

    names = [info.base_name for info in complete(LOCAL, listing) if info.type == fs.FileType.File]
    assert sorted(names) == ["_SUCCESS", "a", "b", "old"] or sorted(names) == ["a", "b", "old"]


def test_a_write_of_another_host(out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its files are told by their paths; after a week without a new file they are taken away."""
    with monkeypatch.context() as patch:
        patch.setattr(commit, "owner_of", lambda pid: f"0123456789ab.{pid}.5")
        made, _ = appended(out, "a")
        running, _ = appended(out, "b")
    made._note(JOURNAL, ["k=1/a"])
    (out / "k=1" / "a").write_text("x")
    Commit(LOCAL, str(out), "append").close()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"({out}/k=1/a), and then {made._temporary}; else a write that comes 7 days later does" in told
    assert (out / "k=1" / "a").exists()
    for path in [Path(made._temporary), *Path(made._temporary).rglob("*")]:
        os.utime(path, (1e9, 1e9))
    Commit(LOCAL, str(out), "append").close()
    assert sorted(p.name for p in (out / "k=1").iterdir()) == ["old"]
    assert [str(p) for p in out.iterdir() if "_temporary" in p.name] == [running._temporary]


def test_a_driver_of_this_host_is_not_forgotten(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (1e9, 1e9))
    assert not is_forgotten(LOCAL, unfinished.owner_of(os.getpid()), f"{tmp_path}/a")
    assert is_forgotten(LOCAL, "0123456789ab.1.5", f"{tmp_path}/a")
    assert not is_forgotten(LOCAL, "0123456789ab.1.5", f"{tmp_path}/none")
    assert not is_forgotten(LOCAL, "0123456789ab.1.5", str(tmp_path))
