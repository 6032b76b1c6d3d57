"""What a shuffle would take on a cluster that is not there, beside what the simulation of one counts."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError
from fastbuf_spark.driver import calibration, talk
from fastbuf_spark.driver.estimate import TASK_BYTES, Estimate, Rates, estimate
from fastbuf_spark.driver.summary import TASK_S

ROOT = Path(__file__).resolve().parents[3]
RATES = Rates(500e6, 1e9, 1.25e9, 10e-6, 0.3e-6)
LARGE = fbs.Cluster(executors=1_000, cores=14, descriptors=100_000, driver_descriptors=100_000)
TB = 10**12


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    import simulate_cluster

    return simulate_cluster


def first(made: Estimate) -> str:
    return made.limits[0].name


def test_ten_thousand_tasks_in_blocking_mode() -> None:
    made = estimate(LARGE, 10 * TB, 10_000, 10_000, RATES)
    assert (made.mode, made.problems, made.slots, made.files) == ("blocking", (), 14_000, 10_000)
    assert made.description_bytes == 10_000 * 10_000 * 60
    assert made.task_memory_bytes <= 64 << 20
    assert made.executor_memory_bytes == 14 * made.task_memory_bytes + (60 << 20)
    assert made.seconds["start"] == pytest.approx(20_000 * TASK_S / 14_000)
    assert made.seconds["write"] == pytest.approx(1e9 / 500e6)
    assert made.seconds["read"] == pytest.approx(1e9 / 1e9)
    assert made.seconds["network"] == pytest.approx(10 * TB * 0.999 / 1_000 / 1.25e9)
    assert made.total_s == pytest.approx(sum(made.seconds.values()) - made.seconds["driver"])
    assert max(limit.share for limit in made.limits) < 1
    assert json.loads(json.dumps(made.as_dict()))["limits"][0]["name"] == first(made)


def test_waves_of_tasks_take_their_time_each() -> None:
    one, two = (estimate(LARGE, TB, tasks, 14_000, RATES).seconds["write"] for tasks in (14_000, 14_001))
    assert two == pytest.approx(2 * one, rel=0.01)


def test_pipelined_is_refused_in_the_words_of_preflight() -> None:
    made = estimate(LARGE, 10 * TB, 10_000, 10_000, RATES, "pipelined")
    stopped = fbs.preflight(LARGE, 10_000, "pipelined")
    assert made.problems == stopped.problems
    assert str(stopped) == (
        "a producer of 10000 consumers needs 10001 segments of 32768 bytes, and has 2048: set "
        "spark.fastbuf.memoryBytes=313m, a lower spark.fastbuf.segmentSize, fewer partitions, or mode='blocking'"
    )
    assert first(made) == "segments of a producer"
    enough = fbs.ShuffleConf(memory_bytes="313m")
    assert not fbs.preflight(LARGE, 10_000, "pipelined", enough)
    assert estimate(LARGE, 10 * TB, 10_000, 10_000, RATES, "pipelined", enough).connections == 4_000 * 10_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cores": 9}, "10001 > 9000 slots; use executors with 10001 cores in all, num_partitions=8999, or"),
        (
            {"task_cpus": 2},
            "10001 > 7000 slots; use executors with 20002 cores in all (a task takes 2: spark.task.cpus)",
        ),
        ({"descriptors": 1_024}, "its process may open 1024 descriptors, of which 128 are for others: raise the limit"),
        ({"driver_descriptors": 4_096}, "the driver each, which may open 4096 descriptors and needs 128 for itself"),
    ],
)
def test_each_limit_of_pipelined_mode_is_told_with_what_to_change(change: dict[str, int], words: str) -> None:
    cluster = dataclasses.replace(LARGE, **change)
    (problem,) = fbs.preflight(cluster, 10_000, "pipelined", fbs.ShuffleConf(memory_bytes="313m"))
    assert words in problem
    assert "mode='blocking'" in problem
    assert not fbs.preflight(cluster, 10_000, "blocking")
    assert not fbs.preflight(cluster, 10_000, "auto")


@pytest.mark.parametrize(
    ("partitions", "options", "name", "setting"),
    [
        (100_000, {}, "bytes of a map task's buffers", "spark.fastbuf.memoryBytes"),
        (10_000, {"nbytes": 10**9}, "blocks of 1024 bytes", "fewer partitions"),
        (1_000, {"executor_memory_bytes": 256 << 20}, "bytes of an executor's Python workers", "memoryOverhead"),
        (1_000, {"driver_memory_bytes": 1 << 20}, "bytes of the driver's Python", "a driver with more memory"),
        (1_000, {"conf": {"port_min": 7_000, "port_max": 7_001}}, "ports of a host", "spark.fastbuf.portMin"),
        (1_000, {"cluster": {"driver_descriptors": 1_024}}, "descriptors of the driver", "ulimit -n"),
        (1_000, {"cluster": {"descriptors": 129}}, "descriptors of a worker's process", "ulimit -n"),
        (1_000, {"rates": {"message_s": 0.1}}, "seconds of the driver's thread", "fewer map tasks"),
    ],
)
def test_what_breaks_first_in_blocking_mode(partitions: int, options: dict[str, Any], name: str, setting: str) -> None:
    options = dict(options)
    cluster = dataclasses.replace(LARGE, executors_per_host=4, **options.pop("cluster", {}))
    rates = dataclasses.replace(RATES, **options.pop("rates", {}))
    conf = fbs.ShuffleConf(**options.pop("conf", {}))
    given = {"nbytes": 1_000 * TB, "map_tasks": 10_000, **options}
    made = estimate(cluster, num_partitions=partitions, rates=rates, conf=conf, **given)
    (limit,) = [each for each in made.limits if each.name == name]
    assert limit.share > 1
    assert setting in str(limit)


def test_a_message_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbuf_spark.driver.estimate.FRAME_BYTES", 50_000)
    made = estimate(LARGE, TB, 10_000, 1_000, RATES)
    assert first(made) == "bytes of the longest control message"
    assert made.limits[0].takes > 300_000  # where 10,000 files are, on 1,000 hosts
    monkeypatch.setattr("fastbuf.json_frames.FRAME_BYTES", 50_000)
    assert estimate(LARGE, TB, 10_000, 1_000, RATES).limits[0].share > 1  # such a one cannot be made


def test_partitions_that_cost_more_than_they_bring() -> None:
    small = fbs.Cluster(executors=2, cores=4)
    assert "give a lower num_partitions" in estimate(small, 10**6, 8, 2_000, RATES).advice
    assert estimate(small, 10**6, 8, 8, RATES).advice == ""


def test_messages_are_those_that_the_simulation_counts(simulation: Any) -> None:
    told = simulation.one("blocking", 100)
    made = estimate(fbs.Cluster(executors=10, cores=14), TB, 100, 100, RATES)
    greeted, said = 100 + 2 * 100 + 10, [len(message.encode()) for side in talk.GREETING for message in side]
    assert made.messages - greeted * len(said) == told.messages  # there are no sockets
    assert (made.message_bytes - greeted * sum(said)) / (1 << 20) == pytest.approx(told.mib, rel=0.02)


@pytest.mark.parametrize("way", ["blocking", "pipelined"])
def test_the_drivers_memory_for_a_task_is_what_the_simulation_takes(simulation: Any, way: str) -> None:
    simulation.one(way, 20)  # what is imported and cached once
    tracemalloc.start()
    try:
        simulation.one(way, 100)
        each = tracemalloc.get_traced_memory()[1] / 200
    finally:
        tracemalloc.stop()
    assert TASK_BYTES[way] / 4 < each < 4 * TASK_BYTES[way]


@pytest.mark.parametrize("way", ["blocking", "pipelined", "blocking_sockets", "pipelined_sockets"])
def test_the_simulation_runs(simulation: Any, way: str) -> None:
    assert (way, 20) in simulation.cases(smoke=True)
    assert simulation.one(way, 20).messages > 100


def test_a_cluster_is_of_whole_numbers() -> None:
    for wrong in ({"executors": 0, "cores": 1}, {"executors": 1}, {"executors": 1.5, "cores": 2}):
        with pytest.raises(ConfigError, match="give a whole number of at least 1"):
            fbs.Cluster(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cores is 2, task_cpus 4: no task fits into an executor"):
        fbs.Cluster(executors=1, cores=2, task_cpus=4)
    with pytest.raises(ConfigError, match="nbytes is 0"):
        estimate(LARGE, 0, 1, 1, RATES)
    with pytest.raises(ConfigError, match="map_tasks is 0"):
        estimate(LARGE, 1, 0, 1, RATES)


def test_rates_are_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LEAST_S", 0.01)
    found = dataclasses.asdict(calibration.measured(40, 8))
    assert found.pop("network_bytes_s") == 1.25e9
    assert all(value > 0 for value in found.values())
    assert 1e6 < found["write_bytes_s"] < 1e11
