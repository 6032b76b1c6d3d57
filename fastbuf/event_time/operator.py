"""The keyed window operator: record batches and watermarks in, results out.  No thread, no clock, no connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuf.checks import instance
from fastbuf.event_time.aggregates import normal
from fastbuf.event_time.aligned import AlignedWindows
from fastbuf.event_time.arrow_rows import in_zones_of, words_of
from fastbuf.event_time.frozen import FrozenRows, encoded
from fastbuf.event_time.keyed import Keyed, check_columns
from fastbuf.event_time.results import Results
from fastbuf.event_time.rules import Rules, Trigger, at_end
from fastbuf.event_time.session import SessionWindows
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import Aligned, Global, Session

if TYPE_CHECKING:
    import pyarrow as pa


class WindowOperator(Keyed):
    """Windows of the rows of some key groups.

    Parameters
    ----------
    keys
        Names of the key columns; none: all rows have one key.
    time
        Name of the column of event times, a timestamp.  Rows without one are in no window, and are counted.
    schema
        Schema of the input.
    assigner
        :class:`Tumbling`, :class:`Sliding`, :class:`Session` or :class:`Global`.
    work
        Of :func:`agg_arrow`, :func:`reduce` or :func:`apply_in_arrow`; for this operator alone.
    lateness_us, trigger, accumulate, output_mode
        See :class:`Rules`.
    groups
        Number of key groups: of Spark's hash of the key, modulo this.
    keep_late
        Whether late rows are kept in `late`, or just counted.
    memory_bytes, spill_directory
        Bytes of state that stay in memory; what is more goes to files without names in this directory, empty: that for
        temporary files.  None: all stays in memory, as that of windows that fire by the number of their rows always
        does; of a session, or of each of its rows where these are kept, some 40 bytes do, by which it is found.

    Attributes
    ----------
    schema
        Schema of the results.
    late
        Batches of late rows, as they came in: whoever reads them empties the list.
    late_rows, null_times
        How many rows were late, and how many had no time.
    current
        The watermark, in microseconds.

    Notes
    -----
    Results are record batches in the order of their windows' ends, then of the keys; those of a window whose state
    does not fit into memory come in several parts, each in the order of its keys.  An iterator must be read to its end
    before the next call.
    """

    def __init__(
        self,
        keys: Sequence[str],
        time: str,
        schema: pa.Schema,
        assigner: Aligned | Session | Global,
        work: Any,
        *,
        lateness_us: int = 0,
        trigger: Trigger = at_end,
        accumulate: bool = True,
        output_mode: str = "append",
        groups: int = 128,
        keep_late: bool = False,
        memory_bytes: int | None = None,
        spill_directory: str = "",
    ) -> None:
        import pyarrow as pa

        instance("assigner", assigner, Aligned, Session, Global)
        self.rules = Rules(lateness_us, trigger, accumulate, output_mode)
        check_columns("the input", schema, keys, time)
        columns = [f"k{i}" for i in range(len(keys))]
        kinds = [schema.field(key).type for key in keys]
        super().__init__(list(zip(columns, kinds, strict=True)), groups, keep_late)
        kind = schema.field(time).type
        self._time, self._keys = time, list(keys)
        self._input = schema
        sessions = isinstance(assigner, Session)
        results_schema = work.bind(schema, list(keys), time, trigger.early if sessions else trigger.rows is not None)
        self._work = work
        results = Results(work, [schema.field(k) for k in keys], columns, pa.timestamp("us", kind.tz), results_schema)
        self.schema = results.schema
        common = self.rules, work, results, self._hashes, self._dirty
        self._windows: AlignedWindows | SessionWindows
        spill = self._spill(memory_bytes, spill_directory, 2 if sessions else 1)
        kind_of_windows = SessionWindows if sessions else AlignedWindows
        self._windows = kind_of_windows(assigner, *common, spill)  # type: ignore[arg-type]
        self.late: list[pa.RecordBatch] = []
        self._ticked: int | None = None

    @property
    def current(self) -> int:
        return self._windows.watermark

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows; what they fire at once: early results by their count, and those of windows that had ended before."""
        import pyarrow as pa

        self._check_read()
        batch, times = self._timed(batch, self._time)
        if not batch.num_rows:
            return iter(())
        keys = [normal(batch.column(self._input.get_field_index(key))) for key in self._keys]
        columns = [batch.column(self._input.get_field_index(name)) for name in self._work.columns]
        names = [*self._hashes.keys, *(f"r{name}" for name in self._work.columns)]
        table = pa.table([*keys, *columns], names=names) if names else unit_table(batch.num_rows)
        self._dirty[self._hashes.groups(table)] = True
        late = self._windows.add(times, table)
        if late is not None and late.any():
            self.late_rows += int(late.sum())
            if self._keep_late:
                self.late.append(batch.filter(pa.array(late)))
        return self._read(self._windows.fire())

    def watermark(self, us: int) -> Iterator[pa.RecordBatch]:
        """A watermark: the results of the windows that end with it.  One that does not rise does nothing."""
        self._check_read()
        if us <= self.current:
            return iter(())
        return self._read(self._windows.advance(us))

    def processing_time(self, now_ms: int) -> Iterator[pa.RecordBatch]:
        """What the clock says: early results, if their time has come."""
        self._check_read()
        every = self.rules.trigger.every_ms
        if every is None:
            return iter(())
        if self._ticked is None:
            self._ticked = now_ms
        if now_ms - self._ticked < every:
            return iter(())
        self._ticked = now_ms
        return self._read(self._windows.tick())

    # ---- checkpoints

    def freeze(self) -> Frozen:
        """The state as it is now, to be written in another thread; groups are no longer dirty."""
        self._check_read()
        frozen = Frozen(self._frozen_rows(), self.dirty)
        self._dirty[:] = False
        return frozen

    def _frozen_rows(self) -> FrozenRows:
        windows, state = self._windows, self._windows.freeze()
        rows = partial(windows.thawed, *state)
        return FrozenRows(rows, self._hashes, len(self._dirty), self._part_bytes, windows.together)

    def snapshot(self, group: int) -> bytes:
        """The state of one key group; of several, :meth:`freeze` is faster.  It stays dirty."""
        self._check_read()
        return Frozen(self._frozen_rows(), []).group(group)

    def description(self) -> dict[str, Any]:
        """What the state of a window is: JSON values; that of an operator with others is not to be restored here."""
        aggregates = [" ".join(pair) for pair in getattr(self._work, "pairs", ())]
        rows = {"rows": self._windows.layout} if self._windows.layout else {}
        return {"aggregates": aggregates, "state": words_of(self._work.state), **rows}

    def restore(self, group: int, data: bytes) -> None:
        """Take the state of a key group, in an operator that has had no rows; :meth:`restore_state` before or after."""
        import pyarrow as pa

        if not data:
            return
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        if table.num_rows:
            keys = [self._input.field(key).with_name(f"k{i}") for i, key in enumerate(self._keys)]
            self._windows.restored(in_zones_of([*keys, *self._work.state], table))
        self._windows.touch_all()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the operator besides its groups: JSON values."""
        return self.rules.state(self.current, self._windows.waits)

    def restore_state(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the states of all operators whose groups are restored here: from the least watermark of them.

        The lateness and the output mode may have been others.
        """
        self.rules, self._windows.watermark = self.rules.restored(list(states))
        self._windows.rules = self.rules
        self._windows.touch_all()

    def figures(self) -> dict[str, int | None]:
        """How many windows are open, rows and bytes, of them in files, the watermark, what was late or had no time."""
        rows, nbytes = self._windows.size()
        return {
            "windows": self._windows.windows(),
            "rows": rows,
            "bytes": nbytes,
            "file_bytes": self._windows.file_bytes(),
            "watermark": None if self.current in (MIN, MAX) else self.current,
            "late_rows": self.late_rows,
            "null_times": self.null_times,
        }


class Frozen:
    """The state of an operator at one moment; it does not change, and may be read by other threads.

    Attributes
    ----------
    dirty
        The groups that had changed since the last time.
    """

    def __init__(self, rows: FrozenRows, dirty: list[int]) -> None:
        self._rows, self.dirty = rows, dirty

    def group(self, group: int) -> bytes:
        """The state of a key group, as an Arrow stream; nothing if it has no rows.

        It is made for many groups at a time: ask for them in their order.
        """
        piece = self._rows.of(group)
        return encoded(piece) if piece.num_rows else b""


def unit_table(rows: int) -> pa.Table:
    """So many rows without a column."""
    import pyarrow as pa

    return pa.table({"u": np.zeros(rows, np.int8)})
