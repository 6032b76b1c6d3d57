"""The description of an exchange for its workers, sent within the function that Spark pickles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastbuf_spark.codec import Codec
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.worker.control import Control
from fastbuf_spark.worker.held import HeldRows, Sections


@dataclass(frozen=True)
class ExchangeSpec:
    """The description of an exchange for its workers.

    Attributes
    ----------
    address
        The driver's rendezvous; None if there is none (Spark Connect).
    secret
        Proves that a worker belongs to the exchange; never shown.
    reduce_tasks
        In blocking mode, the tasks behind the shuffle; 0: one for each partition.
    held
        In blocking mode, where map tasks keep their rows; None: all go through Spark.
    """

    exchange: str
    name: str
    partitions: int
    conf: ShuffleConf
    codec: Codec
    address: tuple[str, int] | None = None
    secret: bytes = field(default=b"", repr=False)
    reduce_tasks: int = 0
    held: HeldRows | None = None

    @property
    def sections(self) -> Sections:
        """The partitions of each reduce task."""
        return Sections(self.partitions, self.reduce_tasks or self.partitions)

    def connect(self, reach: float | None = None) -> Control:
        """A control connection to the driver; ``reach``: seconds in which it must be reached, if not the usual ones."""
        assert self.address is not None, "an exchange without a rendezvous has no control connection"
        return Control(self.address, self.exchange, self.secret, self.conf.connect_timeout, reach)


def plain(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that can be sent as JSON."""
    figures: dict[str, Any] = {}
    for name, value in stats.items():
        if isinstance(value, float):
            figures[name] = value if math.isfinite(value) else 0.0
        elif isinstance(value, str):
            figures[name] = value
        elif hasattr(value, "__index__"):
            figures[name] = int(value)
        elif isinstance(value, Mapping):  # channels by transport
            figures[name] = plain(value)
    return figures


def not_reached(words: str, here: str, conf: ShuffleConf) -> str:
    """The error message if one executor could not connect to another; it starts with ``words``."""
    ports = f"{conf.port_min} to {conf.port_max}" if conf.port_max else "any"
    return (
        f"{words}; seen from {here}, within {conf.connect_timeout:g} s (connect_timeout). Executors must reach each "
        f"other on the ports from spark.fastbuf.portMin to spark.fastbuf.portMax (now {ports}): open them in the "
        "firewall, or use mode='blocking'"
    )
