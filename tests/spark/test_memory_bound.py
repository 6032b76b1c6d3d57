"""The byte cap is true: what workers take under a slow consumer, against the same stages without a shuffle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = 1 << 20


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_peak_memory_of_workers_under_a_slow_consumer() -> None:
    memory = 32 * MIB
    rows = 3_000_000 if os.environ.get("FASTBUF_LONG") == "1" else 800_000
    path = os.pathsep.join([str(ROOT), str(ROOT / "bindings"), str(HERE)])
    done = subprocess.run(
        [sys.executable, str(HERE / "memory_probe.py"), str(rows), str(memory), "pipelined"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    # More data than the cap went through, the source had to wait, and the cap held.
    assert rows * 40 > memory or os.environ.get("FASTBUF_LONG") != "1"
    assert found["segments"]["peak"] <= found["segments"]["cap"]
    assert found["segments"]["waited"] > 0.1
    for side in ("consumer", "producer"):
        identity, ours = found["identity"][side], found["pipelined"][side]
        assert ours <= identity * 1.1 + memory / 1024, f"{side}: {ours} KiB against {identity} KiB of an identity stage"
