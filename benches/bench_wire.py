"""TCP between two processes, beside what a socket gives C on the same machine in the same minutes.

Shapes: segments of 32 KiB, copied in by one process and touched by another; and a message of 64 B, there and back,
between two processes of a core each.  The limit is a connected socket and a loop of `send` and `recv`: the same bytes,
copied in from and out to as many places in turn as the exchange may have queued, without headers, credit, or anybody
else to serve.  It blocks, as the kernel has it; there and back also with ends that spin, so that nobody is ever woken:
the floor of a round trip.

The limit's socket is tuned as the exchange's own; beside it as the host has it, whose default may pace (BBR).
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
from two_processes import TwoProcesses, cpu_s

import fastbuf as fb
from fastbuf.exchange._testing import read_wire, write_raw
from fastbuf.transports._testing import limit_bounce, limit_receive, limit_send
from fastbuf.transports.socket_options import tune

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CONTEXT = mp.get_context("spawn")
SEGMENT = 32 * 1024
QUEUED = 32  #: segments that may be under way, and places of the limit
BUFFERS = 500 if SMOKE else 40_000
SIZE = 64
TRIPS = 50 if SMOKE else 5_000
ROWS = fb.RowSerializer(fb.Schema.of(data="binary"))
CONFIG = fb.ExchangeConfig(transport="tcp", floating=QUEUED - 2, max_buffers_per_channel=QUEUED)
AT_ONCE = fb.ExchangeConfig(transport="tcp", buffer_timeout_s=0)


def without_delay(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


# ---- the other process


def serve(control: Any) -> None:
    """Does what it is told, until it is told None; answers with the CPU seconds of each."""
    with fb.ShuffleEnvironment(segments=512, segment_size=SEGMENT) as env, socket.create_server(("127.0.0.1", 0)) as at:
        env.listen()
        control.send(at.getsockname())
        while (task := control.recv()) is not None:
            kind, *arguments = task
            began = cpu_s()
            if kind == "pin":
                os.sched_setaffinity(0, *arguments)
            elif kind == "segments":
                with env.create_input_gate(ROWS, channels=1, config=CONFIG) as gate:
                    control.send(gate.address)
                    read_wire(gate, *arguments)
                    control.send(cpu_s() - began)
            elif kind == "bounce":
                with env.create_input_gate(ROWS, channels=1, config=AT_ONCE) as gate:
                    control.send(gate.address)
                    with env.create_result_partition(ROWS, [control.recv()], config=AT_ONCE) as writer:
                        for _ in range(*arguments):
                            (record,) = gate.poll()
                            writer.emit(record)
                    control.send(cpu_s() - began)
            else:
                prepare, *arguments = arguments
                with at.accept()[0] as sock:
                    prepare(sock)
                    if kind == "socket":
                        limit_receive(sock.fileno(), *arguments)
                    elif kind == "spinning socket":
                        limit_bounce(sock.fileno(), *arguments, True)
                    else:
                        for _ in range(arguments[0]):
                            sock.sendall(sock.recv(arguments[1]))
                    control.send(cpu_s() - began)


# ---- this one


class Bench(TwoProcesses):
    """The other process, and an environment of this one."""

    def __init__(self) -> None:
        self.control, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        self.socket_address = self.control.recv()
        self.env = fb.ShuffleEnvironment(segments=512, segment_size=SEGMENT)
        self.env.listen()
        self.cpu: dict[str, list[float]] = {}
        self.trips: dict[str, list[float]] = {}

    def segments(self, way: str) -> float:
        """Through a channel; -> seconds from the first buffer to the last one's being read."""
        self.control.send(("segments", BUFFERS))
        writer = self.env.create_result_partition(ROWS, [self.control.recv()], config=CONFIG)
        used, began = cpu_s(), time.perf_counter()
        write_raw(writer, BUFFERS, True)
        theirs = self.control.recv()
        taken = time.perf_counter() - began
        self.cpu.setdefault(way, []).append(cpu_s() - used + theirs)
        writer.abort()
        return taken

    def by_hand(self, way: str, prepare: Callable[[socket.socket], None]) -> float:
        self.control.send(("socket", prepare, BUFFERS, SEGMENT, QUEUED))
        with socket.create_connection(self.socket_address) as sock:
            prepare(sock)
            used, began = cpu_s(), time.perf_counter()
            limit_send(sock.fileno(), BUFFERS, SEGMENT, QUEUED)
            theirs = self.control.recv()
            taken = time.perf_counter() - began
            self.cpu.setdefault(way, []).append(cpu_s() - used + theirs)
        return taken

    def bounce(self, way: str) -> None:
        self.control.send(("bounce", TRIPS))
        target = self.control.recv()
        message, clock, trips = os.urandom(SIZE), time.perf_counter, self.trips.setdefault(way, [])
        with self.env.create_input_gate(ROWS, channels=1, config=AT_ONCE) as gate:
            self.control.send(gate.address)
            with self.env.create_result_partition(ROWS, [target], config=AT_ONCE) as writer:
                for _ in range(TRIPS):
                    began = clock()
                    writer.emit((message,))
                    back = gate.poll()
                    trips.append(clock() - began)
                assert back == [(message,)]
            self.control.recv()

    def bounce_by_hand(self, way: str, kind: str) -> None:
        self.control.send((kind, tune, TRIPS, SIZE))
        message, clock, trips = os.urandom(SIZE), time.perf_counter, self.trips.setdefault(way, [])
        with socket.create_connection(self.socket_address) as sock:
            tune(sock)
            if kind == "spinning socket":
                trips += limit_bounce(sock.fileno(), TRIPS, SIZE, False)
            else:
                for _ in range(TRIPS):
                    began = clock()
                    sock.sendall(message)
                    sock.recv(SIZE)
                    trips.append(clock() - began)
            self.control.recv()


