"""What a task tells of itself while it runs, and what is shown of it."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import gc
import io
import json
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.monitor import vitals as vitals_module
from fastbuf.monitor.figures import ended, longest
from fastbuf.monitor.ticker import Ticker
from fastbuf.monitor.vitals import Vitals
from fastbuf_spark import protocol
from fastbuf_spark.api.progress import ProgressBar
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.summary import RunSummary
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker import watch
from fastbuf_spark.worker.watch import TaskClock, Watch, times

QUIET: dict[str, Any] = {
    "state": "runs",
    "target": None,
    "seconds": {"runs": 9.0, "credit": 0.0, "link": 0.0, "segment": 0.0, "input": 0.0},
}


def only_here(**replaced: Callable[..., Any]) -> Any:
    """A module ``time`` for one module and this thread: other threads of the process sleep and look as before."""
    mine = threading.get_ident()
    clock = types.SimpleNamespace(**vars(time))
    for name, function in replaced.items():
        real = getattr(time, name)

        def either(*given: Any, real: Any = real, function: Any = function) -> Any:
            return (function if threading.get_ident() == mine else real)(*given)

        setattr(clock, name, either)
    return clock


class Looked:
    """A task's vitals, which have nothing to say."""

    def __init__(self) -> None:
        self.looks = 0
        self.closed = False

    def look(self, due: float, busy: bool) -> None:
        self.looks += 1

    def close(self) -> None:
        self.closed = True


class Heard:
    """A control connection that keeps what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.messages: list[protocol.Watch] = []
        self.came = threading.Semaphore(0)

    def tell(self, message: protocol.Watch) -> None:
        self.messages.append(message)
        self.came.release()
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.04)


def held(items: list[int], may: threading.Event, asked: threading.Event) -> Iterator[int]:
    for item in items:
        asked.set()
        assert may.wait(10.0)
        yield item


def test_an_input_that_is_waited_for_counts_while_it_is() -> None:
    clock, may, asked = TaskClock(), threading.Event(), threading.Event()
    found: list[int] = []
    task = threading.Thread(target=lambda: found.extend(clock.reading(held([1, 2], may, asked))))
    task.start()
    assert asked.wait(10.0)
    begin = clock.seconds()["engine_in"]
    assert clock.state == "engine_in"
    while clock.seconds()["engine_in"] < begin + 0.05:  # it grows though it has not ended
        time.sleep(0.005)
    may.set()
    task.join()
    assert found == [1, 2]
    assert clock.state is None
    assert clock.seconds()["engine_out"] == 0.0


def test_rows_that_nobody_asks_for_are_the_engines_time() -> None:
    clock = TaskClock()
    made = clock.giving(iter([1, 2]))
    assert next(made) == 1
    assert clock.state == "engine_out"
    assert list(made) == [2]
    assert clock.state is None
    assert clock.seconds()["engine_out"] > 0


def test_what_gives_rows_is_closed_with_who_reads_them() -> None:
    closed = []

    def function() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    clock = TaskClock()
    made = clock.giving(function())
    next(made)
    made.close()
    assert closed == [True]
    assert clock.state is None


def test_the_rest_is_the_users() -> None:
    clock = TaskClock()
    clock.begin -= 10.0
    waits = {**QUIET, "state": "credit", "target": 3, "seconds": {**QUIET["seconds"], "credit": 4.0}}
    found = times(clock, waits)
    assert found["state"] == "credit"
    assert found["target"] == 3
    assert 5.9 < found["seconds"]["user"] < 6.5
    assert "runs" not in found["seconds"]
    clock.starting = 2.0
    late = times(clock, {**QUIET, "seconds": {**QUIET["seconds"], "input": 5.0}})["seconds"]
    assert (late["starting"], late["input"]) == (2.0, 3.0)
    assert 4.9 < late["user"] < 5.5
    assert "state" not in ended(found)
    assert times(clock, QUIET)["state"] == "user"


def test_the_eight_that_were_waited_for_longest_are_named_and_the_rest_is_one_figure() -> None:
    assert longest([0.0, 2.0, 1.0], [5, 7, 9]) == {"7": 2.0, "9": 1.0}
    found = longest([float(i) for i in range(20)], list(range(100, 120)))
    assert list(found) == [*(str(i) for i in range(119, 111, -1)), "rest"]
    assert found["rest"] == sum(range(12))


def test_it_tells_again_and_again_which_share_of_the_time_was_what() -> None:
    heard, seconds = Heard(), {"credit": 0.0, "input": 0.0}

    def figures() -> dict[str, Any]:
        seconds["credit"] += 0.02 * 10  # more than the time that passes: a share is 1 at most
        return {"records": 7, "state": "credit", "seconds": dict(seconds)}

    vitals = Looked()
    with Watch(heard, figures, lambda: "user", vitals):  # type: ignore[arg-type]
        for _ in range(8):
            assert heard.came.acquire(timeout=10.0)
    told = len(heard.messages)
    assert vitals.closed
    assert vitals.looks >= watch.LOOKS * told - (watch.FIRST - 1)
    assert {type(message) for message in heard.messages} == {protocol.Watch}
    last = heard.messages[-1].stats
    assert last["records"] == 7
    assert (last["backPressured"], last["idle"], last["busy"]) == (1.0, 0.0, 0.0)
    time.sleep(0.06)
    assert len(heard.messages) == told  # it has ended


def test_a_task_that_ends_soon_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sampled costs the more of a task the shorter it is, and says the less."""
    monkeypatch.setattr(watch, "EVERY_S", 60.0)
    heard, vitals = Heard(), Looked()
    with Watch(heard, dict, lambda: "user", vitals):  # type: ignore[arg-type]
        pass
    assert (vitals.looks, heard.messages, vitals.closed) == (0, [], True)


