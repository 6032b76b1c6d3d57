"""What was seen: kept within bounds, saved and read again, and exported as a Chrome trace."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import monitored
import pytest

from fastbuf.cli.replay import Saved
from fastbuf.errors import ConfigError
from fastbuf.monitor import Exchange, History, Recorder
from fastbuf.monitor import history as module
from fastbuf.monitor.trace import chrome_trace


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = monitored.BEGAN

    def __call__(self) -> float:
        return self.now


def small(records: int, outcome: str = "running", id: str = "a", state: str = "user") -> Exchange:
    told = {"records": records, "bytes": 10 * records, "seconds": {"user": float(records)}}
    return Exchange(id, "x", outcome=outcome, consumers={0: {**told, "state": state} if outcome == "running" else told})


def watched(seconds: int, most_bytes: int = module.MOST_BYTES) -> tuple[Recorder, Clock]:
    clock, now = Clock(), [small(0)]
    recorder = Recorder(lambda: now, History(most_bytes), clock)
    for second in range(seconds):
        now[0] = small(100 * second)
        recorder.look()
        clock.now += 1
    return recorder, clock


def test_each_second_of_ten_minutes_and_each_ten_of_hours() -> None:
    recorder, clock = watched(2_000)
    line = recorder.history.line("a")
    fine = [at for at in line["at"] if at >= clock.now - 600]
    coarse = [at for at in line["at"] if at < clock.now - 600]
    assert len(fine) == 600
    assert len(coarse) == 140
    assert {round(b - a) for a, b in itertools.pairwise(coarse)} == {10}
    assert line["recordsPerSecond"][-1] == 100.0
    moment = recorder.history.at(clock.now - 300.4)
    assert moment is not None
    assert abs(moment["at"] - (clock.now - 300)) <= 1
    assert moment["jobs"][0]["vertices"][1]["records"] == 100 * (2_000 - 300)


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    recorder, clock = watched(700, most_bytes=40_000)
    assert recorder.history.size <= 40_000
    assert recorder.history.line("a")["at"][-1] == clock.now - 1


def test_nothing_is_kept_of_times_in_which_nothing_ran() -> None:
    clock, now = Clock(), [small(1)]
    recorder = Recorder(lambda: now, clock=clock)
    recorder.look()
    for _ in range(20):
        now[0] = small(2, "ok")  # its last words, and then nothing
        clock.now += 1
        recorder.look()
    assert recorder.history.line("a")["at"] == [monitored.BEGAN, monitored.BEGAN + 1]


def test_the_last_32_runs_stay() -> None:
    clock, now = Clock(), [small(1)]
    recorder = Recorder(lambda: now, clock=clock)
    for number in range(50):
        now[0] = small(number, "ok", id=f"run-{number}")
        clock.now += 1
        recorder.look()
    assert [exchange.id for exchange in recorder.history.exchanges()] == [f"run-{n}" for n in range(18, 50)]


def test_of_more_than_32_runs_that_have_ended_none_is_added_again() -> None:
    runs = [small(number, "ok", id=f"run-{number}") for number in range(40)]
    history = History()
    history.add({"at": 1.0, "jobs": []}, runs)
    kept = [(id, packed) for id, packed in history._runs.items()]
    assert [id for id, _ in kept] == [f"run-{n}" for n in range(8, 40)]
    history.add({"at": 2.0, "jobs": []}, runs)
    assert all(a[1] is b[1] for a, b in zip(kept, history._runs.items(), strict=True)), "packed once"
    history.add({"at": 9.0, "jobs": []})
    assert len(history._ended) == 32, "of runs that are told of no more"


def test_a_replay_adds_nothing_to_what_it_shows(tmp_path: Path) -> None:
    recorder, clock = watched(5)
    now = [small(500), small(7, "ok", id="b")]
    Recorder(lambda: now, recorder.history, clock).look()
    path = tmp_path / "seen.json"
    recorder.history.save(path, running=now[:1])
    saved = Saved.load(path)
    lines = [saved.line(job) for job in "ab"]
    replay = Recorder(saved.exchanges, saved, clock)
    for _ in range(3):
        clock.now += 86_400
        shown = replay.look()
        assert {job["id"]: job["state"] for job in shown["jobs"]} == {"a": "CANCELED", "b": "FINISHED"}
    assert [saved.line(job) for job in "ab"] == lines


def test_figures_that_come_after_the_end_are_kept() -> None:
    """A run of the blocking mode is told of task by task, and is over from the first."""
    clock, now = Clock(), [small(1, "ok")]
    recorder = Recorder(lambda: now, clock=clock)
    recorder.look()
    now[0] = small(7, "ok")
    clock.now += 1
    recorder.look()
    (kept,) = recorder.history.exchanges()
    assert kept.consumers[0]["records"] == 7


def test_saved_and_read_again(tmp_path: Path) -> None:
    clock, now = Clock(), monitored.two_in_a_row()
    recorder = Recorder(lambda: now, clock=clock)
    for _ in range(5):
        recorder.look()
        clock.now += 1
    now[:] = [dataclasses.replace(exchange, outcome="ok") for exchange in now]
    last = recorder.look()
    path = tmp_path / "seen.json"
    recorder.history.save(path)
    assert list(tmp_path.iterdir()) == [path]
    back = History.load(path)
    assert back.line("total-2") == recorder.history.line("total-2")
    assert list(back.moments()) == list(recorder.history.moments())
    # And looked at again, as if it were now
    replayed = Recorder(back.exchanges, back, clock).look()
    assert replayed["jobs"] == last["jobs"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "other"}', '{"format": "fastbuf history 1", "runs": [{}]}']
)
def test_what_is_no_history_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="history"):
        History.load(path)


def test_rates_are_of_the_last_seconds_and_a_new_attempt_begins_anew() -> None:
    clock, now = Clock(), [small(0)]
    recorder = Recorder(lambda: now, clock=clock)
    rates: list[Any] = []
    for records in (0, 100, 200, 300, 300, 300, 300, 300, 300, 5, 25):
        now[0] = small(records)
        rates.append(recorder.look()["jobs"][0]["vertices"][1]["subtasks"][0].get("recordsPerSecond"))
        clock.now += 1
    assert rates == [None, 100, 100, 100, 75, 60, 40, 20, 0, None, 20]


def test_totals_only_grow_over_attempts_and_runs() -> None:
    clock, now = Clock(), [small(10)]
    recorder = Recorder(lambda: now, clock=clock)
    seen = []
    for exchange in (small(10), small(30), small(5), small(5, "ok"), small(40, id="b")):
        now[0] = exchange
        recorder.look()
        seen.append(recorder.totals.records["x", "consumers"])
    assert seen == [10, 30, 35, 35, 75]
    for number in range(40):  # names that are not used any more are forgotten
        now[0] = dataclasses.replace(small(1, id=f"c{number}"), name=f"name {number}")
        recorder.look()
    assert ("x", "consumers") not in recorder.totals.records
    assert len({labels[0] for labels in recorder.totals.task_seconds}) == 32


def test_totals_do_not_add_again_what_falls_a_little_or_is_left_out_for_a_while() -> None:
    user, blocked = [5.0, 5.2, 5.19, 5.3], [{"1": 3.0}, {"2": 4.0}, {"1": 3.5}, {"1": 3.4, "2": 4.0}]
    clock, now = Clock(), [small(10)]
    recorder = Recorder(lambda: now, clock=clock)
    for second, (took, waits) in enumerate(zip(user, blocked, strict=True)):
        told = {"records": 10, "seconds": {"user": took, "input": float(second)}, "blocked": waits, "state": "user"}
        now[0] = Exchange("a", "x", producers={0: told})
        recorder.look()
    totals = recorder.totals
    assert totals.task_seconds["x", "producers", "0", "user"] == pytest.approx(5.3)
    assert totals.blocked_seconds == pytest.approx({("x", "1"): 3.5, ("x", "2"): 4.0})
    # Without records to compare, a new attempt is known by its time
    now[0] = Exchange("a", "x", producers={0: {**told, "seconds": {"user": 1.0}, "blocked": {"1": 0.5}}})
    recorder.look()
    assert totals.task_seconds["x", "producers", "0", "user"] == pytest.approx(6.3)
    assert totals.blocked_seconds["x", "1"] == pytest.approx(4.0)


def test_a_chrome_trace_has_what_each_task_did() -> None:
    clock, now = Clock(), [small(0)]
    recorder = Recorder(lambda: now, clock=clock)
    steps = [("user", 0, 0), ("user", 1, 0), ("user", 2, 0), ("credit", 2, 1), ("credit", 2, 2), ("user", 3, 2)]
    for state, user, credit in steps:
        figures = {"records": 1, "seconds": {"user": user, "credit": credit}, "state": state}
        now[0] = Exchange("a", "<x>", producers={4: figures})
        recorder.look()
        clock.now += 1
    found = json.loads(json.dumps(chrome_trace(recorder.history.moments()), allow_nan=False))
    events = found["traceEvents"]
    assert all(event["ph"] in "XCM" and isinstance(event["pid"], int) and event["ts"] >= 0 for event in events)
    slices = [(e["name"], e["ts"] / 1e6 - monitored.BEGAN, e["dur"] / 1e6) for e in events if e["ph"] == "X"]
    assert slices == [("user", 0, 2), ("credit", 2, 2), ("user", 4, 1)]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"producers of <x>", "<x>", "subtask 4"}
    assert {event["name"] for event in events if event["ph"] == "C"} == {"records/s", "held back %"}
