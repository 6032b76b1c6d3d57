"""Every form of an address, at both ends: names, IPv4, IPv6, scopes, IPv4 within IPv6, dead ones, forwarded ports."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from left_behind import nothing_left
from promises import PATIENCE_S

import fastbuf as fb
from fastbuf.transports import addresses
from fastbuf.transports.addresses import connect, host_of, listen

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no ::1 (sysctl net.ipv6.conf.lo.disable_ipv6=0)")


def exchanged(listens: str, reached: str | None, shared: bool = False, port: int | None = None) -> dict[str, int]:
    """One record from a producer that has the address in that form; -> how it went."""
    with fb.ShuffleEnvironment(segments=32, shared=shared) as a, fb.ShuffleEnvironment(segments=32, shared=shared) as b:
        a.listen(listens)
        with a.create_input_gate(ROWS, channels=1) as gate:
            target = gate.address if reached is None else gate.address.at(reached, port)
            with b.create_result_partition(ROWS, [target]) as writer:
                writer.emit((1,))
                transports: dict[str, int] = writer.stats()["transports"]
            assert list(gate) == [(1,)]
        return transports


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("127.0.0.1", None),
        ("localhost", None),
        ("localhost", "localhost"),
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "localhost"),
        pytest.param("::1", None, marks=needs_ipv6),
        pytest.param("::1", "localhost6.test", marks=needs_ipv6),
        pytest.param("localhost6.test", None, marks=needs_ipv6),
        pytest.param("::", "::1", marks=needs_ipv6),
        pytest.param("::", "127.0.0.1", marks=needs_ipv6),
        pytest.param("::", "both.test", marks=needs_ipv6),
        pytest.param("::ffff:127.0.0.1", None, marks=needs_ipv6),
        pytest.param("127.0.0.1", "::ffff:127.0.0.1", marks=needs_ipv6),
    ],
)
def test_each_form_reaches(listens: str, reached: str | None, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {"localhost6.test": ["::1"], "both.test": ["::1", "127.0.0.1"]})
    with nothing_left():
        assert exchanged(listens, reached, shared) == {"memfd" if shared else "tcp": 1}


def names(monkeypatch: pytest.MonkeyPatch, known: dict[str, list[str]]) -> None:
    """Names as a resolver would have them, beside those of this host."""
    real = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        return [found for each in known.get(host, [host]) for found in real(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize("form", ["0.0.0.0", pytest.param("::", marks=needs_ipv6)])
def test_both_directions_share_one_connection(form: str) -> None:
    """A socket that listens on :: called its IPv4 peers ::ffff:127.0.0.1, and found none of them again."""
    with (
        nothing_left(),
        fb.ShuffleEnvironment(segments=32) as a,
        fb.ShuffleEnvironment(segments=32) as b,
        a.create_input_gate(ROWS, channels=1) as at_a,
        b.create_input_gate(ROWS, channels=1) as at_b,
    ):
        a.listen(form)
        b.listen(form)
        there = b.create_result_partition(ROWS, [at_a.address.at("127.0.0.1")])
        back = a.create_result_partition(ROWS, [at_b.address.at("127.0.0.1")])
        assert a.stats()["connections"] == b.stats()["connections"] == 1
        for writer, gate in ((there, at_a), (back, at_b)):
            writer.emit((1,))
            writer.close()
            assert list(gate) == [(1,)]


# ---- scopes

SCOPED = """
    import os, subprocess, sys, ctypes
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):       # a network of its own
        sys.exit(77)
    def ip(*words):
        subprocess.run(["ip", *words], check=True)
    ip("link", "set", "lo", "up")
    ip("addr", "add", "fe80::1/64", "dev", "lo", "nodad")
    import fastbuf as fb
    rows = fb.RowSerializer(fb.Schema.of(n="int64"))
    for shared in (False, True):
        with fb.ShuffleEnvironment(32, shared=shared) as a, fb.ShuffleEnvironment(32, shared=shared) as b:
            host, port = a.listen("fe80::1%lo")
            assert host == "fe80::1%lo", host
            gate = a.create_input_gate(rows, channels=1)
            assert gate.address.host == "fe80::1%lo"
            for target in (gate.address, gate.address.at("fe80::1%1")):
                gate = a.create_input_gate(rows, channels=1)
                target = target._replace(gate_id=gate.gate_id, secret=gate.secret)
                with b.create_result_partition(rows, [target]) as writer:
                    writer.emit((1,))
                    assert writer.stats()["transports"] == {"memfd" if shared else "tcp": 1}
                assert list(gate) == [(1,)]
    with fb.Monitor.listen("fe80::1%lo") as monitor, fb.ShuffleEnvironment(segments=32) as env:
        env.monitor.report_to(monitor.address)
"""


@needs_ipv6
@pytest.mark.skipif(shutil.which("ip") is None, reason="ip makes the network (apt-get install iproute2)")
def test_a_link_local_address_keeps_its_scope() -> None:
    """Bound without it, the kernel said EINVAL."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCOPED)], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("this user may not make a network namespace (root may)")
    assert done.returncode == 0, done.stderr


def test_a_socket_names_its_peer_in_one_form() -> None:
    assert host_of(("127.0.0.1", 5)) == "127.0.0.1"
    assert host_of(("::1", 5, 0, 0)) == "::1"
    assert host_of(("::ffff:10.0.0.1", 5, 0, 0)) == "10.0.0.1"
    assert host_of(("fe80::1", 5, 0, 1)) == f"fe80::1%{socket.if_indextoname(1)}"
    assert host_of(("fe80::1", 5, 0, 1 << 20)) == f"fe80::1%{1 << 20}"


