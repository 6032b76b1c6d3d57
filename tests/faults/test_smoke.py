"""A few planted faults, to see that finding them works at all; ``make faults`` plants all of them, and scores it."""

from __future__ import annotations

import concurrent.futures
import importlib.util
from pathlib import Path

import pytest
from nights import nightly
from scenarios import SCENARIOS, Truth, plant
from scores import Outcome, meets, report, share, wilson

ROOT = Path(__file__).resolve().parents[2]
RUNS = (("sleep_one", 0), ("slow_sink", 0), ("stopped", 1), ("spike", 0))  # seeds that thresholds are tuned on
SECONDS = 9.0


def command() -> object:
    spec = importlib.util.spec_from_file_location("faults_command", Path(__file__).with_name("__main__.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@nightly
@pytest.mark.stress
def test_planted_faults_are_found_and_a_spike_is_left_alone() -> None:
    run = command().run  # type: ignore[attr-defined]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda one: run(*one, SECONDS), RUNS))
    print(report(outcomes))
    for outcome in outcomes:
        said = outcome.said()
        for truth in outcome.truths:
            assert any(meets(truth, place) and cause in truth.causes for place, cause, _ in said), outcome
        if not outcome.truths:
            assert said == []


def test_a_seed_plants_the_same_every_time_and_seeds_differ() -> None:
    for name in SCENARIOS:
        assert plant(name, 3) == plant(name, 3)
    assert len({str(plant("sleep_one", seed).world.row_s) for seed in range(10)}) == 10


def outcome(
    name: str, truths: list[Truth], said: list[tuple[str, int | None, str, float]], windows: int = 10
) -> Outcome:
    made = Outcome(name, 0, truths, windows=10)
    for stage, subtask, cause, seconds in said:
        made.add(stage, subtask, cause, seconds)
        made.alarms += 1
    return made


def test_scores_count_what_was_named_and_what_was_missed() -> None:
    truth = Truth("total", 1, ("skew",))
    right = outcome("a", [truth], [("total", 1, "skew", 5.0)])
    wrong_place = outcome("a", [truth], [("total", 0, "skew", 5.0)])
    wrong_cause = outcome("a", [truth], [("total", 1, "gc", 5.0)])
    late = outcome("a", [truth], [("total", 1, "skew", 16.0)])
    missed = outcome("a", [truth], [])
    alarm = outcome("healthy", [], [("total", 0, "gc", 3.0)])
    text = report([right, wrong_place, wrong_cause, late, missed, alarm])
    assert "root: precision 3/5" in text  # late is right, the alarm is not
    assert "recall 2/5" in text
    assert "cause: precision 2/5" in text
    assert "false alarms: 1/10" in text
    assert "median 5.0 s, 95 % within 5.0 s, worst 5.0 s" in text


def test_wilson_is_the_textbooks() -> None:
    low, high = wilson(95, 100)
    assert (round(low, 3), round(high, 3)) == (0.888, 0.978)
    assert wilson(0, 0) == (0.0, 1.0)
    assert share(1, 2).startswith("1/2 = 0.500 [0.09")
