"""A worker or an executor dies at a random moment of three shuffles in a row that write files, while a reader looks.

All the rows, or an error and what was there before; the reader never sees anything in between, and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import in_the_end
from deadline import GivenUp, within
from killings import Cluster, Marked, Outcome, attempts, below, enough, kill_one, killer, last_words, table
from nights import nightly
from test_spilled_files import holders

import fastbuf_spark as fbs

LONG = os.environ.get("FASTBUF_LONG") == "1"
KILLS = int(os.environ.get("FASTBUF_KILLS", 25 if LONG else 1))  # of each kind in each mode
MODES = ["pipelined", "blocking", "auto"] if LONG else ["pipelined"]  # auto: slots for all but the last
ROLES = ("producer", "between", "consumer")
HOW = ("error", "overwrite", "append")
ROWS, FILES, WERE = 200_000, 4, 700
SECONDS = {"producer": 1.5, "between": 1.0, "consumer": 0.5}  # that each takes for all rows
SPILLING = {"memory_bytes": 2 << 20, "segment_size": 4096}
PLAIN = "k long, n long, s string"
SOON_S = 90.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(KILLS * 150 + 240)]

_found: dict[tuple[str, str], list[Outcome]] = {}
_undisturbed: dict[str, Outcome] = {}
_spans: dict[tuple[str, str], float] = {}  # seconds from a role's beginning to the end of a run, undisturbed
_looks: list[int] = []


@pytest.fixture(scope="module", autouse=True)
def outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    table(request, _found, {mode: calm.seconds for mode, calm in _undisturbed.items()})
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"{sum(_looks)} looks of readers at {len(_looks)} runs")


def of_numbers(ns: np.ndarray) -> pa.Table:
    return pa.table({"k": ns % 7, "n": ns, "s": pa.array([f"name {n % 1000}" for n in ns])})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers")
    for number, ns in enumerate(np.array_split(np.arange(ROWS), FILES)):
        pq.write_table(of_numbers(ns), path / f"{number}.parquet")
    return path


class Reader:
    """Reads a directory again and again as its readers do; what it sees must be one of some sets of numbers, whole.

    Parameters
    ----------
    allowed
        The numbers in order; none at all: there is no directory.
    adds
        Files come one after the other, each of them whole: what is seen has the least of ``allowed``.
    """

    def __init__(self, path: Path, allowed: list[np.ndarray], adds: bool) -> None:
        self._path = path
        self._allowed = allowed
        self._adds = adds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            try:
                self.look()
            except Exception as error:
                self.wrong.append(repr(error))
                return

    def look(self) -> None:
        """One look; of a directory that is replaced meanwhile nothing is known."""
        seen = numbers(self._path)
        if seen is None:
            return
        self.looks += 1
        if self._adds:
            fits = bool(
                np.isin(self._allowed[0], seen).all()
                and np.isin(seen, self._allowed[-1]).all()
                and len(np.unique(seen)) == len(seen)
            )
        else:
            fits = any(np.array_equal(seen, each) for each in self._allowed)
        assert fits, f"{len(seen)} rows are seen, of {[len(each) for each in self._allowed]}"


def numbers(path: Path) -> np.ndarray | None:
    """The numbers in all files that a reader sees, in order; None: the directory was another one at the end."""
    try:
        folder = os.open(path, os.O_DIRECTORY)
    except FileNotFoundError:
        return np.arange(0)
    try:
        found = [np.arange(0)]
        missing = None
        try:
            for base, folders, files, at in os.fwalk(".", dir_fd=folder):
                folders[:] = [name for name in folders if name[0] not in "._"]
                for name in files:
                    if name[0] not in "._":
                        found.append(read(Path(f"/proc/self/fd/{at}", name), base))
        except FileNotFoundError as error:
            missing = error
        try:
            same = os.stat(path).st_ino == os.fstat(folder).st_ino
        except FileNotFoundError:  # another one is about to take its place
            same = False
        if not same:
            return None
        if missing is not None:
            raise AssertionError(f"a file was there and is not any more: {missing}")
        return np.sort(np.concatenate(found))
    finally:
        os.close(folder)


def read(path: Path, base: str) -> np.ndarray:
    """The numbers of one file, whose values must fit them, and its directory's name."""
    with path.open("rb") as file:
        rows = pq.ParquetFile(file).read()
    ns = rows["n"].to_numpy()
    named = re.fullmatch(r"\./k=(\d)", base)
    assert named is not None, f"a file is in {base}"
    assert (ns % 7 == int(named[1])).all()
    assert rows["s"].to_pylist() == [f"name {n % 1000}" for n in ns]
    return ns


