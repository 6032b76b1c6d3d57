"""A forked child keeps no socket, port or file of its parent: peers of a parent that is killed are told at once."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from left_behind import nothing_left
from promises import PATIENCE_S

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
LONG = fb.ExchangeConfig(ping_interval_s=60.0)  # a loss that PING finds would be told after minutes


def kept() -> list[str]:
    """Sockets, epolls and nameless files of this process; a memfd, which a child may read, is none of these."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            name, kind = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_mode
        except OSError:  # the listing's own
            continue
        if stat.S_ISSOCK(kind) or "eventpoll" in name or ("(deleted)" in name and "memfd:" not in name):
            found.append(name)
    return found


def in_a_child() -> list[str]:
    """What a forked child has of these."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, "\n".join(kept()).encode() or b"-")
        os._exit(0)
    os.waitpid(child, 0)
    try:
        return [line for line in os.read(there, 65536).decode().split("\n") if line != "-"]
    finally:
        os.close(there)
        os.close(here)


@contextmanager
def exchanging(shared: bool, tmp_path: Path) -> Iterator[None]:
    """Both ends of an exchange between environments, a blocking partition and a monitor with a reporter."""
    with ExitStack() as stack:
        a = stack.enter_context(fb.ShuffleEnvironment(segments=64, shared=shared))
        b = stack.enter_context(fb.ShuffleEnvironment(segments=64, shared=shared))
        a.listen()
        gate = stack.enter_context(a.create_input_gate(ROWS, channels=1))
        writer = b.create_result_partition(ROWS, [gate.address])
        stored = fb.ExchangeConfig(spill_directory=tmp_path)
        spilling = b.create_result_partition(ROWS, [None], partition_type="blocking", config=stored)
        monitor = stack.enter_context(fb.Monitor.listen())
        assert monitor.address is not None
        b.monitor.report_to(monitor.address)
        writer.emit((1,))
        assert gate.poll(PATIENCE_S) == [(1,)]
        yield
        writer.emit((2,))
        writer.close()
        spilling.abort()
        assert list(gate) == [(2,)]


def listened(env: fb.ShuffleEnvironment, port: int) -> tuple[str, int]:
    """The address; a connection of another program may have the port for a moment, the children would for ever."""
    for _ in range(100):
        try:
            return env.listen("127.0.0.1", (port, port))
        except fb.ResourceError:
            time.sleep(0.05)  # between two tries
    return env.listen("127.0.0.1", (port, port))


@pytest.mark.parametrize("shared", [False, True])
def test_a_child_has_no_socket_and_no_file_of_its_parent(shared: bool, tmp_path: Path) -> None:
    before = in_a_child()
    with nothing_left(), exchanging(shared, tmp_path):
        assert len(kept()) > len(before) + 5  # what would be found
        assert in_a_child() == before
        assert in_a_child() == before


def master(port: int, shared: bool, pipe: Any) -> None:
    """As gunicorn preforks: the master listens, and its workers live on when it is killed."""
    with fb.ShuffleEnvironment(segments=64, shared=shared) as env, env.create_input_gate(ROWS, config=LONG) as gate:
        env.listen("127.0.0.1", (port, port))
        pipe.send(gate.address)
        gate.poll(PATIENCE_S)
        workers = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            workers.append(child)
        pipe.send(workers)
        signal.pause()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("shared", [False, True])
def test_a_consumer_is_killed_whose_children_live(shared: bool) -> None:
    port = free_port()
    here, there = mp.Pipe()
    process = mp.get_context("spawn").Process(target=master, args=(port, shared, there))
    process.start()
    workers: list[int] = []
    try:
        with nothing_left(), fb.ShuffleEnvironment(segments=64, shared=shared) as env:
            address = here.recv()
            writer = env.create_result_partition(ROWS, [address], config=LONG)
            writer.emit((1,))
            writer.flush()
            workers = here.recv()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            begin = time.monotonic()

            def write_on() -> None:
                while True:
                    writer.emit((2,))
                    writer.flush()
                    time.sleep(0.001)  # the loss is told to the I/O thread, and has no event for a writer

            with pytest.raises(fb.PeerLost):
                write_on()
            assert time.monotonic() - begin < LONG.ping_interval_s / 4
            writer.abort()
            assert listened(env, port) == ("127.0.0.1", port)
        for worker in workers:
            os.kill(worker, 0)  # they live
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        if process.is_alive():
            process.kill()
        process.join()


def test_forks_in_the_middle_of_traffic() -> None:
    """A fork takes the turn of the I/O thread: nothing is lost that was marked meanwhile, and no child hangs."""
    with nothing_left(), fb.ShuffleEnvironment(segments=64) as a, fb.ShuffleEnvironment(segments=64) as b:
        a.listen()
        with a.create_input_gate(ROWS, channels=1) as gate:
            writer = b.create_result_partition(ROWS, [gate.address])
            sent = 0
            got: list[Any] = []
            for _ in range(40):
                for _ in range(50):
                    writer.emit((sent,))
                    sent += 1
                writer.flush()
                child = os.fork()
                if child == 0:
                    os._exit(0)
                while len(got) < sent:
                    records = gate.poll(PATIENCE_S)
                    assert records, "what was written around a fork did not come"
                    got += records
                os.waitpid(child, 0)
            writer.close()
            assert [n for (n,) in got] == list(range(sent))
