"""Splits of a user's source are read in threads: what waits holds up nothing else."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fastbuf_spark.streams.source import Polled, Split
from fastbuf_spark.streams.user_source import LEAVE_S, THREADS, UserReader

SCHEMA = pa.schema([("v", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([list(values)], schema=SCHEMA)


def fetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fastbuf-source"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in fetchers():
        thread.join(10)
    assert not fetchers()


def a_hundred_each() -> tuple[Counter[str], UserReader]:
    """A reader whose splits have a hundred rows each; and how many of each it was asked for."""
    asked: Counter[str] = Counter()

    def read(split: str, offset: int) -> Iterator[Any]:
        for at in range(100):
            asked[split] += 1
            yield batch(at), at + 1

    return asked, UserReader(read, SCHEMA)


def all_of(reader: UserReader, splits: int) -> dict[str, list[Polled]]:
    polled: dict[str, list[Polled]] = defaultdict(list)
    while splits:
        item = reader.poll(10.0)
        assert item is not None
        polled[item.split].append(item)
        splits -= item.ended
    return polled


@pytest.mark.parametrize("splits", [1, THREADS, 5 * THREADS])
def test_each_split_comes_whole_and_in_order_from_one_thread(splits: int) -> None:
    threads: dict[str, set[int]] = defaultdict(set)
    closed: Counter[str] = Counter()

    def read(split: str, offset: int) -> Iterator[Any]:
        try:
            for at in range(offset, 20):
                threads[split].add(threading.get_ident())
                if at % 3 == 0:
                    yield None, at  # nothing is there
                yield (None if at % 5 == 4 else batch(at)), at + 1
        finally:
            closed[split] += 1

    reader = UserReader(read, SCHEMA)
    reader.assign([Split(str(n), n % 7) for n in range(splits)])
    polled = all_of(reader, splits)
    for name, items in polled.items():
        first = int(name) % 7
        assert [item.offset for item in items] == [*range(first + 1, 21), 20]
        values = [value for item in items if item.batch is not None for value in item.batch["v"].to_pylist()]
        assert values == [at for at in range(first, 20) if at % 5 != 4]
        assert [item.ended for item in items] == [False] * (20 - first) + [True]
    assert reader.poll(0.0) is None
    assert len(fetchers()) == min(splits, THREADS)
    reader.close()
    assert {len(idents) for idents in threads.values()} == {1}
    assert closed == dict.fromkeys(map(str, range(splits)), 1)


def test_a_read_that_waits_holds_up_no_other_split_and_no_end() -> None:
    message, closed = threading.Event(), threading.Event()

    def read(split: str, offset: int) -> Iterator[Any]:
        try:
            for at in range(offset, 3):
                if split == "waits":
                    message.wait(30)
                yield batch(at), at + 1
        finally:
            if split == "waits":
                closed.set()

    reader = UserReader(read, SCHEMA)
    reader.assign([Split("waits", 0), Split("goes on", 0)])
    assert list(all_of(reader, 1)) == ["goes on"]
    begin = time.monotonic()
    assert reader.poll(0.05) is None
    reader.close()
    assert 0.05 + LEAVE_S <= time.monotonic() - begin < 10
    assert not closed.is_set()
    message.set()
    assert closed.wait(10)


def test_an_error_of_a_read_is_raised_as_it_is() -> None:
    def read(split: str, offset: int) -> Iterator[Any]:
        yield batch(1), 1
        raise KeyError("mine")

    reader = UserReader(read, SCHEMA)
    reader.assign([Split("a", 0)])
    assert reader.poll(10.0) is not None
    with pytest.raises(KeyError, match="mine"):
        reader.poll(10.0)
    reader.close()


def test_a_split_that_is_paused_is_not_read_on() -> None:
    asked, reader = a_hundred_each()
    reader.pause(["a"])
    reader.assign([Split("a", 0), Split("b", 0)])
    for _ in range(10):
        item = reader.poll(10.0)
        assert item is not None
        assert item.split == "b"
    assert asked["a"] == 0
    reader.pause([])
    while (item := reader.poll(10.0)) is not None and item.split == "b":
        pass
    assert item is not None
    assert item.offset == 1
    reader.close()


def test_the_rest_is_what_was_read_ahead_and_then_nothing_is() -> None:
    asked, reader = a_hundred_each()
    reader.assign([Split("a", 0), Split("b", 0)])
    polled = Counter(item.split for item in (reader.poll(10.0) for _ in range(20)) if item is not None)
    polled.update(item.split for item in reader.rest())
    reader.close()
    assert polled == asked
    assert reader.poll(0.0) is None


def test_what_had_nothing_is_asked_ever_less_often() -> None:
    asked: Counter[str] = Counter()

    def read(split: str, offset: int) -> Iterator[Any]:
        while True:
            asked[split] += 1
            yield None, offset

    reader = UserReader(read, SCHEMA)
    reader.assign([Split("quiet", 0)])
    assert reader.poll(0.5) is None
    reader.close()
    assert 2 <= asked["quiet"] <= 40
