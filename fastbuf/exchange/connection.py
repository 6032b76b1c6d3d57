"""The interface of transports, and their registry.

The exchange does not import transports: each registers a factory here, by a name of ``config.TRANSPORTS``, and an
environment makes it when the first remote channel needs it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastbuf.errors import FastbufError, SequenceError

log = logging.getLogger("fastbuf")


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning, if this process has not logged it yet."""
    log.warning(text)


class Refused(FastbufError, ConnectionError):
    """This transport cannot connect the channel; another one may."""


class NobodyListens(Refused):
    """Nobody listens at the address; the consumer may not have started yet."""


class StillConnected(SequenceError):
    """Another producer has the channel, or had it and is not read to its end; it may be free in a moment."""


@dataclass(frozen=True)
class Credentials:
    """What a producer proves, and says of itself, to a gate that it connects to.

    Attributes
    ----------
    epoch, secret
        Those of the gate.
    fingerprint
        Of the schema that its records have.
    loss_is_cancel
        Whether the loss of the gate is that of a consumer that has enough.
    """

    epoch: int
    secret: bytes = field(repr=False)
    fingerprint: int
    loss_is_cancel: bool


class Transport(Protocol):
    """Moves buffers between subpartitions and gates of different processes."""

    def listen(self, host: str, ports: tuple[int, int]) -> tuple[str, int]:
        """Listen on that host, on the first free port of the range; -> the address bound.

        TCP listens first; the others get the port that it has bound.
        """

    def connect(self, partition: Any, index: int, target: tuple[str, int, int], credentials: Credentials) -> None:
        """Connect subpartition `index` to the gate at `target`, and prove to know its secret.

        :class:`Refused`: the next transport is tried.  :class:`PeerLost`: none is.
        """

    def let_go_gate(self, gate: Any) -> None:
        """Drop all pointers to the gate, which is about to be freed."""

    def let_go_partition(self, partition: Any) -> None:
        """Drop all pointers to the partition, which is about to be freed."""

    def stats(self) -> dict[str, int]:
        """Figures for :meth:`ShuffleEnvironment.stats`; those of all transports are added up by name."""

    def close(self) -> None:
        """End threads and connections."""


_FACTORIES: dict[str, Callable[[Any], Transport]] = {}
_LACKS: dict[str, Callable[[Any, Any], str]] = {}
_MONITORS: list[Callable[[Any], Any]] = []  # at most one; the exchange does not import the monitor either


def register_monitor(factory: Callable[[Any], Any]) -> None:
    """Make `factory` the way to build the monitor of an environment."""
    _MONITORS[:] = [factory]


def make_monitor(environment: Any) -> Any:
    """Build the monitor of `environment`."""
    return _MONITORS[0](environment)


def register_transport(
    name: str, factory: Callable[[Any], Transport], lacks: Callable[[Any, Any], str] = lambda environment, partition: ""
) -> None:
    """Make `factory` the way to build the transport `name` for an environment; lacks: see :func:`transport_lacks`."""
    _FACTORIES[name], _LACKS[name] = factory, lacks


def transport_lacks(name: str, environment: Any, partition: Any = None) -> str:
    """What the transport `name` needs and this environment, or partition of it, does not have; ``""``: nothing."""
    return _LACKS[name](environment, partition)


def make_transport(name: str, environment: Any) -> Transport:
    """Build the transport `name` for `environment`."""
    return _FACTORIES[name](environment)
