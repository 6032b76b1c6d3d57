"""The run of an exchange, message by message: no socket, no thread, no Spark, and time is an argument."""

from __future__ import annotations

import pytest

from fastbuf_spark.driver.agreement import Agreement
from fastbuf_spark.driver.barrier_run import GAP_S, BarrierRun
from fastbuf_spark.driver.run import (
    CAUSE_S,
    RECANCEL_S,
    SETTLE_S,
    STARTING_AMONG_OTHERS_S,
    STARTING_S,
    WITHOUT_SLOT_S,
    WITHOUT_SLOTS_S,
    Run,
    RunPlan,
    StageTasks,
)
from fastbuf_spark.protocol import Abort, Empty, Epoch, FromDriver, Seal, Target, Targets


class FakePeer:
    def __init__(self) -> None:
        self.got: list[FromDriver] = []

    def send(self, message: FromDriver) -> None:
        self.got.append(message)

    @property
    def ops(self) -> list[str]:
        return [m.op for m in self.got]

    @property
    def reason(self) -> str:
        return next(m.reason for m in self.got if isinstance(m, Abort))


class FakeJob:
    def __init__(self) -> None:
        self.cancelled = 0
        self.busy = False
        self.known: dict[int, int] = {}
        self.adds = False

    def cancel(self) -> None:
        self.cancelled += 1

    def active(self) -> bool:
        return self.busy

    def tasks(self, stage: int) -> int | None:
        return self.known.get(stage)

    def accumulates(self) -> bool:
        return self.adds


class House:
    """A run with its fakes."""

    def __init__(self, partitions: int = 2, barrier: bool = False, unsteady: str = "") -> None:
        self.stage_tasks: StageTasks | None = None
        self.failures: list[tuple[str, bool]] = []
        self.fates: dict[tuple[int, int], str | None] = {}
        self.job = FakeJob()
        self.targets: list[Target] = []
        plan = RunPlan(
            "x1",
            "demo",
            partitions,
            120.0,
            None if barrier else self._submit,
            lambda stage: self.stage_tasks,
            lambda run, reason, final: self.failures.append((reason, final)),
            lambda stage, attempt: self.fates.get((stage, attempt), ""),
        )
        self.agreement = Agreement("demo", unsteady)
        kind = BarrierRun if barrier else Run
        self.new = lambda: kind(plan, 5, 0.0, self.agreement, ("action",))
        self.run = self.new()
        self.consumers = [FakePeer() for _ in range(partitions)]

    def _submit(self, run: Run, targets: list[Target]) -> FakeJob:
        self.targets = targets
        return self.job

    def started(self) -> House:
        for i, peer in enumerate(self.consumers):
            self.run.join(peer, i, 100 + i, 0.0)
        for i, peer in enumerate(self.consumers):
            self.run.ready(peer, "127.0.0.1", 5000 + i, i + 1, 0.0)
        return self

    def producer(self, partition: int, attempt: int, begin: bool = True) -> FakePeer:
        peer = FakePeer()
        self.run.lease(peer, partition, attempt, 9)
        if begin:
            self.run.begin(peer)
        return peer


def test_a_whole_run_seals_every_consumer_with_its_own_totals() -> None:
    house = House().started()
    assert house.targets == [("127.0.0.1", 5000, 1, 0), ("127.0.0.1", 5001, 2, 1)]
    epoch = house.consumers[0].got[0]
    assert epoch == house.consumers[1].got[0]
    assert isinstance(epoch, Epoch)
    assert 0 < epoch.epoch < 1 << 63
    for partition, totals in ((0, [3, 4]), (2, [1, 0]), (1, [])):
        peer = house.producer(partition, 200 + partition)
        house.run.producer_done(peer, totals, {"records": 10}, 1.0)
        assert peer.ops == ["go", "ok"]
    assert house.consumers[0].ops == ["epoch"], "nothing is sealed before the job has ended"
    house.run.job_finished("", 2.0)
    assert house.consumers[0].got[-1] == Seal({0: 3, 2: 1})
    assert house.consumers[1].got[-1] == Seal({0: 4, 2: 0})
    for peer in house.consumers:
        house.run.consumer_done(peer, {"records": 15}, 3.0)
    assert house.run.over
    assert house.run.summary.outcome == "ok"
    assert house.run.summary.records_sent == 30
    assert house.job.cancelled == 0


