"""Filters, as expressions of pyarrow: which columns they need, and of which rows they cannot be true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from itertools import combinations, product
from operator import and_
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, FastbufError

if TYPE_CHECKING:
    import pyarrow as pa

#: Whole numbers to try, for 32 and for 64 bits: far above what floats of 32 bits have, so that sums stay above it, too
GREAT = ((1 << 28, 1 << 28), (1 << 30, 1 << 52))
MOST_FLOATS = 4  #: columns of floats in a filter; with more of them bounds are not looked at


class _NotValid(Exception):
    """An expression does not fit the columns; the text says why."""


def check_filter(expression: Any, schema: pa.Schema) -> None:
    """ConfigError unless this is an expression of pyarrow, true or false, whose columns are in the schema."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(expression, pc.Expression):
        raise ConfigError(
            f"filter is {expression!r:.100} ({type(expression).__name__}): give a pyarrow.compute expression, as in "
            "pc.field('amount') > 3"
        )
    kind = type_given(f"filter {expression}", expression, schema, ConfigError)
    if kind != pa.bool_():
        raise ConfigError(f"filter {expression} is not valid here, it gives {kind}: give one that is true or false")


def type_given(words: str, expression: Any, schema: pa.Schema, error: type[FastbufError]) -> pa.DataType:
    """The type of what an expression gives for rows of a schema; ``words`` say whose it is.

    Raises
    ------
    error
        It does not fit the columns.
    ConfigError
        It would fail at great numbers.
    """
    try:
        kind = _type(expression, schema)
    except _NotValid as reason:
        raise error(f"{words} is not valid here: {reason}; the columns are {schema.names}") from reason
    _check_floats(words, expression, schema)
    return kind


def _type(expression: Any, schema: pa.Schema) -> pa.DataType:
    import pyarrow as pa

    # Of a row: without one some functions do not look at types
    row = pa.table([pa.nulls(1, field.type) for field in schema], schema.names)
    try:
        return _computed(expression, row).to_table(use_threads=False).schema.field(0).type
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        text = str(error).splitlines()[0]
        if "Precision is not great enough" in text:
            text = "a decimal meets a whole number: give a decimal.Decimal"
        raise _NotValid(text) from error


def _computed(expression: Any, table: pa.Table) -> Any:
    """Arrow's plan for an expression: ``to_table()`` computes it, and its text has the casts that Arrow adds."""
    from pyarrow import acero

    rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    return acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [rows])


def _check_floats(words: str, expression: Any, schema: pa.Schema) -> None:
    """ConfigError where Arrow casts whole numbers to floats of 32 bits, since what is beside them is one.

    Such a cast of a number above 16777216 fails, with no word of the column: it is tried here.  A cast that the user
    wrote himself is his own.
    """
    import pyarrow as pa

    text, cast = str(expression), "{to_type=float,"
    # Of a text that is repeated so often there are gigabytes
    if "binary_repeat(" in text or str(_computed(expression, schema.empty_table())).count(cast) <= text.count(cast):
        return
    for numbers, truth in product(GREAT, (True, False)):
        row = pa.table([_filled(field.type, numbers, truth) for field in schema], schema.names)
        try:
            _computed(expression, row).to_table(use_threads=False)
        except (pa.ArrowException, OSError) as error:
            if "16777216" in str(error):  # else it is one of the values, which rows need not have
                raise ConfigError(
                    f"{words}: Arrow casts a whole number beside a float of 32 bits to such a float, and fails above "
                    "16777216; a literal such as 2.5 is one, too: cast one side to double, as in "
                    "pc.scalar(2.5).cast('double')"
                ) from error


def _filled(kind: pa.DataType, numbers: tuple[int, int], truth: bool) -> pa.Array:
    """A row of a column: its whole numbers, of 32 and of 64 bits, are these; null if it is not known how to fill it."""
    import pyarrow as pa

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return [(kind.field(i).name, value(kind.field(i).type)) for i in range(kind.num_fields)]
        if pa.types.is_fixed_size_list(kind):
            return [value(kind.value_type)] * kind.list_size
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return [value(kind.value_type)]
        if pa.types.is_boolean(kind):
            return truth
        if pa.types.is_integer(kind):
            return {32: numbers[0], 64: numbers[1]}.get(kind.bit_width, 1)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return "1"
        return 1.0 if pa.types.is_floating(kind) else None

    try:
        return pa.array([value(kind)], kind)
    except pa.ArrowException:
        return pa.nulls(1, kind)


def _is_valid(filter: Any, schema: pa.Schema) -> bool:
    try:
        _type(filter, schema)
    except _NotValid:
        return False
    return True


def used(filter: Any, schema: pa.Schema, among: Sequence[str] | None = None) -> list[str]:
    """The columns that an expression refers to, of those ``among``."""
    import pyarrow as pa

    names = schema.names if among is None else among
    if not names or _is_valid(filter, pa.schema([field for field in schema if field.name not in names])):
        return []
    half = len(names) // 2
    return used(filter, schema, names[:half]) + used(filter, schema, names[half:]) if half else list(names)


def needs_values(filter: Any, name: str, schema: pa.Schema) -> bool:
    """Whether an expression needs the values of a column: it is not valid then for one of a type without values."""
    import pyarrow as pa

    at = schema.get_field_index(name)
    return not _is_valid(filter, schema.set(at, pa.field(name, pa.struct([]))))


class Skipping:
    """Of which rows a filter cannot be true, by what is known of all of them."""

    def __init__(self, filter: Any, schema: pa.Schema) -> None:
        self.filter = filter
        self.schema = schema
        self.columns = [] if filter is None else used(filter, schema)  #: those that the filter refers to

    @cached_property
    def cases(self) -> list[dict[str, Any]]:
        """The cases to check: once with the bounds alone, then with each set of float columns being NaN.

        Bounds leave NaN out.

        A case has the columns that are NaN, with expressions that say so.  No case: bounds tell nothing.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        def has_floats(kind: pa.DataType) -> bool:
            return pa.types.is_floating(kind) or any(has_floats(kind.field(i).type) for i in range(kind.num_fields))

        kinds = {name: self.schema.field(name).type for name in self.columns}
        floats = [name for name, kind in kinds.items() if has_floats(kind)]
        if len(floats) > MOST_FLOATS or not all(pa.types.is_floating(kinds[name]) for name in floats):
            return []
        return [
            {name: pc.field(name) == pa.scalar(float("nan"), kinds[name]) for name in names}
            for number in range(len(floats) + 1)
            for names in combinations(floats, number)
        ]

    def skips(self, expression: Any, bounds: Mapping[str, Any] | None = None) -> bool:
        """Whether it is true of no row of which other expressions are true.

        Parameters
        ----------
        bounds
            What is told of the values of some columns, but for NaN.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds
        from pyarrow import fs

        cases = self.cases if bounds else [{}]
        layout, system = ds.IpcFileFormat(), fs.LocalFileSystem()  # any, for a file that is not opened
        for case in cases if self.columns else ():
            combined = reduce(and_, (dict(bounds or {}) | case).values(), expression)
            file = layout.make_fragment("x", system, partition_expression=combined)
            try:
                if list(ds.FileSystemDataset([file], self.schema, layout, system).get_fragments(self.filter)):
                    return False
            except pa.ArrowInvalid:  # it has no value of NaN: reading tells it, if there is one
                return False
        return bool(self.columns and cases)
