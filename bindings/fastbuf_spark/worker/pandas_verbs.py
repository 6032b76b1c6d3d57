"""``apply_in_pandas``: groups as pandas frames, and what comes back as Arrow, by Spark's own converters.

Spark converts each group by itself, which takes longer than what most functions do.  Here the rows of many groups are
converted together where that gives each group the same values and types, and so are small results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf_spark.worker.groups import Group
from fastbuf_spark.worker.verbs import guarded

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

WINDOW_ROWS = 16 << 10  #: rows that are converted together
SMALL_ROWS = 1 << 10  #: a result of more is converted by itself
SMALL_RESULTS = 256


@dataclass(frozen=True)
class PandasRules:
    """What Spark's settings say of conversions, and what a result is to be."""

    result: StructType
    schema: pa.Schema
    by_name: bool
    zone: str
    safe: bool
    large: bool
    int_to_decimal: bool
    int_extension: bool


@dataclass(frozen=True)
class PandasVerb:
    """``apply_in_pandas`` of one side; see :class:`~fastbuf_spark.worker.verbs.ArrowVerb`."""

    func: Callable[..., Any]
    with_key: bool
    streams: bool
    rules: PandasRules

    def caller(self) -> Callable[[Group], Iterable[pa.Table]]:
        frames, results = Frames(self.rules), Results(self.rules)
        return Calls(guarded(self.func), self.with_key, self.streams, frames, results)


class Calls:
    """Calls the function for one group after the other; results that are small are kept for the next ones."""

    def __init__(
        self, func: Callable[..., Any], with_key: bool, streams: bool, frames: Frames, results: Results
    ) -> None:
        self._func = func
        self._with_key = with_key
        self._streams = streams
        self._frames = frames
        self._results = results

    def __call__(self, group: Group) -> Iterable[pa.Table]:
        if self._streams:
            return self._streamed(group)
        frame, key = self._frames.whole(group, self._with_key)
        made = self._func(key, frame) if self._with_key else self._func(frame)
        del frame
        return self._results.add(made)

    def _streamed(self, group: Group) -> Iterator[pa.Table]:
        key = self._frames.key(group) if self._with_key else ()
        parts = (self._frames.converted(group, part) for part in group.batches())
        for made in self._func(key, parts) if self._with_key else self._func(parts):
            yield from self._results.add(made)

    def rest(self) -> Iterable[pa.Table]:
        """What has been kept."""
        return self._results.rest()


class Frames:
    """Makes frames of groups."""

    def __init__(self, rules: PandasRules) -> None:
        import pandas as pd

        self._rules = rules
        self._pd = pd
        # Without it a frame that is cut from another warns when it is written to
        self._shares = int(pd.__version__.split(".")[0]) >= 3
        self._piece: Any = None
        self._first = self._last = 0
        self._window: Any = None
        self._keys: list[Any] = []
        self._shared: list[Any] = []

    def whole(self, group: Group, with_key: bool) -> tuple[pd.DataFrame, tuple[Any, ...]]:
        """All rows of a group, and its key."""
        start, stop = group.start, group.stop
        if not self._shares or group.is_open or stop - start > WINDOW_ROWS:
            key = self.key(group) if with_key else ()
            return self.converted(group, group.table()), key
        if self._piece is not group.batch or start < self._first or stop > self._last:
            self._move(group)
        if self._window is None:
            key = self.key(group) if with_key else ()
            return self.converted(group, group.table()), key
        start, stop = start - self._first, stop - self._first
        frame = self._window.iloc[start:stop]
        frame.index = self._pd.RangeIndex(stop - start)
        return frame, tuple(values[start] for values in self._keys) if with_key else ()

    def key(self, group: Group) -> tuple[Any, ...]:
        """The key, as values of pandas."""
        return tuple(self._series(column)[0].iloc[0] for column in group.key_columns())

    def converted(self, group: Group, part: pa.Table | pa.RecordBatch) -> pd.DataFrame:
        """Rows of a group as Spark converts them."""
        # Its columns are Arrow's memory, which nobody may write to: that these are there too has pandas copy them first
        self._shared = self._series(part)
        return self._pd.concat(self._shared, axis=1)

    def _series(self, part: pa.Table | pa.RecordBatch) -> list[Any]:
        from pyspark.sql.conversion import ArrowBatchTransformer

        rules = self._rules
        return list(
            ArrowBatchTransformer.to_pandas(part, timezone=rules.zone, prefer_int_ext_dtype=rules.int_extension)
        )

    def _move(self, group: Group) -> None:
        """Convert the rows from this group on."""
        self._window = None
        self._piece, self._first = group.batch, group.start
        self._last = min(group.batch.num_rows, group.start + WINDOW_ROWS)
        rows = self._last - self._first
        shown = group.shown.slice(self._first, rows)
        keys = [column.slice(self._first, rows) for column in group.key_columns_of_piece()]
        if all(map(alone, shown.columns)) and all(map(alone, keys)):
            self._window = self._pd.concat(self._series(shown), axis=1)
            self._keys = [self._series(_table(column))[0].array for column in keys]


