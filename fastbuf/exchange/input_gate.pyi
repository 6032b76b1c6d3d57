from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from fastbuf.config import ExchangeConfig
from fastbuf.exchange.address import GateAddress
from fastbuf.exchange.doorbell import Doorbell
from fastbuf.exchange.result_partition import ResultPartition
from fastbuf.exchange.shared_reader import SharedReader
from fastbuf.memory import LocalBufferPool
from fastbuf.serializers.serializer import Serializer

class InputGate:
    """Receives the buffers of all producers; iterate over it, or call :meth:`poll`."""

    serializer: Serializer
    pool: LocalBufferPool
    credits: npt.NDArray[np.void]
    environment: Any
    config: ExchangeConfig
    channels: int | None
    gate_id: int
    epoch: int
    bell: Doorbell
    secret: bytes
    closed: bool
    freed: bool
    refused: str
    @property
    def finished(self) -> bool: ...
    @property
    def records_in(self) -> int: ...
    @property
    def address(self) -> GateAddress:
        """The address that a producer in another process takes as its target."""

    def __init__(
        self,
        environment: Any,
        serializer: Serializer,
        channels: int | None,
        gate_id: int,
        epoch: int,
        secret: bytes,
        config: ExchangeConfig,
        maximum: int | None = None,
        lazy: bool = False,
        on_error: str | Callable[[Exception], Any] = "raise",
        on_peer_loss: str = "error",
    ) -> None: ...
    def check_producer(self, epoch: int, fingerprint: int) -> None: ...
    def add_local(self, partition: ResultPartition, index: int) -> None: ...
    def add_shared(self, reader: SharedReader, number: int, flush_ns: int) -> None: ...
    def lose(self, reader: SharedReader, text: str) -> None: ...
    def wake_descriptor(self) -> int: ...
    def seal(self, totals: Mapping[int, int]) -> None:
        """Tell the gate all its channels, and how many buffers each sent."""

    def block(self, channel: int) -> None:
        """Stop reading a channel until :meth:`unblock`, for the alignment of barriers."""

    def unblock(self, channel: int) -> None:
        """Go on reading a channel where :meth:`block` stopped."""

    def poll(self, timeout: float | None = None) -> Any:
        """A record batch, a list of records, their :class:`LazyRows`, an :class:`Event`, or ``None``."""

    async def poll_async(self, timeout: float | None = None) -> Any:
        """Like :meth:`poll`, for coroutines."""

    def keep(self, records: list[Any]) -> None: ...
    def pending_or(self, default: Any) -> Any: ...
    def arm_wake(self) -> tuple[int, bool]: ...
    def waited(self, seconds: float) -> None: ...
    def due_in(self) -> float: ...
    def is_due(self) -> bool: ...
    def __aiter__(self) -> AsyncIterator[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def abort(self, reason: str = "the consumer gave up") -> None:
        """Give up at once, from any thread: the reader and all producers fail."""

    def close(self) -> None:
        """Close the gate; if it is not finished, producers are cancelled without an error. Idempotent."""

    def end(self, reason: str | None) -> None: ...
    def free(self) -> None: ...
    def activity(self) -> dict[str, Any]:
        """What its reader is doing, as in :meth:`RecordWriter.activity`; ``"input"``: it waits for producers."""

    @property
    def lost(self) -> dict[int, str]:
        """Why producers were lost, by channel number, in whose place no other has come."""

    def stats(self) -> dict[str, Any]:
        """Figures so far, by their names; ``help(InputGate.stats)`` has them all."""

    def gauges(self) -> dict[str, float]:
        """exclusiveBuffersUsage, floatingBuffersUsage, inPoolUsage, inputQueueLength."""

    read_by: int
    def audit(self) -> bool:
        """Check the credit invariants of every channel."""

    def describe_stall(self) -> str: ...
    def forked(self) -> bool: ...
    async def __aenter__(self) -> InputGate: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __enter__(self) -> InputGate: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
