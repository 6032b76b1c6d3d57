from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any

from fastbuf.config import ExchangeConfig
from fastbuf.exchange.address import GateAddress
from fastbuf.exchange.doorbell import Doorbell
from fastbuf.exchange.result_partition import ResultPartition
from fastbuf.exchange.shared_reader import SharedReader
from fastbuf.flow.credit_ledger import CreditLedger
from fastbuf.memory import LocalBufferPool
from fastbuf.serializers.serializer import Serializer

class InputGate:
    """Where the buffers of all producers arrive; iterate over it, or call :meth:`poll`."""

    serializer: Serializer
    pool: LocalBufferPool
    ledger: CreditLedger
    environment: Any
    config: ExchangeConfig
    channels: int | None
    gate_id: int
    epoch: int
    bell: Doorbell
    secret: bytes
    finished: bool
    closed: bool
    freed: bool
    @property
    def records_in(self) -> int: ...
    @property
    def address(self) -> GateAddress:
        """What a producer of another process is given as its target."""

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
    ) -> None: ...
    def add_local(self, partition: ResultPartition, index: int) -> None: ...
    def add_shared(self, reader: SharedReader, number: int, flush_ns: int) -> None: ...
    def lose(self, text: str) -> None: ...
    def wake_descriptor(self) -> int: ...
    def seal(self, totals: Mapping[int, int]) -> None:
        """Say which channels there are in all, and how many buffers each sent."""

    def block(self, channel: int) -> None:
        """Let a channel wait with what it has, until :meth:`unblock`: for the alignment of barriers."""

    def unblock(self, channel: int) -> None:
        """Give out again what comes of a channel, from where :meth:`block` left it."""

    def poll(self, timeout: float | None = None) -> Any:
        """A record batch, a list of records, their :class:`LazyRows`, an :class:`Event`, or ``None``."""

    async def poll_async(self, timeout: float | None = None) -> Any:
        """As :meth:`poll`, in a coroutine."""

    def arm_wake(self) -> int: ...
    def waited(self, seconds: float) -> None: ...
    def due_in(self, most: float) -> float: ...
    def __aiter__(self) -> AsyncIterator[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def abort(self, reason: str = "the consumer gave up") -> None:
        """Give up, from any thread and at once: whoever reads fails, and so does every producer."""

    def close(self) -> None:
        """End the gate: before its end that says "enough", and producers see no error; idempotent."""

    def end(self, reason: str | None) -> None: ...
    def free(self) -> None: ...
    def activity(self) -> dict[str, Any]:
        """What its reader does just now: as of :meth:`RecordWriter.activity`; ``"input"``: it waits for producers."""

    def stats(self) -> dict[str, Any]:
        """records, bytes, buffers, channels, peak_segments, segments, wait_s."""

    def gauges(self) -> dict[str, float]:
        """exclusiveBuffersUsage, floatingBuffersUsage, inPoolUsage, inputQueueLength."""

    read_by: int
    def audit(self) -> bool:
        """Prove the credit invariants of every channel."""

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
