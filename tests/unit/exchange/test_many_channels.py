"""What making and ending many channels costs: work is counted, not timed."""

from __future__ import annotations

import contextlib
import random
import weakref
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.exchange import _testing
from fastbuf.memory.redistribution import redistribute
from fastbuf.transports import memfd, memfd_lines

ROWS = fb.RowSerializer(fb.Schema.of(id="int64"))


def work(producers: int, consumers: int, one_by_one: bool) -> tuple[int, int]:
    """Local pools looked at to make an exchange and to end it, and places that its first gate looked at."""
    env = fb.ShuffleEnvironment(segments=4 * (producers + consumers), segment_size=64)
    made, gates = env.exchange(ROWS, consumers=consumers, producers=producers, selector=fb.round_robin())
    opened = _testing.looks(gates[0])
    if one_by_one:
        for end in (*(made if producers > 1 else [made]), *gates):
            end.close()
    env.close()
    return env.pool.stats().looks, opened


@pytest.mark.parametrize("one_by_one", [False, True], ids=["by-their-environment", "one-by-one"])
@pytest.mark.parametrize("many", ["consumers", "producers"])
def test_a_thousand_channels_cost_a_thousand_times_one(many: str, one_by_one: bool) -> None:
    """Making and ending channels costs a fixed amount each, however many there are: writers and gates alike."""
    few, more = ({"producers": 1, "consumers": 1, many: n} for n in (500, 2000))
    (pools, places), (more_pools, more_places) = work(**few, one_by_one=one_by_one), work(**more, one_by_one=one_by_one)
    assert pools <= (120 if one_by_one else 4) * 500
    assert more_pools <= (8 if one_by_one else 4) * pools + 100
    assert more_places <= 5 * places


def test_a_writer_is_made_without_a_look_at_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looked at all writers so far: 4,000 producers took fifty times as long as 500."""
    looks = 0
    ref = weakref.ref

    class Counted(ref):  # type: ignore[type-arg,misc]
        def __call__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__call__()

    monkeypatch.setattr("fastbuf.exchange.environment.weakref.ref", Counted)
    with fb.ShuffleEnvironment(segments=4 * 200, segment_size=64) as env:
        writers, gates = env.exchange(ROWS, producers=200)
        for end in (*writers, *gates):
            end.close()
        assert looks <= 200
        assert env.writers() == []
    env.pool.audit()


def looks_at_lines(producers: int, consumers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often attributes of memfd channels are read, to make that many of them, to use each once, and to end them."""
    looks = 0

    class Counted(memfd_lines.Line):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += 1
            return super().__getattribute__(name)

    channels = producers * consumers
    room: dict[str, Any] = {"segments": 4 * channels + 8, "segment_size": 64, "shared": True}
    config = fb.ExchangeConfig(transport="memfd")
    with monkeypatch.context() as patched, fb.ShuffleEnvironment(**room) as near, fb.ShuffleEnvironment(**room) as far:
        patched.setattr(memfd, "Line", Counted)
        patched.setattr(memfd, "COLLECT_S", 60.0)  # how often all are looked at depends on the clock
        far.listen()
        gates = [far.create_input_gate(ROWS, channels=producers, config=config) for _ in range(consumers)]
        targets = [gate.address for gate in gates]
        writers = [near.create_result_partition(ROWS, targets, channel=i, config=config) for i in range(producers)]
        assert near.stats()["shared_channels"] == far.stats()["shared_channels"] == channels
        for writer in writers:
            writer.emit_many([(1,)] * consumers)
            writer.close()
        assert [record for gate in gates for record in gate] == [(1,)] * channels
        for gate in gates:
            gate.close()
    assert near.stats()["shared_channels"] == far.stats()["shared_channels"] == 0
    near.pool.audit()
    far.pool.audit()
    return looks


