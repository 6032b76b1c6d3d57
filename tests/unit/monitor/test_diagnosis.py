"""Who holds up an exchange: figures of planted faults, and of jobs in which nothing is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from fastbuf.monitor import REST, Diagnosis, Task, diagnose
from fastbuf.monitor.words import sentence

NAMES = ("credit", "link", "segment", "input", "engine_in", "engine_out", "codec", "user")


def task(subtask: int, stage: str = "total", rows: int = 1000, **more: Any) -> Task:
    seconds = {name: float(more.pop(name, 0.0)) for name in NAMES}
    return Task(stage, subtask, seconds, more.pop("blocked", {}), rows, rows * 100, **more)


def source(subtask: int, blocked: dict[int, float], **more: Any) -> Task:
    """A producer that was held up for so long by these consumers, of ten seconds."""
    held = sum(blocked.values())
    return task(subtask, "source", blocked=blocked, **{"credit": held, "user": max(0.0, 10 - held), **more})


def one(found: Diagnosis) -> Any:
    assert len(found.roots) == 1, found
    return found.roots[0]


def test_a_healthy_job_has_no_root() -> None:
    found = diagnose("e", [source(0, {0: 0.2}), source(1, {1: 0.3})], [task(i, user=6, input=4) for i in range(2)])
    assert (found.level, found.roots) == ("OK", [])
    assert "Nothing holds up" in found.sentence


def test_a_slow_subtask_is_named_with_the_line_of_its_code() -> None:
    consumers = [
        task(0, user=1, input=9),
        task(1, user=9.5, input=0.5, frames={"etl.py:41 normalize": 36, "etl.py:40 normalize": 2}),
        task(2, user=1, input=9),
    ]
    found = diagnose("e", [source(i, {1: 7.0, 0: 0.1}) for i in range(2)], consumers)
    root = one(found)
    assert found.level == "HIGH"
    assert (root.stage, root.subtask, root.cause, root.frame) == ("total", 1, "user_function", "etl.py:41 normalize")
    assert root.share > 0.9
    assert root.confidence >= 0.8
    assert (
        "Subtask 1 of `total` causes 99% of the lost time: the user's function is slow in etl.py:41" in found.sentence
    )
    assert root.remedy in found.sentence


def test_a_function_that_is_slow_everywhere_is_no_single_subtasks_fault() -> None:
    consumers = [task(i, user=9.5, input=0.5) for i in range(4)]
    root = one(diagnose("e", [source(0, {i: 2.0 + i / 10 for i in range(4)})], consumers))
    assert (root.subtask, root.cause) == (None, "user_function")


def test_of_many_alike_none_needs_a_share_of_its_own() -> None:
    consumers = [task(i, user=9.5, input=0.5) for i in range(20)]
    root = one(diagnose("e", [source(0, {i: 0.4 for i in range(20)})], consumers))
    assert (root.subtask, root.cause) == (None, "user_function")
    named = {i: 0.4 for i in range(8)}
    root = one(diagnose("e", [source(0, {**named, REST: 0.4 * 12})], consumers))  # as a worker tells of many
    assert (root.subtask, root.cause) == (None, "user_function")


def test_the_one_with_most_of_the_rows_is_skew_and_not_slowness() -> None:
    consumers = [
        task(0, rows=100, user=0.5, input=9.5),
        task(1, rows=2000, user=9.8),
        task(2, rows=110, user=0.5, input=9),
    ]
    root = one(diagnose("e", [source(0, {1: 8.0})], consumers))
    assert (root.subtask, root.cause) == (1, "skew")
    assert root.evidence == {"rows": 2000, "rows of the others": 105}


def test_the_key_that_most_rows_have_is_told_by_its_hash_and_by_its_value_where_that_was_asked_for() -> None:
    consumers = [task(0, rows=100, user=0.5, input=9.5), task(1, rows=2000, user=9.8)]
    shares = {"1:77": 0.61, "1:78": 0.2, "0:79": 0.05}
    root = one(diagnose("e", [source(0, {1: 8.0}, hot_keys=shares)], consumers))
    assert root.key is None
    assert root.evidence["share of the key with hash 77"] == 0.61
    found = diagnose("e", [source(0, {1: 8.0}, hot_keys=shares, key_values={"77": "'LAX'", "79": "'JFK'"})], consumers)
    assert (one(found).key, one(found).evidence["share of the key 'LAX'"]) == ("'LAX'", 0.61)
    assert "others; key 'LAX' has 61% of the rows (2,000 rows, the median of the others has 100)" in found.sentence


def test_a_key_has_no_more_rows_than_its_consumer_got_whatever_a_sample_says() -> None:
    consumers = [task(0, rows=100, user=0.5, input=9.5), task(1, rows=1900, user=9.8)]
    found = diagnose("e", [source(0, {1: 8.0}, hot_keys={"1:77": 1.0}, key_values={"77": "'LAX'"})], consumers)
    assert "key 'LAX' has 95% of the rows" in found.sentence


def test_many_rows_that_cost_more_each_are_slowness() -> None:
    consumers = [task(0, rows=1000, user=0.1, input=9.9), task(1, rows=2500, user=9.8), task(2, user=0.1, input=9.9)]
    assert one(diagnose("e", [source(0, {1: 8.0})], consumers)).cause == "user_function"


def test_a_sink_that_is_slow_for_all_is_no_single_subtasks_fault() -> None:
    consumers = [task(0, engine_out=9.0, user=1.0), task(1, engine_out=9.5, user=0.5), task(2, engine_out=8.0, user=2)]
    root = one(diagnose("e", [source(0, {1: 8.0, 0: 0.1})], consumers))
    assert (root.subtask, root.cause) == (None, "slow_sink")


@pytest.mark.parametrize(("unread", "subtask"), [(20, None), (19, None), (12, 1), (0, 1)])
def test_a_slow_sink_behind_a_full_socket_is_seen_before_its_task_waits(unread: int, subtask: int | None) -> None:
    """Held back by the first that waits, producers give the others no more than their own sinks take."""
    idle = {"input": 8.0, "user": 2.0, "looks": 20, "unread": unread}
    consumers = [task(0, **idle), task(1, engine_out=9.5, user=0.5, looks=20, unread=20), task(2, **idle)]
    root = one(diagnose("e", [source(0, {1: 8.0})], consumers))
    assert (root.subtask, root.cause) == (subtask, "slow_sink")


@pytest.mark.parametrize(("unread", "cause"), [(18, "slow_sink"), (4, "segments")])
def test_segments_are_enough_where_a_sink_keeps_its_consumer_from_reading(unread: int, cause: str) -> None:
    """While its socket fills, a consumer is idle now and then, and its rows hold the segments of the others."""
    reads = [task(k, engine_out=4.5, user=1.5, input=4.0, looks=20, unread=unread) for k in range(2)]
    assert one(diagnose("e", [source(0, {0: 4.0, 1: 4.0}, short_s=7.0)], reads)).cause == cause


def test_a_socket_that_fills_behind_a_busy_function_is_not_to_blame_yet() -> None:
    consumers = [task(0, user=9.9, looks=20, unread=20), task(1, user=1.0, input=9.0, looks=20)]
    assert one(diagnose("e", [source(0, {0: 8.0})], consumers)).cause == "user_function"


def test_two_faults_are_two_roots() -> None:
    consumers = [task(0, user=9.9), task(1, engine_out=9.0, user=1.0), task(2, user=0.5, input=9.5)]
    found = diagnose("e", [source(0, {0: 5.0, 1: 3.0})], consumers)
    assert [(root.subtask, root.cause) for root in found.roots] == [(0, "user_function"), (1, "slow_sink")]


@pytest.mark.parametrize(
    ("gc_s", "blocked", "found"),
    [
        (6.0, 5.6, [(1, "skew"), (2, "gc")]),
        (0.0, 5.6, [(1, "skew")]),  # it is busy, and nothing is wrong with it
        (6.0, 2.0, [(1, "skew")]),  # rows hardly come faster without the other: what it has in reserve is enough
    ],
)
def test_one_that_collects_garbage_is_named_beside_a_hot_key_that_hides_it(
    gc_s: float, blocked: float, found: list[tuple[int, str]]
) -> None:
    """Skew + GC: held back by the hot key's consumer alone, producers leave the other a sixth of its time."""
    consumers = [
        task(0, rows=830, user=1.7, input=8.3),
        task(1, rows=4700, user=9.9, input=0.1),
        task(2, rows=640, user=8.4, input=1.6, gc_s=gc_s, cpu_s=6.1, queued_s=0.1),
    ]
    roots = diagnose("e", [source(0, {1: blocked}), source(1, {1: blocked})], consumers).roots
    assert [(root.subtask, root.cause) for root in roots] == found


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"stopped_s": 4.0}, "stopped"),
        ({"cpu_s": 1.5, "queued_s": 8.4}, "cpu_starved"),
        ({"cpu_s": 4.0, "queued_s": 5.0}, "user_function"),  # with a CPU of its own it would be twice as fast: too slow
        ({"cpu_s": 0.5, "queued_s": 2.0}, "user_function"),  # it sleeps for the rest
        ({"gc_s": 3.0, "cpu_s": 9.0, "queued_s": 0.1}, "gc"),
        ({"cpu_s": 9.0, "queued_s": 0.5, "gc_s": 0.01, "stopped_s": 0.0}, "user_function"),
    ],
)
def test_what_its_process_met_comes_before_its_function(more: dict[str, float], cause: str) -> None:
    consumers = [task(0, user=1, input=9), task(1, user=10, **more)]
    assert one(diagnose("e", [source(0, {1: 8.0})], consumers)).cause == cause


