"""What the kernel knows of a task, and of the JVM that feeds it."""

from __future__ import annotations

from pathlib import Path

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