def test_the_classic_view_needs_no_thread_before_it_is_asked_for() -> None:
    with fb.ShuffleEnvironment(segments=32) as env:
        writer, (gate,) = env.exchange(serializer=fb.RowSerializer(fb.Schema.of(id="int64")))
        before = threading.active_count()
        with Ticker(writer) as ticker:
            assert threading.active_count() == before
            ticker.start()
            ticker.start()
            assert threading.active_count() == before + 1
        assert threading.active_count() == before
        writer.abort()
        gate.close()
        assert ticker.samples is None


def test_a_report_that_fails_ends_nothing() -> None:
    heard = Heard(OSError("gone"))
    with Watch(heard, lambda: {"state": "user", "seconds": {}}, lambda: "user", Looked()):  # type: ignore[arg-type]
        for _ in range(3):
            assert heard.came.acquire(timeout=10.0)


def test_a_task_tells_two_kilobytes_a_second_at_most() -> None:
    heard = Heard()
    stacks = {";".join(f"file_{k}.py:{i} function" for i in range(40)): k + 1 for k in range(5)}

    def figures() -> dict[str, Any]:
        return {"records": 7, "state": "user", "seconds": {"user": 1.0}, "stacks": {"on": stacks, "off": stacks}}

    with Watch(heard, figures, lambda: "user", Looked()):  # type: ignore[arg-type]
        assert heard.came.acquire(timeout=10.0)
    assert len(protocol.Watch(figures()).encode()) > 4096
    for message in heard.messages:
        assert len(message.encode()) <= 2048
        assert message.stats["records"] == 7


def test_a_run_under_way_is_judged_by_its_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("fastbuf_spark.driver.summary.time", only_here(monotonic=lambda: now[0]))
    run = RunSummary("x", "total", "pipelined")
    for second in range(1, 11):
        now[0] += 1.0
        held = {"credit": 0.9 * second, "user": 0.1 * second}
        run.tells("producers", 0, {"state": "credit", "seconds": held, "blocked": {"1": 0.9 * second}})
        for k, busy in ((0, 0.1), (1, 0.95)):
            seconds = {"user": busy * second, "input": (1 - busy) * second}
            run.tells("consumers", k, {"state": "user", "seconds": seconds, "records": 100 * second})
    (root,) = run.diagnosis.roots
    assert (root.stage, root.subtask, root.cause) == ("total", 1, "user_function")
    for second in range(1, 7):  # then it is over, and all go on
        now[0] += 1.0
        held = {"credit": 9.0, "user": 1.0 + second}
        run.tells("producers", 0, {"state": "user", "seconds": held, "blocked": {"1": 9.0}})
        for k, busy in ((0, 1.0), (1, 9.5)):
            seconds = {"user": busy + 0.5 * second, "input": 10 - busy + 0.5 * second}
            run.tells("consumers", k, {"state": "user", "seconds": seconds, "records": 1000 + 100 * second})
    assert run.diagnosis.roots == []
    run.outcome = "ok"
    assert [root.subtask for root in run.diagnosis.roots] == [1]  # of all its time


