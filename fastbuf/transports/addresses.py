"""Connecting and listening, with every form of an address.

A name may have several addresses, of which some are dead; an IPv6 address may have a scope (``fe80::1%eth0``), and a
socket that listens on ``::`` sees IPv4 callers as IPv6 ones.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from typing import Any

from fastbuf.exchange.clock import monotonic
from fastbuf.fork_safe import child_closes

STAGGER_S = 0.25  #: RFC 8305 (Happy Eyeballs): the next address is tried after this, while the last is still tried
#: Once one address has refused, the others have so long to answer: a caller then tries all of them again.
GRACE_S = 1.0
BACKLOG = 1024


def host_of(address: tuple[Any, ...]) -> str:
    """The host of a socket's address in one form: an IPv6 scope after ``%``, IPv4 within IPv6 as IPv4."""
    host = str(address[0])
    if host.startswith("::ffff:") and "." in host:
        return host.removeprefix("::ffff:")
    if len(address) == 4 and address[3] and "%" not in host:
        try:
            return f"{host}%{socket.if_indextoname(address[3])}"
        except OSError:  # the interface has gone
            return f"{host}%{address[3]}"
    return host


def listen(host: str, ports: tuple[int, int], backlog: int = BACKLOG) -> socket.socket:
    """A socket that listens on the first address of `host` and port of the range that can be had; IPv4 comes first.

    Raises
    ------
    OSError
        None can be had: the last one's error.
    """
    candidates = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    error = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, kind, protocol, _, address in sorted(candidates, key=lambda each: each[0] != socket.AF_INET):
        for port in range(ports[0], ports[1] + 1):
            try:
                sock = child_closes(socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol))
            except OSError as e:  # this host has no IPv6, say
                error = e
                break
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address[0], port, *address[2:]))
                sock.listen(backlog)
                return sock
            except OSError as e:
                sock.close()
                error = e
                if e.errno != errno.EADDRINUSE:  # the same with every port
                    break
    raise error


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """A connection to the first address of `host` that answers; it has that timeout for what is said on it.

    Raises
    ------
    OSError
        None answers. ConnectionRefusedError if nobody listens at one of them; TimeoutError if the time is over.
    """
    deadline = monotonic() + timeout
    waiting = deque(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    trying: dict[int, socket.socket] = {}
    poll = select.poll()
    next_at = 0.0
    error: OSError | None = None

    def failed(code: int) -> None:
        nonlocal error, next_at, deadline
        next_at = 0.0
        if code == errno.ECONNREFUSED:
            deadline = min(deadline, monotonic() + GRACE_S + STAGGER_S * len(waiting))
        if not isinstance(error, ConnectionRefusedError):
            error = OSError(code, os.strerror(code))

    try:
        while waiting or trying:
            now = monotonic()
            if now >= deadline:
                break
            if waiting and now >= next_at:
                family, kind, protocol, _, address = waiting.popleft()
                next_at = now + STAGGER_S
                try:
                    sock = child_closes(socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol))
                except OSError as e:
                    failed(e.errno or 0)
                    continue
                sock.setblocking(False)
                trying[sock.fileno()] = sock
                poll.register(sock, select.POLLOUT)
                code = sock.connect_ex(address)
                ended = [] if code == errno.EINPROGRESS else [(sock.fileno(), code)]
            else:
                until = min(deadline, next_at) if waiting else deadline
                ready = poll.poll(max(0.0, until - now) * 1000)
                ended = [(fd, trying[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) for fd, _ in ready]
            for fd, code in ended:
                sock = trying.pop(fd)
                if code == 0:
                    sock.settimeout(timeout)
                    return sock
                poll.unregister(fd)
                sock.close()
                failed(code)
    finally:
        for other in trying.values():
            other.close()
    raise error or TimeoutError("timed out")
