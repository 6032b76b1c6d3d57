"""Aggregates of windows, by pyarrow's hash aggregation: of rows, and of partial results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, RecordError, SchemaError
from fastbuf.event_time.arrow_rows import grouped
from fastbuf.event_time.vectors import DECIMALS_END, WIDE, Vector, vector

if TYPE_CHECKING:
    import pyarrow as pa

#: For each aggregate: what is computed of the rows, and how several such results are merged; a mean needs two
PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "sum": (("sum", "sum"),),
    "product": (("product", "product"),),
    "min": (("min", "min"),),
    "max": (("max", "max"),),
    "any": (("any", "any"),),
    "all": (("all", "all"),),
    "count": (("count", "sum"),),
    "mean": (("sum", "sum"), ("count", "sum")),
    "count_all": (("count_all", "sum"),),
}
IN_FLOATS = {("mean", "sum"), ("product", "product")}
COUNT = "n"  #: the column of the number of rows since a window fired


def wide(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals with room for their sum: 38 digits, or 76 where Arrow's sum would wrap around.

    The sums of pyarrow 18 have the type of the column, however many digits they take.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_decimal128(column.type):
        return column
    ends = [value for value in pc.min_max(column).as_py().values() if value is not None]
    most = max((value.scaleb(column.type.scale, WIDE).copy_abs() for value in ends), default=0)
    fits = int(most) * len(column) < 10**38
    return column.cast(pa.decimal128(38, column.type.scale) if fits else pa.decimal256(76, column.type.scale))


def narrow(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Sums as Spark's decimals."""
    import pyarrow as pa

    if not pa.types.is_decimal256(column.type):
        return column
    try:
        return column.cast(pa.decimal128(38, column.type.scale))
    except pa.ArrowInvalid as error:
        raise RecordError(f"{DECIMALS_END}: {error}") from error


def normal(column: Any) -> Any:
    """Floats with one zero and one NaN, as in Spark's grouping; other columns unchanged."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return column
    positive = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), column.type), positive)


def partial_results(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What is computed for aggregates, in the order of the columns of the state: of which column, how, what merges it.

    A column is ``r`` and its name, ``f`` and its name where it is computed in floats, as the result is (whole numbers
    and decimals would wrap around), and empty of ``count_all``.
    """
    parts: dict[tuple[str, str], str] = {}
    for column, function in pairs:
        for call, again in PARTS[function]:
            parts.setdefault(source_of(column, function, call), again)
    return parts


def source_of(column: str, function: str, call: str) -> tuple[str, str]:
    """A key of :func:`partial_results`."""
    return (f"f{column}" if (function, call) in IN_FLOATS else f"r{column}" if column else ""), call


