"""How files are written, and in which directories: by arguments, else by settings that Spark's own writer follows."""

from __future__ import annotations

import re
from typing import Any

from fastbuf.errors import ConfigError
from fastbuf_spark.worker.writing import Limits

CODECS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")
ALIASES = {"uncompressed": "none", "lz4_raw": "lz4"}  #: Spark's names
CODEC = "spark.sql.parquet.compression.codec"
BLOCK = "spark.hadoop.parquet.block.size"
ROWS = "spark.sql.files.maxRecordsPerFile"
#: Settings with which Spark writes other files, and what they must be
FIXED = {
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def codec(name: Any, whose: str = "compression") -> str:
    """The name of a compression, by any that Spark or Arrow has for it."""
    key = str(name).lower()
    key = ALIASES.get(key, key)
    if key not in CODECS:
        raise ConfigError(f"{whose} is {name!r}: it must be one of {', '.join(CODECS)}")
    return key


def listed(partition_by: Any) -> tuple[Any, ...]:
    """What ``partition_by`` was given: names of columns, one, or none."""
    if partition_by is None or isinstance(partition_by, str):
        return () if partition_by is None else (partition_by,)
    try:
        return tuple(partition_by)
    except TypeError:  # a Column, or a number
        return (partition_by,)


def directories(partition_by: Any, names: list[str], case: bool = True) -> dict[str, int]:
    """The names in ``partition_by``, which name directories as they are given there, and the places of their columns.

    Parameters
    ----------
    names
        Of all columns.
    case
        Whether names that differ in case are two.

    Raises
    ------
    ConfigError
        It is not names of columns, or none is left for the files, or readers do not see such a directory.
    """
    by = listed(partition_by)
    shown = names if case else [name.lower() for name in names]
    keys = [each if case else each.lower() for each in by if isinstance(each, str)]
    if len(keys) < len(by) or not set(keys) <= set(shown) or len(set(keys)) < len(by) or 0 < len(names) <= len(by):
        raise ConfigError(f"partition_by is {list(by)}: give names of {names}, each once, and leave one for the files")
    hidden = [name for name in by if not name or name.startswith(".")]
    if hidden:
        raise ConfigError(
            f"partition_by has {hidden[0]!r}: readers do not see, or do not understand, directories named "
            f"{hidden[0] + '=...'!r}; rename the column"
        )
    return {name: shown.index(each) for name, each in zip(by, keys, strict=True)}


def writing(spark: Any, compression: str | None, row_group_size: int | None) -> tuple[str, Limits]:
    """The compression, and what row groups and files have at most.

    Raises
    ------
    ConfigError
        One of the arguments, or of the session's settings, is not honoured: the message names it.
    """
    conf = spark.conf.getAll
    for name, only in FIXED.items():
        if str(conf.get(name, only)).lower() != only.lower():
            raise ConfigError(
                f"{name} is {conf[name]!r}, of which files here know nothing: set it to {only!r}, or let Spark write, "
                "to_df().write.parquet(path)"
            )
    rows = row_group_size
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise ConfigError(f"row_group_size is {rows!r}: give the most rows of a row group, 1 or more")
    limits = Limits()
    return codec(conf.get(CODEC, "snappy"), CODEC) if compression is None else codec(compression), Limits(
        min(rows or limits.group_rows, limits.group_rows),
        _whole(conf, BLOCK) or limits.group_bytes,
        _whole(conf, ROWS),
    )


def _whole(conf: Any, name: str) -> int:
    value = str(conf.get(name, "0")).strip()
    if not re.fullmatch(r"-?\d+", value):
        raise ConfigError(f"{name} is {value!r}: give a whole number")
    return max(0, int(value))
