"""Which keys of an RDD's records come most often, by samples of the groups in which they are sent."""

from __future__ import annotations

import random
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.rdd import portable_hash

import fastbuf as fb
from fastbuf_spark import key_samples
from fastbuf_spark.codec import RecordCodec, packed
from fastbuf_spark.key_samples import MOST_KEPT, KeySamples


@pytest.fixture(autouse=True)
def in_a_worker_always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_samples, "EVERY_S", 0.0)
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # as in Spark's workers


def groups(hot: float, many: int) -> list[list[tuple[int, str]]]:
    chance = random.Random(3)
    return [
        [(7 if chance.random() < hot else chance.randrange(1000, 10**9), "x") for _ in range(100)] for _ in range(many)
    ]


def test_a_key_that_most_records_have_is_found_with_its_share() -> None:
    samples = KeySamples(itemgetter(0), True, 1)
    for group in groups(0.6, 200):
        samples.look(3, lambda group=group: group)
    ((number, (share, partition)),) = samples.shares().items()
    assert number == portable_hash(7) % (1 << 30)
    assert partition == 3
    assert 0.55 < share < 0.65
    assert samples.texts() == {number: "7"}
    unasked = KeySamples(itemgetter(0), False, 1)
    unasked.look(0, lambda: [(7, "x")] * 100)
    assert unasked.shares()
    assert unasked.texts() == {}


def test_of_many_keys_few_are_kept() -> None:
    samples = KeySamples(itemgetter(0), True, 1)
    for group in groups(0.05, 400):
        samples.look(0, lambda group=group: group)
    assert len(samples._counts) <= MOST_KEPT
    assert len(samples._texts) == len(samples._counts)
    assert next(iter(samples.shares())) == 7


def test_nothing_is_looked_at_before_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_samples, "EVERY_S", 60.0)
    samples, looked = KeySamples(itemgetter(0), False, 1), []
    for _ in range(5):
        samples.look(0, lambda: looked.append(1) or [(7, "x")] * 32)
    assert len(looked) == 1


def test_groups_in_turn_count_by_their_records_and_whoever_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group after one that had to wait would be looked at each time: always one of the cold partition."""
    now = [0.0]
    monkeypatch.setattr(key_samples, "EVERY_S", 0.1)
    monkeypatch.setattr(key_samples, "time", SimpleNamespace(monotonic=lambda: now[0]))
    samples = KeySamples(itemgetter(0), False, 2)
    for i in range(2_000):
        samples.look(0, lambda: [(7, "x")] * 900)
        now[0] += 0.2
        samples.look(1, lambda i=i: [(i + 100, "x")] * 100)
    assert 0.87 < samples.shares()[7][0] < 0.93


class Unspeakable:
    """A key that has no text, nor a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_a_key_that_cannot_be_told_ends_no_job() -> None:
    samples = KeySamples(itemgetter(0), True, 1)
    samples.look(0, lambda: [(Unspeakable(), 1)])
    samples.look(0, list)
    assert samples.shares() == {}


@pytest.mark.parametrize("value", ["plain", ("not", {"so": "plain"})])
def test_a_writer_tells_the_keys_of_the_groups_that_it_was_given(value: Any) -> None:
    codec = RecordCodec(2)
    sender = codec.sender(2, [0, 1], 0)
    with fb.ShuffleEnvironment(segments=256) as env:
        writer, gates = env.exchange(serializer=codec.serializer(False), consumers=2, selector=sender.selector)
        assert writer.hot_keys() == {}
        writer.watch_keys(True)
        made = [[(key, value) for key, _ in group] for group in groups(0.9, 20)]
        for item in packed((i % 2, group) for i, group in enumerate(made)):
            writer.emit(item)
        number = portable_hash(7) % (1 << 30)
        assert writer.hot_keys()[number][0] > 0.7
        assert writer.key_values()[number] == "7"
        for gate in gates:
            while gate.poll(0.0) is not None:
                pass
        writer.abort()