def _table(column: pa.Array) -> pa.Table:
    import pyarrow as pa

    return pa.table([column], names=["key"])


def alone(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether what a value becomes in pandas, and of what type, does not depend on the values beside it.

    Whole numbers beside a null become floats, and booleans objects.
    """
    from pyarrow import types

    kind = column.type
    if types.is_nested(kind):
        return False
    return not column.null_count or not (types.is_integer(kind) or types.is_boolean(kind))


class Results:
    """Makes tables of frames."""

    def __init__(self, rules: PandasRules) -> None:
        self._rules = rules
        self._held: list[Any] = []
        self._rows = 0
        self._columns: Any = None
        self._types: Any = None

    def add(self, frame: Any) -> Iterable[pa.Table]:
        """The tables of what can be converted now: of this frame, or of those before it, or none."""
        import pandas as pd
        from pyspark.worker import verify_pandas_result

        rules = self._rules
        known = isinstance(frame, pd.DataFrame) and self._columns is not None and frame.columns.equals(self._columns)
        if not known:
            verify_pandas_result(frame, rules.result, rules.by_name, truncate_return_schema=False)
        rows = len(frame)
        if not rows:
            return ()
        if rows > SMALL_ROWS or not len(frame.columns):
            return [*self.rest(), self._converted(frame)]
        done: Iterable[pa.Table] = ()
        types = _types(frame)
        if self._held and not (known and types == self._types):
            done = self.rest()
        if not self._held:
            self._columns, self._types = frame.columns, types
        self._held.append(frame)
        self._rows += rows
        if len(self._held) >= SMALL_RESULTS or self._rows >= SMALL_ROWS * 4:
            return [*done, *self.rest()]
        return done

    def rest(self) -> list[pa.Table]:
        """The tables of what has been kept."""
        import pandas as pd

        held, self._held, self._rows = self._held, [], 0
        if len(held) > 1:
            try:
                return [self._converted(pd.concat(held, ignore_index=True), cast=False)]
            except Exception:  # which frame it is, and what Spark makes of it, is seen one by one
                pass
        return [self._converted(frame) for frame in held]

    def _converted(self, frame: Any, cast: bool = True) -> pa.Table:
        import pyarrow as pa
        from pyspark.sql.conversion import PandasToArrowConversion

        rules = self._rules
        batch = PandasToArrowConversion.convert(
            frame,
            rules.result,
            timezone=rules.zone,
            safecheck=rules.safe,
            arrow_cast=cast,
            prefers_large_types=rules.large,
            assign_cols_by_name=rules.by_name,
            int_to_decimal_coercion_enabled=rules.int_to_decimal,
        )
        return pa.Table.from_arrays(batch.columns, schema=rules.schema)


def _types(frame: Any) -> list[Any]:
    """The types of its columns: those of ``frame.dtypes``, which takes longer to make a Series than to find them."""
    find = getattr(getattr(frame, "_mgr", None), "get_dtypes", None)
    return list(frame.dtypes if find is None else find())
