"""What a connection's socket is told before its first byte."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

#: Congestion control of a connection within a host. Every Linux has it, and lets any process choose it.
WITHIN_A_HOST = b"reno"


def stays_on_host(sock: socket.socket) -> bool:
    """Whether both ends of a connected TCP socket are this host's; False where that cannot be told.

    Linux gives a connection to an address of the host's own the same address at its near end, unless the two are of
    the loopback's network.
    """
    try:
        near, far = (
            ipaddress.ip_address(address[0].partition("%")[0]) for address in (sock.getsockname(), sock.getpeername())
        )
    except (OSError, ValueError):
        return False
    return near == far or (near.is_loopback and far.is_loopback)


def tune(sock: socket.socket) -> None:
    """Set a connected TCP socket up for frames; one whose peer has gone already is left alone.

    Frames leave as they are written (no Nagle). Within a host there is no wire that could be congested, and loses
    nothing: a congestion control that measures one and paces what it sends (BBR, the default of many servers) only
    makes timers and small packets of it, at 1.2 to 2 times the CPU time a byte (`benches/bench_wire.py`). So such a
    connection takes Reno, which there never finds a reason to hold back. What crosses a network keeps the host's own
    choice.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if stays_on_host(sock):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, WITHIN_A_HOST)