def test_where_the_number_of_producers_is_known_nobody_waits_for_the_job() -> None:
    house = House(1).started()
    house.job.known[9] = 2
    for partition in range(2):
        assert house.consumers[0].ops == ["epoch"]
        house.run.producer_done(house.producer(partition, 200 + partition), [1], {}, 1.0)
    assert house.consumers[0].got[-1] == Seal({0: 1, 1: 1})
    house.run.consumer_done(house.consumers[0], {}, 2.0)
    assert not house.run.over, "the job is still there"
    assert house.job.cancelled == 0, "Spark would kill the workers of tasks that are about to end"
    house.run.tick(4.0)
    assert house.job.cancelled == 0
    house.run.tick(20.0)
    assert house.job.cancelled == 1, "it has not ended by itself"
    house.run.job_finished("", 21.0)
    assert house.run.over
    assert house.run.summary.outcome == "ok"


def test_where_producers_have_accumulators_their_job_ends_first() -> None:
    """Spark has their values when it has the tasks' results."""
    house = House(1).started()
    house.job.known[9] = 2
    house.job.adds = True
    for partition in range(2):
        house.run.producer_done(house.producer(partition, 200 + partition), [1], {}, 1.0)
    assert house.consumers[0].ops == ["epoch"]
    assert not house.run.without_producers, "all of them have run"
    house.run.job_finished("", 2.0)
    assert house.consumers[0].got[-1] == Seal({0: 1, 1: 1})


def test_a_job_without_producers_seals_with_nothing() -> None:
    house = House(1).started()
    house.run.job_finished("", 1.0)
    assert house.consumers[0].got[-1] == Seal({})


def test_an_attempt_that_fails_before_it_began_is_followed_by_another() -> None:
    house = House(1).started()
    first = house.producer(0, 200, begin=False)
    house.run.producer_failed(first, "Traceback: boom", 1.0)
    house.run.lost(first, 1.0)
    second = house.producer(0, 201)
    assert second.ops == ["go"]
    house.run.producer_done(second, [2], {}, 1.0)
    house.run.job_finished("", 2.0)
    assert house.consumers[0].got[-1] == Seal({0: 2})


def test_an_attempt_that_vanishes_before_it_began_is_followed_by_the_one_that_waits() -> None:
    house = House(1).started()
    first = house.producer(0, 200, begin=False)
    second = house.producer(0, 201, begin=False)
    assert second.ops == []
    house.run.lost(first, 1.0)
    assert second.ops == ["go"]


@pytest.mark.parametrize("vanish", [True, False])
def test_a_failure_after_begin_aborts_the_epoch_with_its_text(vanish: bool) -> None:
    house = House().started()
    peer = house.producer(0, 200)
    if vanish:
        house.run.lost(peer, 1.0)
    else:
        house.run.producer_failed(peer, "Traceback: boom", 1.0)
    for consumer in house.consumers:
        assert ("vanished" if vanish else "boom") in consumer.reason
        assert "partition 0" in consumer.reason
    assert house.job.cancelled == 1
    late = house.producer(1, 300, begin=False)
    assert late.ops == ["abort"]


@pytest.mark.parametrize("barrier", [False, True])
def test_spark_is_asked_why_a_task_is_gone(barrier: bool) -> None:
    house = House(barrier=barrier).started()
    gone = house.consumers[0] if barrier else house.producer(0, 7)
    task = (5, 100) if barrier else (9, 7)
    house.fates[task] = None
    house.run.lost(gone, 1.0)
    house.run.tick(1.2)
    assert house.run.state != "ended", "Spark has not said anything yet"
    house.fates[task] = "ValueError: the plane has no wings"
    house.run.tick(1.4)
    assert "vanished" in house.consumers[1].reason
    assert house.consumers[1].reason.endswith("Spark says:\nValueError: the plane has no wings")
    assert len(house.failures) == 1


