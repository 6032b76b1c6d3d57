"""Windows of a stream's groups, and what is done with their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.api.functions import pandas_rules
from fastbuf_spark.driver.checks import check_function
from fastbuf_spark.schema import struct_type
from fastbuf_spark.streams.drafts import label_of
from fastbuf_spark.streams.windows import WindowSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.streams.groups import StreamGroups
    from fastbuf_spark.streams.stream import Stream


@dataclasses.dataclass(frozen=True)
class StreamWindows:
    """Windows of a stream's groups, made by :meth:`StreamGroups.window` and its like."""

    _groups: StreamGroups
    _spec: WindowSpec
    _words: str

    def agg_arrow(self, aggregates: Iterable[tuple[Any, str]], *, name: str | None = None) -> Stream:
        """Aggregate columns with functions of pyarrow.

        Parameters
        ----------
        aggregates
            Pairs of a column and one of sum, product, min, max, any, all, count, mean; ``([], "count_all")`` counts
            rows.
        name
            Of its state in checkpoints.

        Returns
        -------
        Stream
            The keys, ``window_start``, ``window_end``, and for each pair a column as ``amount_sum``.
        """
        from fastbuf.event_time.rules import Trigger
        from fastbuf.event_time.work import agg_arrow
        from fastbuf_spark.driver.file_types import of_arrow
        from fastbuf_spark.streams.running import RunningSpec

        asked = list(aggregates)
        for each in asked:
            if not isinstance(each, tuple | list) or len(each) != 2:
                words = "agg_arrow takes pairs of a column and a function, as ('v', 'sum')"
                raise ConfigError(f"{words}, not {each!r:.100}")
        pairs = tuple((column or "", function) for column, function in asked)
        work, spec = partial(agg_arrow, pairs), self._spec
        if self._groups._keys and not spec.time and spec.accumulate and spec.trigger == Trigger(1):
            windows = dataclasses.replace(spec, work=work)
            running = RunningSpec(self._groups._keys, spec.input_schema, pairs, windows)
            return self._append(running, of_arrow(running.results()), "agg_arrow", name)
        return self._with(work, "agg_arrow", None, name)

    def reduce(
        self, func: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]], *, name: str | None = None
    ) -> Stream:
        """Make one row of two: ``func`` takes and returns dicts of the columns besides the keys and the windows' time.

        A global window goes by no time: there all columns but the keys are in the dicts.
        """
        from fastbuf.event_time.work import reduce

        check_function("func", func, "takes two rows as dicts and returns one")
        return self._with(partial(reduce, self._groups._before._as_it_is(func)), label_of(func), None, name)

    def apply_in_arrow(self, func: Any, schema: StructType | str, *, name: str | None = None) -> Stream:
        """Call ``func(key, window, table)`` with all rows of a window; it returns a ``pyarrow.Table``.

        The key is a tuple of Arrow's scalars; ``window.start`` and ``window.end`` are microseconds since 1970, and None
        of a global window.  Rows are kept until the window ends, and those of a global window for ever, unless it has
        ``accumulate=False``.
        """
        return self._applied(func, schema, "arrow", name)

    def apply_in_pandas(self, func: Any, schema: StructType | str, *, name: str | None = None) -> Stream:
        """Call ``func(key, window, frame)``; it returns a ``pandas.DataFrame``.  See :meth:`apply_in_arrow`."""
        return self._applied(func, schema, "pandas", name)

    def apply_in_polars(self, func: Any, schema: StructType | str, *, name: str | None = None) -> Stream:
        """Call ``func(key, window, frame)``; it returns a ``polars.DataFrame``.  See :meth:`apply_in_arrow`."""
        return self._applied(func, schema, "polars", name)

    def _applied(self, func: Any, schema: StructType | str, form: str, name: str | None) -> Stream:
        from fastbuf_spark.streams.window_functions import Applied

        check_function("func", func, "takes a key, a window and its rows")
        before, result = self._groups._before, struct_type(schema)
        rules = pandas_rules(before._spark, result, before._arrow(result)) if form == "pandas" else None
        work = Applied(before._as_it_is(func), form, before._arrow(result), rules)
        return self._with(work, label_of(func), result, name)

    def _with(self, work: Any, label: str, result: StructType | None, name: str | None) -> Stream:
        from fastbuf_spark.driver.file_types import of_arrow

        spec = dataclasses.replace(self._spec, work=work)
        shape = self._shape(spec)
        if spec.hides_bounds:
            shape = shape.remove(shape.get_field_index("window_start"))
            shape = shape.remove(shape.get_field_index("window_end"))
        schema = of_arrow(shape)
        if result is not None:  # of Spark's own types, such as user-defined ones
            schema = type(schema)([*schema.fields[: len(schema.fields) - len(result.fields)], *result.fields])
        return self._append(spec, schema, label, name)

    def _append(self, operator: Any, schema: StructType, label: str, name: str | None) -> Stream:
        words = " by ".join(filter(None, (self._words, ", ".join(self._groups._keys))))
        return self._groups._with(operator, schema, name or words, label)

    @staticmethod
    def _shape(spec: WindowSpec) -> pa.Schema:
        """The schema of its results, which no output mode changes."""
        return dataclasses.replace(spec, output_mode="update").operator(1).schema