def test_of_a_blocking_run_whose_tasks_tell_their_rows_alone_nothing_is_known() -> None:
    run = RunSummary("x", "total", "blocking", outcome="ok")
    run.producers[0] = {"records": 5, "bytes": 9}
    for run.outcome in ("running", "ok"):
        assert run.diagnosis.sentence.startswith("Nothing is known of what holds up this exchange: in blocking mode")
        assert (run.diagnosis.level, run.diagnosis.roots) == ("OK", [])


def a_run() -> RunSummary:
    run = RunSummary("x", "[red]total[/red]", "pipelined", epoch=3, tasks=4)
    run.producers[0] = {"records": 1_000_000, "bytes": 3 << 20}
    run.producers[1] = {"records": 500_000, "bytes": 1 << 20, "state": "credit", "backPressured": 0.75}
    run.seconds = 4.0
    return run


def test_what_a_run_shows() -> None:
    run = a_run()
    assert run.producers_done == 1
    assert run.back_pressured == 0.75
    assert run.left_s == 12.0, "one of four took four seconds"
    empty = RunSummary("x", "n", "pipelined")
    assert (empty.back_pressured, empty.left_s) == (None, None)
    run.outcome = "aborted"
    assert run.back_pressured is None, "of a task whose last figures were not told"
    run.outcome = "ok"
    assert run.left_s is None


def test_of_a_blocking_run_the_rows_that_are_read_are_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunSummary("x", "total", "blocking", tasks=1)
    run.producers[0] = {"records": 1_000, "bytes": 10}
    run.consumers[0] = {"records": 250, "bytes": 3, "state": "runs"}
    assert "250 of 1,000 rows" in drawn(True, [run], monkeypatch)


