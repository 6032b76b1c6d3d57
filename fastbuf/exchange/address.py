"""Where a gate is found, and the secret that its producers must prove to know."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import socket
from typing import NamedTuple

from fastbuf.errors import ConfigError
from fastbuf.serializers import PickledSerializer, Serializer

SECRET_BYTES = 32  #: of one that is made here
LEAST_SECRET_BYTES = 16  #: fewer can be guessed


class GateAddress(NamedTuple):
    """What a producer of another process needs to reach a gate: ``gate.address``, a target of a result partition.

    It can be pickled. Its secret is not shown by ``repr``; whoever has the address may write to the gate.
    """

    host: str
    port: int
    gate_id: int
    secret: bytes

    def __repr__(self) -> str:
        return f"GateAddress({self.host!r}, {self.port}, gate_id={self.gate_id}, secret=<{len(self.secret)} bytes>)"

    def at(self, host: str) -> GateAddress:
        """The same gate, by another name of its host: of one that listens on all addresses (``0.0.0.0``)."""
        return self._replace(host=host)


def new_secret() -> bytes:
    """One that nobody guesses."""
    return secrets.token_bytes(SECRET_BYTES)


def gate_key(secret: bytes, epoch: int, gate_id: int) -> bytes:
    """What both ends know a gate by, that tells nothing of its secret and names no address: a link may have two."""
    return hmac.digest(secret, f"gate|{epoch}|{gate_id}".encode(), "sha256")[:8]


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can reach what listens there."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(host or "0.0.0.0", None, family)}
    except OSError:
        return False
    return all(ipaddress.ip_address(name).is_loopback for name in found)


def check_secret(gate_id: int, secret: bytes, serializer: Serializer, host: str) -> None:
    """Refuse a gate whose secret can be guessed by those who reach `host`, where its environment listens.

    Raises
    ------
    ConfigError
        It is too short for who they are, or for what producers can do.
    """
    n = len(secret)
    if n >= LEAST_SECRET_BYTES:
        return
    if isinstance(serializer, PickledSerializer):
        why = "reading a pickle runs the sender's code"
    elif not is_loopback(host):
        why = f"other hosts reach {host}"
    else:
        return
    raise ConfigError(
        f"the secret of gate {gate_id} has {n} bytes and must have at least {LEAST_SECRET_BYTES}: {why}; leave "
        "secret= out (the gate then makes one, which is in gate.address), or give secrets.token_bytes(32)"
    )
