"""What the operators of event time are to a task: windows and joins of :mod:`fastbuf.event_time` alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.event_time.watermarks import in_microseconds

if TYPE_CHECKING:
    import pyarrow as pa


class EventTimeRows:
    """The base of both; ``open`` sets the operator.  See :class:`~fastbuf_spark.streams.operators.KeyedOperator`."""

    _operator: Any

    def begin(self, restored: Sequence[Mapping[str, Any]]) -> None:
        """All groups are restored; of the tasks of before, their watermarks and what :meth:`rules` gave."""
        if restored:
            self._operator.restore_state(
                [{"watermark": in_microseconds(each["mark"]), **each.get("rules", {})} for each in restored]
            )

    def rules(self) -> dict[str, int]:
        """What a checkpoint keeps beside the watermark: it tells another program which windows have fired."""
        return {name: at for name, at in self._operator.state().items() if name != "watermark"}

    def watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        results: Iterable[pa.RecordBatch] = self._operator.watermark(in_microseconds(time_ms))
        return results

    def processing_time(self, now_ms: int) -> Iterable[pa.RecordBatch]:
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        return ()  # the last watermark came before this, and all windows have ended with it

    def freeze(self, more: frozenset[int]) -> Mapping[int, Callable[[], bytes]]:
        frozen = self._operator.freeze()
        return {group: partial(frozen.group, group) for group in sorted(more | set(frozen.dirty))}

    def thaw(self) -> None:
        pass  # its tables are never changed in place

    def restore(self, group: int, data: bytes) -> None:
        self._operator.restore(group, data)

    def figures(self) -> dict[str, Any]:
        figures = self._operator.figures()
        windows = {"windows": figures["windows"]} if "windows" in figures else {}
        sizes = {"state_bytes": figures["bytes"], "spilled_bytes": figures["file_bytes"]}
        counts = {name: figures[name] for name in ("late_rows", "null_times")}
        return {**windows, "state_rows": figures["rows"], **sizes, **counts}

    def close(self) -> None:
        pass
