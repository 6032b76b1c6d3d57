"""``apply_in_pandas``: groups as pandas frames, and results as Arrow, with Spark's own converters.

Spark converts each group separately, which takes longer than most functions do.  Here the rows of many groups are
converted together if each group gets the same values and types, and so are small results.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from fastbuf_spark import pyspark_private
from fastbuf_spark.pyspark_private import guarded
from fastbuf_spark.results import about, each, hints_lack
from fastbuf_spark.worker.cogroups import Place, Sides
from fastbuf_spark.worker.groups import Group

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

WINDOW_ROWS = 16 << 10  #: rows converted together
SMALL_ROWS = 1 << 10  #: larger results are converted separately
SMALL_RESULTS = 256
SHARED_BYTES = 32 << 20  #: memory that results which wait may share with others


@dataclass(frozen=True)
class PandasRules:
    """Spark's settings for conversions, and the form of a result."""

    result: StructType
    schema: pa.Schema
    by_name: bool
    zone: str
    safe: bool
    large: bool
    int_to_decimal: bool
    int_extension: bool
    several: Any = Iterable  #: see :func:`~fastbuf_spark.results.iterables`


@dataclass(frozen=True)
class PandasVerb:
    """``apply_in_pandas``; see :class:`~fastbuf_spark.worker.verbs.ArrowVerb`."""

    method: ClassVar[str] = "apply_in_pandas"
    func: Callable[..., Any]
    with_key: bool
    streams: bool
    rules: PandasRules
    sides: tuple[int, tuple[Place, Place]] | None = None

    def caller(self) -> Callable[[Group], Iterable[pa.Table]]:
        return Calls(self)


class Calls:
    """Calls the function for one group after the other; small results are kept and converted with later ones."""

    def __init__(self, verb: PandasVerb) -> None:
        self._func = guarded(verb.func)
        self._with_key = verb.with_key
        self._streams = verb.streams
        self._frames = Frames(verb.rules)
        self._right = Frames(verb.rules)  # of a cogroup
        self._sides = None if verb.sides is None else Sides(*verb.sides)
        self._results = Results(verb.rules, verb.func)

    def __call__(self, group: Group) -> Iterable[pa.Table]:
        if self._streams:
            return self._streamed(group)
        if self._sides is None:
            frame, key = self._frames.whole(group, self._with_key)
            arguments = [frame]
            del frame
        else:
            pairs = zip((self._frames, self._right), self._sides.of(group), strict=True)
            arguments = [frames.whole(side, False)[0] for frames, side in pairs]
            key = self._frames.key(group) if self._with_key else ()
        result = self._func(key, *arguments) if self._with_key else self._func(*arguments)
        del arguments
        return self._results.add(result)

    def _streamed(self, group: Group) -> Iterator[pa.Table]:
        import pandas as pd

        key = self._frames.key(group) if self._with_key else ()
        parts = (self._frames.converted(part) for part in group.batches())
        result = self._func(key, parts) if self._with_key else self._func(parts)
        for frame in each(self._results.func, result, pd.DataFrame):
            yield from self._results.add(frame)

    def rest(self) -> Iterable[pa.Table]:
        """The results that were kept."""
        return self._results.rest()


class Frames:
    """Converts groups to frames."""

    def __init__(self, rules: PandasRules) -> None:
        import pandas as pd

        self._rules = rules
        self._pd = pd
        # Before pandas 3 a frame that is a slice of another warns when it is written
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
            return self.converted(group.table()), key
        if self._piece is not group.batch or start < self._first or stop > self._last:
            self._move(group)
        if self._window is None:
            key = self.key(group) if with_key else ()
            return self.converted(group.table()), key
        start, stop = start - self._first, stop - self._first
        frame = self._window.iloc[start:stop]
        frame.index = self._pd.RangeIndex(stop - start)
        return frame, tuple(values[start] for values in self._keys) if with_key else ()

    def key(self, group: Group) -> tuple[Any, ...]:
        """The key, as pandas values."""
        return tuple(self._series(column)[0].iloc[0] for column in group.key_columns())

    def converted(self, part: pa.Table | pa.RecordBatch) -> pd.DataFrame:
        """Rows of a group, converted as Spark does."""
        # Its columns point into read-only Arrow memory: while these references exist, pandas copies before it writes
        self._shared = self._series(part)
        return self._pd.concat(self._shared, axis=1)

    def _series(self, part: pa.Table | pa.RecordBatch) -> list[Any]:
        return pyspark_private.to_series(part, self._rules.zone, self._rules.int_extension)

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
    """Whether a value's pandas value and type are independent of the other values.

    Integers become floats if there is a null, and booleans become objects.
    """
    from pyarrow import types

    kind = column.type
    if types.is_nested(kind):
        return False
    return not column.null_count or not (types.is_integer(kind) or types.is_boolean(kind))


