from collections.abc import Iterable
from types import TracebackType
from typing import Any, overload

from fastbuf.exchange.events import Event
from fastbuf.exchange.result_partition import ResultPartition
from fastbuf.serializers.serializer import Serializer

class RecordWriter:
    """Writes one producer's records to all consumers; one thread at a time."""

    partition: ResultPartition
    serializer: Serializer
    records: int
    closed: bool
    def __init__(self, partition: ResultPartition, serializer: Serializer, selector: Any) -> None: ...
    @property
    def cancelled(self) -> bool:
        """Whether every consumer has cancelled (closed its gate before the end, without an error)."""
    def emit(self, record: Any) -> None:
        """Write one record, waiting without the GIL while there is no credit."""

    def emit_many(self, records: Iterable[Any]) -> None:
        """Write every record of an iterable."""

    def emit_batch(self, batch: Any) -> None:
        """Write a record batch, waiting without the GIL while there is no credit."""

    def try_emit(self, record: Any) -> bool:
        """Write one record if segments allow; ``False``: call :meth:`resume` until it returns ``True``."""

    def try_emit_batch(self, batch: Any) -> bool:
        """Write as much as segments allow; ``False``: call :meth:`resume` until it returns ``True``."""

    def resume(self) -> bool:
        """Continue a record or batch that is partly written; ``True`` when it is written."""

    @property
    def pending(self) -> bool:
        """Whether a record or a batch is partly written."""
    turns: Any
    def has_room(self) -> bool: ...
    async def emit_async(self, record: Any) -> None:
        """Like :meth:`emit`, for coroutines."""

    async def emit_batch_async(self, batch: Any) -> None:
        """Like :meth:`emit_batch`, for coroutines."""

    async def emit_event_async(self, event: Event) -> None:
        """Like :meth:`emit_event`, for coroutines."""

    async def flush_async(self) -> None:
        """Like :meth:`flush`, for coroutines."""

    async def close_async(self) -> None:
        """Like :meth:`close`, for coroutines."""

    async def __aenter__(self) -> RecordWriter: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def emit_event(self, event: Event) -> None:
        """Send an event to every consumer, after everything written so far; it takes no credit."""

    def try_emit_event(self, event: Event) -> bool:
        """Like :meth:`emit_event` without waiting; ``False``: nothing was sent."""

    def finish(self) -> None:
        """Write the end of partition; consumers of a blocking partition can read from here on."""

    def attach(self, index: int, target: Any) -> None:
        """Name the consumer of subpartition `index` of a blocking partition."""

    def flush(self) -> None:
        """Send everything written so far now."""

    def close(self, timeout: float | None = None) -> None:
        """Write the end of partition and wait until every remote consumer has it."""

    def try_close(self) -> bool:
        """Write the end of partition without waiting; ``True`` once every remote consumer has it."""

    def abort(self, reason: str = "the producer gave up") -> None:
        """Give up: every consumer fails with `reason`."""

    def activity(self) -> dict[str, Any]:
        """What the writer is doing, and how long it spent in each state."""

    def blocked_s(self, link: bool = False) -> list[float]:
        """Seconds that the writer has waited for each consumer."""

    def watch_keys(self, values: bool = False) -> None:
        """Count from now on which keys are most frequent; values: keep their text too."""

    def hot_keys(self) -> dict[int, tuple[float, int]]:
        """The most frequent keys, by 30 bits of their hash: share of the records, and partition."""

    def key_values(self) -> dict[int, str]:
        """The text of those keys, by their hashes; empty without ``watch_keys(values=True)``."""

    def gauges(self) -> dict[str, float]:
        """outPoolUsage, outputQueueLength, short_s."""

    def digest(self) -> int | None:
        """Sum of the hashes of all keys in batches, dropped rows included; None: keys are not hashed."""

    def dropped(self) -> list[int]:
        """Buffers and events that each consumer of a broadcast did not get."""

    def records_dropped(self) -> list[int]:
        """Records (of columns: rows) that each consumer of a broadcast did not get, by ``"drop_oldest"``."""

    @overload
    def totals(self, consumer: None = None) -> list[int]:
        """Buffers sent to each consumer; final after :meth:`close`."""

    @overload
    def totals(self, consumer: int) -> dict[int, int]: ...
    def stats(self) -> dict[str, Any]:
        """records, bytes, buffers, peak_segments, segments, wait_s."""

    def __enter__(self) -> RecordWriter: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