def in_order(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last = -1
    for batch in batches:
        ns = batch["n"].to_numpy()
        assert ns[0] > last
        assert (ns[1:] > ns[:-1]).all()
        last = ns[-1]
        yield batch


def three_shuffles(spark: Any, mode: str, source: Path, folder: Path, spills: Path) -> fbs.Pipeline:
    marked = {role: Marked(role, folder, SECONDS[role] / ROWS) for role in ROLES}
    conf = fbs.ShuffleConf(spill_directory=str(spills), **SPILLING)
    p = fbs.pipeline(fbs.read_parquet(spark, source), conf=conf)
    p = p.map_in_arrow(marked["producer"], PLAIN).shuffle("k", partitions=1, mode=mode)
    p = p.map_in_arrow(marked["between"], PLAIN).shuffle("s", mode=mode)
    groups = p.group_by("k", partitions=2 if mode == "auto" else 1, sort_by="n", mode=mode)
    return groups.apply_in_arrow(in_order, PLAIN).map_in_arrow(marked["consumer"], PLAIN)


def left(spark: Any, base: Path, spills: Path) -> list[str]:
    """What a run left: files that no reader looks at, spilled rows, segments that a worker still has."""
    found = [str(path) for path in base.rglob("[._]*") if path.name != "_SUCCESS"]
    found += [str(path) for path in spills.iterdir()] + holders(str(spills))
    for process in below(spark):
        with contextlib.suppress(OSError):  # it has ended
            for fd in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):  # it has been closed
                    target = os.readlink(fd.path)
                    if "memfd:fastbuf" in target:
                        found.append(f"process {process.pid}: {target}")
    return found


def once(cluster: Cluster, mode: str, role: str | None, source: Path, base: Path, dice: random.Random) -> Outcome:
    spark = cluster.ready()
    how = dice.choice(HOW)
    folder, spills, out = base / "marks", base / "spills", base / "files" / "out"
    for path in (folder, spills, out.parent):
        path.mkdir(parents=True)
    before = np.arange(0)
    if how != "error":
        before = np.arange(ROWS, ROWS + WERE)
        pq.write_to_dataset(of_numbers(before), out, partition_cols=["k"])
    after = np.arange(ROWS + WERE if how == "append" else ROWS)
    calm = _undisturbed.get(mode)
    kill = None
    if role is not None:
        first = "producer" if role == "executor" else role
        # To the end of it, when the files get their names
        kill = partial(kill_one, spark, role, first, folder, _spans[mode, first], dice)
    words = ""
    begin = time.monotonic()
    with killer(kill) as killed, Reader(out, [before, after], how == "append") as reader:
        try:
            p = three_shuffles(spark, mode, source, folder, spills)
            within(spark, SOON_S, lambda: p.write_parquet(out, partition_by="k", mode=how))
            kind = "right"
        except GivenUp as error:
            kind, words = "hang", str(error)
        except Exception as error:  # Spark's own classes differ by version
            kind, words = "error", last_words(str(error))
        seconds = time.monotonic() - begin
    _looks.append(reader.looks)
    if role is None:
        ended = time.time()
        for each in ROLES:
            _spans[mode, each] = ended - min(path.stat().st_mtime for path in folder.glob(f"{each}-*"))
    calls = sum(attempts(each, folder) for each in ROLES)
    if kind == "hang":
        cluster.abandon()
    else:
        wanted = after if kind == "right" else before
        seen = numbers(out)
        if not np.array_equal(seen, wanted):
            kind, words = "wrong", f"{how}, {kind}: {None if seen is None else len(seen)} rows of {len(wanted)}"
        elif found := in_the_end(lambda: left(spark, out.parent, spills), lambda found: not found):
            kind, words = "wrong", f"{how}, {kind}: left behind: {found[:3]}"
    if reader.wrong:
        kind, words = "wrong", f"{how}: a reader saw {reader.wrong[0]}"
    return Outcome(kind, seconds, any(killed), words, calls - calm.retries if calm else calls)


@nightly(role=["producer", "consumer", "executor"])
@pytest.mark.parametrize("role", [*ROLES, "executor"])
@pytest.mark.parametrize("mode", MODES)
def test_all_rows_or_what_was_there(cluster: Cluster, mode: str, role: str, source: Path, tmp_path: Path) -> None:
    dice = random.Random(f"files {mode} {role}")
    if mode not in _undisturbed:
        once(cluster, mode, None, source, tmp_path / "warm", dice)
        calm = once(cluster, mode, None, source, tmp_path / "calm", dice)
        assert calm.kind == "right", calm.words
        _undisturbed[mode] = calm
    found = enough(lambda number: once(cluster, mode, role, source, tmp_path / str(number), dice), KILLS)
    _found[mode, role] = found
    assert [each for each in found if each.kind not in ("right", "error") or each.seconds > SOON_S] == []


def test_a_reader_sees_what_is_not_whole(source: Path, tmp_path: Path) -> None:
    """The reader of these tests finds half a file, half of the rows, a row twice, and a file in a wrong directory."""
    rows, whole = np.arange(100), of_numbers(np.arange(100))
    pq.write_to_dataset(whole, tmp_path, partition_cols=["k"])
    Reader(tmp_path, [rows], False).look()
    one = next(tmp_path.glob("k=3/*.parquet"))
    data = one.read_bytes()
    for wrong in (data[:-1], data[:60], b""):
        one.write_bytes(wrong)
        with pytest.raises(pa.ArrowInvalid):
            Reader(tmp_path, [rows], True).look()
    one.unlink()
    for adds in (False, True):
        with pytest.raises(AssertionError, match="86 rows are seen"):
            Reader(tmp_path, [rows], adds).look()
    one.write_bytes(data)
    one.with_name("again.parquet").write_bytes(data)
    with pytest.raises(AssertionError, match="114 rows are seen"):
        Reader(tmp_path, [rows], True).look()
    one.with_name("again.parquet").rename(tmp_path / "k=4" / "other.parquet")
    with pytest.raises(AssertionError):
        Reader(tmp_path, [rows], True).look()
