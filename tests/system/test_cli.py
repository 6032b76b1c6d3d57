"""The commands as a user types them, with a real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nights import nightly

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "howto" / "run-a-user-file.md"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def fastbuf(*arguments: str, cwd: Path, timeout: float = 500) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastbuf.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "120"},
    )


def test_help_names_the_commands(tmp_path: Path) -> None:
    said = fastbuf("--help", cwd=tmp_path)
    assert said.returncode == 0
    for command in ("bench", "demo", "doctor", "plan", "replay", "shuffle", "top"):
        assert command in said.stdout


def demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo on one copy of the flights, in a session of its own, with an empty folder for what is temporary."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "fastbuf.cli", "demo", "--scale", "1", "--rounds", "1", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path / "here",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "COLUMNS": "120",
            "TMPDIR": str(tmp_path / "temporary"),
        },
    )


def said_until(running: subprocess.Popen[str], words: str) -> str:
    """What it says, up to the line with these words."""
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it never said {words!r}, but: {said}")


def test_demo_shows_both_ways_and_that_they_agree(tmp_path: Path) -> None:
    with demo(tmp_path, "--part", "shuffle", "--folder", f"file://{tmp_path}/files") as running:
        link = re.search(r"(http://127[.]0[.]0[.]1:\d+)/#token=(\S+)", said_until(running, "#token="))
        assert link
        asked = urllib.request.Request(link[1] + "/jobs", headers={"Authorization": f"Bearer {link[2]}"})
        said_until(running, "fastbuf, warm-up on a month")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            jobs = json.load(answer)["jobs"]  # of its last look, so the warm-up may still run there
        # Two shuffles in a row are one graph
        assert [job["status"] in ("RUNNING", "FINISHED") for job in jobs] == [True]
        said, _ = running.communicate(timeout=500)
    assert running.returncode == 0, said
    assert "All 3 runs wrote the same 31,031 rows." in said
    for expected in (
        "Spark's own",
        "Spark's own, lifted",
        "fastbuf",
        "MIA",
        "657,042 rows",
        "shuffle by tailnum: ",
        "MB through files",
    ):
        assert expected in said
    assert "MB through shared memory" in said  # all workers are on this machine
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(asked, timeout=60)
    (picture,) = (tmp_path / "here").iterdir()
    assert picture.name == "fastbuf-demo.svg"
    drawn = ElementTree.parse(picture).getroot()
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Spark's own", "Spark's own, lifted", "fastbuf"} <= set(texts)
    assert texts.count("follow each aircraft") == 3
    assert [*(tmp_path / "temporary").iterdir(), *(tmp_path / "files").iterdir()] == []


def test_demo_kills_a_worker_of_a_stream_and_loses_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--part", "stream", "--master", "local[2]") as running:
        said, _ = running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert re.search(r"kill -9 \d+: the counts of 1,000 keys are gone, [\d,]+ rows had come", said), said
    assert re.search(r"run 2 gives rows again, from the last checkpoint on; \d+[.]\d s after the kill", said), said
    assert "60,000 rows in the files: 0 lost, 0 doubled, 0 with a wrong count." in said
    assert "Traceback" not in said
    assert list((tmp_path / "temporary").iterdir()) == list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting", signal.SIGINT),
        ("starting", signal.SIGTERM),
        *(pytest.param("running", number, marks=nightly) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_demo_that_is_stopped_leaves_nothing(moment: str, number: signal.Signals, tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        if moment == "starting":
            end = time.monotonic() + 60
            while not any("java" in line[0] for line in alive_in(running.pid)) and time.monotonic() < end:
                time.sleep(0.05)  # the start of a process that is no child has no event
        else:
            said_until(running, "Spark's own, lifted, warm-up")  # so that fastbuf's is under way, or about to be
        assert list((tmp_path / "temporary").iterdir())
        if number == signal.SIGTERM:
            running.terminate()  # as kill does
        else:
            os.killpg(running.pid, number)  # as a terminal does
        said, _ = running.communicate(timeout=120)
    assert running.returncode == 128 + number
    assert "Aborted" in said
    assert "Traceback" not in said
    assert list((tmp_path / "temporary").iterdir()) == list((tmp_path / "here").iterdir()) == []
    end = time.monotonic() + 60  # Spark's JVM ends by itself once its standard input does
    while (left := alive_in(running.pid)) and time.monotonic() < end:
        time.sleep(0.1)  # the end of a process that is no child has no event
    assert left == []


def alive_in(session: int) -> list[list[str]]:
    """Command lines of the session's processes; those that have ended and that nobody has asked about do not count."""
    found = []
    for process in psutil.process_iter(["status", "cmdline"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.info["cmdline"] or [""])
    return found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scale", "0"], "0 is not in the range"),
        (["--picture", "nowhere/demo.svg"], "there is no folder"),
        pytest.param(["--master", "local[2]"], "slots", marks=nightly),  # Spark has to start for it
    ],
)
def test_demo_says_what_it_cannot_do(arguments: list[str], says: str, tmp_path: Path) -> None:
    with demo(tmp_path, *arguments) as running:
        said, _ = running.communicate(timeout=200)
    assert running.returncode != 0
    assert says in said
    assert "Traceback" not in said
    assert list((tmp_path / "here").iterdir()) == []
    assert [file.suffix for file in (tmp_path / "temporary").iterdir()] in ([], [".log"])  # Spark's, which it names


