"""What a fork finds in its parent: calls of OpenSSL half way, and descriptors.

A forked child inherits OpenSSL's locks as they are. If a thread of the parent is inside OpenSSL when another one forks,
its locks stay taken in the child, whose next hash, proof or TLS handshake waits for them for ever; most likely while
OpenSSL is used for the first time, which takes milliseconds. So proofs are made without letting go of the GIL, and
TLS's calls are made with :data:`openssl`, which a fork waits for, as for the locks of ``logging``.

A child also inherits duplicates of all sockets. A connection or a port is free when the last duplicate is closed: if
the parent is killed, its peers would wait for a child that knows nothing of them. So the child closes its duplicates at
once. It must not shut them down, nor take them off an epoll: both are the parent's.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
import weakref
from typing import Any, Protocol, TypeVar

#: Held during a call of OpenSSL without the GIL; such a call must not wait for a peer.
openssl = threading.RLock()


class Forkable(Protocol):
    """What must be at rest while the process forks."""

    def before_fork(self) -> None:
        """Come to rest; must not wait for a thread that needs the GIL."""

    def after_fork(self, child: bool) -> None:
        """Go on; in a child: close the duplicates of descriptors."""


T = TypeVar("T")
F = TypeVar("F", bound=Forkable)

_descriptors: weakref.WeakSet[Any] = weakref.WeakSet()  # sockets, and other things with close()
_forkables: weakref.WeakSet[Any] = weakref.WeakSet()
_resting: list[Any] = []  # those that the fork under way has brought to rest; guarded by `openssl`


def child_closes(descriptor: T) -> T:
    """Have forked children close their duplicate of a socket or selector; returns it."""
    _descriptors.add(descriptor)
    return descriptor


def rests_for_fork(thing: F) -> F:
    """Have a fork call the methods of :class:`Forkable`; returns it."""
    _forkables.add(thing)
    return thing


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, which forked children close; over TCP where a sandbox denies Unix sockets."""
    try:
        ends = socket.socketpair()
    except OSError:
        ends = _tcp_pair()
    return child_closes(ends[0]), child_closes(ends[1])


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as on_error:
        near = on_error.enter_context(socket.create_connection(listener.getsockname()[:2]))
        while True:
            far, peer = listener.accept()
            if peer == near.getsockname():  # else another process has connected
                break
            far.close()
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        on_error.pop_all()
        return near, far


def _before_fork() -> None:
    openssl.acquire()  # also lets one fork at a time bring others to rest
    for thing in list(_forkables):
        _resting.append(thing)
        thing.before_fork()


def _go_on(child: bool) -> None:
    while _resting:
        _resting.pop().after_fork(child)


def _after_fork_in_parent() -> None:
    _go_on(child=False)
    openssl.release()


def _after_fork_in_child() -> None:
    _go_on(child=True)
    for each in list(_descriptors):
        with contextlib.suppress(OSError, ValueError):
            if isinstance(each, socket.socket):
                if each.fileno() >= 0:
                    os.close(each.detach())  # close() would wait for files made of the socket
            else:
                each.close()
    _descriptors.clear()  # and what the child makes is the child's
    _forkables.clear()
    openssl.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def is_in_openssl() -> bool:
    """Whether this thread holds :data:`openssl`.

    The garbage collector may run meanwhile; a finalizer that it calls must not wait for a thread that uses TLS.
    """
    return bool(openssl._is_owned())  # type: ignore[attr-defined]


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """HMAC-SHA256 of a short `text`: 32 bytes."""
    # hmac.digest, which is faster, lets go of the GIL; this does not, for fewer than 2 KiB.
    return hmac.new(key, text, "sha256").digest()