class Results:
    """Converts frames to tables.

    Parameters
    ----------
    func
        The function that gives them, for errors.
    whole
        Whether a frame has all columns of the schema and no others; else as for ``mapInPandas``, which leaves out
        further columns, and checks names even where columns go by position.
    """

    def __init__(self, rules: PandasRules, func: Callable[..., Any], whole: bool = True) -> None:
        self.func = func
        self._rules = rules
        self._whole = whole
        self._frames: list[Any] = []
        self._rows = 0
        self._shared: dict[int, int] = {}
        self._columns: Any = None
        self._types: Any = None

    def add(self, frame: Any) -> Iterable[pa.Table]:
        """The tables that can be converted now: of this frame, of earlier ones, or none."""
        import pandas as pd
        from pyspark.errors import PySparkException

        rules = self._rules
        same_columns = (
            isinstance(frame, pd.DataFrame) and self._columns is not None and frame.columns.equals(self._columns)
        )
        if not same_columns:
            try:
                pyspark_private.verify_pandas_result(
                    frame, rules.result, rules.by_name or not self._whole, truncated=not self._whole
                )
            except PySparkException as error:  # Spark's own error does not name the function
                if inspect.isgenerator(frame):
                    raise hints_lack(self.func, pd.DataFrame) from error
                error.add_note(f"{about(self.func)} gave this")
                raise
        rows = len(frame)
        if not rows:
            return ()
        if rows > SMALL_ROWS or not len(frame.columns):
            return [*self.rest(), self._converted(frame)]
        types = _types(frame)
        if _can_change(frame, types):
            return [*self.rest(), self._converted(frame)]
        done: Iterable[pa.Table] = ()
        if self._frames and not (same_columns and types == self._types):
            done = self.rest()
        if not self._frames:
            self._columns, self._types = frame.columns, types
        self._frames.append(frame.copy())  # the function may go on writing to it
        self._rows += rows
        self._shared.update(_shared(frame))
        if (
            len(self._frames) >= SMALL_RESULTS
            or self._rows >= SMALL_ROWS * 4
            or sum(self._shared.values()) >= SHARED_BYTES
        ):
            return [*done, *self.rest()]
        return done

    def rest(self) -> list[pa.Table]:
        """The tables of the frames that were kept."""
        import pandas as pd

        frames, self._frames, self._rows, self._shared = self._frames, [], 0, {}
        if len(frames) > 1:
            try:
                return [self._converted(pd.concat(frames, ignore_index=True), cast=False)]
            except Exception:  # convert them one by one, to find the frame and to get Spark's error
                pass
        return [self._converted(frame) for frame in frames]

    def _converted(self, frame: Any, cast: bool = True) -> pa.Table:
        import pyarrow as pa

        rules = self._rules
        try:
            batch = pyspark_private.from_pandas(
                _in_one_piece(frame),
                rules.result,
                cast,
                timezone=rules.zone,
                safecheck=rules.safe,
                prefers_large_types=rules.large,
                assign_cols_by_name=rules.by_name,
                int_to_decimal_coercion_enabled=rules.int_to_decimal,
            )
        except Exception as error:
            error.add_note(f"{about(self.func)} gave this")
            raise
        return pa.Table.from_arrays(batch.columns, schema=rules.schema)


def _types(frame: Any) -> list[Any]:
    """The types of its columns, as ``frame.dtypes``, which spends most of its time making a Series."""
    find = getattr(getattr(frame, "_mgr", None), "get_dtypes", None)
    return list(frame.dtypes if find is None else find())


def _can_change(frame: Any, types: list[Any]) -> bool:
    """Whether a cell is an object that the function may go on writing to, as a list: a copy of the frame has it too."""
    import numpy as np

    return any(
        isinstance(kind, np.dtype)
        and kind.kind == "O"
        and not _constants().issuperset(map(type, frame.iloc[:, place].array))
        for place, kind in enumerate(types)
    )


@functools.cache
def _constants() -> frozenset[type]:
    """Types whose values never change."""
    import pandas as pd

    plain = (str, bytes, int, float, bool, Decimal, date, datetime, time, timedelta)
    return frozenset((*plain, pd.Timestamp, pd.Timedelta, *map(type, (None, pd.NA, pd.NaT))))


def _shared(frame: Any) -> Iterator[tuple[int, int]]:
    """Address and size of the Arrow memory of its columns: a copy has the same, and a slice keeps all of it alive."""
    for values in getattr(getattr(frame, "_mgr", None), "arrays", ()):
        column = getattr(values, "_pa_array", None)
        if column is not None:
            for chunk in column.chunks:
                for buffer in filter(None, chunk.buffers()):
                    yield buffer.address, buffer.size


def _in_one_piece(frame: Any) -> Any:
    """The frame, or one like it with its Arrow memory in one chunk per column: of texts in many chunks, as of a
    ``pandas.concat``, Spark makes no batch.
    """
    import numpy as np

    result = frame
    for i in range(len(frame.columns)):
        values = frame.iloc[:, i].array
        column = getattr(values, "_pa_array", None)
        if column is not None and column.num_chunks > 1:
            result = frame.copy(deep=False) if result is frame else result
            result.isetitem(i, values.take(np.arange(len(values))))
    return result