def test_spark_is_not_asked_for_ever() -> None:
    house = House().started()
    house.fates[9, 7] = None
    house.run.lost(house.producer(0, 7), 1.0)
    house.run.tick(0.9 + CAUSE_S)
    assert house.run.state != "ended"
    house.run.tick(1.0 + CAUSE_S)
    assert house.consumers[0].reason.endswith("vanished while it was sending")


def test_a_job_that_fails_while_spark_is_asked_says_why_itself() -> None:
    house = House().started()
    house.fates[9, 7] = None
    house.run.lost(house.producer(0, 7), 1.0)
    next_attempt = house.producer(0, 8, begin=False)
    assert next_attempt.ops == [], "it waits: what the first one sent is in use"
    house.run.job_finished("the input cannot be read", 1.5)
    assert "the input cannot be read" in house.consumers[0].reason
    assert next_attempt.ops == ["abort"]


def test_a_speculative_attempt_waits_and_is_told_when_its_twin_is_done() -> None:
    house = House(1).started()
    first = house.producer(0, 200)
    twin = house.producer(0, 201, begin=False)
    house.run.producer_done(first, [1], {}, 1.0)
    assert twin.ops == ["sent"]
    assert house.producer(0, 202, begin=False).ops == ["sent"]


def test_a_failed_job_names_what_the_user_function_said() -> None:
    house = House().started()
    peer = house.producer(0, 200, begin=False)
    house.run.producer_failed(peer, "ValueError: bad plane", 1.0)
    house.run.job_finished("Job aborted due to stage failure", 2.0)
    assert "bad plane" in house.consumers[0].reason


def test_a_failing_consumer_takes_nobody_with_it() -> None:
    """Spark tries its task again, and that one makes a request of its own."""
    house = House().started()
    producer = house.producer(0, 200)
    house.run.consumer_failed(house.consumers[0], "ZeroDivisionError: by the user", 1.0)
    assert house.consumers[1].ops == ["epoch"]
    house.run.producer_done(producer, [3, 4], {"rows": 7, "digest": 1}, 1.0)
    house.run.job_finished("", 2.0)
    assert house.consumers[1].got[-1] == Seal({0: 4})
    house.run.consumer_done(house.consumers[1], {}, 3.0)
    assert house.run.over
    assert house.run.summary.outcome == "aborted"
    assert "ZeroDivisionError" in house.run.summary.reason
    assert house.failures == [], "Spark knows of it by the task"


def test_an_aborted_run_ends_its_job_even_if_that_was_not_there_yet() -> None:
    house = House().started()
    house.run.abort("no reason", 1.0)
    assert house.job.cancelled == 1
    assert not house.run.over
    house.run.tick(1.0 + RECANCEL_S)
    assert house.job.cancelled == 2, "a job that was not there yet is cancelled again"
    house.run.job_finished("cancelled", 3.0)
    for peer in house.consumers:
        house.run.lost(peer, 3.0)
    assert house.run.over


def test_consumers_that_have_seen_enough_end_the_job() -> None:
    house = House().started()
    producer = house.producer(0, 200)
    house.run.consumer_done(house.consumers[0], {}, 1.0)
    assert house.job.cancelled == 0
    house.run.lost(house.consumers[1], 1.0)
    assert house.job.cancelled == 1
    assert house.run.summary.outcome == "cancelled"
    assert producer.ops == ["go", "stop"]
    assert house.producer(1, 201, begin=False).ops == ["stop"]


