"""The rendezvous over real sockets, with threads as workers; no Spark."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastbuf.errors import AuthenticationError, ExchangeAborted, FastbufError, PeerLost, ProtocolError
from fastbuf.json_frames import GREETING_BYTES, pack
from fastbuf_spark.driver import rendezvous, slots
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.driver.reported import Reported
from fastbuf_spark.driver.run import SETTLE_S, Run, RunPlan
from fastbuf_spark.driver.slots import Slots
from fastbuf_spark.messages import Unpacker
from fastbuf_spark.protocol import (
    Abort,
    Begin,
    ConsumerDone,
    ConsumerFailed,
    Epoch,
    FromWorker,
    Go,
    Heard,
    Hello,
    Join,
    Lease,
    ProducerDone,
    Ready,
    Report,
    Seal,
    Stop,
    Target,
    Welcome,
)
from fastbuf_spark.wire import REASON_CHARS, VERSION, clip
from fastbuf_spark.worker.control import Control
from fastbuf_spark.worker.task_input import InputLost, TaskInput

SECRET = b"s" * 32
WAIT_S = 30.0


class Job:
    """Stands for Spark's job: ends when cancelled, or when the test says so."""

    def __init__(self, server: Rendezvous, run: Run) -> None:
        self.server, self.run = server, run
        self.cancels = 0

    def cancel(self) -> None:
        self.cancels += 1
        self.server.job_finished(self.run, "cancelled")

    def active(self) -> bool:
        return False

    def tasks(self, stage: int) -> int | None:
        return None

    def accumulates(self) -> bool:
        return False


class Driver:
    def __init__(self) -> None:
        self.server = Rendezvous()
        self.jobs: list[Job] = []
        self.targets: list[list[Target]] = []
        self.submitted = threading.Event()

    def register(
        self, exchange: str = "x1", partitions: int = 2, barrier: bool = False, slots: Slots | None = None
    ) -> None:
        plan = RunPlan(exchange, f"name of {exchange}", partitions, 120.0, None if barrier else self._submit)
        self.server.register(exchange, SECRET, plan, slots=slots)

    def _submit(self, run: Run, targets: list[Target]) -> Job:
        self.jobs.append(Job(self.server, run))
        self.targets.append(targets)
        self.submitted.set()
        return self.jobs[-1]

    def control(self, exchange: str = "x1", secret: bytes = SECRET) -> Control:
        return Control(self.server.address, exchange, secret, WAIT_S)

    def consumers(
        self, partitions: int = 2, exchange: str = "x1", stage: int = 1, first: int = 10, parent: int = 0
    ) -> list[Control]:
        made = [self.control(exchange) for _ in range(partitions)]
        for i, control in enumerate(made):
            control.send(Join(stage, i, first + i, parent=parent))
        return made

    def running(self, partitions: int = 2) -> tuple[list[Control], int]:
        made = self.consumers(partitions)
        epochs = {c.expect(Epoch, timeout=WAIT_S).epoch for c in made}
        assert len(epochs) == 1
        for i, control in enumerate(made):
            control.send(Ready("127.0.0.1", 6000 + i, i))
        assert self.submitted.wait(WAIT_S)
        return made, epochs.pop()

    def producer(self, epoch: int, partition: int, attempt: int = 50) -> Control:
        control = self.control()
        control.send(Lease(epoch, partition, attempt, 2))
        return control


def reason_of(control: Control) -> str:
    """Why the driver has ended the run."""
    verdict = control.verdict(WAIT_S)
    assert isinstance(verdict, Abort)
    return verdict.reason


