"""Streams as they are shown: rates and shares of the last seconds, counters over all runs, a sentence."""

from __future__ import annotations

import copy
import json
from typing import Any

import monitored
import pytest

from fastbuf.monitor.metrics import STREAM_CHECKPOINTS, STREAM_RESTARTS, STREAM_ROWS, measure
from fastbuf.monitor.queries import NAMES, SHOWN, Queries, holder

AT = monitored.BEGAN


def looked(*told: dict[str, Any]) -> tuple[Queries, list[dict[str, Any]]]:
    """At each a look, ten seconds after the one before."""
    queries, shown = Queries(), []
    for number, query in enumerate(told):
        shown = queries.look([query], AT + 10 * number)
    return queries, shown


def test_rates_and_shares_are_those_of_the_last_seconds() -> None:
    first, second = monitored.a_stream(0.0), monitored.a_stream(9.0)
    first["stages"][0]["subtasks"][0]["rows_out"] = 10_000
    _, (shown,) = looked(first, second)
    source, running, sink = shown["stages"]
    assert (source["rowsOutPerSecond"], source["backPressured"], source["level"]) == (3_000, 0.9, "HIGH")
    assert (source["waits"], source["idle"], source["busy"]) == ("credit", None, None), "a source waits unseen"
    assert (running["backPressured"], running["idle"], running["busy"]) == (0.0, 0.0, 1.0)
    assert holder(shown) == 1
    who = "Stage `running` of stream `orders to parquet` holds up those before it"
    assert shown["sentence"] == f"{who}: `source` waits for it most of the time (90%)."
    json.dumps(shown)
    assert sink["watermark_lag_s"] == 5.0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"state": "failed", "message": "ValueError: no"}, "Stream `orders to parquet` has failed: ValueError: no"),
        ({"state": "starting"}, "Stream `orders to parquet` is starting."),
        ({"state": "stopped"}, "Stream `orders to parquet` is stopped."),
        (
            {"state": "restarting", "message": "in 0.2 s, after: task 1 of stage 'sink' was lost"},
            "Stream `orders to parquet` is about to start again: in 0.2 s, after: task 1 of stage 'sink' was lost",
        ),
        ({}, "Stream `orders to parquet` keeps up: none of its stages is held back."),
    ],
)
def test_the_sentence_of_each_state(more: dict[str, Any], said: str) -> None:
    _, (shown,) = looked(monitored.a_stream(**more))
    assert shown["sentence"] == said
    assert shown["running"] is (shown["state"] not in ("failed", "stopped"))


def test_what_stages_say_of_event_time() -> None:
    (shown,) = looked(monitored.a_stream())[1]
    held = "`split b of source` holds its watermark back"
    assert shown["times"] == [f"`running`: 1,200 windows are open, 3 late rows, {held}."]
    (over,) = looked(monitored.a_stream(state="stopped"))[1]
    assert over["times"] == []


def test_late_rows_of_all_runs_are_counted() -> None:
    runs = [monitored.a_stream(generation=generation) for generation in (1, 1, 2)]
    for run, late in zip(runs, (4, 6, 1), strict=True):
        run["stages"][1]["late_rows"] = late
    assert looked(*runs)[0].late == {("orders to parquet", "running"): 7}


def test_a_query_that_has_told_its_name_alone_is_shown() -> None:
    _, (shown,) = looked({"id": "a", "name": "new"})
    assert (shown["state"], shown["stages"], shown["checkpoints"]) == ("starting", [], [])


def test_counters_go_on_when_a_new_run_counts_from_nought() -> None:
    runs = [monitored.a_stream(generation=generation, restarts=generation - 1) for generation in (1, 1, 2, 2)]
    for run, rows in zip(runs, (100, 300, 20, 50), strict=True):
        run["stages"][0]["rows_out"] = rows
    queries, _ = looked(*runs)
    assert queries.rows["orders to parquet", "source", "out"] == 350
    assert queries.restarts["orders to parquet",] == 1


def test_each_checkpoint_counts_once() -> None:
    first = monitored.a_stream()
    second = copy.deepcopy(first)
    second["checkpoints"] = [{**each, "id": each["id"] + 2} for each in first["checkpoints"]]
    queries, _ = looked(first, first, second)
    # 1, 3 and 5; 2 and 4
    assert queries.checkpoints["orders to parquet", "completed"] == 3
    assert queries.checkpoints["orders to parquet", "failed"] == 2


def test_what_is_kept_is_bounded() -> None:
    queries = Queries()
    for number in range(2 * NAMES):
        many = [{**each, "id": k} for k in range(3 * SHOWN) for each in monitored.a_stream()["checkpoints"][:1]]
        (shown,) = queries.look([monitored.a_stream(id=str(number), name=f"n{number}", checkpoints=many)], AT + number)
        assert len(shown["checkpoints"]) == SHOWN
    assert len({labels[0] for labels in queries.rows}) == NAMES
    queries.look([], AT + 1000)
    assert not queries._past
    assert not queries._last_totals
    assert not queries._checked


def test_metrics_of_a_stream() -> None:
    found = {metric.name: values for metric, values in measure(monitored.a_watched_stream()).items()}
    name = "orders to parquet"
    assert found["fastbuf_stream_info"] == {(name, "running"): 1.0}
    assert found[STREAM_RESTARTS.name] == {(name,): 1.0}
    assert found[STREAM_ROWS.name][name, "source", "out"] == 40_000
    assert found[STREAM_CHECKPOINTS.name] == {(name, "completed"): 2.0, (name, "failed"): 1.0}
    assert found["fastbuf_stream_checkpoint_seconds"][name, "duration"] == 2.5
    assert found["fastbuf_stream_checkpoint_seconds"][name, "alignment"] == 0.05
    assert found["fastbuf_stream_checkpoint_bytes"] == {(name,): 3000.0}
    assert found["fastbuf_stream_checkpoint_age_seconds"] == {(name,): pytest.approx(11.5)}
    assert found["fastbuf_stream_watermark_lag_seconds"] == {(name, "running"): 5.0, (name, "sink"): 5.0}
    assert found["fastbuf_stream_watermark_held_by_info"] == {(name, "running", "split b of source"): 1.0}
    assert found["fastbuf_stream_open_windows"] == {(name, "running"): 1200.0}
    assert found["fastbuf_stream_late_rows"] == {(name, "running"): 3.0}
    assert found["fastbuf_stream_back_pressured_ratio"][name, "source"] == 0.9


def test_of_a_stream_that_has_ended_counters_and_its_state_are_left() -> None:
    found = {metric.name: values for metric, values in measure(monitored.a_watched_stream(state="failed")).items()}
    assert found["fastbuf_stream_info"] == {("orders to parquet", "failed"): 1.0}
    assert found["fastbuf_stream_checkpoint_age_seconds"] == {}
    assert found["fastbuf_stream_rows"]


def test_history_keeps_moments_in_which_a_stream_runs() -> None:
    (first, second) = monitored.a_watched_stream().history.moments()
    assert first["queries"][0]["name"] == second["queries"][0]["name"] == "orders to parquet"
    assert not list(monitored.a_watched_stream(state="stopped").history.moments())
