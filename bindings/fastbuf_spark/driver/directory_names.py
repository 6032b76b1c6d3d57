"""Columns given by directories' names, ``key=value``: their values, and types as Spark infers them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, cast

from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch
from fastbuf_spark.worker.texts import of_text
from fastbuf_spark.worker.zones import instants

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from fastbuf_spark.driver.files import File

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_DIGITS = r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(rf"[+-]?{_DIGITS}")
_HEX = re.compile(r"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+", re.ASCII)
_REAL = re.compile(rf"[+-]?(NaN|Infinity|{_DIGITS}[dDfF]?)", re.ASCII)
_BLANK = "".join(map(chr, range(33)))  #: what Java's trim() takes away
#: A year has a sign if it has more than four digits; one before 0 always has.
_DAY = r"(?!-0+-)((?:-?\d{4}|[+-]\d{5,10})-\d\d-\d\d)"
_DATE = re.compile(_DAY, re.ASCII)
_INSTANT = re.compile(rf"{_DAY} ([01]\d|2[0-3])(:[0-5]\d){{2}}(\.\d{{1,6}})?", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3])(:[0-5]\d){2}(\.\d{1,6})?", re.ASCII)
_MOST_DIGITS = 38  #: of a decimal
_DAY_US = 86_400_000_000  #: microseconds of a day


def values_of(folders: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """The names and values, escaped, of the directories that a file is in.

    Raises
    ------
    SchemaError
        There are directories that Spark does not understand.
    """
    named = [folder.partition("=") for folder in folders if "=" in folder]
    if not all(key and value for key, _, value in named):
        raise SchemaError(f"{'/'.join(folders)}: a directory's name has nothing before or behind '='")
    places = [i for i, folder in enumerate(folders) if "=" in folder]
    if places and len(places) <= places[-1] - places[0]:
        raise SchemaError(
            f"{'/'.join(folders)}: a directory without '=' stands between others, and Spark takes no columns from "
            "those above it: give the path of a directory below it"
        )
    return tuple((unescaped(key), None if value == NO_VALUE else value) for key, _, value in named)


def unescaped(name: str) -> str:
    """Spark's names: ``%XX`` is one character, and so never a byte of UTF-8."""
    return re.sub("%([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), name)


def partition_types(
    files: Sequence[File],
    infer: bool,
    types: dict[str, DataType],
    case: bool = False,
    instant: DataType | None = None,
) -> dict[str, DataType]:
    """Types of the columns given by directories' names, inferred as in Spark.

    Parameters
    ----------
    infer
        Spark's setting ``spark.sql.sources.partitionColumnTypeInference.enabled``.
    types
        Types that the user has given.
    case
        Whether names that differ in case are different ones.
    instant
        The type of texts with a day and a time: Spark's setting ``spark.sql.timestampType``; default: ``timestamp``.

    Raises
    ------
    ConfigError
        A given type is of no directory.
    SchemaError
        Files have different depths, or a name comes twice.
    """
    from pyspark.sql import types as T

    def folded(names: list[str]) -> list[str]:
        return names if case else [name.casefold() for name in names]

    names = [key for key, _ in files[0].values] if files else []
    if len(set(folded(names))) < len(names):
        raise SchemaError(
            f"{files[0].path} is in directories of {names}: a name comes twice, and each is a column; give the path of "
            "a directory below the first of them, or rename it"
        )
    for file in files:
        if folded([key for key, _ in file.values]) != folded(names):
            raise SchemaError(
                f"{file.path} is in directories of {[key for key, _ in file.values]}, and {files[0].path} of {names}: "
                "read them one by one"
            )
    odd_names = sorted(set(types) - set(names)) if files else []
    if odd_names:
        raise ConfigError(f"partition_types has {odd_names}: the directories are named by {names}")
    result: dict[str, DataType] = {}
    for at, name in enumerate(names):
        values = {value for file in files if (value := file.values[at][1]) is not None}
        inferred = [_type_of(value, instant or T.TimestampType()) if infer else T.StringType() for value in values]
        result[name] = types[name] if name in types else reduce(_wider, inferred, cast("DataType", T.NullType()))
    return result


def _type_of(value: str, instant: DataType) -> DataType:
    """The type that Spark infers of one value: it looks for numbers and days in what is escaped."""
    from pyspark.sql import types as T

    if max(value) > "\uffff":  # no digit for Java, which reads halves of such a character
        return T.StringType()
    if _WHOLE.fullmatch(value):
        number = int(value)
        if -(1 << 31) <= number < 1 << 31:
            return T.IntegerType()
        if -(1 << 63) <= number < 1 << 63:
            return T.LongType()
    if _DECIMAL.fullmatch(value) and (digits := _whole_digits(value)):
        return T.DecimalType(digits, 0)
    if _real(value) is not None:
        return T.DoubleType()
    text = unescaped(value)
    if (match := _INSTANT.fullmatch(text)) and len(match[4] or "") < 3 and _microseconds(text) is not None:
        return instant
    if _DATE.fullmatch(value) and _days(value) is not None:
        return T.DateType()
    return T.TimeType(6) if _TIME.fullmatch(text) else T.StringType()


def _wider(one: DataType, other: DataType) -> DataType:
    """The type for values of both: none loses digits."""
    from pyspark.sql import types as T

    if one == other or isinstance(other, T.NullType):
        return one
    if isinstance(one, T.NullType):
        return other
    kinds = {type(one), type(other)}
    if kinds <= {T.IntegerType, T.LongType}:
        return T.LongType()
    if kinds <= {T.IntegerType, T.LongType, T.DecimalType}:
        return T.DecimalType(max(map(_digits, (one, other))), 0)
    if kinds == {T.IntegerType, T.DoubleType}:
        return T.DoubleType()
    if T.DateType in kinds and kinds & {T.TimestampType, T.TimestampNTZType}:
        return other if isinstance(one, T.DateType) else one
    return T.StringType()


def _digits(kind: DataType) -> int:
    """Of a decimal that has all numbers of a type."""
    from pyspark.sql import types as T

    return kind.precision if isinstance(kind, T.DecimalType) else 20 if isinstance(kind, T.LongType) else 10


def _whole_digits(value: str) -> int:
    """How many digits a whole number has, as Java counts them; 0: it is none, or has too many for a decimal."""
    try:
        _, digits, exponent = Decimal(value).as_tuple()
    except ArithmeticError:  # an exponent that no decimal has
        return 0
    assert isinstance(exponent, int)
    number = len(digits) + exponent
    return number if exponent >= 0 and number <= _MOST_DIGITS else 0


def _real(value: str) -> float | None:
    """What Java's ``Double.parseDouble`` gives; None: it is no number."""
    value = value.strip(_BLANK)
    if _REAL.fullmatch(value):
        return float(value.rstrip("dDfF"))
    if not _HEX.fullmatch(value.rstrip("dDfF")):
        return None
    try:
        return float.fromhex(value.rstrip("dDfF"))
    except OverflowError:
        return -math.inf if value[0] == "-" else math.inf


def _days(day: str) -> int | None:
    """The days from 1970 to this one; None: there is none such, or it is further away than Spark counts."""
    import numpy as np

    try:
        number = int(np.datetime64(day, "D").astype(np.int64))
    except ValueError:  # the 30th of February
        return None
    return number if -(1 << 31) <= number < 1 << 31 else None


def _microseconds(text: str) -> int | None:
    """The microseconds from 1970 to this day and time; None: as for days."""
    day, _, time = text.partition(" ")
    days = _days(day)
    if days is None:
        return None
    at = dt.datetime.combine(dt.date.min, dt.time.fromisoformat(time or "00:00:00"))
    number = days * _DAY_US + (at - dt.datetime.min) // dt.timedelta(microseconds=1)
    return number if -(1 << 63) <= number < 1 << 63 else None


def value_of(value: str, kind: pa.DataType, name: str) -> pa.Scalar:
    """The value in a directory's name, as Spark converts it to a type; instants are in the zone of their type.

    Raises
    ------
    SchemaError
        It is none of this type, or in a year that Python does not have.
    """
    import pyarrow as pa

    try:
        scalar = _value(value, kind, name)
    except (SchemaMismatch, pa.ArrowInvalid, OverflowError) as error:
        raise SchemaError(
            f"a directory of {name} has the value {value!r}, which is no {kind}: give another type (schema= or "
            "partition_types=)"
        ) from error
    try:
        scalar.as_py()
    except (OverflowError, ValueError) as error:
        raise SchemaError(
            f"a directory of {name} has the value {value!r}, a {kind} that Python does not have ({error}): read it as "
            f"a string (schema=, or partition_types={{{name!r}: 'string'}})"
        ) from error
    return scalar


def _value(value: str, kind: pa.DataType, name: str) -> pa.Scalar:
    import pyarrow as pa

    text = unescaped(value)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_integer(kind) and _WHOLE.fullmatch(value):
        return pa.scalar(int(value), kind)
    if pa.types.is_floating(kind) and (number := _real(value)) is not None:
        return pa.scalar(number, kind)
    if pa.types.is_decimal(kind) and _DECIMAL.fullmatch(value):
        return pa.scalar(Decimal(value), kind)
    if pa.types.is_time(kind) and _TIME.fullmatch(text):
        return pa.scalar(dt.time.fromisoformat(text), pa.time64("us")).cast(kind)
    if pa.types.is_date(kind) and _DATE.fullmatch(value) and (days := _days(value)) is not None:
        return pa.scalar(days, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind) and (_INSTANT.fullmatch(text) or _DATE.fullmatch(text)):
        at = _microseconds(text)
        if at is not None:
            return _instant(at, kind)
    return of_text(pa.array([text]), kind, getattr(kind, "tz", None) or "UTC", name)[0]


def _instant(local: int, kind: pa.DataType) -> pa.Scalar:
    """The instant of a time in the zone of its type; Java moves one that summer time skips on by as much."""
    import pyarrow as pa

    def instant(number: int) -> pa.Array:
        times = pa.array([number], pa.int64()).cast(pa.timestamp("us"))
        return times if kind.tz is None else instants(times, kind.tz)

    try:
        return instant(local).cast(kind)[0]
    except pa.ArrowInvalid:
        # A day before it is in no such hour, and there the clocks are not changed yet
        before = instant(local - _DAY_US).cast(pa.int64())[0].as_py()
        return pa.scalar(before + _DAY_US, pa.int64()).cast(kind)
