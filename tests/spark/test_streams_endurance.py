"""Many checkpoints: memory, descriptors and files stay as they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numbered
import psutil
import pytest
from killings import below, command
from nights import LONG, nightly
from test_streams_ends import until

import fastbuf_spark as fbs

CHECKPOINTS = int(os.environ.get("FASTBUF_CHECKPOINTS", 10_000 if LONG else 300))
MORE_BYTES = 24 << 20  #: that a process may have at the end, above what it had after a tenth


def processes(spark: Any) -> list[psutil.Process]:
    """The driver, and the workers that hold a stream's tasks."""
    workers = [each for each in below(spark) if any("daemon" in word for word in command(each))]
    return [psutil.Process(), *workers]


def figures(spark: Any, folder: Path) -> tuple[dict[int, tuple[int, int]], int]:
    sizes = {each.pid: (each.memory_full_info().uss, each.num_fds()) for each in processes(spark)}
    return sizes, sum(len(files) for _, _, files in os.walk(folder))


@nightly
def test_ten_thousand_checkpoints(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    stream = numbered.numbered(spark, None, 500.0)  # type: ignore[arg-type]
    query = stream.write_stream(fbs.to_function(lambda table, number: None), tmp_path / "chk", every=0)

    def completed() -> int:
        return max((each["id"] for each in query.progress().get("checkpoints", ())), default=0)

    until(lambda: completed() >= CHECKPOINTS // 10, 600)
    early, early_files = figures(spark, tmp_path)
    until(lambda: completed() >= CHECKPOINTS, 3600)
    late, late_files = figures(spark, tmp_path)
    query.stop()
    assert query.status["restarts"] == 0
    lines = [
        f"process {pid}: {early[pid][0] >> 20} MiB, then {uss >> 20} MiB; descriptors {early[pid][1]}, then {fds}"
        for pid, (uss, fds) in late.items()
        if pid in early
    ]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{CHECKPOINTS} checkpoints: files {early_files}, then {late_files}", *lines, sep="\n")
    assert late_files <= early_files + 10
    for pid, (uss, fds) in late.items():
        assert pid in early
        assert uss <= early[pid][0] + MORE_BYTES
        assert fds <= early[pid][1] + 4
