"""Values of state as Python has them: what a processor reads is the same before a restart and behind it, as in Spark.

Spark sends each value to the JVM and back: a copy, of the type that the schema says.  Here it stays where it is, so it
is made so when it is written: structs are rows, times are naive ones of the local zone, a float of 32 bits is one.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    Convert = Callable[[Any], Any]

NAN = float("nan")  #: the one that keys have, so that they are equal


def keys_of(columns: Iterable[pa.Array]) -> list[tuple[Any, ...]]:
    """The keys of some rows: of equal ones by Spark's rules (NaN is equal to NaN, -0.0 to 0.0) equal tuples."""
    return list(zip(*([key_part(each) for each in column.to_pylist()] for column in columns), strict=True))


def key_part(value: Any) -> Any:
    """A part of a key, hashable."""
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    if isinstance(value, dict):
        from pyspark.sql import Row

        row: Any = Row(*value)
        return row(*map(key_part, value.values())) if value else ()
    if isinstance(value, tuple) and hasattr(value, "__fields__"):
        kind: Any = type(value)
        return kind(*value.__fields__)(*map(key_part, value))
    return tuple(map(key_part, value)) if isinstance(value, list | tuple) else value


def _some(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _parts(kind: DataType, of: Callable[[DataType], Convert | None]) -> list[Convert | None]:
    return [of(field.dataType) for field in kind.fields]  # type: ignore[attr-defined]


def _each(convert: Convert | None) -> Callable[[Iterable[Any]], list[Any]]:
    return list if convert is None else lambda values: [convert(value) for value in values]


def _all(converts: Sequence[Convert | None], values: Iterable[Any]) -> list[Any]:
    return [v if c is None else c(v) for c, v in zip(converts, values, strict=True)]


def _plain(value: Any) -> Any:
    """NumPy's and pandas' scalars as Python's own."""
    item = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "ndim", 1) == 0 else value


def _naive(value: Any) -> Any:
    value = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    # A naive one too: a time that the zone's clocks pass over is another one in UTC and back, as a restart has it
    return value.astimezone(datetime.UTC).astimezone().replace(tzinfo=None)


def _date(value: Any) -> Any:
    return value.date() if isinstance(value, datetime.datetime) else value


def keeper(kind: DataType) -> Convert:
    """What makes a user's value the one that is kept, a copy where it could be changed in place."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        names, converts = kind.names, [keeper(field.dataType) for field in kind.fields]
        row = T.Row(*names)

        def struct_(value: Any) -> Any:
            return row(*_all(converts, [value.get(n) for n in names] if isinstance(value, dict) else value))

        return _some(struct_)
    if isinstance(kind, T.ArrayType):
        return _some(_each(keeper(kind.elementType)))
    if isinstance(kind, T.MapType):
        key, item = keeper(kind.keyType), keeper(kind.valueType)
        return _some(lambda value: {key(k): item(v) for k, v in value.items()})
    if isinstance(kind, T.TimestampType):
        return _some(_naive)
    if isinstance(kind, T.DateType):
        return _some(_date)
    if isinstance(kind, T.BinaryType):
        return _some(bytes)
    if isinstance(kind, T.FloatType):
        return _some(lambda value: struct.unpack("f", struct.pack("f", value))[0])
    if isinstance(kind, T.DoubleType):
        return _some(float)
    return _plain


def is_mutable(kind: DataType) -> bool:
    """Whether a value of this type can be changed in place."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return any(is_mutable(field.dataType) for field in kind.fields)
    return isinstance(kind, T.ArrayType | T.MapType)


def to_arrow(kind: DataType) -> Convert | None:
    """What makes a kept value one that ``pyarrow.array`` takes; None: it is one."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        names, parts = kind.names, _parts(kind, to_arrow)
        return _some(lambda value: dict(zip(names, _all(parts, value), strict=True)))
    if isinstance(kind, T.ArrayType):
        item = to_arrow(kind.elementType)
        return None if item is None else _some(_each(item))
    if isinstance(kind, T.MapType):
        pair = (to_arrow(kind.keyType), to_arrow(kind.valueType))
        return _some(lambda value: [tuple(_all(pair, each)) for each in value.items()])
    if isinstance(kind, T.TimestampType):
        return _some(lambda value: value.astimezone(datetime.UTC))
    return None


def from_arrow(kind: DataType) -> Convert | None:
    """The reverse, of what ``to_pylist`` gives."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        row, parts = T.Row(*kind.names), _parts(kind, from_arrow)
        return _some(lambda value: row(*_all(parts, value.values())))
    if isinstance(kind, T.ArrayType):
        item = from_arrow(kind.elementType)
        return None if item is None else _some(_each(item))
    if isinstance(kind, T.MapType):
        pair = (from_arrow(kind.keyType), from_arrow(kind.valueType))
        return _some(lambda value: dict(tuple(_all(pair, each)) for each in value))
    if isinstance(kind, T.TimestampType):
        return _some(_naive)
    return None


class Rows:
    """The values of a variable's schema: a tuple with one for each field."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self.is_mutable = is_mutable(schema)
        self._keep = [keeper(field.dataType) for field in schema.fields]

    def keep(self, value: Any) -> tuple[Any, ...]:
        """A user's value as it is kept.

        Raises
        ------
        ConfigError
            It has another number of fields.
        """
        from fastbuf.errors import ConfigError

        if not isinstance(value, tuple):
            value = tuple(value) if isinstance(value, list) else (value,)
        if len(value) != len(self._keep):
            raise ConfigError(
                f"a state value has {len(value)} fields, its schema {len(self._keep)}: {self.schema.names}"
            )
        try:
            return tuple(_all(self._keep, value))
        except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise ConfigError(
                f"a state value does not fit its schema {self.schema.simpleString()}: {value!r:.200}: {error}"
            ) from error

    def for_user(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """A kept value for a user, who may change what it gets."""
        return tuple(_all(self._keep, value)) if self.is_mutable else value
