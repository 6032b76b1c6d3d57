"""Spark's ``local-cluster``: executors of their own on this host; each result against Spark's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import clusters
import pytest
from clusters import drive
from nights import nightly

import fastbuf

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MOST_S = 300.0  # a hang; on a machine with nothing else to do each takes a tenth of it
TWO = "local-cluster[2,1,1024]"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
}
RIGHT_AWAY_S = 90.0  # below what waits in vain for its time (stall_timeout)


def shuffle(mode: str, partitions: int = 1, **more: Any) -> dict[str, Any]:
    return {"case": "shuffle", "mode": mode, "partitions": partitions, **more}


def right(answer: dict[str, Any], mode: str, rows: int = 20_000) -> dict[str, Any]:
    """The run's figures of an answer that has Spark's own rows in Spark's own places."""
    assert "error" not in answer, answer["error"]
    assert answer["rows"] == rows
    assert answer["as_spark"]
    assert answer["run"]["mode"] == mode
    assert answer["run"]["outcome"] == "ok"
    return dict(answer["run"])


def transports(run: dict[str, Any]) -> set[str]:
    return {name for figures in run["producers"].values() for name in figures["transports"]}


@nightly
def test_every_mode_and_a_killed_executor(tmp_path: Path) -> None:
    """One cluster for all of it: what takes long is to start one."""

    def kill(partition: int, number: int) -> dict[str, Any]:
        return {"kind": "kill", "mark": str(tmp_path / str(number)), "partition": partition}

    conf = {"spark.task.maxFailures": "4"}
    cases = [
        {"case": "warm", "tasks": 2, "executors": 2},
        shuffle("pipelined"),
        shuffle("auto"),
        shuffle("blocking", 3),
        {"case": "pairs", "mode": "pipelined", "partitions": 1},
        # Three batches and more a producer, so that some are under way
        shuffle("pipelined", rows=90_000, before=kill(1, 1)),
        shuffle("pipelined", rows=90_000, after=kill(0, 2)),
        shuffle("pipelined"),
    ]
    _, pipelined, auto, blocking, pairs, producer, consumer, last = drive(TWO, cases, conf, seconds=MOST_S)
    assert transports(right(pipelined, "pipelined")) == {"memfd"}, "both executors are on one host"
    right(auto, "blocking")
    right(blocking, "blocking")
    assert pairs == {"as_spark": True, "rows": 5_000}
    for answer, number in ((producer, 1), (consumer, 2)):
        assert (tmp_path / str(number)).exists(), "no executor was killed"
        right(answer, "pipelined", 90_000)
        assert answer["seconds"] < RIGHT_AWAY_S
    right(last, "pipelined")


@nightly
def test_tasks_of_two_cores() -> None:
    cases = [shuffle("pipelined"), shuffle("pipelined", 2), shuffle("auto")]
    one, two, auto = drive("local-cluster[2,2,1024]", cases, {"spark.task.cpus": "2"}, seconds=MOST_S)
    assert one["slots"] == 2
    right(one, "pipelined")
    assert "3 > 2 slots" in two["error"]
    right(auto, "blocking")


@nightly
def test_speculation_sends_nothing_twice() -> None:
    slow = {"kind": "slow", "seconds": 4}
    more = {"tasks": 4, "rows": 90_000}
    cases = [
        {"case": "warm", "tasks": 4, "executors": 2},
        *(shuffle(mode, before=slow, **more) for mode in ("pipelined", "blocking")),
        shuffle("pipelined", 2, after=slow, **more),
    ]
    _, pipelined, blocking, consumers = drive("local-cluster[2,2,1024]", cases, SPECULATION, seconds=MOST_S)
    run = right(pipelined, "pipelined", 90_000)
    assert sum(figures["records"] for figures in run["producers"].values()) == 90_000
    right(blocking, "blocking", 90_000)
    right(consumers, "pipelined", 90_000)


@nightly
def test_executors_that_come_and_go() -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    }
    cases = [
        shuffle("pipelined"),
        {"case": "wait", "seconds": 8},
        shuffle("pipelined"),
        shuffle("blocking", 3),
    ]
    first, left, second, blocking = drive(TWO, cases, conf, seconds=MOST_S)
    right(first, "pipelined")
    assert left["executors"] == 1, "the idle one should be gone"
    right(second, "pipelined")
    right(blocking, "blocking")


@nightly
@pytest.mark.parametrize("megabytes", [400, 600])
def test_a_limit_on_a_workers_addresses_is_kept_or_named(megabytes: int) -> None:
    conf = {"spark.executor.pyspark.memory": f"{megabytes}m"}
    cases = [shuffle("pipelined"), shuffle("blocking")]
    pipelined, blocking = drive(TWO, cases, conf, seconds=MOST_S)
    for answer, mode in ((pipelined, "pipelined"), (blocking, "blocking")):
        if "error" not in answer:
            right(answer, mode)
            continue
        assert answer["seconds"] < RIGHT_AWAY_S
        assert "MemoryError" in answer["error"] or "spark.executor.pyspark.memory leaves" in answer["error"]
    if megabytes == 600:
        right(pipelined, "pipelined")


@nightly
def test_a_worker_with_another_version_or_none_is_told_so(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name, source in (("fastbuf", "fastbuf"), ("fastbuf_spark", "bindings/fastbuf_spark")):
        shutil.copytree(clusters.ROOT / source, other / name, ignore=shutil.ignore_patterns("*.c", "__pycache__"))
    for name, old, new in (
        ("fastbuf/__init__.py", f'"{fastbuf.__version__}"', '"9.9.9"'),
        ("fastbuf_spark/wire.py", "\nVERSION = ", "\nVERSION = 7"),
    ):
        text = (other / name).read_text()
        assert old in text
        (other / name).write_text(text.replace(old, new))
    python = clusters.bare_python(tmp_path / "bare")
    for path, words in ((str(other), "has 9.9.9 (control version 7"), ("", "cannot import it")):
        for answer in drive(TWO, [shuffle("pipelined"), shuffle("blocking")], seconds=MOST_S, python=python, path=path):
            assert f"the driver has fastbuf {fastbuf.__version__}" in answer["error"]
            assert words in answer["error"]
            assert answer["seconds"] < RIGHT_AWAY_S