class Aggregates:
    """Aggregates of columns, by window and key: see :func:`agg_arrow`.

    The state of a window is one row for each key, with the partial results.
    """

    merges = True

    def __init__(self, pairs: Iterable[tuple[Any, str]]) -> None:
        self.pairs: list[tuple[str, str]] = []
        for pair in pairs:
            pair = tuple(pair)
            is_pair = len(pair) == 2 and isinstance(pair[1], str) and pair[1] in PARTS
            if not is_pair or not (isinstance(pair[0], str) or (isinstance(pair[0], list | tuple) and not pair[0])):
                raise ConfigError(f"aggregate {pair!r}: give (column, function), of {', '.join(PARTS)}")
            if (pair[1] == "count_all") == bool(pair[0]):
                raise ConfigError(
                    f"aggregate {pair!r}: count_all has no column, the others have one; as ('', 'count_all')"
                )
            self.pairs.append((pair[0] or "", pair[1]))
        if not self.pairs:
            raise ConfigError("agg_arrow has no aggregates: give [(column, function), ...]")

    def bind(self, schema: pa.Schema, keys: Sequence[str], time: str, counts: bool) -> pa.Schema:
        import pyarrow as pa

        self.counts = counts
        self.columns: list[str] = []  # of the input
        parts = partial_results(self.pairs)
        self._results: list[tuple[str, list[int]]] = []  # the function, and the places of its parts
        for column, function in self.pairs:
            if column:
                if schema.get_field_index(column) < 0:
                    raise SchemaError(f"agg_arrow finds no column {column!r}; the input has {schema.names}")
                if column not in self.columns:
                    self.columns.append(column)
                kind = schema.field(column).type
                number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
                if function in ("sum", "product", "mean") and not number:
                    raise SchemaError(
                        f"agg_arrow has no {function} of column {column!r}, a {kind}: cast it to a number before"
                    )
            places = [list(parts).index(source_of(column, function, call)) for call, _ in PARTS[function]]
            self._results.append((function, places))
        self._first = list(parts)
        self._again = list(parts.values())
        kinds = {"k": pa.int64()} | {f"r{name}": schema.field(name).type for name in self.columns}
        empty = pa.schema(list(kinds.items())).empty_table()
        try:
            result = self.again(self.first(empty, ["k"]), ["k"])
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
            reason = str(error).splitlines()[0]
            raise SchemaError(
                f"pyarrow does not aggregate columns of these types so: {reason}; they are {schema}"
            ) from error
        self.state = pa.schema(list(result.schema)[1:])
        types = [result.schema.field(f"p{at[0]}").type for _, at in self._results]
        names = ["_".join(filter(None, pair)) for pair in self.pairs]
        return pa.schema(
            [
                pa.field(name, pa.float64() if function == "mean" else kind)
                for name, kind, (function, _) in zip(names, types, self._results, strict=True)
            ]
        )

    def first(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """One row for each value of `by`, of rows."""
        import pyarrow as pa

        for source in {source for source, _ in self._first if source[:1] == "f"}:
            table = table.append_column(source, table.column(f"r{source[1:]}").cast(pa.float64()))
        return self._grouped(table, by, self._first, [([], "count_all")] if self.counts else [])

    def again(self, table: pa.Table, by: Sequence[str]) -> pa.Table:
        """The same of rows that are partial results."""
        calls = [(f"p{i}", call) for i, call in enumerate(self._again)]
        return self._grouped(table, by, calls, [(COUNT, "sum")] if self.counts else [])

    def _grouped(self, table: pa.Table, by: Sequence[str], calls: list[tuple[str, str]], counts: list[Any]) -> pa.Table:
        import pyarrow as pa

        for i, (source, call) in enumerate(calls):
            if call == "sum" and pa.types.is_decimal(table.schema.field(source).type):  # least and greatest stay
                calls = [*calls[:i], (f"s{source}", call), *calls[i + 1 :]]
                table = table.append_column(f"s{source}", wide(table.column(source)))
        asked: list[Any] = counts + [(source or [], call) for source, call in calls]
        asked = [ask for i, ask in enumerate(asked) if ask not in asked[:i]]
        groups = grouped(table, by, asked)
        names = ["_".join(filter(None, (source, call))) for source, call in calls]
        counted = ["_".join(filter(None, (source or "", call))) for source, call in counts]
        columns = [groups.column(name) for name in by] + [narrow(groups.column(name)) for name in counted + names]
        return pa.table(columns, names=[*by, *([COUNT] if counts else []), *(f"p{i}" for i in range(len(calls)))])

    def vectors(self) -> list[Vector]:
        """Its state as arrays."""
        calls = [*(["sum"] if self.counts else []), *self._again]
        return [vector(field.name, field.type, call) for field, call in zip(self.state, calls, strict=True)]

    def results(self, table: pa.Table) -> list[pa.ChunkedArray]:
        """The columns of the result, of merged partial results."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = []
        for function, at in self._results:
            first = table.column(f"p{at[0]}")
            if function == "mean":
                count = table.column(f"p{at[1]}")
                first = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.float64()), pc.divide(first, count))
            columns.append(first)
        return columns