def drawn(terminal: bool, runs: list[RunSummary], monkeypatch: pytest.MonkeyPatch) -> str:
    from rich.console import Console

    asked = threading.Semaphore(0)

    def progress() -> list[RunSummary]:
        asked.release()
        return runs

    monkeypatch.setattr("fastbuf_spark.api.progress.progress", progress)
    monkeypatch.setattr("fastbuf_spark.api.progress.EVERY_S", 0.01)
    page = io.StringIO()
    with ProgressBar(Console(file=page, force_terminal=terminal, width=120)):
        for _ in range(3 if terminal else 0):
            assert asked.acquire(timeout=10.0)
    return page.getvalue()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_bar_gives_the_terminal_back_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("fastbuf_spark.api.progress.progress", lambda: 1 // 0)
    monkeypatch.setattr("fastbuf_spark.api.progress.EVERY_S", 0.01)
    with ProgressBar(Console(file=io.StringIO(), force_terminal=True)) as bar:
        bar._thread.join()
    assert not bar._live.is_started


def test_the_bar_shows_rows_bytes_and_pressure_and_takes_a_name_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    page = drawn(True, [a_run()], monkeypatch)
    for words in ("[red]total[/red]", "1,500,000 rows", "4.0 MiB", "75% held back", "12 s left"):
        assert words in page


def test_nothing_is_shown_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(False, [a_run()], monkeypatch) == ""


def busy(seconds: float) -> int:
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1
    return turns


def test_vitals_name_the_line_and_count_the_cpu() -> None:
    found: dict[str, Any] = {}

    def task() -> None:
        vitals = Vitals()
        looks = threading.Thread(
            target=lambda: [(vitals.look(time.monotonic(), True), time.sleep(0.02)) for _ in range(15)]
        )
        looks.start()
        while looks.is_alive():
            busy(0.05)
        found.update(vitals.figures())
        vitals.close()

    worker = threading.Thread(target=task)
    worker.start()
    worker.join()
    line = max(found["frames"], key=found["frames"].get)
    assert line.startswith("test_watch.py:")
    assert line.endswith(" busy")
    assert found["cpu_s"] > 0
    assert found["queued_s"] >= 0
    assert found["stopped_s"] == 0


def test_one_that_computes_is_looked_at_at_a_moment_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is seen when it lets go of the interpreter: at the short sleep after each short computation."""
    intervals: list[float] = []
    clock = only_here(sleep=lambda seconds: intervals.append(sys.getswitchinterval()))
    monkeypatch.setattr(vitals_module, "time", clock)
    before = sys.getswitchinterval()
    vitals = Vitals()
    try:
        busy(0.05)
        vitals.look(time.monotonic(), True)
        assert intervals == [pytest.approx(vitals_module.QUICK_S)], "others give way at once"
        assert sys.getswitchinterval() == before
        busy(0.05)
        vitals.look(time.monotonic(), False)  # it waits for others, as its writer says
        threading.Event().wait(0.1)
        vitals.look(time.monotonic(), True)  # and here for itself
        assert len(intervals) == 1
    finally:
        vitals.close()


def test_a_look_opens_no_file_and_all_are_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """To open one of the kernel's files takes longer than all that is done with it."""
    before = sorted(os.listdir("/proc/self/fd"))
    vitals = Vitals()
    vitals.look(time.monotonic(), True)
    opened: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", lambda *given, **more: opened.append(given))
        patched.setattr(os, "open", lambda *given, **more: opened.append(given))
        vitals.look(time.monotonic(), True)
        found = vitals.figures()
    assert opened == []
    assert found["cpu_s"] > 0
    assert found["machine_s"] >= 0
    vitals.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_task_that_has_ended_keeps_its_last_figures() -> None:
    """A task reports its final figures when its sampler has closed the files."""
    vitals = Vitals()
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    vitals.close()
    told = vitals.figures()
    assert told["cpu_s"] >= 0.03
    assert told["machine_s"] >= 0
    assert told == vitals.figures()


def test_vitals_count_the_collector_until_they_are_closed() -> None:
    vitals, before = Vitals(), len(gc.callbacks)
    kept = [[i] for i in range(200_000)]
    gc.collect()
    assert vitals.figures()["gc_s"] > 0
    vitals.close()
    assert len(gc.callbacks) == before - 1
    assert kept


def test_a_look_that_comes_late_while_no_cpu_was_used_is_a_pause() -> None:
    vitals = Vitals()
    vitals.look(time.monotonic(), False)
    time.sleep(0.3)  # as if stopped: the look was due long ago, and nothing of this process ran
    vitals.look(time.monotonic() - 0.3, False)
    assert 0.2 < vitals.figures()["stopped_s"] < 0.6
    before = vitals.figures()["stopped_s"]
    busy(0.3)
    vitals.look(time.monotonic() - 0.3, False)  # late, for another thread's code had the interpreter
    assert vitals.figures()["stopped_s"] == before
    vitals.close()


def test_a_summary_can_be_turned_into_plain_data() -> None:
    run = RunSummary("one", "total", "pipelined")
    run.tells("producers", 0, {"records": 3, "seconds": {"user": 1.0}, "state": "user"})
    again = json.loads(json.dumps(dataclasses.asdict(run)))
    assert again["producers"] == {"0": {"records": 3, "seconds": {"user": 1.0}, "state": "user"}}
    assert not [name for name in again if name.startswith("_")]


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that never answers, as behind a firewall: a listener whose queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address


@pytest.mark.parametrize("monitor", [True, False])
def test_a_driver_that_never_answers_holds_up_a_process_once(
    silent: tuple[str, int], monitor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark = pytest.importorskip("pyspark", reason="the binding is PySpark's")
    numbers = ("partitionId", "stageId", "taskAttemptId")
    one = types.SimpleNamespace(**dict.fromkeys(numbers, lambda: 0))
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: one)
    monkeypatch.setattr(watch, "REACH_S", 0.5)
    monkeypatch.setattr(watch, "one_heap_for_all_threads", lambda: None)
    conf = ShuffleConf(monitor=monitor)
    spec = ExchangeSpec("x", "x", 1, conf, None, silent)  # type: ignore[arg-type]
    took = []
    for _ in range(2):
        begin = time.monotonic()
        with watch.reported(spec, "producer", dict):
            pass
        took.append(time.monotonic() - begin)
    assert 0.4 < took[0] < 5.0
    assert took[1] < 0.3
