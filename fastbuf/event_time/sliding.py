"""Sliding windows that fire one after the other, at the cost of few merges each: two stacks of panes.

The panes of a window are cut at a moment.  Of those before it, there is a merged table for each window's start on; of
those behind it, one that grows with the windows.  So a window is the merge of two tables, however many panes it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbuf.event_time.runs import LABEL, Runs

if TYPE_CHECKING:
    import pyarrow as pa

LEAST_OVERLAP = 4  #: windows that a row is in, for stacks to be worth their while
MOST_GROWTH = 4  #: rows of the stacks for each row of panes, at most


class Stacks:
    """Merged panes of the windows that fire next.

    Parameters
    ----------
    runs
        The state, by pane.
    work, keys
        What merges rows of the same key.
    size, slide
        Of the windows.
    """

    def __init__(self, runs: Runs, work: Any, keys: list[str], size: int, slide: int) -> None:
        self._runs, self._work, self._keys = runs, work, keys
        self._size, self._slide = size, slide
        self.overlap = -(-size // slide)
        self._front: dict[int, pa.Table | None] = {}  # by where it begins; up to the cut
        self._back: pa.Table | None = None  # from the cut on
        self._end = 0  # of the latter
        self._calm = False  # no row has come to panes that are merged, since a window fired
        self._dense = False  # keys come again in many panes

    def rows_at(self, label: int) -> None:
        """Rows have come to panes from this one on: what is merged of them is not all."""
        if self._front and label < self._end:
            self._front.clear()
            self._calm = False

    def window(self, window: int) -> pa.Table | None:
        """The merged rows of a window, without a label; windows are asked for in their order."""
        end = window + self._size
        if window not in self._front or end < self._end:
            pieces = self._runs.between(window, end)
            if not (self._calm and self._dense):
                self._front.clear()
                self._calm = True
                merged = self._merged(pieces)
                # Each window of the front has its own table, which may have all keys
                rows = sum(piece.num_rows for piece in pieces)
                self._dense = merged is not None and MOST_GROWTH * rows >= self.overlap * merged.num_rows
                return merged
            self._build(window, end)
        if end > self._end:
            self._back = self._merged([self._back, *self._runs.between(self._end, end)])
            self._end = end
        front = {start: table for start, table in self._front.items() if start >= window}
        self._front = front
        if self._back is None or front[window] is None:
            return front[window] if self._back is None else self._back
        return self._merged([front[window], self._back])

    def _build(self, window: int, end: int) -> None:
        starts = range(window, end, self._slide)
        merged: pa.Table | None = None
        self._front, self._back, self._end = {}, None, end
        for start in reversed(starts):
            merged = self._merged([*self._runs.between(start, min(start + self._slide, end)), merged])
            self._front[start] = merged

    def _merged(self, pieces: list[pa.Table | None]) -> pa.Table | None:
        import pyarrow as pa

        tables = [p.drop_columns([LABEL]) if LABEL in p.schema.names else p for p in pieces if p is not None]
        return self._work.again(pa.concat_tables(tables), self._keys) if tables else None
