"""What a transport fulfils, and where the exchange finds it.

The exchange knows no transport by name of module: a transport registers a factory here, and an
environment makes it when the first remote channel needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastbuf.errors import FastbufError


class Refused(FastbufError, ConnectionError):
    """A channel is not to be had through this transport; another may do."""


class NobodyListens(Refused):
    """Nobody listens at the address: a consumer may not be up yet."""


class Transport(Protocol):
    """Moves buffers between subpartitions and gates of different processes."""

    def listen(self, host: str, ports: tuple[int, int]) -> tuple[str, int]:
        """Listen on the address asked for, on the first free port of the range; -> the address bound."""

    def connect(self, partition: Any, index: int, target: tuple[str, int, int], channel: Any) -> None:
        """Connect subpartition `index` to the gate that `target` names and prove the secret."""

    def register_gate(self, gate: Any) -> None:
        """Producers may connect to this gate from now on."""

    def let_go_gate(self, gate: Any) -> None:
        """The gate is about to be freed: nothing of the transport may point to it afterwards."""

    def let_go_partition(self, partition: Any) -> None:
        """The partition is about to be freed: nothing of the transport may point to it afterwards."""

    def stats(self) -> dict[str, int]:
        """Figures for :meth:`ShuffleEnvironment.stats`: those of a name are added up."""

    def close(self) -> None:
        """End threads and connections."""


_FACTORIES: dict[str, Callable[[Any], Transport]] = {}
_MONITORS: list[Callable[[Any], Any]] = []  # one: the exchange knows no monitor by name of module, either


def register_monitor(factory: Callable[[Any], Any]) -> None:
    """Make `factory` the way to build the monitor of an environment."""
    _MONITORS[:] = [factory]


def make_monitor(environment: Any) -> Any:
    """Build the monitor of `environment`."""
    return _MONITORS[0](environment)


def register_transport(name: str, factory: Callable[[Any], Transport]) -> None:
    """Make `factory` the way to build the transport `name` for an environment."""
    _FACTORIES[name] = factory


def make_transport(name: str, environment: Any) -> Transport:
    """Build the transport `name` for `environment`."""
    return _FACTORIES[name](environment)
