"""Filters, as expressions of pyarrow: which columns they need, and of which rows they cannot be true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from itertools import combinations
from operator import and_
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

BEYOND_FLOATS = (1 << 24) + 1  #: the least whole number that no float of 32 bits is
MOST_FLOATS = 4  #: columns of floats in a filter; with more of them bounds are not looked at


def check_filter(expression: Any, schema: pa.Schema) -> None:
    """ConfigError unless this is an expression of pyarrow whose columns are in the schema."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(expression, pc.Expression):
        raise ConfigError(
            f"filter is {expression!r:.100} ({type(expression).__name__}): give a pyarrow.compute expression, as in "
            "pc.field('amount') > 3"
        )
    try:
        # Of a row: without one some functions do not look at types
        pa.table([pa.nulls(1, field.type) for field in schema], schema.names).filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise ConfigError(
            f"filter {expression} is not valid here: {reason_of(error)}; the columns are {schema.names}"
        ) from error
    check_literals(f"filter {expression}", expression, schema)


def reason_of(error: Exception) -> str:
    """Why Arrow refuses an expression."""
    text = str(error).splitlines()[0]
    if "Precision is not great enough" in text:
        return "a decimal meets a whole number: give a decimal.Decimal"
    return text


def check_literals(words: str, expression: Any, schema: pa.Schema) -> None:
    """ConfigError where Arrow casts whole numbers to floats of 32 bits, since a literal fits into those.

    A cast of a greater number fails, with no word of the column: it is tried here with one.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    is_wide = {pa.int32(), pa.int64(), pa.uint32(), pa.uint64()}.__contains__
    row = [
        pa.array([BEYOND_FLOATS], field.type) if is_wide(field.type) else pa.nulls(1, field.type) for field in schema
    ]
    try:
        ds.dataset(pa.table(row, schema.names)).to_table(columns={"value": expression})
    except (pa.ArrowException, OSError) as error:
        if "16777216" in str(error):  # else it is one of the values, which rows need not have
            raise ConfigError(
                f"{words}: Arrow takes a literal such as 2.5 as a float of 32 bits, and fails for whole numbers above "
                "16777216 beside it: write pc.scalar(2.5).cast('double')"
            ) from error


def _is_valid(filter: Any, schema: pa.Schema) -> bool:
    import pyarrow as pa

    try:
        schema.empty_table().filter(filter)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError):
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
