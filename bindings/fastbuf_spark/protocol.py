"""The messages of the control connections between Spark's workers and the driver's rendezvous.

What stands in a message's brackets answers it; ``Abort``, which ends the run, may come in its place.
``docs/reference/control-connections.md`` is made of this module.

A new message, or a field without a default, is another ``VERSION`` of :mod:`fastbuf_spark.wire`; a field with one is
none, as whoever does not know a field passes it over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from fastbuf_spark.messages import Message

Target = tuple[str, int, int, int]  #: host, port, gate and partition of a consumer
Figures = dict[str, Any]
A = TypeVar("A")


class FromDriver(Message, speaker="the driver"):
    """What the driver says."""


@dataclass(frozen=True)
class Hello(FromDriver):
    """Greets whoever connects; every version of the protocol begins so."""

    version: int
    nonce: str
    fastbuf: str = "of an older version"


@dataclass(frozen=True)
class Welcome(FromDriver):
    """The driver knows the secret too."""

    proof: str


@dataclass(frozen=True)
class Epoch(FromDriver):
    """The run has begun: make a gate for its epoch."""

    epoch: int


@dataclass(frozen=True)
class Targets(FromDriver):
    """To a task of a barrier stage: the gates of all of them, by partition."""

    targets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Seal(FromDriver):
    """To a consumer: all producers are done.

    ``totals``: buffers that each has sent to it, by their partitions; ``unreached``: why a producer has not reached it.
    """

    totals: dict[int, int]
    unreached: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Go(FromDriver):
    """The producer may send."""


@dataclass(frozen=True)
class Sent(FromDriver):
    """Another attempt of this producer has sent all."""


@dataclass(frozen=True)
class Empty(FromDriver):
    """Input partitions without rows that this producer is to answer for."""

    partitions: tuple[int, ...]


@dataclass(frozen=True)
class Ok(FromDriver):
    """What a producer has sent is counted."""


@dataclass(frozen=True)
class Heard(FromDriver):
    """A report that asks has been heard."""


@dataclass(frozen=True)
class Stop(FromDriver):
    """The run is over, and nobody needs more."""


@dataclass(frozen=True)
class Abort(FromDriver):
    """The run has failed."""

    reason: str


@dataclass(frozen=True)
class Files(FromDriver):
    """Where the files of a run are: host, port and roots of servers, and which of them each map task's file is at.

    ``at`` is -1 where none is known.
    """

    servers: tuple[tuple[str, int, tuple[str, ...]], ...]
    at: tuple[int, ...]

    @cached_property
    def _frame(self) -> bytes:
        return super().encode()

    def encode(self) -> bytes:
        """The message as a frame; every task of the reduce side asks for the same one."""
        return self._frame


@dataclass(frozen=True)
class Remove(FromDriver):
    """A file server is to remove the files of a run, ``exchange/run``."""

    folder: str


class FromWorker(Message, Generic[A], speaker="a worker"):
    """What a worker says; in brackets the driver's answers."""


@dataclass(frozen=True)
class Proof(FromWorker[Welcome]):
    """The worker belongs to an exchange: the first message after the driver's."""

    exchange: str
    nonce: str
    proof: str


@dataclass(frozen=True)
class Join(FromWorker[Epoch]):
    """A consumer, or a task of a barrier stage, asks for a partition.

    ``scope``: Spark's number of the action; ``parent``: the epoch of the run whose producer it is too, else 0;
    ``properties``: local properties of the action.
    """

    stage: int
    partition: int
    attempt: int
    scope: str = ""
    parent: int = 0
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready(FromWorker[Targets | Seal]):
    """Its gate listens; a consumer gets ``Seal`` when all has been sent."""

    host: str
    port: int
    gate: int


@dataclass(frozen=True)
class Lease(FromWorker[Go | Sent | Stop]):
    """A producer asks whether it may send its partition."""

    epoch: int
    partition: int
    attempt: int
    stage: int


@dataclass(frozen=True)
class Seen(FromWorker[Empty]):
    """A producer that reads several input partitions has found rows in these, of that many, read by that many tasks."""

    partitions: tuple[int, ...]
    of: int
    tasks: int


@dataclass(frozen=True)
class Begin(FromWorker[None]):
    """A producer begins to send: no other attempt may now."""


@dataclass(frozen=True)
class Watch(FromWorker[None]):
    """Figures so far; ``sent``: of a barrier stage's task as a producer."""

    stats: Figures
    sent: Figures | None = None


@dataclass(frozen=True)
class ProducerDone(FromWorker[Ok | Stop]):
    """A producer has sent all: ``totals`` are buffers by consumer, ``unreached`` why one was not reached."""

    totals: tuple[int, ...]
    stats: Figures
    unreached: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProducerFailed(FromWorker[None]):
    """A producer has failed; another attempt may do better if this one had not begun."""

    reason: str


@dataclass(frozen=True)
class ConsumerDone(FromWorker[None]):
    """A consumer needs no more; ``sent``: as in ``Watch``."""

    stats: Figures
    sent: Figures | None = None


@dataclass(frozen=True)
class ConsumerFailed(FromWorker[None]):
    """A consumer has failed by itself; the others go on."""

    reason: str


@dataclass(frozen=True)
class RunFailed(FromWorker[None]):
    """A participant has failed in a way that ends the run for all."""

    reason: str


@dataclass(frozen=True)
class Report(FromWorker[Heard | None]):
    """Figures of a task in blocking mode; with ``state`` in them it goes on, with ``failed`` alone it ends by an error.

    ``lost``: run and number of a map task whose rows were not found; ``asks``: an answer is waited for.
    """

    side: Literal["producer", "consumer"]
    partition: int
    stage: int
    attempt: int
    stats: Figures
    lost: tuple[int, int] | None = None
    asks: bool = False


@dataclass(frozen=True)
class Serves(FromWorker[Heard]):
    """A file server listens, and has the files below its roots; ``id``: map tasks name it so."""

    id: str
    host: str
    port: int
    roots: tuple[str, ...]


@dataclass(frozen=True)
class Where(FromWorker[Files]):
    """A reader asks where the files of a run are."""

    run: int
