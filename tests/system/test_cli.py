"""The commands as a user types them, with a real Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    for command in ("bench", "demo", "doctor", "replay", "shuffle", "top"):
        assert command in said.stdout


def test_demo_shows_all_ways_and_that_they_agree(tmp_path: Path) -> None:
    said = fastbuf("demo", "--rounds", "1", "--partitions", "2", cwd=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    for expected in ("Spark's own shuffle", "blocking", "pipelined", "aircraft", "N0EGMQ"):
        assert expected in said.stdout
    assert "All 3 results are equal, row for row: 4,037 rows." in said.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.environ.get("FASTBUF_LONG") != "1", reason="takes a minute: set FASTBUF_LONG=1")
def test_demo_with_a_slow_consumer_stays_under_its_cap(tmp_path: Path) -> None:
    said = fastbuf("demo", "--slow-consumer", "40", "--memory-mb", "2", cwd=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    match = re.search(
        r"pipelined: the second stage slept 40 ms a batch of 2,000 rows; the first stage waited ([\d.]+) s for it, "
        r"and no worker held more than ([\d.]+) MiB of the (\d+) MiB it may",
        " ".join(said.stdout.split()),
    )
    assert match, said.stdout
    waited, held, cap = map(float, match.groups())
    assert waited > 0.5  # 165 pauses of 40 ms, and room for a fraction of the rows
    assert 0 < held <= cap == 2


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
    said = fastbuf(
        *("shuffle", "in.parquet", "out.parquet", "--key", "user", "--partitions", "3", "--master", "local[4]"),
        *("--func", "my_stages:total", "--schema", "user string, total double"),
        cwd=user_folder,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "97 rows in 3 partitions" in said.stdout
    result = {row["user"]: row["total"] for row in pq.read_table(user_folder / "out.parquet").to_pylist()}
    source = pq.read_table(user_folder / "in.parquet").to_pylist()
    assert result == {
        user: sum(r["amount"] for r in source if r["user"] == user) for user in {r["user"] for r in source}
    }
    assert sorted(p.name for p in user_folder.iterdir() if p.name != "__pycache__") == [
        "in.parquet",
        "my_stages.py",
        "out.parquet",
    ]


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
    assert list(user_folder.glob(".*partial")) == []