def test_a_jvm_that_collects_is_to_blame_for_what_waits_for_it() -> None:
    reads = [task(k, engine_out=6.0, user=4.0, jvm_gc_s=4.0) for k in range(2)]
    root = one(diagnose("e", [source(0, {0: 4.0, 1: 4.0})], reads))
    assert (root.stage, root.subtask, root.cause) == ("total", None, "jvm_gc")
    assert "spark.executor.memory" in root.remedy
    # Little of what they wait for; and they do not wait for it
    reads = [task(k, engine_out=6.0, user=4.0, jvm_gc_s=2.0) for k in range(2)]
    assert one(diagnose("e", [source(0, {0: 4.0, 1: 4.0})], reads)).cause == "slow_sink"
    busy = [task(k, engine_out=0.5, user=9.5, jvm_gc_s=4.0) for k in range(2)]
    assert one(diagnose("e", [source(0, {0: 4.0, 1: 4.0})], busy)).cause == "user_function"


def test_a_task_that_decodes_most_of_the_time_is_not_its_functions_fault() -> None:
    consumers = [task(0, codec=7.0, user=2.8, input=0.2), task(1, codec=1.0, input=9.0)]
    assert one(diagnose("e", [source(0, {0: 8.0})], consumers)).cause == "codec"


def test_what_limits_its_group_is_told_where_the_kernel_tells_no_waits() -> None:
    consumers = [task(0, user=10.0, throttled_s=4.0), task(1, user=1.0, input=9.0)]
    root = one(diagnose("e", [source(0, {0: 8.0})], consumers))
    assert (root.cause, "CPU limit" in root.remedy) == ("cpu_starved", True)


