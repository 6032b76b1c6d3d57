"""A child may be forked at any moment: locks and sockets of the parent's threads must stop neither of the two."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest
from left_behind import nothing_left

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
WAIT_S = 20.0

PROOFS = """
    import os, select, sys, threading
    from fastbuf.transports.handshake import client_proof

    def prove():
        client_proof(b"s" * 32, b"hello", b"nonce")

    def forked(work):
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        return pid

    def ends(pid):
        fd = os.pidfd_open(pid)
        ended = select.select([fd], [], [], 5)[0]
        if not ended:
            os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(fd)
        return bool(ended)

    def round():
        # OpenSSL was not used yet in this process: its first use takes its locks for long.
        threading.Thread(target=prove, daemon=True).start()
        if not all([ends(pid) for pid in [forked(prove) for _ in range(10)]]):
            os._exit(1)

    for n in range(150):
        if os.waitpid(forked(round), 0)[1] != 0:
            sys.exit(f"round {n}: a child that was forked during a proof hung in its own")
"""


def test_a_child_forked_during_a_proof_can_prove_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROOFS)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def in_a_child(work: Callable[[], object]) -> str:
    """What it raises in a forked child; empty: nothing."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(here, b"nothing")
        except BaseException as error:
            os.write(here, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    try:
        assert select.select([there], [], [], WAIT_S)[0], "the child hangs"
        return os.read(there, 4096).decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(there)
        os.close(here)


@pytest.mark.parametrize("call", [lambda gate: gate.poll(timeout=1), lambda gate: gate.arm_wake(), next])
def test_a_child_is_told_that_a_gate_is_its_parents(call: Callable[[fb.InputGate], object]) -> None:
    """While a thread of the parent waits for data, with the gate's lock."""
    with nothing_left(), fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(serializer=ROWS)
        reader = threading.Thread(target=lambda: list(gate))
        reader.start()
        while gate.activity()["state"] != "input":
            time.sleep(0.001)  # the start of a wait has no event
        assert "ExchangeClosed: gate 1 belongs to the parent process" in in_a_child(lambda: call(gate))
        writer.close()
        reader.join()


def test_a_child_is_told_that_a_monitor_is_its_parents() -> None:
    with fb.ShuffleEnvironment(segments=64) as env, fb.Monitor.listen() as monitor:
        assert env.monitor.snapshot() == monitor.snapshot() == []
        with env.monitor._lock, monitor._lock:  # as another thread holds them now and then
            told = in_a_child(env.monitor.snapshot)
            assert "ExchangeClosed: this ShuffleEnvironment belongs to the parent process" in told
            assert "ExchangeClosed: this Monitor belongs to the parent process" in in_a_child(monitor.snapshot)


def test_a_child_that_closes_its_copy_of_a_monitor_does_not_end_it() -> None:
    with fb.Monitor.listen() as monitor, fb.ShuffleEnvironment(segments=64) as env:
        assert in_a_child(monitor.close) == "nothing"
        assert in_a_child(monitor.__exit__) == "nothing"
        assert monitor.address is not None
        env.monitor.report_to(monitor.address)


@pytest.mark.parametrize("shared", [False, True])
def test_a_closed_listener_is_closed_though_a_child_has_its_sockets(shared: bool) -> None:
    """Producers are refused at once, and the port can be used again."""
    with nothing_left(), fb.ShuffleEnvironment(segments=64, shared=shared) as other:
        env, monitor = fb.ShuffleEnvironment(segments=64, shared=shared), fb.Monitor.listen()
        host, port = env.listen("127.0.9.1")  # where no other process of this host listens next at that port
        target = env.create_input_gate(ROWS, channels=1).address
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            env.close()
            monitor.close()
            with pytest.raises(fb.PeerLost, match=r"cannot be reached.*refused"):
                other.create_result_partition(ROWS, [target], config=fb.ExchangeConfig(connect_timeout_s=0.5))
            assert monitor.address is not None
            with pytest.raises(fb.PeerLost, match="refused"):
                other.monitor.report_to(monitor.address)
            assert other.listen(host, (port, port)) == (host, port)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