def eventually(check: Any) -> None:
    """The rendezvous works on its own thread: give it time, bounded."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.01)  # polling a thread that offers no event to a stranger


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(rendezvous, "GREETING_S", 3 * WAIT_S)  # whoever is dropped is so for what it said
    before = set(threading.enumerate())  # a Spark of other tests in this process has a rendezvous of its own
    made = Driver()
    yield made
    eventually(lambda: not made.server.live_runs())
    made.server.close(WAIT_S)
    assert not [t for t in threading.enumerate() if t.name.startswith("fastbuf") and t not in before]


def close(*controls: Control) -> None:
    for control in controls:
        control.close()


def test_a_whole_run(driver: Driver) -> None:
    driver.register()
    consumers, epoch = driver.running()
    for partition in range(3):
        with driver.producer(epoch, partition) as producer:
            producer.expect(Go, timeout=WAIT_S)
            producer.send(Begin())
            producer.ask(ProducerDone((partition, 1), {"records": 7}), WAIT_S)
    driver.server.job_finished(driver.jobs[0].run, "")
    seals = [c.expect(Seal, timeout=WAIT_S).totals for c in consumers]
    assert seals == [{0: 0, 1: 1, 2: 2}, {0: 1, 1: 1, 2: 1}]
    for control in consumers:
        control.send(ConsumerDone({"records": 9}))
    close(*consumers)
    eventually(lambda: driver.server.summaries[-1].outcome == "ok")
    assert driver.server.summaries[-1].records_sent == 21
    assert driver.server.summaries[-1].records_received == 18


def test_a_stranger_is_dropped(driver: Driver) -> None:
    driver.register()
    with pytest.raises(PeerLost):
        driver.control(secret=b"wrong")
    with pytest.raises(PeerLost):
        driver.control(exchange="another")


def test_a_frame_that_is_too_long_is_dropped_before_it_is_held(driver: Driver) -> None:
    with socket.create_connection(driver.server.address, timeout=WAIT_S) as sock:
        sock.sendall(struct.pack(">I", GREETING_BYTES + 1) + b"{")
        while sock.recv(4096):
            pass  # the greeting, then the end


def test_a_driver_without_the_secret_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(Hello(VERSION, "n").encode())
                sock.recv(4096)
                sock.sendall(Welcome("0" * 64).encode())

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(AuthenticationError):
            Control(listener.getsockname()[:2], "x1", SECRET, WAIT_S)
        thread.join(WAIT_S)


def test_a_driver_of_another_version_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def other() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(Hello(VERSION + 1, "n", "9.9.9").encode())
                sock.recv(4096)

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(ProtocolError, match=r"the driver has fastbuf 9\.9\.9, this worker .* the same version"):
            Control(listener.getsockname()[:2], "x1", SECRET, WAIT_S)
        thread.join(WAIT_S)


def test_a_failing_consumer_is_followed_by_a_request_of_its_next_attempt(driver: Driver) -> None:
    driver.register()
    consumers, epoch = driver.running()
    consumers[0].abort("ZeroDivisionError: by the user's function", ConsumerFailed)
    close(consumers[0])
    again = driver.control()
    again.send(Join(1, 0, 20))
    assert again.expect(Epoch, timeout=WAIT_S).epoch != epoch
    assert consumers[1].poll(SETTLE_S) is None, "the other consumer goes on"
    close(*consumers, again)


def test_a_producer_that_vanishes_after_begin_aborts(driver: Driver) -> None:
    driver.register()
    consumers, epoch = driver.running()
    producer = driver.producer(epoch, 1)
    producer.expect(Go, timeout=WAIT_S)
    producer.send(Begin())
    producer.close()
    with pytest.raises(ExchangeAborted, match=r"partition 1 .*vanished"):
        consumers[0].expect(Seal, timeout=WAIT_S)
    close(*consumers)


def test_consumers_that_vanish_cancel_the_job(driver: Driver) -> None:
    driver.register()
    consumers, epoch = driver.running()
    producer = driver.producer(epoch, 0)
    producer.expect(Go, timeout=WAIT_S)
    close(*consumers)
    producer.expect(Stop, timeout=WAIT_S)
    eventually(lambda: driver.jobs[0].cancels)
    eventually(lambda: driver.server.summaries[-1].outcome == "cancelled")
    close(producer)


def test_a_worker_that_nobody_waits_for_does_not_wait_for_others(driver: Driver) -> None:
    """Spark kills a task by closing its stream, which a worker that waits for the driver does not read."""
    driver.register()
    spark, stream = socket.socketpair()
    with spark, stream.makefile("rb") as buffered:
        control = driver.consumers(1)[0]
        control.watch = TaskInput(buffered).look
        eventually(lambda: driver.server.live_runs())
        control.expect(Epoch, timeout=WAIT_S)
        assert control.poll(1.2) is None, "it waits for the producers"
        spark.close()
        begin = time.monotonic()
        with pytest.raises(InputLost):
            control.expect(Seal, timeout=WAIT_S)
        assert time.monotonic() - begin < WAIT_S / 2
    stream.close()
    close(control)


def test_a_rerun_of_a_barrier_stage_supersedes_and_a_stale_one_is_refused(driver: Driver) -> None:
    driver.register(barrier=True)
    old = driver.consumers()
    for control in old:
        control.expect(Epoch, timeout=WAIT_S)
    new = driver.consumers(first=20)
    assert "started stage" in reason_of(old[0])
    for control in new:
        control.expect(Epoch, timeout=WAIT_S)
    stale = driver.consumers(1, first=5)
    with pytest.raises(ExchangeAborted, match="is outdated"):
        stale[0].expect(Epoch, timeout=WAIT_S)
    close(*old, *new, *stale)


def test_two_requests_for_one_partition_are_two_runs(driver: Driver) -> None:
    """A cartesian product, a self-join or a speculative attempt asks twice at the same time; both are served."""
    driver.register()
    first, second = driver.consumers(), driver.consumers(first=30)
    epochs = [c.expect(Epoch, timeout=WAIT_S).epoch for c in [*first, *second]]
    assert len(set(epochs)) == 2
    assert epochs[0] == epochs[1]
    close(*first, *second)


def test_two_actions_on_one_plan_are_two_runs(driver: Driver) -> None:
    driver.register()
    first, second = driver.consumers(stage=1), driver.consumers(stage=2, first=30)
    epochs = {c.expect(Epoch, timeout=WAIT_S).epoch for c in [*first, *second]}
    assert len(epochs) == 2
    close(*first, *second)


def test_a_lease_of_an_epoch_that_is_gone_is_told_to_stop(driver: Driver) -> None:
    driver.register()
    with driver.producer(12345, 0) as producer:
        producer.expect(Stop, timeout=WAIT_S)


def test_a_run_that_no_slot_is_left_for_ends_with_the_figures(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LINGER_S", 0.3)
    house = Slots(lambda: 4, lambda stage: (), lambda count: f"local[{count}]")
    driver.register("x1", slots=house)
    driver.register("x2", slots=house)
    consumers, _ = driver.running()
    driver.submitted.clear()
    later = driver.consumers(exchange="x2", stage=2, first=30)
    for i, control in enumerate(later):
        control.expect(Epoch, timeout=WAIT_S)
        control.send(Ready("127.0.0.1", 7000 + i, i))
    reason = reason_of(later[0])
    for words in ("name of x2", "'name of x1' 2", "5 > 4 slots", "local[5]", "blocking"):
        assert words in reason
    assert consumers[0].poll(1.0) is None, "the one that came first has slots now"
    (again,) = driver.consumers(1, exchange="x2", stage=2, first=40)
    assert reason_of(again) == reason, "what Spark tries again does not wait once more"
    close(*consumers, *later, again)


def test_actions_in_threads_that_take_every_slot_are_told_so(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one result: its name stands once, with its runs, and the advice is not about another shuffle alone."""
    monkeypatch.setattr(slots, "LINGER_S", 0.3)
    driver.register("x1", slots=Slots(lambda: 4, lambda stage: (), lambda count: f"local[{count}]"))
    consumers, _ = driver.running()
    later = driver.consumers(exchange="x1", stage=2, first=30)
    for i, control in enumerate(later):
        control.expect(Epoch, timeout=WAIT_S)
        control.send(Ready("127.0.0.1", 7000 + i, i))
    reason = reason_of(later[0])
    for words in ("'name of x1' 4 in 2 runs", "5 > 4 slots", "less often at a time (in threads", "cache()"):
        assert words in reason
    close(*consumers, *later)