def test_a_link_is_to_blame_only_where_its_receivers_wait() -> None:
    producers = [source(i, {0: 8.0}, credit=1.0, link=7.0) for i in range(2)]
    idle = [task(0, user=1, input=9)]
    root = one(diagnose("e", producers, idle))
    assert (root.stage, root.subtask, root.cause) == ("source", None, "slow_link")
    assert one(diagnose("e", producers, [task(0, user=9.9, input=0.1)])).cause == "user_function"


@pytest.mark.parametrize("waits", [{"queued_s": 1.11, "machine_s": 10.2, "cores": 2}, {"throttled_s": 1.5}])
def test_a_slow_link_is_named_though_its_receiver_waits_for_a_cpu_as_well(waits: dict[str, float]) -> None:
    """Others use all CPUs, or its group has used its share: for far longer it waits for rows, and so has time left."""
    consumers = [
        task(0, rows=7337, input=4.37, user=0.72, codec=0.02, cpu_s=0.08, queued_s=0.1),
        task(1, rows=7902, input=4.18, user=0.9, codec=0.04, cpu_s=0.08, **waits),
    ]
    sources = [
        source(0, {1: 3.89}, user=1.29, looks=20, unsent={1: 18}),
        source(1, {1: 4.13}, user=0.97, looks=20, unsent={1: 19}),
    ]
    root = one(diagnose("e", sources, consumers))
    assert (root.stage, root.subtask, root.cause) == ("total", 1, "slow_link")


