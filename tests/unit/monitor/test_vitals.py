"""What the kernel knows of a task, and of the JVM that feeds it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fastbuf.monitor import vitals


def test_a_collector_that_waits_for_a_cpu_holds_up_the_jvm_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that others use as well, most of a collection may be that wait."""
    times = tmp_path / "schedstat"
    times.write_text("0 0 0\n")
    monkeypatch.setattr(vitals, "_collectors", lambda: (str(times),))
    found = vitals.Vitals()
    try:
        times.write_text("500000000 1500000000 9\n")
        assert found.figures()["jvm_gc_s"] == 2.0
    finally:
        found.close()


def test_what_started_sparks_daemon_is_no_code_of_a_task() -> None:
    """``spark.python.daemon.module`` may be a module of the user's, which is on the stack of every worker."""
    made: dict[str, Any] = {}
    exec(compile("def manager(call):\n    return call()", "/lib/pyspark/daemon.py", "exec"), made)
    exec(compile("import sys\ndef worker():\n    return sys._getframe()", threading.__file__, "exec"), made)
    frame = made["manager"](made["worker"])
    assert vitals.line_of(frame) is None
    assert vitals.stack_of(frame) == "threading.py:3 worker"
