"""Files that the workers read with pyarrow, so that no row goes through the JVM on its way into a shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.api.pipelines import Pipeline
from fastbuf_spark.driver import files
from fastbuf_spark.driver.delta import delta_source
from fastbuf_spark.driver.reader_options import is_true, read_options
from fastbuf_spark.driver.sources import Asked, dataset_source, ipc_source, parquet_source, text_source
from fastbuf_spark.schema import struct_type, types_in
from fastbuf_spark.worker.lines import JsonLines, Text, ValueLines, blocks, check_utf8, line_break, with_path

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Types that cannot be read from a field of text.
_NO_TEXT = ("array", "map", "struct", "binary", "variant", "interval", "time(")


def read_parquet(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    schema: StructType | str | None = None,
    partition_types: Mapping[str, str] | None = None,
    filesystem: Any = None,
    **options: Any,
) -> Pipeline:
    """Read Parquet files, with the same columns, types and values as ``spark.read.parquet``.

    Parameters
    ----------
    spark
        A SparkSession.
    path
        A file, a directory (read recursively), a URI, or several of them, also with wildcards (``*``, ``?``, ``[ab]``,
        ``{a,b}``).  Directories named ``key=value`` below such a path are columns; names in the path itself are not, as
        in Spark.
    columns
        Names of the columns to read; default: all.
    filter
        A ``pyarrow.compute`` expression over the columns of the files.  Row groups that cannot contain such rows are
        skipped.  Comparisons are Arrow's: NaN equals nothing.
    schema
        A StructType or DDL text; default: the schema of the first file, or of all with ``mergeSchema``.  A column that
        a file does not have is null.
    partition_types
        Spark types of columns from directory names; default: inferred as in Spark.
    filesystem
        A file system of pyarrow or fsspec; default: that of the URI, or the local one.  Workers must be able to reach
        it.
    **options
        Options of Spark's reader, such as ``mergeSchema=True``, ``recursiveFileLookup``, ``pathGlobFilter`` and
        ``basePath``.  One that is not honoured is refused by name, and so is a setting of the session; the docs have a
        table of them.

    Returns
    -------
    Pipeline
        Pass it to a function that takes a DataFrame, use its own methods, or call ``to_df()``.

    Raises
    ------
    SchemaError
        A type or a calendar that is not supported; the message names it.
    ConfigError
        A column, a filter or a path is not valid.
    """
    from pyspark.sql.types import DataType

    types = {name: DataType.fromDDL(kind) for name, kind in dict(partition_types or {}).items()}
    given = None if schema is None else struct_type(schema)
    told = read_options(spark, "parquet", options)
    asked = Asked(spark, "read_parquet", path, columns, filter, filesystem, told)
    return Pipeline(parquet_source(asked, given, types))


def read_csv(
    spark: Any,
    path: Any,
    schema: StructType | str | None = None,
    *,
    header: bool = False,
    sep: str = ",",
    escape: str | None = None,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    filesystem: Any = None,
    **options: Any,
) -> Pipeline:
    """Read files of comma-separated values, like ``spark.read.csv`` with these arguments.

    Parameters
    ----------
    schema
        The columns in the files' order: a StructType or DDL text; default: all are strings, as in Spark.
    header
        Whether the first line of each file has names.
    sep
        The character between values.
    escape
        How a quote within a quoted value is written: doubled, in any case.  By default a file with a quote behind a
        backslash is refused, as Spark writes and reads quotes so; ``'"'``: a backslash is a character like others.

    Notes
    -----
    Other parameters are those of :func:`read_parquet`; options are ``nullValue``, ``quote``, ``comment``,
    ``dateFormat``, ``timestampFormat``, ``encoding``, ``lineSep`` and others.

    Values are those of Spark.  Where Spark finds no value of a type, or another number of values, and returns nulls, an
    error is raised, as by Spark with ``mode="FAILFAST"``.  Quoted values may have line breaks in them, as for Spark
    with ``multiLine=True``.  An empty value is null, in quotes too.  Each file is read by one task.  Lines: at most
    16 MiB.
    """
    told = read_options(spark, "csv", {"header": header, "sep": sep, "escape": escape, **options})
    lines = value_lines(told)
    if schema is None:
        from pyspark.sql.types import StringType, StructType

        given, case = StructType(), is_true(told, "caseSensitive")
        names = _first_values(path, filesystem, lines, told)
        for name in _headed(names, case, lines.null) if lines.header else [f"_c{i}" for i in range(len(names))]:
            given.add(name, StringType())
    else:
        given = struct_type(schema)
    _check_fields(given, "read_csv", nested=False)
    lines = replace(lines, names=tuple(given.names))
    asked = Asked(spark, "read_csv", path, columns, filter, filesystem, told)
    return Pipeline(text_source(asked, lines, given))


def value_lines(options: Mapping[str, str]) -> ValueLines:
    """How lines of values are written, but for the names of columns."""
    sep, quote, comment = options["delimiter"], options.get("quote", '"'), options.get("comment", "")
    for name, value in (("sep", sep), ("quote", quote), ("comment", comment)):
        others = {sep, quote, comment} if name == "sep" else {sep}
        if not (value or name != "sep") or len(value) > 1 or not value.isascii() or value in ("\r", "\n", "\\"):
            raise ConfigError(f"{name} is {value!r}: give one ASCII character, or use spark.read.csv")
        if name != "sep" and value in others:
            raise ConfigError(f"{name} and sep are {value!r}: give another one, or use spark.read.csv")
    if comment and comment == quote:
        raise ConfigError(f"comment and quote are {quote!r}: give another one, or use spark.read.csv")
    escape = options.get("escape")
    if escape not in (None, quote):
        raise ConfigError(f"escape is {escape!r}: give {quote!r} or None, or use spark.read.csv")
    blank = {"blank": b"\r\n"} if is_true(options, "multiLine") else {}
    header, null = is_true(options, "header"), options.get("nullValue", "")
    return ValueLines((), header, sep, escape is not None, quote, comment, null, text=_text(options), **blank)


def _text(options: Mapping[str, str]) -> Text:
    patterns = (options.get(name, "") for name in ("dateFormat", "timestampFormat", "timestampNTZFormat"))
    return Text(options.get("encoding", "utf-8").lower(), "lineSep" in options, *patterns)


def _first_values(path: Any, filesystem: Any, lines: ValueLines, options: Mapping[str, str]) -> list[str]:
    """The values of the first line that is not blank, of the first file that has one."""
    import pyarrow as pa
    import pyarrow.csv as csv

    system, paths, found = files.listed(path, filesystem, options)
    found = files.matching(found, options)
    files.check_codecs(found)
    for file in found:
        with with_path(file.path), system.open_input_stream(file.path) as stream:
            for block in blocks(stream, file.path, lines):
                block = block.replace(line_break(block), b"\n")
                line = block[slice(*lines.first_row(block))]
                check_utf8(line)
                if lines.is_row(line):
                    how = (
                        csv.ReadOptions(block_size=len(line) + 1),
                        csv.ParseOptions(
                            delimiter=lines.sep, quote_char=lines.quote or False, newlines_in_values=bool(lines.quote)
                        ),
                    )
                    try:
                        return list(csv.read_csv(pa.BufferReader(line), *how).column_names)
                    except pa.ArrowInvalid as error:
                        raise SchemaError(f"{file.path}: {error}; give schema=") from error
    raise ConfigError(f"{paths[0]} has no files with lines: give schema=")


def read_json(
    spark: Any,
    path: Any,
    schema: StructType | str,
    *,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    filesystem: Any = None,
    **options: Any,
) -> Pipeline:
    """Read files with one JSON object per line, like ``spark.read.schema(schema).json``.

    Parameters
    ----------
    schema
        A StructType or DDL text; other fields are ignored.  ``spark.read.json(path).schema`` infers one.

    Other parameters are those of :func:`read_parquet`; options are ``dateFormat``, ``timestampFormat`` and others.

    Notes
    -----
    A value of a wrong type, a name that occurs twice in an object, or a line without an object, is an error; Spark
    returns nulls, or the last value.  Each file is read by one task.  Lines: at most 16 MiB.
    """
    given, told = struct_type(schema), read_options(spark, "json", options)
    _check_fields(given, "read_json", nested=True)
    asked = Asked(spark, "read_json", path, columns, filter, filesystem, told)
    return Pipeline(text_source(asked, JsonLines(_text(told)), given))


def read_ipc(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
    **options: Any,
) -> Pipeline:
    """Read Arrow IPC files (``.arrow``, ``.feather``), which Spark cannot read.

    Parameters are those of :func:`read_parquet`.  Types are those of Spark for Parquet files with the same columns:
    unsigned ones become the next wider ones, and timestamps without a zone ``timestamp_ntz``.
    """
    told = read_options(spark, "ipc", options)
    return Pipeline(ipc_source(Asked(spark, "read_ipc", path, columns, filter, filesystem, told)))


def scan(spark: Any, dataset: Any, columns: Iterable[str] | None = None, filter: Any = None) -> Pipeline:
    """Read a ``pyarrow.dataset.Dataset`` of files, or a deltalake table; :func:`read_delta` skips more of its files.

    Other parameters are those of :func:`read_parquet`, and types those of :func:`read_ipc`.
    """
    return Pipeline(dataset_source(spark, dataset, columns, filter))


def read_delta(
    spark: Any,
    path: Any,
    version: int | None = None,
    timestamp: Any = None,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> Pipeline:
    """Read a Delta table, or a version of it; needs the package deltalake on the driver.

    Parameters
    ----------
    path
        Path or URI of the table.
    version, timestamp
        A version by its number, or the one of that time (a datetime, UTC if it has no zone, or text in ISO 8601);
        default: the newest.
    columns, filter
        As for :func:`read_parquet`.  Files whose values cannot match, as the table's log knows them, are not opened.
    filesystem
        A file system of pyarrow or fsspec by which workers read; default: that of the URI, or the local one.
    storage_options
        What deltalake takes to open the table; it is not shown.

    Returns
    -------
    Pipeline
        With the table's types; any column may be null.

    Raises
    ------
    ConfigError
        The table asks for a feature of Delta that is not honoured: the message names it.
    ResourceError
        There is no such table, or version.
    """
    return Pipeline(delta_source(spark, path, version, timestamp, columns, filter, filesystem, storage_options))


def _headed(names: list[str], case: bool, null: str) -> list[str]:
    """Names of columns from a header: as in Spark, an empty one is numbered, and those that occur twice end with it."""
    folded = [name if case else name.lower() for name in names]
    numbered = (f"{name}{i}" if folded.count(folded[i]) > 1 else name for i, name in enumerate(names))
    return [f"_c{i}" if names[i] in ("", null) else name for i, name in enumerate(numbered)]


def _check_fields(schema: StructType, name: str, nested: bool) -> None:
    for field in schema.fields:
        kind = field.dataType.simpleString()
        odd = kind.startswith(_NO_TEXT) and not (nested and kind.startswith(("array", "struct")))
        below = [each.simpleString() for each in types_in(field.dataType)][1:]
        if odd or any(each.startswith(("timestamp", "date")) for each in below):
            raise SchemaError(
                f"field {field.name!r} has the type {kind}, which {name} does not read; read it as a string, or use "
                "spark.read"
            )
