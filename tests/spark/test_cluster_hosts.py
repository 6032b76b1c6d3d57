"""A standalone cluster of several hosts, each a network namespace with its own address; against Spark's results."""

from __future__ import annotations

from pathlib import Path

import clusters
import pytest
from clusters import standalone
from nights import nightly
from test_clusters import MOST_S, right, shuffle, transports

from fastbuf_spark.driver.checks import APART

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WARM = {"case": "warm", "tasks": 6, "executors": 2}
PORTS = {"port_min": 41000, "port_max": 41040}


@pytest.fixture(autouse=True)
def files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """These hosts share their files in truth: so held rows are read from file servers alone."""
    monkeypatch.setenv(APART, "1")


@nightly
def test_two_hosts(tmp_path: Path) -> None:
    """TCP between hosts, shared memory within each: four consumers on two hosts, so that each producer has both."""
    cases = [WARM, shuffle("pipelined", 4, tasks=4), shuffle("auto", 2), shuffle("blocking", 3)]
    with standalone(tmp_path) as cluster:
        _, pipelined, auto, blocking = cluster.drive(cases, seconds=MOST_S)
    assert pipelined["slots"] == 6, "two workers of three cores"
    run = right(pipelined, "pipelined")
    assert transports(run) == {"memfd", "tcp"}
    for figures in run["producers"].values():
        assert sum(figures["transports"].values()) == 4
        assert figures["fallbacks"] == figures["transports"].get("tcp", 0)
    right(auto, "blocking")
    right(blocking, "blocking")


@nightly
def test_tasks_of_two_cores_on_two_hosts(tmp_path: Path) -> None:
    with standalone(tmp_path, cores=4) as cluster:
        tasks_of_two = {"spark.task.cpus": "2"}
        cases = [{**WARM, "tasks": 4}, shuffle("auto", 2), shuffle("pipelined", 2), shuffle("auto", 1)]
        _, many, two, one = cluster.drive(cases, tasks_of_two, seconds=MOST_S)
        assert many["slots"] == 4
        right(many, "blocking")
        assert transports(right(two, "pipelined")) <= {"memfd", "tcp"}
        right(one, "blocking")


@nightly
def test_executors_that_are_still_to_come_have_slots(tmp_path: Path) -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
        "spark.executor.cores": "1",
    }
    one = shuffle("pipelined")
    cases = [{**WARM, "tasks": 1, "executors": 1}, one, {"case": "wait", "seconds": 8}, one, shuffle("pipelined", 2)]
    with standalone(tmp_path, cores=1) as cluster:
        _, first, left, second, many = cluster.drive([dict(case) for case in cases], conf, seconds=MOST_S)
    assert first["slots"] == 1, "the other executor comes when a task waits for it"
    right(first, "pipelined")
    assert left["executors"] == 1
    right(second, "pipelined")
    assert "3 > 2 slots" in many["error"]


@nightly
def test_two_hosts_with_a_bad_network(tmp_path: Path) -> None:
    with standalone(tmp_path, bad=True) as cluster:
        cases = [WARM, *(shuffle(mode, 4, tasks=4, rows=90_000) for mode in ("pipelined", "blocking"))]
        _, bad, blocking = cluster.drive(cases, seconds=MOST_S)
        switch = cluster.hosts.switch
    assert "tcp" in transports(right(bad, "pipelined", 90_000))
    right(blocking, "blocking", 90_000)
    assert switch is None or switch.lost > 0, "the network was better than it should be"


@nightly
def test_the_wheel_is_shipped_as_an_archive(tmp_path: Path) -> None:
    python = clusters.bare_python(tmp_path / "bare")
    packed = clusters.archive(tmp_path)
    cases = [WARM, shuffle("pipelined", 4, tasks=4), shuffle("blocking", 3)]
    with standalone(tmp_path) as cluster:
        conf = {"spark.archives": f"{packed}#shipped"}
        # Of the folder that an executor runs in
        _, pipelined, blocking = cluster.drive(cases, conf, seconds=MOST_S, python=python, path="shipped")
        _, without, _ = cluster.drive(cases, seconds=MOST_S, python=python, path="")
    right(pipelined, "pipelined")
    right(blocking, "blocking")
    assert "cannot import it" in without["error"], "the workers' Python should not have fastbuf otherwise"


@nightly
@pytest.mark.parametrize("how", ["drops", "refuses"])
def test_a_firewall_between_workers_is_named(tmp_path: Path, how: str) -> None:
    settings = {"stall_timeout": 60, "connect_timeout": 3, **PORTS}
    around = {"settings": {**settings, "file_servers": False}}
    cases = [WARM, *(shuffle(mode, 4, tasks=4, settings=settings) for mode in ("pipelined", "blocking"))]
    with standalone(tmp_path) as cluster:
        cut = cluster.hosts.part if how == "drops" else cluster.hosts.refuse
        cut(PORTS["port_min"], PORTS["port_max"])
        conf = {"spark.deploy.maxExecutorRetries": "-1"}
        _, pipelined, held, blocking = cluster.drive([*cases, shuffle("blocking", 3, **around)], conf, seconds=MOST_S)
        text = pipelined["error"]
        assert pipelined["seconds"] < 60, "before anything stalls: what cannot connect says so"
        for words in (*cluster.hosts.addresses[1:], "spark.fastbuf.portMin", "41000 to 41040", "mode='blocking'"):
            assert words in text
        if "error" in held:  # else executors were replaced until all rows were on one host
            for words in ("the file server at 10.213.0.", "(now 41000 to 41040)", "spark.fastbuf.fileServers=false"):
                assert words in held["error"]
        else:
            right(held, "blocking")
        assert ("timed out" if how == "drops" else "Permission denied") in text
    right(blocking, "blocking")
