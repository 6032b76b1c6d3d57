"""Files that the workers read with pyarrow, so that no row goes through the JVM on its way into a shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.api.pipelines import Pipeline
from fastbuf_spark.driver import splits
from fastbuf_spark.driver.sources import dataset_source, ipc_source, is_true, parquet_source, text_source
from fastbuf_spark.schema import struct_type, types_in
from fastbuf_spark.worker.reading import BLOCK_BYTES

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
        A StructType or DDL text; default: the schema of the first file.  A column that a file does not have is null.
    partition_types
        Spark types of columns from directory names; default: inferred as in Spark.
    filesystem
        A file system of pyarrow or fsspec; default: that of the URI, or the local one.  Workers must be able to reach
        it.

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
    return Pipeline(parquet_source(spark, path, columns, filter, given, types, filesystem))


def read_csv(
    spark: Any,
    path: Any,
    schema: StructType | str | None = None,
    *,
    header: bool = False,
    sep: str = ",",
    columns: Iterable[str] | None = None,
    filter: Any = None,
    filesystem: Any = None,
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

    Other parameters are those of :func:`read_parquet`.

    Notes
    -----
    A value of a wrong type, or a line with another number of values, is an error; Spark returns nulls.  A quote within
    a quoted value is doubled (RFC 4180), as for Spark with ``escape='"'``: a backslash is a character like others.
    An empty value is null, in quotes too.
    Each file is read by one task.  Lines: at most 16 MiB.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.dataset as ds

    if len(sep) != 1 or not sep.isascii():
        raise ConfigError(f"sep is {sep!r}: give one ASCII character, or use spark.read.csv")
    parse = csv.ParseOptions(delimiter=sep)
    if schema is None:
        from pyspark.sql.types import StringType, StructType

        system, paths = splits.file_system(path, filesystem)
        files = splits.list_files(system, paths)
        if not files:
            raise ConfigError(f"{paths[0]} has no files: give schema=")
        with system.open_input_stream(files[0].path) as stream:
            options = csv.ReadOptions(autogenerate_column_names=not header, block_size=BLOCK_BYTES)
            try:
                names = csv.open_csv(stream, options, parse).schema.names
            except pa.ArrowInvalid as error:
                raise SchemaError(f"{files[0].path}: {error}; give schema=") from error
        given = StructType()
        case = is_true(spark, "spark.sql.caseSensitive", "false")
        for i, name in enumerate(_headed(names, case) if header else names):
            given.add(name if header else f"_c{i}", StringType())
    else:
        given = struct_type(schema)
    _check_fields(given, "read_csv", nested=False)
    layout = ds.CsvFileFormat(
        parse_options=parse,
        read_options=csv.ReadOptions(column_names=given.names, skip_rows=1 if header else 0, block_size=BLOCK_BYTES),
        convert_options=csv.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
        ),
    )
    return Pipeline(text_source(spark, "read_csv", path, layout, given, columns, filter, filesystem))


def read_json(
    spark: Any,
    path: Any,
    schema: StructType | str,
    *,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    filesystem: Any = None,
) -> Pipeline:
    """Read files with one JSON object per line, like ``spark.read.schema(schema).json``.

    Parameters
    ----------
    schema
        A StructType or DDL text; other fields are ignored.  ``spark.read.json(path).schema`` infers one.

    Other parameters are those of :func:`read_parquet`.

    Notes
    -----
    A value of a wrong type is an error; Spark returns nulls.  Each file is read by one task.  Lines: at most 16 MiB.
    """
    import pyarrow.dataset as ds

    given = struct_type(schema)
    _check_fields(given, "read_json", nested=True)
    return Pipeline(text_source(spark, "read_json", path, ds.JsonFileFormat(), given, columns, filter, filesystem))


def read_ipc(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
) -> Pipeline:
    """Read Arrow IPC files (``.arrow``, ``.feather``), which Spark cannot read.

    Parameters are those of :func:`read_parquet`.  Types are converted as by ``spark.createDataFrame``; unsigned types
    become the next wider ones, as when Spark reads Parquet.
    """
    return Pipeline(ipc_source(spark, path, columns, filter, filesystem))


def scan(spark: Any, dataset: Any, columns: Iterable[str] | None = None, filter: Any = None) -> Pipeline:
    """Read a ``pyarrow.dataset.Dataset`` of files, or a deltalake table.

    Other parameters are those of :func:`read_parquet`, and types those of :func:`read_ipc`.
    """
    return Pipeline(dataset_source(spark, dataset, columns, filter))


def _headed(names: list[str], case: bool) -> list[str]:
    """Names of columns from a header: as in Spark, an empty one is numbered, and those that occur twice end with it."""
    folded = [name if case else name.lower() for name in names]
    return [
        f"_c{i}" if not name else f"{name}{i}" if folded.count(folded[i]) > 1 else name for i, name in enumerate(names)
    ]


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
