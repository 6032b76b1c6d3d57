"""What the page and all else show: jobs, vertices, edges and subtasks as plain data."""

from __future__ import annotations

import dataclasses
import json
import math

import monitored
import pytest

from fastbuf.monitor import Diagnosis, Exchange, Root, snapshot
from fastbuf.monitor.flamegraph import flamegraph
from fastbuf.monitor.snapshot import groups, of_job, shares
from fastbuf.monitor.task import level


def test_two_exchanges_in_a_row_are_one_job_with_a_root() -> None:
    (job,) = snapshot(monitored.two_in_a_row(), monitored.BEGAN + 20)["jobs"]
    assert job["name"] == "clean → total"
    assert [vertex["name"] for vertex in job["vertices"]] == [
        "producers of clean",
        "clean",
        "producers of total",
        "total",
    ]
    ways = [(edge["kind"], edge["from"], edge["to"]) for edge in job["edges"]]
    assert ways == [
        ("exchange", "clean-1-producers", "clean-1-consumers"),
        ("exchange", "total-2-producers", "total-2-consumers"),
        ("forward", "clean-1-consumers", "total-2-producers"),
    ]
    (root,) = job["diagnosis"]["roots"]
    assert (root["vertex"], root["subtask"], root["frame"]) == ("total-2-consumers", 3, "etl.py:41 normalize")
    assert root["sentence"] == job["diagnosis"]["sentence"]
    assert job["diagnosis"]["sentence"].startswith("Subtask 3 of `total` causes")
    waited = {task["subtask"]: task["lost"] for task in job["vertices"][-1]["subtasks"]}
    assert max(waited, key=waited.__getitem__) == 3
    assert waited[3] == round(0.9 * (14 + 15 + 16 + 17), 3)


def test_an_exchange_that_only_waits_for_the_next_is_not_to_blame() -> None:
    clean, total = monitored.two_in_a_row()
    assert clean.diagnosis is not None
    assert clean.diagnosis.roots, "alone it has roots"
    found = of_job([total, clean])
    assert found is not None
    assert {root.exchange for root in found.roots} == {"total"}
    # Where nothing holds up what comes after it, it is
    fine = dataclasses.replace(monitored.healthy(), id="total-2", upstream=("clean-1",))
    alone = of_job([fine, clean])
    assert alone is not None
    assert {root.exchange for root in alone.roots} == {"clean"}


def test_an_exchange_that_has_ended_is_not_to_blame_for_what_another_waits() -> None:
    """`clean` was held up for a second, and ended; `total` has been for a minute."""
    _, total = monitored.two_in_a_row()
    brief = {number: monitored.producer(0.4, 0, 1.5) for number in range(3)}
    readers = {number: monitored.consumer(1.4, 1.5) for number in range(2)}
    early = monitored.exchange("clean-1", "clean", brief, readers, outcome="ok", seconds=1.5)
    assert early.diagnosis is not None
    assert early.diagnosis.roots
    for outcome in ("running", "ok"):
        found = of_job([dataclasses.replace(total, outcome=outcome), early])
        assert found is not None
        assert [root.exchange for root in found.roots] == ["total"]


def test_a_slow_head_is_explained_by_what_comes_before_it() -> None:
    late = Root("total", "source", None, "source_bound", 0.9, 0.9)
    slow = Root("clean", "clean", 1, "user_function", 0.9, 0.9)
    above = Exchange("a", "clean", diagnosis=Diagnosis("HIGH", 0.8, [slow]))
    below = Exchange("b", "total", upstream=("a",), diagnosis=Diagnosis("OK", 0.0, [late]))
    found = of_job([below, above])
    assert found is not None
    assert found.roots == [slow]
    alone = of_job([below])
    assert alone is not None
    assert alone.roots == [late]


def test_exchanges_that_are_fed_by_two_and_a_ring() -> None:
    one, two = Exchange("a", "a", began=1.0), Exchange("b", "b", began=2.0)
    both = Exchange("c", "c", began=0.5, upstream=("a", "b", "long gone"))
    assert [[exchange.id for exchange in row] for row in groups([one, two, both])] == [["c", "a", "b"]]
    ring = [Exchange("a", "a", upstream=("b",)), Exchange("b", "b", upstream=("a",))]
    assert sum(len(row) for row in groups(ring)) == 2  # an error of the source: but it ends


