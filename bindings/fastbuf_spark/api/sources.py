"""Files that the workers read with pyarrow: no row goes through the JVM on its way into a shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.api.pipelines import Pipeline
from fastbuf_spark.driver import splits
from fastbuf_spark.driver.sources import dataset_source, ipc_source, parquet_source, text_source
from fastbuf_spark.schema import struct_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What a field of a line is not read as.
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
    """Parquet files, with the columns, types and values that ``spark.read.parquet`` gives.

    Parameters
    ----------
    spark
        A SparkSession.
    path
        A file, a directory with all below it, a URI, or several of them.  Directories named ``key=value`` are columns.
    columns
        Names of those to read; by default all.
    filter
        A ``pyarrow.compute`` expression over the columns, read or not: row groups that cannot have such rows are left
        out.  Comparisons are Arrow's: NaN equals nothing.
    schema
        Instead of that of the first file: a StructType or DDL text.  A column that a file has not is null.
    partition_types
        Types, in Spark's words, of columns that directories name; by default found as Spark finds them.
    filesystem
        Of pyarrow or fsspec; by default that of the URI, or the local one.  Workers must reach it as the driver does.

    Returns
    -------
    Pipeline
        Give it to a verb for a DataFrame, go on with its own, or take ``to_df()``.

    Raises
    ------
    SchemaError
        A type or a calendar that Spark's reader refuses too, or that it alone reads; the message names it.
    ConfigError
        A column, a filter or a path that cannot be.
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
    """Files of comma-separated values, as ``spark.read.csv`` reads them with these arguments.

    Parameters
    ----------
    schema
        Of the columns, in the files' order: a StructType or DDL text; by default all are strings, as of Spark.
    header
        The first line of each file has names, and no values.
    sep
        One character between the values.

    Other parameters are those of :func:`read_parquet`.

    Notes
    -----
    A value that is not of its type, or a line with another number of values, is an error; Spark gives nulls.  A file is
    one task's.
    """
    import pyarrow.csv as csv
    import pyarrow.dataset as ds

    parse = csv.ParseOptions(delimiter=sep)
    if schema is None:
        from pyspark.sql.types import StringType, StructType

        system, paths = splits.file_system(path, filesystem)
        files = splits.list_files(system, paths)
        if not files:
            raise ConfigError(f"{paths[0]} has no files: give schema=")
        with system.open_input_stream(files[0].path) as stream:
            options = csv.ReadOptions(autogenerate_column_names=not header)
            names = csv.open_csv(stream, options, parse).schema.names
        given = StructType()
        for i, name in enumerate(names):
            given.add(name if header else f"_c{i}", StringType())
    else:
        given = struct_type(schema)
    _check_fields(given, "read_csv", nested=False)
    layout = ds.CsvFileFormat(
        parse_options=parse,
        read_options=csv.ReadOptions(column_names=given.names, skip_rows=1 if header else 0),
        convert_options=csv.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
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
    """Files with one JSON object a line, as ``spark.read.schema(schema).json`` reads them.

    Parameters
    ----------
    schema
        A StructType or DDL text; fields that it has not are passed over.  ``spark.read.json(path).schema`` finds one.

    Other parameters are those of :func:`read_parquet`.

    Notes
    -----
    A value that is not of its type is an error; Spark gives nulls.  A file is one task's.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.json as json

    from fastbuf_spark.schema import arrow_schema, session_zone

    given = struct_type(schema)
    _check_fields(given, "read_json", nested=True)
    fields = [
        pa.field(f.name, pa.string()) if pa.types.is_timestamp(f.type) else f
        for f in arrow_schema(given, session_zone(spark))
    ]
    layout = ds.JsonFileFormat(
        default_fragment_scan_options=None,
        parse_options=json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
    )
    return Pipeline(text_source(spark, "read_json", path, layout, given, columns, filter, filesystem))


def read_ipc(
    spark: Any,
    path: Any,
    columns: Iterable[str] | None = None,
    filter: Any = None,
    *,
    filesystem: Any = None,
) -> Pipeline:
    """Arrow's own files (``.arrow``, ``.feather``), which Spark does not read.

    Parameters are those of :func:`read_parquet`.  Types are what ``spark.createDataFrame`` makes of Arrow's; unsigned
    ones become the next wider ones, as Spark reads them from Parquet.
    """
    return Pipeline(ipc_source(spark, path, columns, filter, filesystem))


def scan(spark: Any, dataset: Any, columns: Iterable[str] | None = None, filter: Any = None) -> Pipeline:
    """A ``pyarrow.dataset.Dataset`` of files, or a table of deltalake.

    Other parameters are those of :func:`read_parquet`, and types those of :func:`read_ipc`.
    """
    return Pipeline(dataset_source(spark, dataset, columns, filter))


def _check_fields(schema: StructType, name: str, nested: bool) -> None:
    for field in schema.fields:
        kind = field.dataType.simpleString()
        odd = kind.startswith(_NO_TEXT) and not (nested and kind.startswith(("array", "struct")))
        if odd or (nested and "timestamp" in kind and not kind.startswith("timestamp")):
            raise SchemaError(
                f"field {field.name!r} has the type {kind}, which {name} does not read; read it as a string, or use "
                "spark.read"
            )
