"""Files of map tasks and their descriptions: what is written is read, and nothing else passes for it."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastbuf.errors import BlockCorrupt, ResourceError
from fastbuf.serializers.block import MAGIC as BLOCK_MAGIC
from fastbuf_spark import pyspark_private
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import checks
from fastbuf_spark.driver.held import SWEEP_S, HeldRuns
from fastbuf_spark.protocol import Files, FromDriver, Remove, Serves
from fastbuf_spark.worker import held
from fastbuf_spark.worker.held import Description, HeldFile, HeldRows, Sections, Spoilt, WrittenFile, batches_of

Blocks = list[tuple[int, bytes]]
DIGEST = b"digested"


def written(root: Path | str, sections: Sections, blocks: Blocks) -> list[tuple[int, bytes]]:
    """What a map task that writes these blocks gives to Spark."""
    file = HeldFile(str(root), sections, 7, 3)
    made = []
    for partition, block in blocks:
        file.write(partition, np.frombuffer(block, np.uint8))
        made += list(file.ready())
    made += list(file.close(DIGEST))
    assert file.nbytes == sum(len(block) for _, block in blocks)
    return made


def read(described: list[tuple[int, bytes]], sections: Sections, root: Path) -> dict[int, list[bytes]]:
    """The blocks of each partition, as the task of its section finds them."""
    found = defaultdict(list)
    for section, data in described:
        about = Description(data)
        for partition in sections.range(section):
            if about.block is not None:
                found[partition].append(bytes(about.block))
            elif about.with_rows:
                with WrittenFile(held.file_of(str(root), about.run, about.number, about.digest)) as file:
                    found[partition] += [bytes(block) for block in file.blocks(partition, about.digest)]
    return {partition: blocks for partition, blocks in found.items() if blocks}


def by_partition(blocks: Blocks) -> dict[int, list[bytes]]:
    found = defaultdict(list)
    for partition, block in blocks:
        found[partition].append(block)
    return dict(found)


@pytest.mark.parametrize(("partitions", "tasks"), [(1, 1), (7, 7), (200, 16), (17, 4), (1000, 999), (5, 2)])
def test_each_partition_is_in_one_section(partitions: int, tasks: int) -> None:
    sections = Sections(partitions, tasks)
    found = [partition for section in range(tasks) for partition in sections.range(section)]
    assert found == list(range(partitions))
    of = sections.of(np.arange(partitions))
    assert all(of[p] == section for section in range(tasks) for p in sections.range(section))


@pytest.mark.parametrize(("partitions", "tasks"), [(1, 1), (8, 8), (40, 6)])
@pytest.mark.parametrize("largest", [40, 5_000, 300_000])
def test_what_is_written_is_read(
    tmp_path: Path, partitions: int, tasks: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "PENDING_BYTES", 64 << 10)
    monkeypatch.setattr(held, "READ_BYTES", 100_000)
    chosen = random.Random(partitions * largest)
    sections = Sections(partitions, tasks)
    blocks = [(chosen.randrange(partitions), chosen.randbytes(8 * chosen.randint(4, largest // 8))) for _ in range(60)]
    described = written(tmp_path, sections, blocks)
    assert read(described, sections, tmp_path) == by_partition(blocks)
    assert [path.name for path in (tmp_path / "7").iterdir()] == [f"3-{DIGEST.hex()}"]
    assert [section for section, _ in described] == list(range(tasks)), "each task learns its section"
    # Another attempt places the same rows in another order: Spark sees the same, and so does who has read the first
    chosen.shuffle(blocks)
    assert written(tmp_path, sections, blocks) == described
    assert read(described, sections, tmp_path) == by_partition(blocks)


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    for sections in (Sections(5, 5), Sections(5, 2)):
        described = written(tmp_path, sections, [])
        assert [section for section, _ in described] == list(range(sections.tasks))
        assert read(described, sections, tmp_path) == {}
    assert not list(tmp_path.iterdir())


def test_blocks_that_go_through_spark(tmp_path: Path) -> None:
    """They are rows themselves; no file is made, and what waits is bounded."""
    blocks = [(i % 3, BLOCK_MAGIC + random.Random(i).randbytes(100_000)) for i in range(60)]
    file = HeldFile("", Sections(3, 3), 7, 3)
    rows, most = [], 0
    for partition, block in blocks:
        file.write(partition, block)
        most = max(most, file._pending_bytes)
        rows += list(file.ready())
    rows += list(file.close(DIGEST))
    assert most < held.OUT_BYTES + 200_000
    assert rows == blocks
    assert read(rows, Sections(3, 3), tmp_path) == by_partition(blocks)
    batches = list(batches_of(rows))
    assert sum(batch.num_rows for batch in batches) == 60
    assert len(batches) > 4


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path) -> None:
    file = HeldFile(str(tmp_path), Sections(1, 1), 7, 0)
    opened: list[bool] = []
    file.on_open = lambda: opened.append(True)
    for _ in range(3):
        file.write(0, bytes(held.PENDING_BYTES))
    assert opened == [True]
    assert len(list((tmp_path / "7").iterdir())) == 1
    assert file.figures()["folder"] == str(tmp_path / "7")
    file.abandon()
    assert not list((tmp_path / "7").iterdir())
    whole = HeldFile(str(tmp_path), Sections(1, 1), 7, 0)
    whole.write(0, bytes(100))
    assert len(list(whole.close(DIGEST))) == 1
    whole.abandon()
    assert len(list((tmp_path / "7").iterdir())) == 1, "what others may read stays"


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, views: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", full)
    file = HeldFile(str(tmp_path), Sections(1, 1), 7, 4)
    words = r"map task 4 cannot write its rows to .*: No space left on device; .*spark.fastbuf.heldDirectory"
    with pytest.raises(ResourceError, match=words):
        file.write(0, bytes(held.PENDING_BYTES))
    file.abandon()
    assert not list((tmp_path / "7").iterdir())


def test_writes_that_stop_in_the_middle_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a signal comes."""
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: whole(fd, [memoryview(views[0])[: max(1, len(views[0]) // 2)]]))
    monkeypatch.setattr(held, "PENDING_BYTES", 1000)
    blocks = [(i % 3, random.Random(i).randbytes(400)) for i in range(40)]
    assert read(written(tmp_path, Sections(3, 3), blocks), Sections(3, 3), tmp_path) == by_partition(blocks)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: os.truncate(path, 5000), "does not end as it was written"),
        (lambda path: os.truncate(path, 20), "has 20 bytes: some are missing"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "does not end as it was written"),
        (lambda path: path.write_bytes(path.read_bytes()[1000:]), "has another index|some are missing"),
    ],
)
def test_a_file_that_is_not_as_it_was(tmp_path: Path, spoil: Any, words: str) -> None:
    sections = Sections(2, 2)
    described = written(tmp_path, sections, [(0, bytes(held.PENDING_BYTES)), (1, bytes(9000))])
    (path,) = (tmp_path / "7").iterdir()
    spoil(path)
    with pytest.raises(Spoilt, match=words):
        read(described, sections, tmp_path)


def test_descriptions_of_another_version(tmp_path: Path) -> None:
    ((_, data),) = written(tmp_path, Sections(1, 1), [(0, bytes(40))])
    assert data == b"FBHD" + struct.pack("<HxxIIiI", 1, 0, 1, 7, 3) + DIGEST, "as docs/format.md draws it"
    with pytest.raises(BlockCorrupt, match="this fastbuf reads 1"):
        Description(data[:4] + b"\x02" + data[5:])
    with pytest.raises(BlockCorrupt, match="a description of 20 bytes: it has 32"):
        Description(data[:20])


def test_a_file_is_as_the_docs_draw_it(tmp_path: Path) -> None:
    written(tmp_path, Sections(3, 3), [(2, b"last"), (0, b"first"), (2, b"more")])
    data = (tmp_path / "7" / f"3-{DIGEST.hex()}").read_bytes()
    entries = struct.pack("<6Q", 4, 5, 0, 4, 9, 4)  # of partition 0, then those of partition 2
    starts = struct.pack("<4I", 0, 1, 1, 3)
    assert data == b"lastfirstmore" + entries + starts + DIGEST + struct.pack("<QIHxx", 13, 3, 1) + b"FBHD"


def test_several_directories_are_dealt_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = HeldRows("/a, /b").roots()
    assert [held.root_of(roots, "x", number) for number in range(3)] == [f"/{which}/{held.FOLDER}/x" for which in "aba"]
    # With a server of its own, each executor has directories of its own
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/one/blockmgr-1,/two/blockmgr-2")
    assert HeldRows("", "service").roots() == [f"/one/blockmgr-1/{held.FOLDER}", f"/two/blockmgr-2/{held.FOLDER}"]
    assert HeldRows("/ram", "service").roots() == [f"/ram/{held.FOLDER}/blockmgr-1"]
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    with pytest.raises(ResourceError, match=r"SPARK_LOCAL_DIRS is not set.*spark.fastbuf.fileServers=false"):
        HeldRows("", "service").roots()


@pytest.mark.parametrize(
    ("master", "settings", "conf", "wanted"),
    [
        ("local[4]", {}, {}, HeldRows("/driver")),
        ("local[4]", {}, {"held_directory": "/ram"}, HeldRows("/ram")),
        ("local-cluster[2,1,1024]", {"spark.shuffle.service.enabled": "true"}, {}, HeldRows("/driver")),
        ("local[4]", {"spark.io.encryption.enabled": "true"}, {}, None),
        ("yarn", {"spark.io.encryption.enabled": "true"}, {"held_directory": "/shared"}, None),
        ("yarn", {}, {}, HeldRows("", "still to come")),
        ("yarn", {}, {"held_directory": "/ram"}, HeldRows("/ram", "still to come")),
        ("yarn", {"spark.shuffle.manager": "tungsten-sort"}, {}, HeldRows("", "still to come")),
        ("yarn", {"spark.decommission.enabled": "true"}, {}, HeldRows("", "still to come")),
        ("yarn", {}, {"file_servers": False}, None),
        ("yarn", {}, {"file_servers": False, "held_directory": "/shared"}, HeldRows("/shared")),
        ("yarn", {"spark.shuffle.service.enabled": "true"}, {}, None),
        ("yarn", {"spark.shuffle.service.enabled": "true"}, {"held_directory": "/shared"}, HeldRows("/shared")),
        ("k8s://x", {"spark.storage.decommission.enabled": "true"}, {}, None),
        ("k8s://x", {"spark.shuffle.manager": "org.apache.spark.shuffle.celeborn.SparkShuffleManager"}, {}, None),
        ("k8s://x", {"spark.shuffle.sort.io.plugin.class": "KubernetesLocalDiskShuffleDataIO"}, {}, None),
    ],
)
def test_where_rows_are_held(
    master: str,
    settings: dict[str, str],
    conf: dict[str, Any],
    wanted: HeldRows | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(checks.APART, raising=False)
    sc = SimpleNamespace(master=master, _conf=settings, _temp_dir="/driver")
    assert checks.held_rows(sc, ShuffleConf(**conf)) == wanted


class Peer:
    """The connection of a file server."""

    def __init__(self) -> None:
        self.sent: list[FromDriver] = []

    def send(self, message: FromDriver) -> None:
        self.sent.append(message)


def test_files_go_with_the_shuffle_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage: set[int] = set()
    reference = lambda stage: SimpleNamespace(refersTo=lambda nothing: stage in garbage)  # noqa: E731
    monkeypatch.setattr(pyspark_private, "shuffle_of", lambda sc, stage: reference(stage))
    runs, sc, server, other = HeldRuns(), SimpleNamespace(applicationId="app"), Peer(), Peer()
    runs.serves(Serves("s1", "a", 1, ("/r",)), server)
    runs.serves(Serves("s2", "b", 2, ("/r",)), other)
    runs.gone(other)
    folders = [tmp_path / held.FOLDER / "x" / str(stage) for stage in (1, 2)]
    for stage, folder in enumerate(folders, 1):
        folder.mkdir(parents=True)
        (folder / "0-abc").touch()
        runs.add(sc, "x", stage, 0, {"folder": str(folder), "run": stage, **({"server": "s1"} if stage == 1 else {})})
    garbage.add(1)
    runs.sweep(SWEEP_S + 1)
    assert [folder.exists() for folder in folders] == [False, True]
    garbage.add(2)
    runs.sweep(SWEEP_S + 2)
    assert folders[1].exists(), "it is not asked again so soon"
    runs.sweep(3 * SWEEP_S)
    assert not list(tmp_path.iterdir())
    assert server.sent == [Remove("x/1")], "there is nothing of the other run"
    assert not other.sent


def test_readers_are_told_who_has_which_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark_private, "shuffle_of", lambda sc, stage: None)
    runs, sc, near, far = HeldRuns(), SimpleNamespace(applicationId="app"), Peer(), Peer()
    assert runs.where("x", 5) == Files((), ())

    def told(number: int, server: str, run: int = 5) -> None:
        runs.add(sc, "x", 7, number, {"folder": f"/nowhere/{server}", "run": run, "server": server})

    runs.serves(Serves("s1", "near", 1, ("/r1",)), near)
    runs.serves(Serves("s2", "far", 2, ("/r2", "/q2")), far)
    told(3, "s2")
    told(0, "s1")
    told(1, "s3")  # nobody knows it
    told(0, "s1", run=6)
    servers = (("far", 2, ("/r2", "/q2")), ("near", 1, ("/r1",)))
    assert runs.where("x", 5) == Files(servers, (1, -1, -1, 0))
    assert runs.where("x", 6) == Files(servers[1:], (0,))
    assert runs.where("y", 5) == Files((), ())
    told(3, "s1")  # another attempt: the last one counts, unless its server is gone
    assert runs.where("x", 5).at == (0, -1, -1, 0)
    runs.gone(near)
    assert runs.where("x", 5) == Files(servers, (1, -1, -1, 0))
    runs.serves(Serves("s1", "near", 9, ("/r1",)), near)  # it has come again
    assert runs.where("x", 5) == Files((("near", 9, ("/r1",)),), (0, -1, -1, 0))


WHY = "HeldRowsLost: the rows of map task 1 are lost\nTraceback"


def test_the_executor_of_lost_rows_is_replaced_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    replaced: list[str] = []
    of = {(7, 0): "1", (7, 1): "2", (9, 1): "3", (7, 2): "driver", (7, 4): "1"}
    monkeypatch.setattr(pyspark_private, "shuffle_of", lambda sc, stage: None)
    monkeypatch.setattr(pyspark_private, "replace_executor", lambda sc, executor: replaced.append(executor))
    monkeypatch.setattr(
        pyspark_private,
        "executor_of",
        lambda sc, stage, number: asked.append((stage, number)) or of.get((stage, number)),
    )
    runs, sc = HeldRuns(), SimpleNamespace(applicationId="app")
    runs.serves(Serves("s1", "near", 1, ("/r1",)), Peer())
    for number in range(6):
        for stage in (7, 9):
            server = {"server": "s1"} if number in (0, 4) else {}
            runs.add(sc, "x", stage, number, {"folder": "/nowhere", "run": 5, **server})
    assert runs.replace(sc, "x", 5, 0, WHY) == "1"
    assert runs.replace(sc, "x", 5, 4, WHY) == "1"
    assert asked == [(9, 0), (7, 0)], "a server has one executor"
    assert runs.replace(sc, "x", 5, 1, WHY) == "3", "of the later stage, as an adaptive plan has for lost rows"
    assert runs.replace(sc, "x", 5, 2, WHY) == "", "local mode"
    assert runs.replace(sc, "x", 5, 3, WHY) == ""
    assert runs.replace(sc, "y", 5, 0, WHY) == ""
    assert replaced == ["1", "3"]
    assert caplog.messages[0] == "executor 1 is replaced: HeldRowsLost: the rows of map task 1 are lost"
    assert runs.replace(SimpleNamespace(applicationId="next"), "x", 5, 1, WHY) == "3"
    assert replaced == ["1", "3", "3"], "the next application's is another"
    # One after the other, and all of their servers live: it is the network between them, say
    runs, servers = HeldRuns(), [Peer() for _ in range(6)]
    monkeypatch.setattr(pyspark_private, "executor_of", lambda sc, stage, number: f"e{number}")
    for number, peer in enumerate(servers):
        runs.serves(Serves(f"s{number}", "h", number, ("/r",)), peer)
        runs.add(sc, "x", 7, number, {"folder": "/nowhere", "run": 5, "server": f"s{number}"})
    runs.gone(servers[0])
    assert [runs.replace(sc, "x", 5, number, WHY) for number in range(6)] == ["e0", "e1", "e2", "e3", None, None]
    assert runs.replace(sc, "x", 5, 1, WHY) == "e1"