def test_a_chain_that_never_has_slots_enough_ends_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each run of the chain would be tried again as often as Spark tries a task, and each would wait anew."""
    monkeypatch.setattr(slots, "LINGER_S", 0.3)
    house = Slots(lambda: 4, lambda stage: (), lambda count: f"local[{count}]")
    driver.register("x1", slots=house)
    driver.register("x2", slots=house)
    first, epoch = driver.running()
    inner = driver.consumers(exchange="x2", stage=2, first=30, parent=epoch)
    for i, control in enumerate(inner):
        control.expect(Epoch, timeout=WAIT_S)
        control.send(Ready("127.0.0.1", 7000 + i, i))
    reasons = {reason_of(control) for control in (*first, *inner)}
    assert len(reasons) == 1
    assert "5 > 4 slots" in reasons.pop()
    close(*first, *inner)


def test_nonsense_drops_only_the_one_who_says_it(driver: Driver) -> None:
    driver.register(partitions=1)
    for message in ({"op": "ready"}, {"op": "what"}, {"op": "join"}, {"op": "lease", "epoch": "x"}):
        with driver.control() as control:
            control._sock.sendall(pack(message))
            with pytest.raises(PeerLost):
                control.expect(Heard, timeout=WAIT_S)
    (consumer,), _ = driver.running(1)
    close(consumer)


def reported(driver: Driver) -> list[int]:
    """The records of each report so far, by copies of what the rendezvous goes on writing."""
    return [stats["records"] for summary in [*driver.server.summaries] for stats in [*summary.producers.values()]]


def test_reports_make_a_summary_of_their_own_for_each_action(driver: Driver) -> None:
    runs = Reported("b1", "blocks", "blocking", driver.server.summaries, lambda stage: None)
    driver.server.register_reports("b1", SECRET, runs)
    for stage, records in ((1, 5), (1, 6), (3, 7)):
        with driver.control("b1") as control:
            partition = records % 5
            for side in ("producer",):
                place = partition if stage == 1 else 0
                control.send(Report(side, place, stage, records, {"records": records}))
        eventually(lambda n=records: n in reported(driver))
    assert [s.records_sent for s in driver.server.summaries] == [11, 7]
    assert driver.server.summaries[-1].mode == "blocking"


@pytest.mark.parametrize("junk", [pack({"op": "x"})[:-1] + b"!", b"\0\0\0\2[]", b'\0\0\0\7{"a":1}'])
def test_unpacker_refuses_what_is_no_message(junk: bytes) -> None:
    unpacker = Unpacker(FromWorker)
    unpacker.feed(junk)
    with pytest.raises(ProtocolError):
        unpacker.next()


def test_unpacker_takes_any_cut() -> None:
    unpacker = Unpacker(FromWorker)
    messages = [Lease(i, 0, 7, 2) for i in range(5)]
    got = []
    for byte in b"".join(m.encode() for m in messages):
        unpacker.feed(bytes([byte]))
        while (message := unpacker.next()) is not None:
            got.append(message)
    assert got == messages


def test_closing_aborts_what_is_live() -> None:
    driver = Driver()
    driver.register()
    consumers, _ = driver.running()
    driver.server.close()
    with pytest.raises(FastbufError):
        consumers[0].expect(Seal, timeout=WAIT_S)
    close(*consumers)


def test_runs_that_wait_for_this_ones_result_are_no_others() -> None:
    """The readers of a run wait for slots until it has begun, whatever else waits."""

    def run(epoch: int, parent: int, waits: bool) -> Any:
        return SimpleNamespace(epoch=epoch, parent=parent, without_producers=waits)

    joining = run(0, 8, False)
    server: Any = SimpleNamespace(_runs=[run(7, 0, True), run(8, 7, True), joining, run(9, 0, False)])
    assert not Rendezvous._others_wait(server, joining)
    server._runs.append(run(10, 9, True))
    assert Rendezvous._others_wait(server, joining)


def test_a_reason_that_is_cut_twice_says_what_is_gone() -> None:
    """A worker cuts it, and the driver does with its own words before it."""
    once = clip("a" * 5_000_000)
    assert f"\n... {5_000_000 - REASON_CHARS} characters left out ...\n" in once
    twice = clip(f"the producers failed: {once}")
    assert twice.count("left out") == 1
    kept = len(twice) - len("\n... 4984022 characters left out ...\n")
    assert kept == REASON_CHARS
    assert f"... {5_000_000 + len('the producers failed: ') - kept} characters left out" in twice


def test_who_misses_rows_hears_when_their_executor_is_gone(driver: Driver) -> None:
    active, lost = {"1"}, []

    def missed(run: int, partition: int, stage: int, reason: str) -> str:
        assert (stage, reason) == (1, "why")
        lost.append((run, partition))
        return "1" if partition == 4 else ""

    told = Reported("x2", "total", "blocking", [], lambda stage: None)
    driver.server.register_reports("x2", SECRET, told, lost=missed, active=lambda executor: executor in active)

    def report(partition: int) -> Report:
        return Report("consumer", 0, 1, 2, {"failed": "why"}, (7, partition), True)

    with Control(driver.server.address, "x2", SECRET, WAIT_S) as near, contextlib.ExitStack() as stack:
        near.ask(report(3), WAIT_S)  # nobody is replaced
        others = [stack.enter_context(Control(driver.server.address, "x2", SECRET, WAIT_S)) for _ in range(3)]
        for other in others:
            other.send(report(4))
        assert others[0].poll(4 * rendezvous.TICK_S) is None
        others[2].close()
        active.clear()
        for other in others[:2]:
            assert other.poll(WAIT_S) == Heard()
    assert lost == [(7, 3), (7, 4), (7, 4), (7, 4)]


def test_workers_wait_while_the_driver_has_no_descriptor_and_it_says_so(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.register()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    with contextlib.closing(socket.socket()) as caller:
        caller.settimeout(WAIT_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 64, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(caller.fileno()))
            caller.connect(driver.server.address)
            eventually(lambda: "workers cannot reach the driver" in caplog.text)
            assert f"may open {caller.fileno() + 64} descriptors" in caplog.text
        finally:
            for each in held:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caller.recv(1 << 16)[4:].startswith(b'{"op":"hello"')
        driver.control().close()
    assert caplog.text.count("workers cannot reach the driver") == 1