def test_tasks_that_tell_nothing_are_shown_all_the_same() -> None:
    bare = Exchange("a", "x", producers={0: {}, 1: {"records": 3}}, consumers={0: {"seconds": {}}})
    (job,) = snapshot([bare, Exchange("b", "y")], 0.0)["jobs"][:1]
    assert [vertex["records"] for vertex in job["vertices"]] == [3, 0]
    assert job["diagnosis"] is None
    assert shares({"seconds": {"user": 1.0, "credit": 3.0}}) == {"backPressured": 0.75, "idle": 0.0, "busy": 0.25}


@pytest.mark.parametrize("outcome", ["aborted", "cancelled", "ok"])
def test_of_a_run_that_has_ended_no_task_runs(outcome: str) -> None:
    told = monitored.producer(15.0, 0)
    made = Exchange("a", "x", outcome=outcome, producers={0: told}, consumers={0: monitored.consumer(3.0)})
    (job,) = snapshot([made], 0.0)["jobs"]
    assert [vertex["running"] for vertex in job["vertices"]] == [0, 0]
    assert not any({"state", "target"} & set(task) for vertex in job["vertices"] for task in vertex["subtasks"])
    assert job["vertices"][0]["subtasks"][0]["lost"] == pytest.approx(15.1)


def test_it_is_json_whatever_the_figures_are() -> None:
    odd = {
        "seconds": {"user": math.nan, "codec": math.inf},
        "hot_keys": [["a", 3]],
        "who": object(),
        "stacks": {"on": {}},
    }
    found = snapshot([Exchange("a", "x", epoch=(1 << 63) - 1, consumers={0: odd})], 1.0)
    text = json.dumps(found, allow_nan=False)
    task = json.loads(text)["jobs"][0]["vertices"][1]["subtasks"][0]
    assert task["seconds"] == {"user": None, "codec": None}
    assert task["hot_keys"] == [["a", 3]]
    assert "stacks" not in task  # long, and asked for by themselves
    assert found["jobs"][0]["exchanges"][0]["epoch"] == "7fffffffffffffff"


def test_an_exchange_goes_through_json_and_back() -> None:
    for exchange in [*monitored.two_in_a_row(), monitored.healthy(), Exchange("a", "x")]:
        text = json.dumps({**exchange.to_json(), "something new": 1})
        back = Exchange.from_json(json.loads(text))
        assert back.to_json() == exchange.to_json()
        assert back.diagnosis is None or back.diagnosis.sentence == exchange.diagnosis.sentence  # type: ignore[union-attr]


def test_levels_are_flinks() -> None:
    assert [level(share) for share in (0.0, 0.1, 0.11, 0.5, 0.51, 1.0)] == ["OK", "OK", "LOW", "LOW", "HIGH", "HIGH"]


def test_a_flame_graph_adds_up_stacks() -> None:
    tree = flamegraph([{"stacks": monitored.STACKS}, {"stacks": monitored.STACKS}], "full")
    assert tree["value"] == 2 * 310
    (main,) = tree["children"]
    assert main["name"] == "pipeline.py:12 main"
    assert [child["name"] for child in main["children"]] == ["etl.py:30 total", "json.py:7 loads"]
    assert flamegraph([{"stacks": monitored.STACKS}], "off_cpu")["value"] == 40
    # Without stacks, the lines that were seen; of which nobody knows whether they were on a CPU
    lines = {"frames": {"a.py:1 f": 3, "b.py:2 g": 9}}
    assert [child["name"] for child in flamegraph([lines])["children"]] == ["b.py:2 g", "a.py:1 f"]
    assert flamegraph([lines], "on_cpu")["value"] == 0


def test_the_root_of_a_row_of_plain_exchanges_is_told_once_and_where_it_is() -> None:
    clean, total = monitored.two_in_a_row()
    root = Root("7", "consumers", 3, "user_function", 0.9, 0.9)
    found = Diagnosis("HIGH", 0.8, [root])
    plain = {"name": "consumers", "mode": "exchange"}
    first = dataclasses.replace(clean, id="3", diagnosis=dataclasses.replace(found, roots=[root]), **plain)
    second = dataclasses.replace(total, id="7", upstream=("3",), diagnosis=found, **plain)
    (job,) = snapshot([first, second], 0.0)["jobs"]
    assert [root["vertex"] for root in job["diagnosis"]["roots"]] == ["7-consumers"]
    assert [edge["through"] for edge in job["edges"] if edge["kind"] == "forward"] == ["the same tasks"]
    alone = dataclasses.replace(found, roots=[dataclasses.replace(root, exchange="3")])
    first, second = (dataclasses.replace(first, diagnosis=alone), dataclasses.replace(second, diagnosis=None))
    (job,) = snapshot([first, second], 0.0)["jobs"]
    assert [root["vertex"] for root in job["diagnosis"]["roots"]] == ["3-consumers"], "not the last one of its name"
