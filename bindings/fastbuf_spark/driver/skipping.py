"""What a table's log says of the rows of a file, as expressions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MILLISECOND_US = 1000  #: bounds of times may be cut to milliseconds, the greatest one too


def equal(values: Mapping[str, Any]) -> Any:
    """That columns have these values in all rows, as an expression."""
    import pyarrow.compute as pc

    expression = pc.scalar(True)
    for name, value in values.items():
        expression = expression & (pc.field(name) == value if value.is_valid else pc.field(name).is_null())
    return expression


def between(
    rows: int,
    types: Mapping[str, pa.DataType],
    nulls: Mapping[str, int | None],
    least: Mapping[str, Any],
    most: Mapping[str, Any],
    digits: int,
) -> dict[str, Any]:
    """What is true of all rows of a file, by the counts of nulls, and least and greatest values, of these columns.

    Parameters
    ----------
    digits
        Most digits of decimals whose bounds are used.
    """
    import pyarrow.compute as pc

    expressions = {}
    for name, kind in types.items():
        count = nulls.get(name)
        bounds = _inequalities(least.get(name), most.get(name), name, kind, digits)
        if count is not None and count == rows:
            expressions[name] = pc.field(name).is_null()
        elif bounds:
            expressions[name] = reduce(and_, (b if count == 0 else b | pc.field(name).is_null() for b in bounds))
    return expressions


def has_bounds(kind: pa.DataType, digits: int) -> bool:
    """Whether bounds of values of this type are used."""
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= digits)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _inequalities(least: Any, most: Any, name: str, kind: pa.DataType, digits: int) -> list[Any]:
    """What is true of all values that are not null.  A list: pyarrow concludes nothing from ``(a & b) | null``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if least is None or most is None or not least.is_valid or not most.is_valid or not has_bounds(kind, digits):
        return []
    if pa.types.is_timestamp(kind):
        late = min(most.cast(pa.int64()).as_py() + MILLISECOND_US, 2**63 - 1)
        most = pa.scalar(late, pa.int64()).cast(most.type)
    least, most = least.cast(kind), most.cast(kind)
    if pa.types.is_floating(kind) and (least.as_py() != least.as_py() or most.as_py() != most.as_py()):
        return []  # NaN: Spark's writer has it as the greatest value
    return [pc.field(name) >= least, pc.field(name) <= most]
