"""Verdicts while it runs: of the last seconds alone, and of what lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastbuf.monitor import Diagnosis
from fastbuf.monitor.verdict import Reports, Sides, verdicts

Share = Callable[[float], float]


class Told:
    """Two producers and three consumers that tell once a second; consumer 1 is slow for as long as `slow` says."""

    def __init__(self, slow: Callable[[float], bool]) -> None:
        self.slow = slow
        self.producers = {k: Reports() for k in range(2)}
        self.consumers = {k: Reports() for k in range(3)}
        self.seconds: dict[Any, dict[str, float]] = {}
        self.blocked: dict[int, dict[str, float]] = {k: {} for k in range(2)}
        self.rows: dict[Any, int] = {}
        self.now = 100.0

    def second(self, silent: frozenset[int] = frozenset()) -> None:
        slow = self.slow(self.now - 100.0)
        self.now += 1.0
        for k, reports in self.producers.items():
            held = 0.9 if slow else 0.02
            self._add(("p", k), {"credit": held, "user": 1 - held})
            self.blocked[k]["1"] = self.blocked[k].get("1", 0.0) + held
            figures = {"state": "credit", "seconds": dict(self.seconds["p", k]), "blocked": dict(self.blocked[k])}
            reports.add({**figures, "records": 1000}, self.now + k / 10)
        for k, reports in self.consumers.items():
            busy = (0.95 if k == 1 else 0.05) if slow else 0.6
            self._add(("c", k), {"user": busy, "input": 1 - busy})
            rows = self.rows[k] = self.rows.get(k, 0) + (100 if slow else 1000)
            if k not in silent:
                line = {"etl.py:41 f": rows // 100} if k == 1 else {}
                figures = {"state": "user", "seconds": dict(self.seconds["c", k]), "records": rows, "frames": line}
                reports.add(figures, self.now)

    def _add(self, key: Any, more: dict[str, float]) -> None:
        mine = self.seconds.setdefault(key, {})
        for name, value in more.items():
            mine[name] = mine.get(name, 0.0) + value

    def verdict(self) -> Diagnosis:
        sides = Sides(self.producers, self.consumers, "source", "total")
        return verdicts({"e": sides}, self.now)["e"]


def places(found: Diagnosis) -> list[tuple[str, int | None, str]]:
    return [(root.stage, root.subtask, root.cause) for root in found.roots]


def run(slow: Callable[[float], bool], seconds: int) -> list[list[tuple[str, int | None, str]]]:
    told, said = Told(slow), []
    for _ in range(seconds):
        told.second()
        said.append(places(told.verdict()))
    return said


ROOT = ("total", 1, "user_function")


def test_a_slow_subtask_is_named_within_ten_seconds_and_stays_named() -> None:
    said = run(lambda t: True, 12)
    first = said.index([ROOT])
    assert 3 <= first <= 9
    assert all(found == [ROOT] for found in said[first:])


def test_a_healthy_job_is_left_alone() -> None:
    assert all(found == [] for found in run(lambda t: False, 15))


def test_a_spike_of_two_seconds_is_no_root() -> None:
    for begin in range(9):
        said = run(lambda t, begin=begin: begin <= t < begin + 2, 16)  # type: ignore[misc]
        assert all(found == [] for found in said), begin


def test_what_went_by_is_forgotten_and_what_comes_is_seen() -> None:
    said = run(lambda t: 10 <= t < 25, 40)
    assert all(found == [] for found in said[:10])
    assert said[20] == [ROOT]
    assert said[24] == [ROOT]
    assert all(found == [] for found in said[30:])


def test_the_level_is_that_of_the_last_window() -> None:
    told = Told(lambda t: t >= 10)
    for _ in range(10):
        told.second()
    assert told.verdict().level == "OK"
    for _ in range(6):
        told.second()
    assert told.verdict().level == "HIGH"
    assert told.verdict().blocked > 0.8


def test_a_task_that_tells_nothing_any_more_is_named_for_that() -> None:
    told = Told(lambda t: True)
    for second in range(16):
        told.second(silent=frozenset([1]) if second >= 6 else frozenset())
    assert places(told.verdict()) == [("total", 1, "silent")]


def test_nothing_is_said_before_anything_was_seen() -> None:
    assert verdicts({"e": Sides({}, {})}, 5.0)["e"].roots == []
    told = Told(lambda t: True)
    told.second()
    assert told.verdict().roots == []


def test_two_exchanges_in_a_row_name_the_root_at_the_end() -> None:
    """Consumers of the first write to the second, whose only consumer is slow: they are victims, if busy ones."""
    first = Sides({0: Reports()}, {k: Reports() for k in range(2)}, "source", "middle")
    second = Sides({k: Reports() for k in range(2)}, {0: Reports()}, "middle", "sink")
    for second_number in range(1, 12):
        t, now = float(second_number), 50.0 + second_number
        blocked = {"0": 0.5 * t, "1": 0.4 * t}
        waits = {"state": "credit", "seconds": {"credit": 0.9 * t, "user": 0.1 * t}, "blocked": blocked}
        first.producers[0].add(waits, now)
        for k in range(2):
            seconds = {"credit": 0.6 * t, "user": 0.4 * t}
            both = {"state": "credit", "task": f"t{k}", "seconds": seconds, "blocked": {"0": 0.6 * t}}
            both["records"] = 100 * t
            first.consumers[k].add(both, now)
            second.producers[k].add(both, now)
        second.consumers[0].add({"state": "user", "seconds": {"user": t}, "records": 200 * t}, now)
    found = verdicts({"a": first, "b": second}, 61.0)
    assert places(found["b"]) == [("sink", None, "user_function")]
    assert places(found["a"]) == [("sink", None, "user_function")]
    assert found["a"].roots[0].exchange == "b"


def test_an_exchange_with_one_side_or_a_new_one_silences_no_other() -> None:
    told = Told(lambda t: True)
    for _ in range(12):
        told.second()
    sides = Sides(told.producers, told.consumers, "source", "total")
    new = Told(lambda t: False)
    new.now = told.now - 1.0
    new.second()
    others = {
        "one side": Sides({0: told.producers[0]}, {}),
        "none": Sides({}, {}),
        "new": Sides(new.producers, new.consumers),
        "new behind it": Sides(dict(told.consumers), new.consumers),
    }
    for name, other in others.items():
        assert places(verdicts({"e": sides, name: other}, told.now)["e"]) == [ROOT], name
        assert verdicts({"e": sides, name: other}, told.now)[name].roots == [], name


def entering(table: str, limit: int) -> Reports:
    """A name that has grown for 1,000 s enters a full table at 1,020 s; another one leaves it."""
    reports, full = Reports(), {str(k): 200.0 + k for k in range(limit)}
    for second in range(1000, 1024):
        shown = dict(full) if second < 1020 else {**full, "9": 200.5 + (second - 1020) / 2}
        if second >= 1020:
            del shown["0"]
        if table == "blocked":
            shown["rest"] = 500.0
        reports.add({"state": "user", "seconds": {"user": float(second)}, table: shown}, float(second))
    return reports


@pytest.mark.parametrize(("table", "limit"), [("blocked", 8), ("unsent", 8), ("frames", 5)])
def test_what_enters_a_full_table_does_not_count_from_nothing(table: str, limit: int) -> None:
    reports = entering(table, limit)
    assert reports.between(1015.0, 1020.0).get((table, "9"), 0.0) == 0
    assert reports.between(1018.0, 1023.0)[table, "9"] == 1.5


def test_what_enters_a_table_with_room_counts_from_nothing() -> None:
    reports = Reports()
    for second in range(100, 110):
        table = {"1": 3.0, **({"2": second - 104.0} if second > 104 else {})}
        reports.add({"seconds": {"user": float(second)}, "blocked": table}, float(second))
    assert reports.between(104.0, 109.0)["blocked", "2"] == 5


def test_what_left_a_full_table_and_returns_has_grown_evenly() -> None:
    reports, full = Reports(), {str(k): 200.0 + k for k in range(7)}
    for second in range(1000, 1012):
        other = {"8": 150.0} if 1003 <= second < 1009 else {"9": 100.0 + 5 * (second - 1000)}
        figures = {"seconds": {"user": float(second)}, "blocked": {**full, **other, "rest": 100.0}}
        reports.add(figures, float(second))
    assert reports.between(1004.0, 1009.0)["blocked", "9"] == pytest.approx(25)
