"""What the kernel knows of a task, and of the JVM that feeds it."""

from __future__ import annotations

import os
import sys
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


def test_a_thread_of_the_jvm_that_ends_meanwhile_hides_no_collector(tmp_path: Path) -> None:
    """Its name cannot be read any more: then no thread was a collector, for as long as the worker lived."""
    names = {os.getpid(): "python\n", 20: "python\n", 10: "java\n"}
    parents = {os.getpid(): 20, 20: 10}
    threads = {10: "java\n", 11: None, 12: "VM Thread\n", 13: "GC Thread#0\n", 14: "GC Thread#1\n"}
    for pid, name in names.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parents.get(pid, 1)} 0")
    for thread, thread_name in threads.items():
        (tmp_path / "10" / "task" / str(thread)).mkdir(parents=True)
        if thread_name is not None:
            (tmp_path / "10" / "task" / str(thread) / "comm").write_text(thread_name)
    found = sorted(vitals._collectors(str(tmp_path)))
    assert found == [str(tmp_path / "10" / "task" / thread / "schedstat") for thread in ("12", "13")]


def test_what_started_sparks_daemon_is_no_code_of_a_task() -> None:
    """``spark.python.daemon.module`` may be a module of the user's, which is on the stack of every worker."""
    made: dict[str, Any] = {}
    exec(compile("def manager(call):\n    return call()", "/lib/pyspark/daemon.py", "exec"), made)
    exec(compile("import sys\ndef worker():\n    return sys._getframe()", threading.__file__, "exec"), made)
    frame = made["manager"](made["worker"])
    assert vitals.line_of(frame) is None
    assert vitals.stack_of(frame) == "threading.py:3 worker"


def test_a_users_archive_is_the_users_code_and_sparks_is_not() -> None:
    assert vitals._is_users("/tmp/spark-1/userFiles-2/etl-1.0.zip/etl/clean.py")
    assert not vitals._is_users("/opt/spark/python/lib/pyspark.zip/pyspark/worker.py")
    assert not vitals._is_users("/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py")


def test_in_a_long_run_the_line_that_runs_now_is_named_too() -> None:
    found = vitals.Vitals()
    try:
        found._frames.update({f"a.py:{k} f": 1000 + k for k in range(9)})
        found._frames["new.py:1 g"] = 3
        found._lately.extend(["new.py:1 g"] * 3)
        assert found.figures()["frames"] == {
            **{f"a.py:{k} f": 1000 + k for k in (8, 7, 6, 5)},
            "new.py:1 g": 3,
        }
    finally:
        found.close()


def test_figures_since_a_mark_are_of_what_came_after_it() -> None:
    found = vitals.Vitals()
    try:
        found._frames.update({"a.py:1 f": 10, "b.py:1 f": 9})
        found._gc_s = 2.0
        mark = found.mark()
        found._frames.update({"b.py:1 f": 1, "c.py:1 f": 3})
        found._gc_s = 2.5
    finally:
        found.close()
    said = found.figures(mark)
    assert said["frames"] == {"c.py:1 f": 3, "b.py:1 f": 1}
    assert said["gc_s"] == 0.5
    assert found.figures()["frames"] == {"a.py:1 f": 10, "b.py:1 f": 10, "c.py:1 f": 3}
    assert said.get("cores") == found.figures().get("cores")


def test_a_sample_after_an_idle_hour_is_one_of_few() -> None:
    found = vitals.Vitals()
    try:
        frame = sys._getframe()
        found._stack(0.0, frame, (0.0, 0.0))
        found._stack(3600.0, frame, (0.0, 0.0))
        assert sum(found._stacks["off"].values()) == vitals.MOST_MISSED
    finally:
        found.close()
