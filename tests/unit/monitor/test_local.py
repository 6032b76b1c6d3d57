"""What processes tell of their own writers and gates, and what a monitor makes of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import AuthenticationError, ConfigError, PeerLost
from fastbuf.exchange.sampler import Sampler
from fastbuf.json_frames import pack
from fastbuf.monitor import Recorder
from fastbuf.monitor.collector import MOST_STRANGERS
from fastbuf.monitor.figures import MOST_BYTES
from fastbuf.monitor.metrics import DIAGNOSIS, measure
from fastbuf.monitor.snapshot import snapshot

ROWS = fb.RowSerializer(fb.Schema.of(k="int64", text="string"))
TEXT = "x" * 100
SOON_S = 20.0


def until(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + SOON_S
    while True:
        found = look()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def holds(check: Callable[[], Any]) -> Any:
    """What ``check`` gives, once it raises no AssertionError: figures of a stretch of time need one that is quiet."""
    end = time.monotonic() + SOON_S
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


class Slow:
    """One producer and two consumers in threads, of which number 1 takes its time for each record."""

    def __init__(self, env: fb.ShuffleEnvironment, seconds: float) -> None:
        self.over = threading.Event()
        self.writer, self.gates = env.exchange(serializer=ROWS, consumers=2)
        reads = [(self.gates[0], 0.0), (self.gates[1], seconds)]
        self.threads = [threading.Thread(target=self.produce)]
        self.threads += [threading.Thread(target=self.consume, args=each) for each in reads]
        for thread in self.threads:
            thread.start()

    def produce(self) -> None:
        k = 0
        while not self.over.is_set():
            self.writer.emit_many([(k, TEXT)] * 50)
            k += 1
        self.writer.close()

    def consume(self, gate: fb.InputGate, seconds: float) -> None:
        for _ in gate:
            if seconds and not self.over.is_set():
                self.over.wait(seconds)

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def env() -> Iterator[fb.ShuffleEnvironment]:
    with fb.ShuffleEnvironment(segments=256, segment_size=4096) as made:
        yield made


def test_three_lines_name_the_slow_consumer_and_its_line(env: fb.ShuffleEnvironment) -> None:
    slow = Slow(env, 0.01)
    try:

        def seen() -> dict[str, Any]:
            (found,) = env.monitor.snapshot()
            assert [(root.subtask, root.cause) for root in found["diagnosis"].roots] == [(1, "user_function")]
            (root,) = found["diagnosis"].roots
            assert root.frame is not None
            assert root.frame.startswith("test_local.py:")
            assert root.frame.endswith(" consume")
            producer, consumers = found["producers"][0], found["consumers"]
            assert producer["blocked"]["1"] > producer["blocked"].get("0", 0.0)
            assert producer["state"] == "credit"
            assert producer["target"] == 1
            assert producer["outPoolUsage"] > 0.5
            assert producer["outputQueueLength"] > 0
            assert consumers[1]["inputQueueLength"] > 0
            assert consumers[1]["seconds"]["user"] > 1
            assert consumers[1]["busy"] > 0.8
            assert consumers[0]["idle"] > 0.8
            return found

        found = holds(seen)
        producer = found["producers"][0]
        assert abs(sum(producer[name] for name in ("backPressured", "idle", "busy")) - 1) < 0.01
        json.dumps({k: v for k, v in found.items() if k != "diagnosis"})
    finally:
        slow.end()
    ended = env.monitor.snapshot()[0]
    assert "state" not in ended["producers"][0]
    assert "state" not in ended["consumers"][1]
    assert ended["producers"][0]["records"] == ended["consumers"][0]["records"] + ended["consumers"][1]["records"]


@pytest.mark.parametrize("asked", ["never", "first", "later"])
def test_the_value_of_a_hot_key_leaves_the_writer_only_where_it_was_asked_for(
    env: fb.ShuffleEnvironment, asked: str
) -> None:
    if asked == "first":
        env.monitor.start(key_values=True)
    writer, gates = env.exchange(serializer=ROWS, consumers=2, selector=fb.hash_by("text"))
    assert "hot_keys" not in env.monitor.snapshot()[0]["producers"][0]
    if asked == "later":
        env.monitor.start(key_values=True)
    readers = [threading.Thread(target=list, args=[gate]) for gate in gates]
    for reader in readers:
        reader.start()
    writer.emit_many([(k, "Ada Lovelace" if k % 4 else str(k)) for k in range(20_000)])
    producer = env.monitor.snapshot()[0]["producers"][0]
    ((place, share),) = producer["hot_keys"].items()
    assert 0.5 < share <= 1
    if asked == "never":
        assert "Ada" not in repr(env.monitor.snapshot())
    else:
        assert producer["key_values"] == {place.partition(":")[2]: "'Ada Lovelace'"}
    writer.close()
    for reader in readers:
        reader.join()


def test_threads_end_with_the_environment() -> None:
    def running() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name in ("fastbuf-monitor", "fastbuf-ticker")}

    with fb.ShuffleEnvironment(segments=64) as env:
        assert not running()
        assert env.monitor.snapshot() == []
        assert running() == {"fastbuf-monitor", "fastbuf-ticker"}
    assert not running()


def test_the_samples_agree_with_exact_time(env: fb.ShuffleEnvironment) -> None:
    """100 looks of a share p are off by sqrt(p (1 - p) / 100); by three times that in one run of four hundred."""
    slow = Slow(env, 0.002)
    sampler = Sampler()
    try:
        assert until(lambda: slow.writer.activity()["seconds"]["credit"] > 0.05)
        for _ in range(3):
            before, begin = slow.writer.stats()["wait_s"], time.monotonic()
            taken, (blocked,) = sampler.blocked([slow.writer], 100, 0.01)
            exact = (slow.writer.stats()["wait_s"] - before) / (time.monotonic() - begin)
            assert taken == 100
            error = 3 * max(0.05, (exact * (1 - exact)) ** 0.5) / taken**0.5
            assert abs(blocked / taken - exact) <= error + 0.02, (blocked, exact)
    finally:
        slow.end()
    sampler.stop()
    assert sampler.blocked([slow.writer], 100, 0.01)[0] == 0


def test_code_that_holds_the_interpreter_delays_no_sample(env: fb.ShuffleEnvironment) -> None:
    """A ticker in Python would look only where that code lets go."""
    slow = Slow(env, 0.01)
    sampler, took = Sampler(), []
    sample = threading.Thread(
        target=lambda: took.append((time.monotonic(), sampler.blocked([slow.writer], 40, 0.005), time.monotonic()))
    )
    try:
        until(lambda: slow.writer.activity()["state"] == "credit")
        sample.start()
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline:
            sum(range(2_000_000))  # many milliseconds in C, without a chance to switch
        sample.join()
    finally:
        slow.end()
    begin, (taken, _), end = took[0]
    assert taken == 40
    assert end - begin < 2.0


def tell(address: fb.MonitorAddress, pipe: Any) -> None:
    with fb.ShuffleEnvironment(segments=256, segment_size=4096) as env:
        env.monitor.report_to(address, stage="source")
        target = pipe.recv()
        writer = env.create_result_partition(ROWS, [target])
        while not pipe.poll():
            writer.emit_many([(1, TEXT)] * 20)
        writer.close()
    pipe.send("ended")


def test_processes_tell_one_monitor_and_it_puts_them_together() -> None:
    context = multiprocessing.get_context("forkserver")
    mine, its = context.Pipe()
    with fb.Monitor.listen() as monitor, fb.ShuffleEnvironment(segments=256, segment_size=4096) as env:
        assert monitor.address is not None
        process = context.Process(target=tell, args=(monitor.address, its))
        process.start()
        env.listen()
        env.monitor.report_to(monitor.address, stage="total")
        gate = env.create_input_gate(ROWS, channels=1)
        mine.send(gate.address)

        def together() -> Any:
            for _ in range(3):
                gate.poll(0.05)
                time.sleep(0.05)
            found = monitor.snapshot()
            return len(found) == 1 and found[0]["producers"] and found[0]["consumers"] and found[0]

        found = until(together)
        assert found["stages"] == ("source", "total")
        assert found["producers"][0]["task"] != found["consumers"][0]["task"]
        assert found["exchange"] == 0
        for figures in (found["producers"][0], found["consumers"][0]):
            assert len(json.dumps(figures, separators=(",", ":"))) <= MOST_BYTES

        def root() -> None:
            assert [(root.stage, root.subtask) for root in together()["diagnosis"].roots] == [("total", None)]

        holds(root)
        mine.send("stop")
        for _ in gate:
            pass
        assert mine.recv() == "ended"
        process.join()
        assert until(lambda: "state" not in monitor.snapshot()[0]["producers"][0])


def test_a_stranger_learns_nothing_and_tells_nothing() -> None:
    with fb.Monitor.listen() as monitor, fb.ShuffleEnvironment(segments=64) as env:
        address = monitor.address
        assert address is not None
        assert address.secret.hex() not in repr(address)
        with pytest.raises(AuthenticationError):
            env.monitor.report_to(address._replace(secret=b"x" * 32))
        with socket.create_connection(address[:2]) as sock:
            sock.settimeout(SOON_S)
            assert len(sock.recv(1000)) < 100
            sock.sendall(pack({"nonce": "0", "proof": "0" * 64}) + pack([{"id": "x", "figures": {"a": 1}}]))
            assert sock.recv(1000) == b""
        with socket.create_connection(address[:2]) as sock:
            sock.settimeout(SOON_S)
            sock.recv(1000)
            sock.sendall(b"\xff\xff\xff\xff")  # a frame of four gigabytes
            assert sock.recv(1000) == b""
        with socket.create_connection(address[:2]) as sock:
            sock.settimeout(SOON_S)
            sock.recv(1000)
            sock.sendall(struct.pack(">I", 2000) + 2000 * b"[")  # deeper than the parser goes
            assert sock.recv(1000) == b""
        silent = [socket.create_connection(address[:2]) for _ in range(MOST_STRANGERS + 5)]
        env.monitor.report_to(address)  # there is room for who knows the secret
        for sock in silent:
            sock.close()
        assert monitor.snapshot() == []
        with pytest.raises(ConfigError, match="already"):
            env.monitor.report_to(address)


def test_a_second_costs_two_kilobytes_for_each_task_however_many_consumers_there_are() -> None:
    consumers = 120
    with fb.Monitor.listen() as monitor, fb.ShuffleEnvironment(segments=1024, segment_size=1024) as env:
        assert monitor.address is not None
        env.monitor.report_to(monitor.address)
        writer, gates = env.exchange(serializer=ROWS, consumers=consumers)
        for k in range(3 * consumers):
            writer.emit((k, TEXT))
        assert until(lambda: monitor.snapshot() and len(monitor.snapshot()[0]["consumers"]) == consumers)
        env.monitor.look(tell=True)
        reports = [env.monitor._report(watched, again=True) for watched in env.monitor._watched.values()]
        assert len(reports) == consumers + 1
        for report in reports:
            assert len(pack([report])) <= 2048, report
        writer.abort()
        for gate in gates:
            gate.close()


def vanish(address: fb.MonitorAddress, pipe: Any) -> None:
    env = fb.ShuffleEnvironment(segments=64)
    env.monitor.report_to(address, stage="source")
    writer, _ = env.exchange(serializer=ROWS)
    writer.emit((1, TEXT))
    pipe.recv()
    os._exit(1)


def test_tasks_of_a_process_that_is_gone_do_nothing_any_more() -> None:
    context = multiprocessing.get_context("forkserver")
    mine, its = context.Pipe()
    with fb.Monitor.listen() as monitor:
        process = context.Process(target=vanish, args=(monitor.address, its))
        process.start()
        until(lambda: monitor.snapshot() and "state" in monitor.snapshot()[0]["producers"][0])
        mine.send("now")
        process.join()
        assert until(lambda: "state" not in monitor.snapshot()[0]["producers"][0])


def test_what_has_ended_is_not_kept_for_ever(env: fb.ShuffleEnvironment) -> None:
    env.monitor.start()
    for _ in range(20):
        writer, (gate,) = env.exchange(serializer=ROWS)
        writer.emit((1, TEXT))
        writer.close()
        assert len(list(gate)) == 1
        gate.close()
        env.monitor.look(tell=True)
        del writer, gate
    env.monitor.look(tell=True)
    assert len(env.monitor._watched) <= 4
    assert [found["exchange"] for found in env.monitor.snapshot()] == list(range(20))


def test_nobody_listens(env: fb.ShuffleEnvironment) -> None:
    with fb.Monitor.listen() as monitor:
        address = monitor.address
    assert address is not None
    with pytest.raises(PeerLost, match="no monitor"):
        env.monitor.report_to(address)


def test_a_monitor_that_goes_stops_no_task() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        with fb.Monitor.listen() as monitor:
            assert monitor.address is not None
            env.monitor.report_to(monitor.address)
        writer, (gate,) = env.exchange(serializer=ROWS)
        for _ in range(3):
            env.monitor.look(tell=True)
            env.monitor._tell()
        writer.emit((1, TEXT))
        writer.close()
        assert list(gate) == [(1, TEXT)]


def test_an_environment_is_closed_also_after_its_monitor(env: fb.ShuffleEnvironment) -> None:
    with fb.Monitor.listen() as monitor:
        assert monitor.address is not None
        env.monitor.report_to(monitor.address)
        writer, (gate,) = env.exchange(serializer=ROWS)
        env.monitor.look(tell=True)
    mine = env.monitor._socket
    assert mine is not None
    mine.shutdown(socket.SHUT_WR)  # so that the last report fails, as it does some time after a monitor has gone
    env.close()
    del writer, gate


def test_a_second_monitor_is_told_of_exchanges_that_run_already(env: fb.ShuffleEnvironment) -> None:
    writer, (gate,) = env.exchange(serializer=ROWS)
    writer.emit((1, TEXT))
    for _ in range(2):
        with fb.Monitor.listen() as monitor:
            assert monitor.address is not None
            env.monitor.report_to(monitor.address)
            assert until(lambda monitor=monitor: any(found["producers"] for found in monitor.snapshot()))
        until(lambda: env.monitor._socket is None)
    writer.abort()
    del gate


def test_a_thread_with_the_ident_of_one_that_has_ended_is_another_task(env: fb.ShuffleEnvironment) -> None:
    """The C library gives the ident of a thread that has ended to the next one."""
    env.monitor.start()
    idents, writers, kept = [], [], []
    for _ in range(2):
        writer, gates = env.exchange(serializer=ROWS)
        kept.append(gates)
        writers.append(writer)

        def write(writer: Any = writer) -> None:
            idents.append(threading.get_ident())
            for k in range(100):
                writer.emit((k, TEXT))
                time.sleep(0.01)
            env.monitor.look(tell=True)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    if idents[0] != idents[1]:
        pytest.skip("this C library gave it another ident")
    first, second = (found["producers"][0] for found in env.monitor.snapshot())
    assert first["task"] != second["task"]
    for told in (first, second):
        assert sum(told["seconds"].values()) < 60
        assert told["cpu_s"] > 0
        assert sum(told["frames"].values()) > 0
    writers[1].emit((1, TEXT))  # this thread writes to the second
    env.monitor.look(tell=True)
    assert env.monitor.snapshot()[1]["producers"][0]["task"] not in (first["task"], second["task"])
    for writer in writers:
        writer.abort()


def test_a_thread_of_a_pool_brings_no_figures_of_its_earlier_exchange(env: fb.ShuffleEnvironment) -> None:
    env.monitor.start()

    def first(writer: Any) -> None:
        for k in range(60):
            writer.emit((k, TEXT))
            time.sleep(0.01)

    def second(writer: Any) -> None:
        for k in range(60):
            writer.emit((k, TEXT))
            time.sleep(0.01)

    for work in (first, second):
        writer, (gate,) = env.exchange(serializer=ROWS)
        work(writer)
        env.monitor.look(tell=True)
        found = env.monitor.snapshot()[-1]["producers"][0]
        lines = {line.split()[1] for line in found["frames"]}
        assert lines & {"first", "second"} == {work.__name__}
        writer.close()
        assert len(list(gate)) == 60
        gate.close()


def test_a_page_of_this_process(env: fb.ShuffleEnvironment) -> None:
    pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")
    slow = Slow(env, 0.01)

    def asked(path: str) -> Any:
        request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {server.token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    try:
        with env.monitor.serve() as server:
            (job,) = until(lambda: asked("/jobs")["jobs"])
            assert job["status"] == "RUNNING"
            until(lambda: "Subtask 1" in json.dumps(asked(f"/jobs/{job['id']}/diagnosis")))
            assert "Subtask 1 of `consumers`" in json.dumps(asked(f"/jobs/{job['id']}/diagnosis"))
            slow.end()
            assert until(lambda: asked("/jobs")["jobs"][0]["status"] == "FINISHED")
    finally:
        slow.end()


def test_a_task_that_reads_one_exchange_and_writes_to_another_makes_one_job_of_them(env: fb.ShuffleEnvironment) -> None:
    over = threading.Event()
    first, (middle,) = env.exchange(serializer=ROWS)
    second, (last,) = env.exchange(serializer=ROWS)
    other, (apart,) = env.exchange(serializer=ROWS)

    def write(writer: fb.RecordWriter) -> None:
        with writer:
            while not over.is_set():
                writer.emit((1, TEXT))

    def forward() -> None:
        with second:
            second.emit_many(middle)

    def sink() -> None:
        for _ in last:
            if not over.is_set():
                over.wait(0.005)

    work = [(write, (first,)), (forward, ()), (sink, ()), (write, (other,)), (list, (apart,))]
    threads = [threading.Thread(target=target, args=given) for target, given in work]
    for thread in threads:
        thread.start()
    try:
        chained = until(lambda: [found for found in env.monitor.exchanges() if found.upstream])
        (below,) = chained
        jobs = snapshot(env.monitor.exchanges(), time.time())["jobs"]
        assert sorted(len(job["exchanges"]) for job in jobs) == [1, 2]
        (row,) = [job for job in jobs if len(job["exchanges"]) == 2]
        assert row["id"] == below.id
        assert row["exchanges"][0]["id"] == below.upstream[0]
        (edge,) = [edge for edge in row["edges"] if edge["kind"] == "forward"]
        assert edge["through"] == "the same tasks"
        # One who is to blame, and not once for each exchange

        def blamed() -> None:
            roots = snapshot(env.monitor.exchanges(), time.time())["jobs"][0]["diagnosis"]["roots"]
            assert [(root["cause"], root["vertex"]) for root in roots] == [("user_function", f"{below.id}-consumers")]

        holds(blamed)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [found.upstream for found in env.monitor.exchanges() if found.id == below.id] == [below.upstream], "for good"


def told(gate: str, task: str, writer: bool, running: bool = True) -> dict[str, Any]:
    where = {"gates": [[gate, ""]]} if writer else {"gate": [gate, ""]}
    doing = {"state": "user"} if running else {}
    figures = {"records": 1, "seconds": {"user": 1.0}, "task": task, **doing}
    return {"id": f"{gate}-{writer}", "writer": writer, "stage": "", "number": 0, **where, "figures": figures}


def test_writers_and_gates_of_one_stage_name_are_told_apart() -> None:
    """A root among the producers is shown there, and the metric of a diagnosis has the exchange's name."""
    monitor = fb.Monitor()
    for second in range(1, 14):
        reports = [told("a", "1", True), told("a", "2", False)]
        for report, seconds in zip(reports, ({"user": 1.0 * second}, {"input": 1.0 * second}), strict=True):
            figures = {**report["figures"], "seconds": seconds, "records": 10 * second}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(time, "monotonic", lambda second=second: 1000.0 + second)
                monitor.take([{**report, "stage": "total", "figures": figures}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 1013.0)
        assert monitor.snapshot()[0]["stages"] == ("producers of total", "total")
        recorder = Recorder(monitor.exchanges)
        (root,) = recorder.look()["jobs"][0]["diagnosis"]["roots"]
        assert (root["vertex"], root["stage"]) == ("0-producers", "producers of total")
        (labels,) = measure(recorder)[DIAGNOSIS]
        assert labels[:3] == ("total", "producers", "all")


def test_what_held_up_an_exchange_is_still_told_long_after_its_end() -> None:
    """A minute later nothing had held it up, as that was judged by the last five seconds."""
    monitor = fb.Monitor()
    with pytest.MonkeyPatch.context() as patch:
        for second in range(1, 11):
            patch.setattr(time, "monotonic", lambda second=second: 1000.0 + second)
            writer, gate = told("a", "1", True, second < 10), told("a", "2", False, second < 10)
            writer["figures"] |= {"seconds": {"credit": 1.0 * second}, "blocked": {"0": 1.0 * second}}
            gate["figures"] |= {"seconds": {"user": 1.0 * second}}
            monitor.take([writer, gate])
        patch.setattr(time, "monotonic", lambda: 1070.0)
        (shown,) = monitor.exchanges()
    assert shown.outcome == "ok"
    assert shown.diagnosis is not None
    assert (shown.diagnosis.level, shown.diagnosis.blocked) == ("HIGH", 1.0)
    assert [(root.stage, root.cause) for root in shown.diagnosis.roots] == [("consumers", "user_function")]


def test_many_ways_lead_to_an_exchange_and_each_is_looked_at_once() -> None:
    """Of 200 exchanges that each read from the two before, no one could walk all ways from the last to the first."""
    monitor = fb.Monitor()
    monitor._above = {number: {number - 1, number - 2} for number in range(2, 200)}
    assert monitor._is_above(0, 199)
    assert not monitor._is_above(199, 0)
    assert not monitor._is_above(500, 199)


def test_tasks_that_answer_each_other_are_no_ring_and_names_that_come_again_are_no_row() -> None:
    monitor = fb.Monitor()
    monitor.take([told("a", "1", True), told("a", "2", False), told("b", "2", True), told("b", "1", False)])
    assert [found.upstream for found in monitor.exchanges()] == [(), ("0",)]
    again = fb.Monitor()
    again.take([told("a", "1", True, False), told("a", "2", False, False)])
    again.take([told("b", "2", True), told("b", "3", False)])
    assert [found.upstream for found in again.exchanges()] == [(), ()]
