"""A source made of a user's class.

Its splits are read in threads beside the task's own: a read that waits for a message holds up no barrier, no watermark
and no other split.  Flink's ``SourceReaderBase`` has fetchers for the same reason; here each split is read one item
ahead, and always by the same thread, as connections may ask for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.source import Polled, Split, SplitReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

THREADS = 16  #: of a task; of more splits each thread reads several, in turn
LEAST_PAUSE_S, MOST_PAUSE_S = 0.001, 0.02  #: after which a split that had nothing is asked again; it doubles
LEAVE_S = 1.0  #: so long is waited at the end for reads to return


class UserSource:
    """A source made of a user's class: see :func:`fastbuf_spark.stream`.

    Its ``splits()`` gives names, or a mapping of names to offsets; ``read(split, offset)`` yields pairs of a record
    batch (None: nothing is there now) and the offset behind it, and returns where the split ends.
    """

    def __init__(self, source: Any, schema: StructType) -> None:
        for name in ("splits", "read"):
            if not callable(getattr(source, name, None)):
                raise ConfigError(f"a source needs a method {name}(), which {type(source).__name__} has not")
        self.source = source
        self.schema = schema
        self.name = str(getattr(source, "name", type(source).__name__))
        self.replayable = bool(getattr(source, "replayable", True))
        self.bounded = bool(getattr(source, "bounded", False))

    def splits(self, state: Any) -> tuple[list[Split], Any]:
        seen = set(state or ())
        splits = self.source.splits()
        offsets = dict(splits) if isinstance(splits, Mapping) else dict.fromkeys(splits)
        return [Split(str(n), offset) for n, offset in offsets.items() if n not in seen], sorted(seen | set(offsets))

    def reader(self, schema: pa.Schema) -> SplitReader:
        return UserReader(self.source.read, schema)


class _OpenSplit:
    """A split that has not ended."""

    def __init__(self, split: Split) -> None:
        self.name, self.offset = split.name, split.offset
        self.rows: Iterator[tuple[pa.RecordBatch | None, Any]] | None = None
        self.item: Polled | BaseException | None = None  #: what was read and not polled yet
        self.due = 0.0  #: when to read on
        self.pause = LEAST_PAUSE_S  #: for that long, the next time that there is nothing


class _Fetcher:
    """A thread that reads some splits, one item of each ahead; ``lock`` is that of its reader."""

    def __init__(self, read: Callable[[_OpenSplit], Polled | None], lock: threading.Lock, came: threading.Condition):
        self.splits: list[_OpenSplit] = []
        self.wanted = threading.Condition(lock)  #: something to read, or the end
        self.paused: frozenset[str] = frozenset()
        self.is_closed = False
        self._read = read
        self._came = came
        # A daemon: a read that waits for ever does not keep the process from ending
        self.thread = threading.Thread(target=self._run, name="fastbuf-source", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while (split := self._next()) is not None:
                try:
                    item: Polled | BaseException | None = self._read(split)
                except BaseException as error:
                    item = error
                with self._came:
                    self._put(split, item)
        finally:
            for split in self.splits:
                if hasattr(split.rows, "close"):
                    split.rows.close()  # type: ignore[union-attr]

    def _next(self) -> _OpenSplit | None:
        """Waits for a split of which an item is to be read; None: no more are."""
        with self.wanted:
            while not self.is_closed:
                now = time.monotonic()
                empty = [split for split in self.splits if split.item is None and split.name not in self.paused]
                for split in empty:
                    if split.due <= now:
                        return split
                self.wanted.wait(min((split.due - now for split in empty), default=None))
        return None

    def _put(self, split: _OpenSplit, item: Polled | BaseException | None) -> None:
        split.item = item
        self.splits.remove(split)
        if item is None:
            split.due, split.pause = time.monotonic() + split.pause, min(2 * split.pause, MOST_PAUSE_S)
        else:
            split.pause = LEAST_PAUSE_S
            self._came.notify()
        if item is None or (isinstance(item, Polled) and not item.ended):
            self.splits.append(split)  # behind the others


class UserReader:
    """A :class:`~fastbuf_spark.streams.source.SplitReader` over a user's iterators.

    Parameters
    ----------
    read
        Takes the name of a split and an offset; yields pairs of a batch, or None, and the offset behind it.
    """

    def __init__(self, read: Callable[[str, Any], Any], schema: pa.Schema) -> None:
        self._read = read
        self._schema = schema
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._open: dict[str, tuple[_OpenSplit, _Fetcher]] = {}  # in the order in which they have their turn
        self._paused: frozenset[str] = frozenset()
        self._fetchers: list[_Fetcher] = []

    def assign(self, splits: Sequence[Split]) -> None:
        with self._lock:
            for split in splits:
                fetcher = min(self._fetchers, key=lambda each: len(each.splits), default=None)
                if fetcher is None or (fetcher.splits and len(self._fetchers) < THREADS):
                    fetcher = _Fetcher(self._read_on, self._lock, self._came)
                    fetcher.paused = self._paused
                    self._fetchers.append(fetcher)
                opened = _OpenSplit(split)
                self._open[split.name] = opened, fetcher
                fetcher.splits.append(opened)
                fetcher.wanted.notify()

    def pause(self, splits: Sequence[str]) -> None:
        with self._lock:
            self._paused = frozenset(splits)
            for fetcher in self._fetchers:
                fetcher.paused = self._paused
                fetcher.wanted.notify()

    def poll(self, timeout_s: float) -> Polled | None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                for name, (split, _) in self._open.items():
                    if split.item is not None and name not in self._paused:
                        return self._take(name)
                left = deadline - time.monotonic()
                if not self._open or left <= 0:
                    return None
                self._came.wait(left)

    def _take(self, name: str) -> Polled:
        """What was read of a split; the next item is read from now on."""
        split, fetcher = self._open.pop(name)
        item, split.item = split.item, None
        if not isinstance(item, Polled):
            assert item is not None
            raise item
        if not item.ended:
            self._open[name] = split, fetcher  # behind the others
            fetcher.wanted.notify()
        return item

    def rest(self) -> list[Polled]:
        """What was read and not polled, with the reads that end soon; nothing more is read."""
        self._end()
        with self._lock:
            return [self._take(name) for name, (split, _) in list(self._open.items()) if split.item is not None]

    def _end(self) -> None:
        """Have the threads end; one that waits ends when its read returns."""
        with self._lock:
            fetchers, self._fetchers = self._fetchers, []
            for fetcher in fetchers:
                fetcher.is_closed = True
                fetcher.wanted.notify()
        deadline = time.monotonic() + LEAVE_S
        for fetcher in fetchers:
            fetcher.thread.join(max(0.0, deadline - time.monotonic()))

    def checkpointed(self, offsets: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        self._end()

    def _read_on(self, split: _OpenSplit) -> Polled | None:
        """The next item of a split; None: nothing is there.  In its thread."""
        from fastbuf_spark.schema import conform

        if split.rows is None:
            split.rows = iter(self._read(split.name, split.offset))
        item = next(split.rows, None)
        if item is None:
            return Polled(split.name, None, split.offset, ended=True)
        batch, offset = item
        if batch is not None and batch.num_rows:
            split.offset = offset
            return Polled(split.name, conform(batch, self._schema, f"split {split.name}"), offset)
        if offset != split.offset:
            split.offset = offset
            return Polled(split.name, None, offset)
        return None
