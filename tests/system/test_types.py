"""What a type checker makes of a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is of the extra lint")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from dataclasses import dataclass
from typing import Any, assert_type

import fastbuf as fb

@dataclass
class Point:
    x: int

schema = fb.Schema.of(x="int64")
rows = fb.RowSerializer(schema)
points = fb.RowSerializer(schema, record=Point)
columns = fb.ColumnarSerializer(schema)
assert_type(rows.loads(b""), list[tuple[Any, ...]])
assert_type(points.loads(memoryview(b"")), list[Point])
assert_type(next(points.iter(bytearray())), Point)
assert_type(fb.PickledSerializer().loads(b""), list[Any])
given: fb.RowSerializer[Point] = points

with fb.ShuffleEnvironment() as env:
    writer, gates = env.exchange(rows, 2)
    assert_type(writer, fb.RecordWriter)
    assert_type(gates, list[fb.InputGate])
    writers, _ = env.exchange(rows, producers=3)
    assert_type(writers, list[fb.RecordWriter])
    one, _ = env.exchange(rows, producers=1)
    assert_type(one, fb.RecordWriter)
    with env.pool.create_local_pool(required=1).request() as segment:
        assert_type(segment, fb.MemorySegment)
        rows.loads(segment)

async def read(gate: fb.InputGate) -> None:
    async with gate as entered:
        assert_type(entered, fb.InputGate)

rows.loads("text")  # line 40: an error
writers.emit((1,))  # line 41: an error
"""


def test_loads_and_exchange_are_typed_precisely(tmp_path: Path) -> None:
    """One producer is a writer, several are a list; what is decoded is of the class that was asked for."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-error-summary", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    wrong = [line for line in done.stdout.splitlines() if line.startswith("program.py")]
    places = [int(line.split(":")[1]) for line in wrong if ": error:" in line]
    expected = [n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("an error")]
    assert places == expected, done.stdout + done.stderr


def test_a_serializer_of_a_class_can_be_written_down() -> None:
    import fastbuf as fb

    assert str(fb.RowSerializer[int]) == "fastbuf.serializers.row.RowSerializer[int]"
