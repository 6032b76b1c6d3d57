"""What sockets are told: frames leave at once, and within a host nothing is paced."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.transports.socket_options import WITHIN_A_HOST, stays_on_host, tune

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
needs_reno = pytest.mark.skipif(WITHIN_A_HOST.decode() not in ALLOWED, reason="this host allows it to nobody")


def congestion(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def sockets() -> Iterator[socket.socket]:
    """Duplicates of all of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # of another kind
        with sock:
            yield sock


def ports(sock: socket.socket) -> tuple[int, ...]:
    """Both ends' of a TCP connection; none of anything else."""
    try:
        return (sock.getsockname()[1], sock.getpeername()[1]) if sock.family == socket.AF_INET else ()
    except OSError:
        return ()


def between(near: str, far: str) -> Any:
    return SimpleNamespace(getsockname=lambda: (near, 1), getpeername=lambda: (far, 2))


@needs_reno
def test_within_a_host_frames_are_neither_held_back_nor_paced(pair: tuple[socket.socket, socket.socket]) -> None:
    for sock in pair:
        tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert congestion(sock) == WITHIN_A_HOST


@pytest.mark.parametrize(
    ("near", "far", "stays"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.8.9.1", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("::1", "::1", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("", "", False),  # a UNIX socket's
    ],
)
def test_a_connection_stays_on_the_host_when_its_addresses_say_so(near: str, far: str, stays: bool) -> None:
    assert stays_on_host(between(near, far)) is stays


def test_what_crosses_a_network_keeps_the_hosts_choice(pair: tuple[socket.socket, socket.socket]) -> None:
    class Crosses:
        """The socket as one between two hosts."""

        getsockname = staticmethod(lambda: ("10.1.2.3", 1))
        getpeername = staticmethod(lambda: ("10.1.2.4", 2))
        setsockopt = staticmethod(pair[0].setsockopt)

    before = congestion(pair[0])
    tune(Crosses())  # type: ignore[arg-type]
    assert congestion(pair[0]) == before
    assert pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_peer_that_has_gone_is_no_error(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    tune(pair[0])
    pair[0].close()
    tune(pair[0])


@needs_reno
def test_both_ends_of_an_exchange_are_told() -> None:
    with fb.ShuffleEnvironment(segments=64) as far, fb.ShuffleEnvironment(segments=64) as near:
        _, port = far.listen()
        with far.create_input_gate(ROWS, channels=1) as gate:
            writer = near.create_result_partition(ROWS, [gate.address])
            told = [congestion(sock) for sock in sockets() if port in ports(sock)]
            assert told == [WITHIN_A_HOST] * 2
            writer.abort("seen")