@pytest.mark.parametrize(
    ("cause", "outcome", "said"),
    [
        ("failed: crashed", "aborted", "consumer of partition 1 (attempt 101) vanished; Spark says:\nfailed: crashed"),
        ("killed: another attempt succeeded", "cancelled", ""),
        ("success: ", "cancelled", ""),
        (None, "cancelled", ""),
    ],
)
def test_of_a_consumer_that_vanished_spark_says_whether_it_has_failed(
    cause: str | None, outcome: str, said: str
) -> None:
    house = House().started()
    producer = house.producer(0, 200)
    house.run.consumer_done(house.consumers[0], {}, 1.0)
    house.fates[(5, 101)] = None
    house.run.lost(house.consumers[1], 1.0)
    assert (producer.ops, house.job.cancelled) == (["go", "stop"], 1), "which does not wait for Spark's word"
    house.run.job_finished("cancelled", 1.5)
    assert (house.run.summary.outcome, house.run.over) == ("running", False)
    house.fates[(5, 101)] = cause
    house.run.tick(2.0 if cause is not None else 1.0 + CAUSE_S)
    assert (house.run.summary.outcome, house.run.summary.reason, house.run.over) == (outcome, said, True)


def test_a_consumer_that_was_lost_is_told_though_the_others_go_on() -> None:
    house = House().started()
    house.fates[(5, 100)] = "failed: crashed"
    house.run.lost(house.consumers[0], 1.0)
    assert house.run.state == "running"
    house.producer(0, 200)
    house.run.consumer_done(house.consumers[1], {}, 2.0)
    assert (house.run.summary.outcome, "crashed" in house.run.summary.reason) == ("aborted", True)


def test_requests_for_all_partitions_are_a_run_at_once() -> None:
    house = House()
    house.run.join(house.consumers[0], 0, 10, 0.0)
    assert house.run.state == "joining"
    house.run.join(house.consumers[1], 1, 13, 0.0)
    assert house.run.state == "gating"


def test_a_stage_of_one_task_waits_for_no_other_partition() -> None:
    house = House(4)
    house.stage_tasks = StageTasks(total=1, active=1, done=0)
    house.run.join(house.consumers[2], 2, 10, 0.0)
    house.run.ready(house.consumers[2], "h", 7, 3, 0.0)
    assert house.targets == [("h", 7, 3, 2)]
    assert house.run.summary.partitions == [2]
    house.run.producer_done(house.producer(0, 200), [9], {"rows": 20, "digest": 5}, 1.0)
    house.run.job_finished("", 1.0)
    assert house.consumers[2].got[-1] == Seal({0: 9})


def test_tasks_that_are_done_or_served_elsewhere_are_not_waited_for() -> None:
    house = House(4)
    house.stage_tasks = StageTasks(total=4, active=3, done=1)
    house.run.elsewhere = lambda: 2
    house.run.join(house.consumers[3], 3, 10, 0.0)
    assert house.run.state == "gating"


@pytest.mark.parametrize(
    ("total", "active", "crowded", "seconds"),
    [
        (2, 2, False, STARTING_S),
        (2, 1, False, WITHOUT_SLOT_S),
        (2, 1, True, WITHOUT_SLOTS_S),
        (5, 4, False, STARTING_AMONG_OTHERS_S),
        (9, 1, False, SETTLE_S),
    ],
    ids=["starts", "without a slot", "others too", "of a union", "of a union, without slots"],
)
def test_tasks_that_have_not_asked_are_waited_for(total: int, active: int, crowded: bool, seconds: float) -> None:
    """Of those without a slot it was half a second: on a busy Spark each had a run of its own."""
    house = House()
    house.stage_tasks = StageTasks(total=total, active=active, done=0)
    house.run.crowded = lambda: crowded
    house.run.join(house.consumers[0], 0, 10, 0.0)
    house.run.tick(seconds - 0.1)
    assert house.run.state == "joining"
    house.run.tick(seconds)
    assert house.run.state == "gating"


def test_a_run_takes_one_request_for_a_partition() -> None:
    house = House()
    house.run.join(house.consumers[0], 0, 10, 0.0)
    assert not house.run.wants(0)
    assert house.run.wants(1)


