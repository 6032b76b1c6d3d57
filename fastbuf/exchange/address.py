"""The address of a gate, and the secret that its producers must prove to know."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from typing import Any, NamedTuple

from fastbuf.checks import named_host
from fastbuf.checks import port as checked_port
from fastbuf.errors import ConfigError, SchemaMismatch, SequenceError
from fastbuf.fork_safe import hmac_sha256
from fastbuf.serializers import PickledSerializer, Serializer
from fastbuf.serializers.block import KIND_BITS

SECRET_BYTES = 32  #: length of a secret that is made here
LEAST_SECRET_BYTES = 16  #: a shorter secret can be guessed


class GateAddress(NamedTuple):
    """What a producer in another process needs to reach a gate. ``gate.address`` gives it; a target may be one.

    It can be pickled. ``repr`` does not show the secret; anyone who has the address may write to the gate.
    """

    host: str
    port: int
    gate_id: int
    secret: bytes

    def __repr__(self) -> str:
        return f"GateAddress({self.host!r}, {self.port}, gate_id={self.gate_id}, secret=<{len(self.secret)} bytes>)"

    def at(self, host: str, port: int | None = None) -> GateAddress:
        """The same gate as others reach it.

        Parameters
        ----------
        host
            Its host's name, for a gate that listens on all addresses (``0.0.0.0``), or that of whoever forwards to it.
        port
            The port that is forwarded, such as a container's published one; default: where the gate listens.
        """
        named_host("host", host)
        return self._replace(host=host, port=self.port if port is None else checked_port("port", port, 1))


def new_secret() -> bytes:
    """Random bytes that cannot be guessed."""
    return secrets.token_bytes(SECRET_BYTES)


def schema_key(serializer: Serializer) -> int:
    """The schema's fingerprint, with a bit flipped for columns: their bytes are not those of rows."""
    return serializer.fingerprint ^ KIND_BITS.get(serializer.kind, 0)


def gate_key(secret: bytes, epoch: int, gate_id: int) -> bytes:
    """An identifier of the gate that both ends compute alike.

    It does not reveal the secret. It does not depend on the address, since a host may be reached by several.
    """
    return hmac_sha256(secret, f"gate|{epoch}|{gate_id}".encode())[:8]


def is_loopback(host: str) -> bool:
    """Whether only processes on this host can connect to `host`."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    try:
        addresses = {str(address[0]) for *_, address in socket.getaddrinfo(host or "0.0.0.0", None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(name).is_loopback for name in addresses)


def check_secret(gate_id: int, secret: bytes, serializer: Serializer, host: str) -> None:
    """Refuse a secret that is too short; `host` is the address on which the gate's environment listens.

    Raises
    ------
    ConfigError
        The secret has fewer than 16 bytes, and other hosts can connect or the serializer unpickles data.
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


def check_producer(gate: Any, epoch: int, fingerprint: int) -> None:
    """Raise if a producer of this epoch and schema does not belong to `gate`."""
    own = schema_key(gate.serializer)
    if epoch != gate.epoch:
        raise SequenceError(f"the producer's epoch {epoch} is not this run's")
    if fingerprint == own ^ 1:
        raise SchemaMismatch(
            "the producer and the consumer have one schema, but one of them has a RowSerializer and the other a "
            "ColumnarSerializer: give both the same"
        )
    if fingerprint != own:
        schema = gate.serializer.schema
        raise SchemaMismatch(
            f"the producer's schema {fingerprint:016x} is not the consumer's {own:016x}, "
            f"{'pickles' if schema is None else schema.text}: give both the same serializer"
        )
