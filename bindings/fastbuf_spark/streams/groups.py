"""Rows of a stream by key: windows of them, and state that each key has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fastbuf.errors import ConfigError
from fastbuf_spark.api.functions import pandas_rules
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.schema import struct_type
from fastbuf_spark.streams.absent import OF_GROUPS, refuse
from fastbuf_spark.streams.drafts import MOST_YEARS, Duration, label_of, micros_of, millis_of, name_of_column
from fastbuf_spark.streams.sink import Sink, check_sink
from fastbuf_spark.streams.stream import Stream
from fastbuf_spark.streams.stream_windows import StreamWindows
from fastbuf_spark.streams.windows import WindowSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclasses.dataclass(frozen=True)
class StreamGroups:
    """Rows of a stream by key, made by :meth:`Stream.group_by`."""

    _before: Stream
    _keys: tuple[str, ...]
    _partitions: int | None

    if not TYPE_CHECKING:  # to type checkers it would have every name

        def __getattr__(self, name: str) -> NoReturn:
            refuse(self, "groups of a stream have", name, OF_GROUPS)

    def window(
        self,
        size: Duration,
        *,
        slide: Duration | None = None,
        offset: Duration = 0.0,
        lateness: Duration = 0.0,
        zone: str | None = None,
        early_rows: int | None = None,
        early_every: Duration | None = None,
        accumulate: bool = True,
        late: Sink | None = None,
        time: str | None = None,
    ) -> StreamWindows:
        """Windows of event time.

        Parameters
        ----------
        size
            Their length: seconds, a timedelta, or text with units (``"1 hour 30 minutes"``).
        slide
            One begins each so long; None: each where the one before it ends.
        offset
            They begin at multiples of the slide plus this.
        lateness
            How long behind its end a window takes rows that come late.  Later ones are counted, and left out.
        zone
            As ``"Europe/Berlin"``: days and hours are those of clocks there.
        early_rows, early_every
            Results before the end: when so many rows have come, or so long has passed by the clock.
        accumulate
            Whether a result has all rows of its window so far, or those since the last one.
        late
            A sink for the rows that come too late, as they came; else they are only counted.
        time
            Column of the rows' times; None: that of ``with_watermark``.  For rows that a join, windows or a function
            gave another time: the end of an offer, the last moment of a window.
        """
        assigner = _aligned(size, slide, offset, zone)
        words = f"windows of {size}" + ("" if slide is None else f" by {slide}")
        return self._windows(assigner, words, lateness, early_rows, early_every, accumulate, late, time)

    def session(
        self,
        gap: Duration,
        *,
        lateness: Duration = 0.0,
        early_rows: int | None = None,
        early_every: Duration | None = None,
        accumulate: bool = True,
        late: Sink | None = None,
        time: str | None = None,
    ) -> StreamWindows:
        """Windows of rows of a key that are at most ``gap`` apart; other parameters are those of :meth:`window`."""
        from fastbuf.event_time.windows import Session

        assigner = Session(_length("gap", gap))
        return self._windows(assigner, f"sessions of {gap}", lateness, early_rows, early_every, accumulate, late, time)

    def global_window(
        self, *, early_rows: int | None = 1, early_every: Duration | None = None, accumulate: bool = True
    ) -> StreamWindows:
        """One window for all rows of a key: running results, by default behind each batch that has rows of the key.

        Parameters are those of :meth:`window`; results have no ``window_start`` and ``window_end``.
        """
        from fastbuf.event_time.windows import Global

        return self._windows(Global(), "all rows", 0.0, early_rows, early_every, accumulate)

    def _windows(
        self,
        assigner: Any,
        words: str,
        lateness: Duration,
        early_rows: int | None,
        early_every: Duration | None,
        accumulate: bool,
        late: Sink | None = None,
        time: str | None = None,
    ) -> StreamWindows:
        from fastbuf.event_time.rules import Trigger
        from fastbuf.event_time.windows import Global

        column = ""
        if not isinstance(assigner, Global):
            _check_times(self._before, words)
            column = self._time(words) if time is None else name_of_column("time", time)
        every = None if early_every is None else millis_of("early_every", early_every)
        if every == 0:
            raise ConfigError(f"early_every is {early_every!r}: give a millisecond or more, or None")
        counts = hasattr(early_rows, "__index__") and not isinstance(early_rows, bool)
        if early_rows is not None and not (counts and early_rows >= 1):
            raise ConfigError(f"early_rows is {early_rows!r}: give a whole number from 1 on, or None")
        if late is not None:
            check_sink("late", late)
        spec = WindowSpec(
            self._keys,
            column,
            self._before._arrow(self._before.schema),
            assigner,
            dict,  # what is done with rows is said by the verb
            micros_of("lateness", lateness),
            Trigger(early_rows, every),
            accumulate,
            late=late,
        )
        return StreamWindows(self, spec, words)

    def _time(self, words: str) -> str:
        """The column of ``with_watermark``."""
        times, names = _times(self._before), self._before.schema.names
        if len(times) > 1 and (here := [name for name in times if name in names]):
            raise ConfigError(f"{words} go by one time, and the sources have {times}: say which, as time={here[0]!r}")
        if times[0] not in names:
            raise ConfigError(
                f"{words} go by the column {times[0]!r} of with_watermark, which what is before group_by leaves out: "
                f"say another one with time=; it gives {names}"
            )
        return times[0]

    def interval_join(
        self,
        other: StreamGroups,
        lower: Duration | None,
        upper: Duration | None,
        *,
        how: str = "inner",
        time: tuple[str | None, str | None] = (None, None),
        name: str | None = None,
    ) -> Stream:
        """Join rows of two streams with equal keys, the other's from ``lower`` to ``upper`` behind this one's.

        Parameters
        ----------
        other
            Groups of another stream, with keys of the same types.
        lower, upper
            Bounds of the other's time less this one's, both included: seconds, a timedelta, or text with units; a lower
            bound of ``"-10 seconds"`` is before.  None: there is no bound, and the rows that wait for it are kept for
            ever; without any bound no row is late.
        how
            "inner", "left", "right" or "full": rows without a partner go out when none can come any more.
        time
            The columns of this one's and of the other's times; None: that of ``with_watermark``, where there is one.
            A stream that is joined itself has two.
        name
            Of its state in checkpoints.

        Returns
        -------
        Stream
            The columns of this stream, then those of the other one without its keys.
        """
        from fastbuf.event_time.windows import MOST_US
        from fastbuf_spark.streams.joins import interval_join

        lower_us = -MOST_US if lower is None else micros_of("lower", lower, signed=True)
        upper_us = MOST_US if upper is None else micros_of("upper", upper, signed=True)
        if lower_us > upper_us:
            raise ConfigError(f"lower is {lower!r} and upper is {upper!r}: lower must not be above upper")
        join = interval_join(lower_us, upper_us, how)
        return self._joined(other, join, "interval join", time, name)

    def window_join(
        self,
        other: StreamGroups,
        size: Duration,
        *,
        slide: Duration | None = None,
        offset: Duration = 0.0,
        zone: str | None = None,
        how: str = "inner",
        time: tuple[str | None, str | None] = (None, None),
        name: str | None = None,
    ) -> Stream:
        """Join rows of two streams with equal keys in the same window; they go out when it ends.

        Parameters are those of :meth:`window` and :meth:`interval_join`; the result has ``window_start`` and
        ``window_end`` first.
        """
        from fastbuf_spark.streams.joins import window_join

        join = window_join(_aligned(size, slide, offset, zone), how)
        return self._joined(other, join, f"join in windows of {size}", time, name)

    def _joined(
        self,
        other: StreamGroups,
        make: partial[Any],
        words: str,
        times: tuple[str | None, str | None],
        name: str | None,
    ) -> Stream:
        from fastbuf.event_time.joins import LEFT, RIGHT, Side
        from fastbuf_spark.driver.file_types import of_arrow
        from fastbuf_spark.streams.joins import JoinSpec, OfSide, both_schema, key_places

        if not isinstance(other, StreamGroups):
            raise ConfigError(f"{words}: give the other stream's group_by(...), not a {type(other).__name__}")
        if not isinstance(times, tuple | list) or len(times) != 2:
            raise ConfigError(f"time is {times!r}: name two columns, this stream's and the other's")
        sides, shapes = [], []
        for each, asked in zip((self, other), times, strict=True):
            _check_times(each._before, words)
            shape, marks = each._before._arrow(each._before.schema), _times(each._before)
            column = asked or marks[0]
            if column not in shape.names or (asked is None and len(marks) > 1):
                raise ConfigError(
                    f"{words} goes by one time of each side; here with_watermark names {marks}, and the columns are "
                    f"{shape.names}: say which, as time=('of this one', 'of the other')"
                )
            sides.append(Side(shape, list(each._keys), column))
            shapes.append(shape)
        both = both_schema(*shapes)
        schema = of_arrow(both)
        left = self._before._mapped(OfSide(LEFT, both), schema, None, "left side")
        right = other._before._mapped(OfSide(RIGHT, both), schema, None, "right side")
        operator = JoinSpec((sides[0], sides[1]), make)
        places = [
            key_places(shape, each._keys, side)
            for side, (shape, each) in enumerate(zip(shapes, (self, other), strict=True))
        ]
        label = name or f"{words} by {', '.join(self._keys)}"
        partitions = self._partitions or other._partitions
        return left._beside(right, label, partitions, operator, of_arrow(operator.schema()), *places)

    def transform_with_state(
        self,
        processor: Any,
        schema: StructType | str,
        output_mode: str = "update",
        time_mode: str = "none",
        *,
        name: str | None = None,
        arrow: bool = False,
    ) -> Stream:
        """Call a ``StatefulProcessor`` of Spark's for the rows of each key, as ``transformWithStateInPandas`` does.

        Parameters
        ----------
        processor
            An instance of ``pyspark.sql.streaming.StatefulProcessor``.
        schema
            Schema of what it gives.
        output_mode
            For a job that is moved from Spark; here what the processor gives is written as it is.
        time_mode
            "none", "processing_time" or "event_time": what its timers go by.  With "event_time" late rows come to the
            processor, which has the watermark to tell them by; with ``watermark="spark"`` they are left out, as by
            Spark, where the column of ``with_watermark`` is still there.
        name
            Of its state in checkpoints: keep it for as long as the state shall be found.
        arrow
            Whether ``handleInputRows`` takes and gives record batches, and no frames.  Frames need Spark 4.2.
        """
        from fastbuf_spark.streams.stateful import TIME_MODES, StatefulSpec, shapes_of

        for method in ("init", "handleInputRows", "handleExpiredTimer", "close"):
            if not callable(getattr(processor, method, None)):
                raise ConfigError(f"processor needs a method {method}(), as Spark's StatefulProcessor has")
        mode = {"processingtime": "processing_time", "eventtime": "event_time"}.get(
            time_mode.lower(), time_mode.lower()
        )
        if mode not in TIME_MODES:
            raise ConfigError(f"time_mode is {time_mode!r}: it must be one of {', '.join(TIME_MODES)}")
        late_by = ""
        if mode == "event_time":
            _check_times(self._before, "timers of time_mode='event_time'")
            late_by = next((name for name in _times(self._before, "spark") if name in self._before.schema.names), "")
        result, spark = struct_type(schema), self._before._spark
        rules = pandas_rules(spark, result, self._before._arrow(result), converts=not arrow)
        sent = self._before._as_it_is(processor)
        input_schema = self._before._arrow(self._before.schema)
        label = name or f"{type(processor).__name__} by {', '.join(self._keys)}"
        operator = StatefulSpec(sent, self._keys, input_schema, rules, mode, arrow, shapes_of(processor), late_by)
        return self._with(operator, result, label)

    def transform_batches_with_state(
        self,
        func: Callable[[pa.RecordBatch, Any, pa.RecordBatch], tuple[Any, Any]],
        schema: StructType | str,
        state: StructType | str,
        *,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> Stream:
        """Call a function for each batch of rows with the state of its keys in columns: for many keys, all at once.

        Parameters
        ----------
        func
            Takes a batch; an int64 array with the number of each row's key, from 0 on; and the state of these keys, a
            batch with a row for each (nulls for a new one).  Returns their new state, in the same order, and a batch of
            results, or None.  A key whose state is nulls alone is forgotten.
        schema
            Schema of the results.
        state
            Schema of the state of a key.
        ttl
            A key without rows for so long is forgotten.
        name
            Of its state in checkpoints: keep it for as long as the state shall be found.
        """
        from fastbuf_spark.streams.running import BatchStateSpec

        check_function("func", func, "takes a batch, numbers of keys, and their state")
        before, result, state_type = self._before, struct_type(schema), struct_type(state)
        operator = BatchStateSpec(
            self._keys,
            before._arrow(before.schema),
            before._as_it_is(func),
            before._arrow(result),
            before._arrow(state_type),
            None if ttl is None else millis_of("ttl", ttl),
        )
        return self._with(operator, result, name or f"{label_of(func)} by {', '.join(self._keys)}")

    def _with(self, operator: Any, schema: StructType, label: str, words: str = "") -> Stream:
        if not self._keys and not isinstance(operator, WindowSpec):
            raise ConfigError("group_by has no keys, and state is kept for each: name a column, or use windows")
        stream = self._before._exchange(label, self._keys, self._partitions, operator)
        last = dataclasses.replace(stream._drafts[-1], schema=schema, words=(words,) if words else ())
        return Stream(self._before._spark, (*stream._drafts[:-1], last), stream._conf)


def _times(stream: Stream, rule: str = "") -> list[str]:
    """The columns of ``with_watermark``, or of those with this rule."""
    marks = [draft.time for draft in stream._drafts if draft.time is not None]
    return sorted({mark.column for mark in marks if rule in ("", mark.rule)})


def _check_times(stream: Stream, words: str) -> None:
    """ConfigError where time would stand still: no source tells it, or one that does not end tells none."""
    sources = [(draft.source, draft.time) for draft in stream._drafts if draft.source is not None]
    without = [source.name for source, time in sources if time is None and not source.bounded]
    if without or all(time is None for _, time in sources):
        which = f" ({', '.join(without)})" if without else ""
        raise ConfigError(f"{words} go by event time: say with_watermark behind the source first{which}")


def _aligned(size: Duration, slide: Duration | None, offset: Duration, zone: str | None) -> Any:
    from fastbuf.event_time.windows import MOST_OVERLAP, Sliding, Tumbling

    long, shift = _length("size", size), micros_of("offset", offset, signed=True)
    step = long if slide is None else _length("slide", slide)
    if abs(shift) >= step:
        what, value = ("size", size) if slide is None else ("slide", slide)
        raise ConfigError(f"offset is {offset!r}: it must be shorter than the windows' {what}, which is {value!r}")
    if slide is None:
        return Tumbling(long, shift, zone)
    if long > step * MOST_OVERLAP:
        raise ConfigError(
            f"size is {size!r} and slide is {slide!r}: a row would be in {-(-long // step):,} windows, and at most "
            f"{MOST_OVERLAP:,} are possible: make the slide longer"
        )
    return Sliding(long, step, shift, zone)


def _length(name: str, value: Duration) -> int:
    """That of windows, in microseconds."""
    micros = micros_of(name, value)
    if not micros:
        raise ConfigError(f"{name} is {value!r}: windows are from a microsecond to {MOST_YEARS:,} years long")
    return micros