# ---- names with several addresses


@contextlib.contextmanager
def deaf(port: int = 0) -> Iterator[int]:
    """127.0.0.2 and a port there that answers nobody: its queue is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.2", port))
        listening.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listening.getsockname())
        yield int(listening.getsockname()[1])


def test_the_first_address_of_a_name_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address took all of connect_timeout_s."""
    names(monkeypatch, {"many.test": ["127.0.0.2", "127.0.0.1"]})
    with (
        fb.ShuffleEnvironment(segments=32) as a,
        fb.ShuffleEnvironment(segments=32) as b,
        a.create_input_gate(ROWS, channels=1) as gate,
        deaf(a.listen()[1]),
    ):
        begin = time.monotonic()
        with b.create_result_partition(ROWS, [gate.address.at("many.test")]) as writer:
            assert time.monotonic() - begin < fb.ExchangeConfig().connect_timeout_s / 2
            writer.emit((1,))
        assert list(gate) == [(1,)]


def test_a_consumer_that_does_not_listen_yet_beside_a_dead_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused at one address, it is tried again, though another address never answers."""
    names(monkeypatch, {"many.test": ["127.0.0.2", "127.0.0.1"]})
    monkeypatch.setattr(addresses, "GRACE_S", 0.05)
    with fb.ShuffleEnvironment(segments=32) as a, fb.ShuffleEnvironment(segments=32) as b, deaf() as port:
        gate = a.create_input_gate(ROWS, channels=1)
        target = fb.GateAddress("many.test", port, gate.gate_id, gate.secret)
        came: list[Any] = []

        def consume() -> None:
            a.listen("127.0.0.1", (port, port))
            came.extend(gate)

        consumer = threading.Thread(target=consume)
        starts = threading.Timer(0.5, consumer.start)  # after the producer has been refused
        starts.start()
        with b.create_result_partition(ROWS, [target]) as writer:
            writer.emit((1,))
        starts.join()
        consumer.join(PATIENCE_S)
        gate.close()
        assert came == [(1,)]


def test_of_several_errors_the_one_that_helps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    names(monkeypatch, {"refused.test": ["127.0.0.1"], "nowhere.test": ["255.255.255.255", "127.0.0.1"]})
    for name in ("refused.test", "nowhere.test"):  # a broadcast address cannot be connected to: an error at once
        with pytest.raises(ConnectionRefusedError):
            connect(name, port, 5.0)
    with deaf() as port, pytest.raises(TimeoutError):
        connect("127.0.0.2", port, 0.1)


def test_a_name_of_which_one_address_is_not_this_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {"partly.test": ["192.0.2.1", "127.0.0.1"], "elsewhere.test": ["192.0.2.1"]})
    with listen("partly.test", (0, 0)) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match="assign") as error:
        listen("elsewhere.test", (20000, 65535))
    assert error.value.errno == errno.EADDRNOTAVAIL
    with fb.ShuffleEnvironment(segments=32) as env:
        with pytest.raises(fb.ResourceError, match=r"cannot listen on elsewhere.test.*Cannot assign"):
            env.listen("elsewhere.test")
        assert env.listen("partly.test")[0] == "127.0.0.1"  # what failed left nothing behind


# ---- forwarded ports


@contextlib.contextmanager
def forwarder(host: str, port: int) -> Iterator[int]:
    """A port from which everything is handed on, as a container's published port."""
    listening = socket.create_server(("127.0.0.1", 0))
    over_in, over_out = os.pipe()

    def run() -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        while True:
            ready, _, _ = select.select([over_in, listening, *pairs], [], [])
            for sock in ready:
                if sock == over_in:
                    for each in pairs:
                        each.close()
                    return
                if sock is listening:
                    near, far = listening.accept()[0], socket.create_connection((host, port))
                    pairs |= {near: far, far: near}
                elif sock in pairs:
                    data = b""
                    with contextlib.suppress(OSError):
                        data = sock.recv(65536)
                        pairs[sock].sendall(data)
                    if not data:
                        with contextlib.suppress(OSError):
                            pairs[sock].shutdown(socket.SHUT_WR)
                        pairs = {k: v for k, v in pairs.items() if k is not sock}

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        os.write(over_out, b"x")
        thread.join()
        listening.close()
        os.close(over_in)
        os.close(over_out)


def test_a_gate_behind_a_forwarded_port() -> None:
    with fb.ShuffleEnvironment(segments=32) as a, fb.ShuffleEnvironment(segments=32) as b:
        host, port = a.listen()
        b.listen()  # the greeting then says where
        with forwarder(host, port) as published, a.create_input_gate(ROWS, channels=2) as gate:
            target = gate.address.at("localhost", published)
            assert target == ("localhost", published, gate.gate_id, gate.secret)
            assert gate.address.at("localhost").port == port
            writers = [b.create_result_partition(ROWS, [target], channel=k) for k in range(2)]
            for k, writer in enumerate(writers):
                writer.emit((k,))
                writer.close()
            assert sorted(gate) == [(0,), (1,)]


@pytest.mark.parametrize(("host", "port"), [("", 5), ("h", 0), ("h", 65536), ("h", "5"), (None, 5)])
def test_a_host_or_port_that_cannot_be(host: Any, port: Any) -> None:
    address = fb.GateAddress("127.0.0.1", 5, 1, b"s" * 16)
    with pytest.raises(fb.ConfigError, match=r"host|port"):
        address.at(host, port)