@nightly
def test_demo_with_a_slow_consumer_stays_under_its_cap(tmp_path: Path) -> None:
    with demo(tmp_path, "--part", "shuffle", "--slow-consumer", "40", "--memory-mb", "2") as running:
        said, _ = running.communicate(timeout=500)
    assert running.returncode == 0, said
    match = re.search(
        r"The second stage slept 40 ms a batch of 2,000 rows; the first stage waited ([\d.]+) s for it, "
        r"and no worker held more than ([\d.]+) MiB of the ([\d.]+) MiB that it may for this shuffle",
        " ".join(said.split()),
    )
    assert match, said
    waited, held, cap = map(float, match.groups())
    assert waited > 0.5  # 165 pauses of 40 ms, and room for a fraction of the rows
    assert 0 < held <= cap == 1  # half of 2 MiB: a task between two shuffles is in both


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """A folder with the how-to page's own module, and a file for it."""
    blocks = re.findall(r'```python title="my_stages.py"\n(.*?)```', HOW_TO.read_text(), re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "my_stages.py").write_text(blocks[0])
    table = pa.table({"user": [f"u{i % 97}" for i in range(5000)], "amount": [float(i % 13) for i in range(5000)]})
    pq.write_table(table, tmp_path / "in.parquet")
    return tmp_path


def test_shuffle_of_a_users_file(user_folder: Path) -> None:
    """Its name is no pattern, by which another file would be read."""
    (user_folder / "in.parquet").rename(user_folder / "in[1].parquet")
    pq.write_table(pa.table({"user": ["nobody"], "amount": [1.0]}), user_folder / "in1.parquet")
    said = fastbuf(
        *("shuffle", "in[1].parquet", "out.parquet", "--key", "user", "--partitions", "3", "--master", "local[4]"),
        *("--func", "my_stages:total", "--schema", "user string, total double"),
        cwd=user_folder,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "97 rows in 3 partitions" in said.stdout
    result = {row["user"]: row["total"] for row in pq.read_table(user_folder / "out.parquet").to_pylist()}
    source = pq.read_table(user_folder / "in[1].parquet").to_pylist()
    assert result == {
        user: sum(r["amount"] for r in source if r["user"] == user) for user in {r["user"] for r in source}
    }
    assert sorted(p.name for p in user_folder.iterdir() if p.name != "__pycache__") == [
        "in1.parquet",
        "in[1].parquet",
        "my_stages.py",
        "out.parquet",
    ]


@nightly
def test_shuffle_that_is_interrupted_leaves_nothing(user_folder: Path) -> None:
    """And what another left that was killed goes too.  The stage sleeps: both are ended in the middle of it."""
    (user_folder / "my_stages.py").write_text(
        "import time\n\n\ndef slow(batches):\n    for batch in batches:\n        open('begun', 'w').close()\n"
        "        time.sleep(600)\n        yield batch\n"
    )
    command = (
        *("shuffle", "in.parquet", "out.parquet", "--key", "user", "--partitions", "2", "--master", "local[4]"),
        *("--func", "my_stages:slow"),
    )
    for number in (signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(
            [sys.executable, "-m", "fastbuf", *command],
            cwd=user_folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            try:
                end = time.monotonic() + 90
                while not (user_folder / "begun").exists() and running.poll() is None and time.monotonic() < end:
                    time.sleep(0.05)  # the start of a task of Spark's has no event here
                assert len(list(user_folder.glob(".out.parquet-*"))) == 1
                running.send_signal(number)
                _, said = running.communicate(timeout=90)
            finally:
                running.kill()
        (user_folder / "begun").unlink()
    assert running.returncode == 128 + signal.SIGINT
    assert said.strip() == "Aborted!"
    assert sorted(p.name for p in user_folder.iterdir() if p.name != "__pycache__") == ["in.parquet", "my_stages.py"]


def test_a_master_that_is_none_is_told_by_sparks_words(user_folder: Path) -> None:
    said = fastbuf(
        *("shuffle", "in.parquet", "out.parquet", "--key", "user", "--partitions", "3", "--master", "foo"),
        *("--func", "my_stages:total"),
        cwd=user_folder,
    )
    assert said.returncode == 1
    assert "Spark did not start: " in said.stderr
    assert "Master must either be yarn or start with spark" in said.stderr


@nightly
def test_shuffle_with_a_function_that_fails(user_folder: Path) -> None:
    with (user_folder / "my_stages.py").open("a") as file:
        file.write(
            "\n\ndef broken(batches):\n    next(batches)\n    raise ValueError('no such thing as a total')\n    yield\n"
        )
    said = fastbuf(
        *("shuffle", "in.parquet", "out.parquet", "--key", "user", "--partitions", "2", "--master", "local[4]"),
        *("--func", "my_stages:broken", "--mode", "blocking"),
        cwd=user_folder,
        timeout=400,
    )
    assert said.returncode == 1
    assert "no such thing as a total" in said.stderr
    assert not (user_folder / "out.parquet").exists()
    assert list(user_folder.glob(".*")) == []
