"""The second phase of two-phase commit: order, tries, what checkpoints name, and the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fastbuf_spark.streams import commits as module
from fastbuf_spark.streams.commits import Commits
from fastbuf_spark.streams.messages import Committed
from fastbuf_spark.streams.sink import CommitFailed


class Told:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Sink:
    def __init__(self, failures: int = 0, error: type[Exception] = OSError) -> None:
        self.committed: list[tuple[int, list[Any]]] = []
        self.forgotten: list[Any] = []
        self.tries = 0
        self.failures = failures
        self.error = error
        self.may = threading.Event()
        self.may.set()

    def commit(self, checkpoint: int, committables: Sequence[Any]) -> None:
        self.tries += 1
        self.may.wait(20)
        if self.failures:
            self.failures -= 1
            raise self.error("the network is down")
        self.committed.append((checkpoint, list(committables)))

    def forget(self, committables: Sequence[Any]) -> None:
        self.forgotten += committables


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.001)


def commits(sink: Any) -> tuple[Commits, Told]:
    told = Told()
    return Commits(sink, told, "rows"), told  # type: ignore[arg-type]


def test_in_order_and_those_that_were_passed_over() -> None:
    sink = Sink()
    made, told = commits(sink)
    for number in (1, 2, 3):
        made.prepared(number, [{"n": number}])
    assert made.waiting() == [[1, [{"n": 1}]], [2, [{"n": 2}]], [3, [{"n": 3}]]]
    made.complete(2)
    made.wait()
    assert sink.committed == [(1, [{"n": 1}]), (2, [{"n": 2}])]
    assert made.waiting() == [[3, [{"n": 3}]]]
    made.complete(3)
    made.complete(3)
    made.wait()
    assert [number for number, _ in sink.committed] == [1, 2, 3]
    assert told.sent == [Committed("rows", 1), Committed("rows", 2), Committed("rows", 3)]
    made.close()


def test_three_failures_then_it_works() -> None:
    sink = Sink(failures=3)
    made, told = commits(sink)
    made.prepared(1, [{}])
    made.complete(1)
    made.wait()
    made.check()
    assert sink.tries == 4
    assert told.sent == [Committed("rows", 1)]
    made.close()


def test_it_never_works() -> None:
    sink = Sink(failures=1000)
    made, told = commits(sink)
    made.prepared(7, [{"file": "rows-of-seven"}])
    made.complete(7)
    with pytest.raises(CommitFailed, match=r"checkpoint 7 .* 6 tries: the network is down; .*rows-of-seven"):
        made.wait()
    assert sink.tries == module.TRIES
    with pytest.raises(CommitFailed):
        made.check()
    assert made.waiting() == [[7, [{"file": "rows-of-seven"}]]]
    assert told.sent == []
    made.close()


def test_a_sink_that_says_that_it_is_hopeless() -> None:
    sink = Sink(failures=1000, error=CommitFailed)
    made, _ = commits(sink)
    made.prepared(1, [{}])
    made.complete(1)
    with pytest.raises(CommitFailed, match="the network is down"):
        made.wait()
    assert sink.tries == 1
    made.close()


def test_the_end_while_it_waits_for_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 600.0)
    sink = Sink(failures=1000)
    made, _ = commits(sink)
    made.prepared(1, [{}])
    made.complete(1)
    closing = threading.Thread(target=made.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert sink.tries <= 2
    assert not made._thread.is_alive()


def test_an_epoch_without_rows_is_told_too() -> None:
    sink = Sink()
    made, told = commits(sink)
    made.prepared(1, [])
    assert made.waiting() == []
    made.complete(1)
    made.wait()
    assert told.sent == [Committed("rows", 1)]
    made.close()


def test_what_a_checkpoint_names_is_kept_as_long_as_it_may_be_restored() -> None:
    """A checkpoint that was taken while an older one's rows were being committed names them, and may be restored."""
    sink = Sink()
    made, _ = commits(sink)
    sink.may.clear()
    made.prepared(1, [{"n": 1}])
    assert made.snapshot(1) == [[1, [{"n": 1}]]]
    made.complete(1)
    made.prepared(2, [{"n": 2}])
    assert made.snapshot(2) == [[1, [{"n": 1}]], [2, [{"n": 2}]]]
    sink.may.set()
    made.complete(2)
    made.wait()
    assert sink.forgotten == []  # a restart from 2 commits both again
    for number in (3, 4, 5, 6):
        made.prepared(number, [{"n": number}])
        assert (
            made.snapshot(number) == [[number, [{"n": number}]]] if number != 4 else [[3, [{"n": 3}]], [4, [{"n": 4}]]]
        )
        if number != 3:  # that one failed
            made.complete(number)
        made.wait()
        if number < 6:
            assert sink.forgotten == []
    made.close()
    assert sink.forgotten == [{"n": 1}, {"n": 2}]  # 4, 5 and 6 may be restored, and 4 does not name these


def test_what_an_earlier_run_committed_is_forgotten_with_the_checkpoints_that_name_it() -> None:
    sink = Sink()
    made, _ = commits(sink)
    made.begin_from([(5, []), (6, [{"n": 4}]), (7, [{"n": 5}])])  # 5 names 4, 6 names 5
    made.prepared(7, [{"n": 7}])
    made.complete(7)
    made.wait()
    assert sink.forgotten == []
    made.snapshot(8)
    made.complete(8)  # 5 is there no more
    made.close()
    assert sink.forgotten == [{"n": 4}]
    made, _ = commits(sink)
    made.begin_from([(7, [])])
    for number in (8, 9):
        made.snapshot(number)
        made.complete(number)
    made.close()
    assert sink.forgotten == [{"n": 4}]
