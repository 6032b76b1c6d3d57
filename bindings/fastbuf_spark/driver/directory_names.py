"""Columns given by directories' names, ``key=value``: their values, and types as Spark infers them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastbuf.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from fastbuf_spark.driver.files import File

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"[+-]?\d+$")
_REAL = re.compile(r"[+-]?(\d*\.\d+|NaN|Infinity)$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")
_INSTANT = re.compile(r"\d{4}-\d{1,2}-\d{1,2}[ T]")
#: Texts that Spark may parse as another type: times, timestamps, numbers with an exponent or a letter, years
_ODD = re.compile(r"\s|\d{1,2}:\d{2}|\d{4}-\d{1,2}.*[T ]|[+-]?[\d.]+([eE][+-]?\d+)?[dDfF]?\s*$|\d{4}-\d{2}$")


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


def _is_day(text: str) -> bool:
    if not _DATE.match(text):
        return False
    try:
        return bool(dt.date.fromisoformat(text))
    except ValueError:  # the 30th of February
        return False


def _is_long(text: str) -> bool:
    """Whether a text is a whole number of 64 bits."""
    return bool(_WHOLE.match(text)) and -(1 << 63) <= int(text) < 1 << 63


def unescaped(name: str) -> str:
    """Spark's names: ``%XX`` is one character, and so never a byte of UTF-8."""
    return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), name)


def partition_types(
    files: Sequence[File], infer: bool, given: dict[str, DataType], case: bool = False
) -> dict[str, DataType]:
    """Types of the columns given by directories' names, inferred as in Spark.

    Parameters
    ----------
    infer
        Spark's setting ``spark.sql.sources.partitionColumnTypeInference.enabled``.
    given
        Types that the user has given.
    case
        Whether names that differ in case are different ones.

    Raises
    ------
    ConfigError
        A given type is of no directory.
    SchemaError
        Files have different depths, a name comes twice, or only Spark can tell the type of a value.
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
    odd_names = sorted(set(given) - set(names)) if files else []
    if odd_names:
        raise ConfigError(f"partition_types has {odd_names}: the directories are named by {names}")
    made: dict[str, DataType] = {}
    for at, name in enumerate(names):
        values = {value for file in files if (value := file.values[at][1]) is not None}
        texts = set(map(unescaped, values))  # Spark looks for numbers in what is escaped, for days in what is not
        if name in given or not infer:
            made[name] = given.get(name, T.StringType())
        elif not values:
            made[name] = T.NullType()
        elif all(map(_WHOLE.match, values)) and all(-(1 << 31) <= int(value) < 1 << 31 for value in values):
            made[name] = T.IntegerType()
        elif all(map(_is_long, values)):
            made[name] = T.LongType()
        elif all(_REAL.match(v) or _WHOLE.match(v) for v in values) and all(
            abs(float(v)) < 2e9 or not math.isfinite(float(v)) for v in values
        ):
            made[name] = T.DoubleType()
        elif all(map(_is_day, texts)):
            made[name] = T.DateType()
        else:
            odd = min(
                (v for v in texts if _ODD.match(v) and not _DATE.match(v)), key=lambda v: (_is_long(v), v), default=None
            )
            plain = next((v for v in texts if not (_ODD.match(v) or _DATE.match(v) or _WHOLE.match(v))), None)
            if odd is not None and plain is None:
                kind = "timestamp" if _INSTANT.match(odd) else "decimal(38,0)" if _WHOLE.match(odd) else "string"
                raise SchemaError(
                    f"the directories of {name} have the value {odd!r}, whose type only Spark can infer: give the type "
                    f"(partition_types={{{name!r}: {kind!r}}})"
                )
            made[name] = T.StringType()
    return made