def test_a_partition_that_there_is_not_is_refused() -> None:
    house = House()
    house.run.join(house.consumers[0], 2, 10, 0.0)
    assert "partition 2 of an exchange of 2" in house.consumers[0].reason


@pytest.mark.parametrize("again", [(10, 5), (11, 4), (10, 4)])
def test_runs_of_one_action_must_find_the_same_keys(again: tuple[int, int]) -> None:
    house = House()
    house.stage_tasks = StageTasks(total=1, active=1, done=0)
    outcomes = []
    for partition, (rows, digest) in enumerate([(10, 5), again]):
        house.run = house.new()
        peer = FakePeer()
        house.run.join(peer, partition, 10, 0.0)
        house.run.ready(peer, "h", 7, 3, 0.0)
        house.run.producer_done(house.producer(0, 200), [9], {"rows": rows, "digest": digest}, 1.0)
        house.run.job_finished("", 1.0)
        outcomes.append(peer.ops[-1])
    assert outcomes == ["seal", "seal" if again == (10, 5) else "abort"]
    if again != (10, 5):
        assert "not deterministic" in peer.reason
        assert house.failures[-1][1], "to try it again cannot help"


def test_an_input_that_is_known_to_differ_is_not_read_for_a_part() -> None:
    house = House(unsteady="rand()")
    house.stage_tasks = StageTasks(total=1, active=1, done=0)
    house.run.join(house.consumers[0], 0, 10, 0.0)
    assert "not deterministic (rand())" in house.consumers[0].reason
    assert house.failures[-1][1]


def test_a_gate_that_never_listens_is_an_error() -> None:
    house = House()
    for i, peer in enumerate(house.consumers):
        house.run.join(peer, i, 10 + i, 0.0)
    house.run.ready(house.consumers[0], "h", 1, 1, 0.0)
    house.run.tick(121.0)
    assert "consumers [1] do not listen" in house.consumers[0].reason


def test_a_run_has_no_producers_while_none_of_them_runs() -> None:
    house = House().started()
    assert house.run.without_producers
    producer = house.producer(0, 200, begin=False)
    assert not house.run.without_producers
    house.run.producer_done(producer, [1, 1], {}, 1.0)
    assert house.run.without_producers, "there may be more of them"
    house.run.job_finished("", 2.0)
    assert not house.run.without_producers


def test_a_consumer_lost_while_gating_is_left_out() -> None:
    house = House()
    for i, peer in enumerate(house.consumers):
        house.run.join(peer, i, 10 + i, 0.0)
    house.run.ready(house.consumers[0], "h", 7, 1, 0.0)
    house.run.lost(house.consumers[1], 0.0)
    assert house.targets == [("h", 7, 1, 0)]


def test_a_consumer_lost_while_joining_leaves_room_for_its_next_attempt() -> None:
    house = House()
    house.run.join(house.consumers[0], 0, 10, 0.0)
    house.run.lost(house.consumers[0], 0.0)
    assert house.run.over


def test_tasks_of_two_attempts_do_not_make_a_barrier_run_before_the_newer_ones_had_time() -> None:
    house = House(barrier=True)
    stale, newer, fresh = FakePeer(), FakePeer(), FakePeer()
    house.run.join(stale, 0, 10, 0.0)
    house.run.join(newer, 1, 13, 0.1)
    assert house.run.state == "joining"
    house.run.join(fresh, 0, 12, 0.2)
    assert house.run.state == "gating"
    assert "takes the place" in stale.reason
    assert fresh.ops == newer.ops == ["epoch"]


def test_a_set_with_gaps_is_taken_in_the_end() -> None:
    house = House(barrier=True)
    house.run.join(FakePeer(), 0, 10, 0.0)
    house.run.join(FakePeer(), 1, 13, 0.0)
    house.run.tick(GAP_S)
    assert house.run.state == "gating"


def test_a_stale_task_is_refused() -> None:
    house = House(barrier=True)
    house.run.join(FakePeer(), 0, 10, 0.0)
    stale = FakePeer()
    house.run.join(stale, 0, 9, 0.0)
    assert "came after" in stale.reason


