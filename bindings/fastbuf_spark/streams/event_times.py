"""Event time in a task: watermarks of a source's splits, or of a gate's channels; what is to be sent on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastbuf.exchange.events import Event

if TYPE_CHECKING:
    import pyarrow as pa


class SourceTime:
    """The watermark of a source's task; without a strategy there is none."""

    def __init__(self, strategy: Any, restored: Mapping[str, Any]) -> None:
        pass

    def assign(self, splits: Iterable[str]) -> None:
        """Further splits."""

    def remove(self, split: str) -> None:
        """A split has ended."""

    def rows(self, split: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a split pass."""
        return batch

    def news(self) -> list[Event]:
        """The events that the next stage has not been sent yet."""
        return []

    def snapshot(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {}

    def figures(self) -> dict[str, Any]:
        """What is seen of it."""
        return {}


class GateTime:
    """The watermark of a task behind a gate."""

    def __init__(self, channels: int, restored: Mapping[str, Any]) -> None:
        pass

    def watermark(self, channel: int, time_ms: int) -> int | None:
        """A channel's watermark; the task's own, if that moves it."""
        return None

    def status(self, channel: int, idle: bool) -> int | None:
        """A channel has no rows for now, or has some again."""
        return None

    def end(self, channel: int) -> int | None:
        """A channel's rows are all read."""
        return None

    def news(self) -> list[Event]:
        """The events that the next stage has not been sent yet."""
        return []

    def snapshot(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {}

    def figures(self) -> dict[str, Any]:
        """What is seen of it."""
        return {}
