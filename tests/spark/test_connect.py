"""Spark Connect: blocking, which auto takes there, with a real server of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
HAS_CONNECT = all(importlib.util.find_spec(name) for name in ("grpc", "grpc_status", "google.rpc", "zstandard"))


@pytest.mark.skipif(not HAS_CONNECT, reason="Spark Connect's client is missing: pip install 'pyspark[connect]'")
@pytest.mark.timeout(300)
def test_a_program_of_a_user_of_connect() -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "bindings"), str(ROOT / "tests" / "spark")])
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-m", "connect_program"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line.partition("FOUND ")[2] for line in ran.stdout.splitlines() if "FOUND " in line]
    assert lines, ran.stderr[-3000:]
    found = json.loads(lines[0])
    said = found.pop("pipelined"), found.pop("preflight")
    assert found == {
        "auto": True,
        "blocking": True,
        "count": 1_000,
        "take": 5,
        "union": 2_000,
        "expression": True,
        "in turn": 1_000,
        "groups": [0, 1, 2, 3, 4],
        "groups, descending": [983, 984, 985, 998, 999],
        "groups of pandas": 5,
        "aggregates": [995, 996, 997, 998, 999],
        "pairs": 2,
        "pairs, descending": list(range(983, 1_000)),
        "pairs of files": list(range(17)),
    }
    for words in said:
        assert "Spark Connect" in words
        assert "mode='blocking'" in words