def test_memory_and_credit() -> None:
    consumers = [task(0, user=2, input=8)]
    assert one(diagnose("e", [source(0, {0: 1.0}, credit=1.0, segment=7.0)], consumers)).cause == "segments"
    assert one(diagnose("e", [source(0, {0: 8.0})], consumers)).cause == "credits"


@pytest.mark.parametrize("blocked", [0.8, 3.0])
def test_bursts_that_a_writer_has_too_few_segments_for_are_no_consumers_fault(blocked: float) -> None:
    """The pool is empty though queues have room, and no consumer is at its end: more segments would hold the bursts."""
    held = {k: blocked / 5 for k in range(5)}
    producers = [source(i, held, short_s=0.95 * blocked) for i in range(2)]
    root = one(diagnose("e", producers, [task(k, user=7.8, input=2.2) for k in range(5)]))
    assert (root.stage, root.subtask, root.cause) == ("source", None, "segments")
    assert "spark.fastbuf.memoryBytes" in root.remedy
    # As much is lost, but queues are full: rows come as they come
    producers = [source(i, held, short_s=0.0) for i in range(2)]
    assert diagnose("e", producers, [task(k, user=7.8, input=2.2) for k in range(5)]).roots == []
    # And whoever is at its end is to blame, however few segments there are
    producers = [source(i, {0: 5 * blocked}, short_s=4 * blocked) for i in range(2)]
    busy = [task(0, user=9.8, input=0.2), *(task(k, user=2.0, input=8.0) for k in range(1, 5))]
    assert [(r.subtask, r.cause) for r in diagnose("e", producers, busy).roots] == [(0, "user_function")]


def test_a_slow_head_holds_nobody_up_and_is_named_all_the_same() -> None:
    consumers = [task(i, user=1, input=9) for i in range(2)]
    found = diagnose(
        "e", [task(0, "source", engine_in=9.0, user=1.0), task(1, "source", engine_in=9.1, user=1)], consumers
    )
    assert found.level == "OK"
    assert (one(found).stage, one(found).subtask, one(found).cause) == ("source", None, "source_bound")
    slow = [task(0, "before", user=9.9), task(1, "before", user=1.0, engine_in=1.0)]
    found = diagnose("e", slow, consumers)
    assert (one(found).stage, one(found).subtask, one(found).cause) == ("before", 0, "user_function")


def test_a_consumer_that_is_busy_long_after_all_was_sent_is_named() -> None:
    """What fits into the consumers' memory blocks nobody, and the run lasts as long as its slowest consumer."""
    producers = [Task("source", 0, {"user": 0.2}, {}, 2000, 2000)]
    found = diagnose("e", producers, [task(0, user=0.2, input=0.2), task(1, user=9.8, input=0.2)])
    assert (one(found).stage, one(found).subtask, one(found).cause) == ("total", 1, "user_function")
    assert diagnose("e", producers, [task(0, user=0.1, input=0.9), task(1, user=0.2, input=0.8)]).roots == []


def test_what_no_rule_fits_is_not_guessed() -> None:
    consumers = [task(0, user=4, input=4, engine_in=1, engine_out=1), task(1, input=10)]
    root = one(diagnose("e", [source(0, {0: 6.0})], consumers))
    assert (root.cause, root.suspected) == ("unknown", None)
    assert root.evidence["user"] == 0.4


def test_a_moment_is_not_enough_to_be_sure() -> None:
    consumers = [task(0, user=0.01, input=0.19), task(1, user=0.2)]
    producers = [Task("source", 0, {"credit": 0.1, "user": 0.1}, {1: 0.1}, 10, 10)]
    root = one(diagnose("e", producers, consumers))
    assert (root.cause, root.suspected) == ("unknown", "user_function")
    assert "of the lost time: perhaps the user's function is slow (100% of its time, 20 times its" in sentence(root)
    assert "peers for each row), but no rule is sure. See what" in sentence(root)


def test_nothing_known_is_nothing_wrong() -> None:
    assert diagnose("e", [], []).level == "OK"
    assert diagnose("e", [Task("source", 0, {})], [Task("total", 0, {})]).roots == []