@pytest.mark.parametrize("many", ["producers", "consumers"])
def test_a_memfd_channel_is_made_and_ended_without_a_look_at_the_others(
    many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever one connected, the watcher went through all of them twice: 800 channels took half a minute."""
    few, more = (
        looks_at_lines(**{"producers": 1, "consumers": 1, many: n}, monkeypatch=monkeypatch) for n in (40, 160)
    )
    assert more <= 5 * few


def test_limits_follow_pools_that_end_one_by_one() -> None:
    """Among many pools the limits of the rest are at most a little lower than they might be; of few they are exact."""
    with fb.NetworkBufferPool(segments=4000, segment_size=64) as pool:
        with pool.limits_at_the_end():
            living = [pool.create_local_pool(required=1, maximum=100) for _ in range(400)]
        while living:
            living.pop(len(living) // 2).destroy()
            rule = redistribute(4000, [(p.required, p.maximum) for p in living])
            if len(living) <= 64:
                assert [p.limit for p in living] == rule
            else:
                assert all(-1 <= due - p.limit <= 2 + due // 32 for p, due in zip(living, rule, strict=True))
        pool.audit()


def test_channels_of_any_numbers_are_told_apart() -> None:
    with fb.ShuffleEnvironment(segments=1000, segment_size=64) as env:
        numbers = [n * 7919 % 4_000_000_007 % (1 << 32) for n in range(100)]
        gate = env.create_input_gate(ROWS, channels=len(numbers))
        writers = [env.create_result_partition(ROWS, [gate], channel=n) for n in numbers]
        for n in numbers[::10]:
            with pytest.raises(fb.ExchangeError, match=f"channel {n} is connected already"):
                env.create_result_partition(ROWS, [gate], channel=n)
        for n, writer in zip(numbers, writers, strict=True):
            writer.emit((n,))
            writer.close()
        assert sorted(gate) == sorted((n,) for n in numbers)
    env.pool.audit()


def test_pools_made_and_ended_in_turn_use_the_same_memory_again() -> None:
    """A pool that replaces one of many does not look through all of them."""
    pool = fb.NetworkBufferPool(segments=4000, segment_size=64)
    for _ in range(3):
        with pool.limits_at_the_end():
            kept = [pool.create_local_pool(required=1) for _ in range(1000)]
        with pool.limits_at_the_end():
            for local in kept:
                local.destroy()
        del kept, local
    assert pool.stats().looks <= 3 * 4 * 1000
    pool.audit()
    pool.destroy()


def test_limits_are_exact_once_a_block_of_pools_ends() -> None:
    with fb.NetworkBufferPool(segments=100, segment_size=64) as pool:
        first = pool.create_local_pool(required=1)
        assert first.limit == 100
        with pool.limits_at_the_end():
            others = [pool.create_local_pool(required=10, maximum=30) for _ in range(3)]
            assert [other.limit for other in others] == [10, 10, 10]
            taken = [others[0].request(timeout=0) for _ in range(10)]
        with fb.NetworkBufferPool(segments=100, segment_size=64) as twin:
            pools = [twin.create_local_pool(required=1)]
            pools += [twin.create_local_pool(required=10, maximum=30) for _ in range(3)]
            assert [p.limit for p in (first, *others)] == [p.limit for p in pools]
        for segment in taken:
            segment.recycle()
        pool.audit()


def test_where_there_is_room_for_all_no_pool_asks_for_another() -> None:
    """Gates that are made one by one cost the same each, as long as all can have what they may."""
    with fb.ShuffleEnvironment(segments=20_000, segment_size=64) as env:
        gates = [env.create_input_gate(ROWS, channels=1) for _ in range(1000)]
        assert env.pool.stats().looks <= 1000
        assert {gate.pool.limit for gate in gates} == {10}
        for gate in gates:
            gate.close()
        assert env.pool.stats().looks <= 1000
    env.pool.audit()


def test_limits_are_those_of_the_rule_whatever_comes_and_goes() -> None:
    """With room for all, without it, and across the border: as the pure function says for the pools that live."""
    rng = random.Random(3)
    with fb.NetworkBufferPool(segments=60, segment_size=64) as pool:
        living: list[fb.LocalBufferPool] = []
        roomy = 0
        for _ in range(3000):
            if living and rng.random() < 0.5:
                living.pop(rng.randrange(len(living))).destroy()
            else:
                required, more = rng.randrange(4), rng.choice([0, 1, 5, 20, 100])
                with contextlib.suppress(MemoryError):
                    living.append(pool.create_local_pool(required, maximum=max(1, required + more)))
            rule = redistribute(60, [(p.required, p.maximum) for p in living])
            assert [p.limit for p in living] == rule
            roomy += rule == [p.maximum for p in living]
        assert 300 < roomy < 2700
        for local in living:
            local.destroy()
        pool.audit()


def test_what_pools_are_guaranteed_is_counted_as_they_come_and_go() -> None:
    with fb.NetworkBufferPool(segments=10, segment_size=64) as pool:
        for _ in range(5):
            local = pool.create_local_pool(required=6)
            with pytest.raises(MemoryError, match="6 are guaranteed to other pools and 4 are left"):
                pool.create_local_pool(required=5)
            local.destroy()
            local.destroy()
        assert pool.create_local_pool(required=10).required == 10
