"""What the driver's page is told of its exchanges, without a Spark."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import monitored
import pytest

from fastbuf.errors import ConfigError
from fastbuf.monitor import snapshot
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import page
from fastbuf_spark.driver.run import Run, RunPlan
from fastbuf_spark.driver.summary import RunSummary

pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")


class Driver:
    """A rendezvous that has these runs."""

    def __init__(self, *summaries: RunSummary) -> None:
        self.summaries = deque(summaries)

    def progress(self) -> list[RunSummary]:
        return []


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr("fastbuf_spark.driver.rendezvous.servers", lambda: [made])
    monkeypatch.setattr(page, "_open", None)
    yield made
    if page._open is not None:
        page._open[1].close()


def slow(name: str, epoch: int, parent: int = 0, outcome: str = "running") -> RunSummary:
    summary = RunSummary("0123456789abcdef", name, "pipelined", epoch, parent, outcome)
    summary.producers = {n: monitored.producer(15.0, 1) for n in range(2)}
    summary.consumers = {0: monitored.consumer(3.0), 1: monitored.consumer(19.0)}
    return summary


def test_a_run_knows_whose_producers_read_its_result(driver: Driver) -> None:
    driver.summaries += [slow("total", 71), slow("clean", 72, parent=71), slow("other", 73)]
    total, clean, other = page.exchanges()
    assert total.upstream == (clean.id,)
    assert clean.upstream == other.upstream == ()
    jobs = snapshot([total, clean, other], 1.0)["jobs"]
    assert sorted(job["name"] for job in jobs) == ["clean → total", "other"]
    plan = RunPlan("x", "total", 2, 10.0, lambda run, targets: None)  # type: ignore[arg-type, return-value]
    assert Run(plan, 1, 0.0, parent=71).summary.parent == 71


def test_runs_that_have_no_epoch_yet_are_told_apart(driver: Driver) -> None:
    """While its consumers come together a run has none; those of the blocking mode never have."""
    driver.summaries += [slow("a", 0), slow("a", 0), slow("a", 0)]
    found = page.exchanges()
    assert len({exchange.id for exchange in found}) == 3
    assert [exchange.upstream for exchange in found] == [(), (), ()]


def test_a_run_that_is_over_is_looked_into_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    diagnose = RunSummary.diagnosis.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(RunSummary, "diagnosis", property(lambda self: looked.append(self.name) or diagnose(self)))
    over, live, silent = (
        slow("over", 1, outcome="ok"),
        slow("live", 2),
        RunSummary("x", "silent", "blocking", outcome="ok"),
    )
    driver.summaries += [over, live, silent]
    for _ in range(3):
        found = page.exchanges()
    assert (looked.count("over"), looked.count("live"), looked.count("silent")) == (1, 3, 0)
    assert found[0].diagnosis is not None
    assert found[0].diagnosis.roots[0].subtask == 1
    assert found[2].diagnosis is None
    over.consumers[2] = monitored.consumer(1.0)  # a figure that comes late
    page.exchanges()
    assert looked.count("over") == 2
    driver.summaries.clear()
    page.exchanges()
    assert page._ended == {}


def test_a_driver_has_one_page(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fastbuf_spark"):
        page.start(0)
        page.start(0)
    assert len(caplog.records) == 1
    first = page.ui()
    assert page.ui(port=1) is first
    assert caplog.records[0].getMessage() == f"fastbuf's page: {first.url}"
    first.close()
    page.start(0)
    assert page._open is not None
    assert page._open[1] is first, "one that was closed by hand is not opened again by itself"
    second = page.ui()
    assert second is not first
    assert not second.closed


@pytest.mark.parametrize("settings", [{"ui": "yes"}, {"uiPort": "70000"}, {"uiPort": "-1"}, {"uiHost": "x"}])
def test_wrong_settings_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="ui"):
        ShuffleConf.from_settings({f"spark.fastbuf.{name}": value for name, value in settings.items()})
    assert ShuffleConf().ui is False
    assert ShuffleConf.from_settings({"spark.fastbuf.ui": "true", "spark.fastbuf.uiPort": "9464"}).ui_port == 9464
