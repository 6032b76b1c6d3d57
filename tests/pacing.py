"""A link of this machine made slow, without a proxy: Linux paces what a socket sends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

SO_MAX_PACING_RATE = 47  #: of Linux (include/uapi/asm-generic/socket.h)


def sockets() -> Iterator[socket.socket]:
    """This process's TCP sockets over IPv4, each for as long as it is looked at."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_STREAM):
                yield sock


def pace(port: int, bytes_per_s: int) -> int:
    """Let this process's connections to that port send so much; how many there are."""
    paced = 0
    for sock in sockets():
        with suppress(OSError):
            if sock.getpeername()[1] == port:
                sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)
                paced += 1
    return paced


def listens_at() -> list[int]:
    """Ports on which this process listens."""
    return [s.getsockname()[1] for s in sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
