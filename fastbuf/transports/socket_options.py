"""Options that a connection's socket gets before its first byte."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from fastbuf.transports.addresses import host_of

#: Congestion control of a connection within a host. Every Linux has it, and any process may choose it.
WITHIN_A_HOST = b"reno"


def stays_on_host(sock: socket.socket) -> bool:
    """Whether both ends of a connected TCP socket are on this host; False if that is unknown.

    Linux gives both ends of a connection within the host the same address, unless both are loopback addresses.
    """
    try:
        near, far = (
            ipaddress.ip_address(host_of(address).partition("%")[0])
            for address in (sock.getsockname(), sock.getpeername())
        )
    except (OSError, ValueError):
        return False
    return near == far or (near.is_loopback and far.is_loopback)


def tune(sock: socket.socket) -> None:
    """Set up a connected TCP socket for frames; does nothing if the peer has closed it already.

    Frames are sent as they are written (no Nagle). A connection within a host has no wire that could be congested or
    lose data. A congestion control that measures and paces (BBR, the default of many servers) only adds timers and
    small packets there, at 1.2 to 2 times the CPU time per byte (`benches/bench_wire.py`). So such a connection uses
    Reno, which never reduces its rate there. Connections over a network keep the host's default.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if stays_on_host(sock):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, WITHIN_A_HOST)