def test_a_missing_task_of_a_barrier_stage_is_an_error_with_figures() -> None:
    house = House(barrier=True)
    house.run.join(house.consumers[0], 0, 10, 0.0)
    house.run.tick(120.5)
    assert "1 of 2 tasks" in house.consumers[0].reason


def test_a_barrier_stage_hands_out_the_targets_and_ends_with_its_tasks() -> None:
    house = House(barrier=True).started()
    targets = (("127.0.0.1", 5000, 1), ("127.0.0.1", 5001, 2))
    assert [p.got[-1] for p in house.consumers] == [Targets(targets)] * 2
    for peer in house.consumers:
        house.run.consumer_done(peer, {"records": 3}, 1.0, {"records": 4})
    assert house.run.over
    summary = house.run.summary
    assert (summary.mode, summary.outcome, summary.records_sent, summary.records_received) == ("barrier", "ok", 8, 6)


def test_a_task_of_a_barrier_stage_that_vanishes_is_a_failure() -> None:
    house = House(barrier=True).started()
    house.run.lost(house.consumers[0], 1.0)
    assert "task 0 of the barrier stage 'demo' vanished" in house.consumers[1].reason
    assert house.failures
    assert not house.failures[0][1]


def test_totals_of_another_width_abort() -> None:
    house = House().started()
    house.run.producer_done(house.producer(0, 200), [1, 2, 3], {}, 1.0)
    assert "3 consumers of 2" in house.consumers[0].reason


def test_the_producer_that_reads_last_is_told_which_partitions_had_no_rows() -> None:
    house = House().started()
    first, second = house.producer(0, 200, begin=False), house.producer(1, 201, begin=False)
    house.run.seen(first, {0, 3}, 6, 2)
    assert first.got[-1] == Empty(())
    house.run.producer_failed(first, "it fails before it began", 1.0)
    again = house.producer(0, 202, begin=False)
    house.run.seen(second, {4}, 6, 2)
    assert second.got[-1] == Empty(()), "the first one's next attempt has not read yet"
    house.run.seen(again, {0, 3}, 6, 2)
    assert again.got[-1] == Empty((1, 2, 5))


def test_partitions_without_rows_are_given_to_one_producer() -> None:
    """Another that is lost and reads again gets none: its rows of them would come twice."""
    house = House().started()
    first, second = house.producer(0, 200, begin=False), house.producer(1, 201, begin=False)
    house.run.seen(first, {0, 3}, 6, 2)
    house.run.seen(second, {4}, 6, 2)
    assert second.got[-1] == Empty((1, 2, 5))
    house.run.begin(second)
    house.run.lost(first, 1.0)
    again = house.producer(0, 202, begin=False)
    house.run.seen(again, {0, 3}, 6, 2)
    assert again.got[-1] == Empty(())


def test_who_is_lost_before_it_began_leaves_partitions_without_rows_to_its_next_attempt() -> None:
    house = House().started()
    first, second = house.producer(0, 200, begin=False), house.producer(1, 201, begin=False)
    house.run.seen(first, {0, 3}, 6, 2)
    waits = house.producer(1, 202, begin=False)
    for peer in (second, waits):
        house.run.seen(peer, {4}, 6, 2)
        assert peer.got[-1] == Empty((1, 2, 5))
        house.run.lost(peer, 1.0)


def test_a_consumer_that_was_not_reached_and_still_reads_is_told_why() -> None:
    house = House().started()
    house.run.producer_done(house.producer(0, 200), [3, 0], {}, 1.0, {1: "refused"})
    house.run.producer_done(house.producer(1, 201), [1, 2], {}, 1.0)
    house.run.job_finished("", 2.0)
    assert house.consumers[0].got[-1] == Seal({0: 3, 1: 1})
    assert house.consumers[1].got[-1] == Seal({0: 0, 1: 2}, {0: "refused"})