@pytest.fixture
def bench() -> Iterator[Bench]:
    cores = os.sched_getaffinity(0)
    made = Bench()
    yield made
    os.sched_setaffinity(0, cores)
    made.close()


@pytest.mark.timeout(600)
def test_segments_over_tcp(bench: Bench, in_turn: Any, benchmark: Any) -> None:
    benchmark.group = f"TCP, {BUFFERS:,} segments of {SEGMENT} bytes, copied in, touched"
    limit, unpaced = "a socket, by hand", "a socket, as the host has it"
    in_turn(
        {
            "fastbuf tcp": lambda: bench.segments("fastbuf tcp"),
            limit: lambda: bench.by_hand(limit, tune),
            unpaced: lambda: bench.by_hand(unpaced, without_delay),
        },
        rounds=9,
        baselines=(limit, unpaced),
        segments=BUFFERS,
        bytes=BUFFERS * SEGMENT,
    )
    ways = benchmark.extra_info["ways"]
    for way, figures in ways.items():
        figures["GB_per_s"] = BUFFERS * SEGMENT / figures["median_s"] / 1e9
        figures["of_the_limit"] = ways[limit]["median_s"] / figures["median_s"]
        figures["cpu_us_a_segment"] = median(bench.cpu[way]) / BUFFERS * 1e6
        figures["cpu_of_the_limit"] = median(bench.cpu[way]) / median(bench.cpu[limit])


@pytest.mark.timeout(600)
def test_there_and_back_over_tcp(bench: Bench, in_turn: Any, benchmark: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there and back is between two cores, and this process may use one")
    benchmark.group = f"TCP, {SIZE} bytes there and back between two cores"
    bench.control.send(("pin", {cores[1]}))
    os.sched_setaffinity(0, {cores[0]})
    floor, python = "a socket, by hand, spinning", "a socket of Python's, blocking"
    in_turn(
        {
            "fastbuf tcp": lambda: bench.bounce("fastbuf tcp"),
            floor: lambda: bench.bounce_by_hand(floor, "spinning socket"),
            python: lambda: bench.bounce_by_hand(python, "blocking socket"),
        },
        rounds=9,
        baselines=(floor, python),
        trips=TRIPS,
    )
    by_length = {way: sorted(trips) for way, trips in bench.trips.items()}
    for way, figures in benchmark.extra_info["ways"].items():
        figures["p50_us"] = by_length[way][len(by_length[way]) // 2] * 1e6
        figures["p99_us"] = by_length[way][len(by_length[way]) * 99 // 100] * 1e6
        figures["p50_over_the_floor"] = figures["p50_us"] / (by_length[floor][len(by_length[floor]) // 2] * 1e6)
