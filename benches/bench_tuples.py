"""Tuples from one process to another, hashed by key: what the sender gives one by one, read in every way there is.

Record A, (int64, int64, float64, "user-N"), about 44 bytes.  This process writes lists of 10,000 tuples; another one
reads them and adds up a field: as lists of tuples, record by record, as lazy rows, or as a column of them; or it only
counts the tuples.  To four gates as well, of which the other process reads one after the other: there the key decides.
Peers in the same run: lists of 1,000 tuples, pickled, through ``multiprocessing.Pipe`` and ``multiprocessing.Queue``.

Who makes tuples of it is the bound, not who sends, nor what is between: ``receiver_cpu_ns`` is nearly all of the time,
of which ``loop_ns`` are this bench's own loop in Python over tuples that are there already.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import pytest
from two_processes import cpu_s

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CONTEXT = mp.get_context("spawn")
ROWS = fb.RowSerializer(fb.Schema.of(k="int64", id="int64", x="float64", name="string"))
LIST = 10_000
TIMES = 2 if SMOKE else 80
PEER_LIST = 1_000
GOAL = 8e6  #: records a second from tuples
GATES = 4


def look_at(some: Any) -> tuple[int, int]:
    n = total = 0
    for record in some:
        n += 1
        total += record[1]
    return n, total


def loop_ns(records: list[tuple[Any, ...]]) -> float:
    """What a record of a list takes that is only looked at."""
    taken = []
    for _ in range(20):
        began = time.thread_time_ns()
        look_at(records)
        taken.append(time.thread_time_ns() - began)
    return median(taken) / len(records)


def read_all(gates: list[fb.InputGate]) -> tuple[int, int]:
    """As `read`, of several gates in turn: counts, and adds up."""
    n = total = 0
    while gates:
        came = False
        for gate in list(gates):
            some = gate.poll(0)
            if some is None and gate.finished:
                gates.remove(gate)
            elif some is not None:
                came = True
                more, sum_ = look_at(some)
                n += more
                total += sum_
        if not came:
            time.sleep(0)  # nothing on any gate: the sender may want this core
    return n, total


def read(gate: fb.InputGate, how: str) -> tuple[int, int]:
    """-> (records, sum of their ids; 0 if they are only counted)."""
    n = total = 0
    if how == "one by one":
        for record in gate:
            n += 1
            total += record[1]
    elif how == "a column":
        for rows in gate:
            n += len(rows)
            total += int(rows.array("id").sum())
    elif how == "counted":
        while (some := gate.poll()) is not None:
            n += len(some)
    else:
        while (some := gate.poll()) is not None:
            more, sum_ = look_at(some)
            n += more
            total += sum_
    return n, total


def serve(control: Any, transport: str) -> None:
    config = fb.ExchangeConfig(transport=transport)
    with fb.ShuffleEnvironment(segments=512, shared=transport == "memfd") as env:
        env.listen()
        while (how := control.recv()) is not None:
            lazy = how in ("lazy rows", "a column")
            with ExitStack() as stack:
                gates = [
                    stack.enter_context(env.create_input_gate(ROWS, channels=1, config=config, lazy=lazy))
                    for _ in range(GATES if how == "four gates" else 1)
                ]
                control.send([gate.address for gate in gates])
                began = cpu_s()
                found = read(gates[0], how) if len(gates) == 1 else read_all(gates)
                control.send((found, cpu_s() - began))


def serve_peer(control: Any, receive: Any) -> None:
    take = receive.recv_bytes if hasattr(receive, "recv_bytes") else None
    while control.recv() is not None:
        began = cpu_s()
        n = total = 0
        while some := pickle.loads(take()) if take is not None else receive.get():
            more, sum_ = look_at(some)
            n += more
            total += sum_
        control.send(((n, total), cpu_s() - began))


class Way:
    """A process that reads, and what every run of it is measured by."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self.control, far = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=target, args=(far, *arguments), daemon=True)
        self.process.start()
        self.cpu: list[tuple[float, float]] = []
        self.expected = (0, 0)

    def run(self, records: list[tuple[Any, ...]], how: str, send: Any) -> None:
        self.control.send(how)
        began = cpu_s()
        send(records)
        found, theirs = self.control.recv()
        self.cpu.append((cpu_s() - began, theirs))
        assert found == (len(records) * TIMES, 0 if how == "counted" else sum(r[1] for r in records) * TIMES)

    def close(self) -> None:
        self.control.send(None)
        self.process.join(10)


class Fastbuf(Way):
    def __init__(self, transport: str) -> None:
        super().__init__(serve, transport)
        self.env = fb.ShuffleEnvironment(segments=512, shared=transport == "memfd")
        self.config = fb.ExchangeConfig(transport=transport)

    def send(self, records: list[tuple[Any, ...]]) -> None:
        with self.env.create_result_partition(
            ROWS, self.control.recv(), selector=fb.hash_by("k"), config=self.config
        ) as writer:
            for _ in range(TIMES):
                writer.emit_many(records)

    def close(self) -> None:
        super().close()
        self.env.close()


class Peer(Way):
    def __init__(self, put: Any, receive: Any) -> None:
        super().__init__(serve_peer, receive)
        self.put = put

    def send(self, records: list[tuple[Any, ...]]) -> None:
        for _ in range(TIMES):
            for at in range(0, LIST, PEER_LIST):
                self.put(records[at : at + PEER_LIST])
        self.put([])


def pipe() -> Peer:
    receive, out = CONTEXT.Pipe(duplex=False)
    return Peer(lambda some: out.send_bytes(pickle.dumps(some, 5)), receive)


def queue() -> Peer:
    made = CONTEXT.Queue(16)
    return Peer(made.put, made)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["memfd", "tcp"])
def test_tuples_to_another_process(in_turn: Any, benchmark: Any, transport: str) -> None:
    records = [(k * 7919 % 1_000_003, k, k * 0.5, f"user-{k}") for k in range(LIST)]
    rows = LIST * TIMES
    benchmark.group = f"{rows:,} tuples hashed by key to another process, {transport}"
    with ExitStack() as stack:
        ways, used = {}, {}
        for how in ("tuples", "counted", "four gates", "one by one", "lazy rows", "a column"):
            name = f"fastbuf {transport}, {how}"
            used[name] = way = Fastbuf(transport)
            ways[name] = lambda way=way, how=how: way.run(records, how, way.send)
        for name, make in (("Pipe + pickle", pipe), ("Queue + pickle", queue)):
            used[name] = way = make()
            ways[name] = lambda way=way: way.run(records, "tuples", way.send)
        for way in used.values():
            stack.callback(way.close)
        in_turn(ways, rounds=9, baselines=("Pipe + pickle",), speed_up_over="Pipe + pickle", rows=rows)
    benchmark.extra_info["loop_ns"] = loop_ns(records)
    for name, way in used.items():
        figures = benchmark.extra_info["ways"][name]
        figures["M_records_per_s"] = rows / figures["median_s"] / 1e6
        figures["of_the_goal"] = rows / figures["median_s"] / GOAL
        figures["sender_cpu_ns"] = median(ours for ours, _ in way.cpu) / rows * 1e9
        figures["receiver_cpu_ns"] = median(theirs for _, theirs in way.cpu) / rows * 1e9
