"""Files and datasets of pyarrow as the first stage of a pipeline: the driver lists them, the workers read them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark import pyspark_private
from fastbuf_spark.driver import files as listing
from fastbuf_spark.driver import splits
from fastbuf_spark.driver.checks import is_connect, slots_of
from fastbuf_spark.driver.directory_names import partition_types
from fastbuf_spark.driver.file_types import REFUSED, nullable, parquet_schema, refused
from fastbuf_spark.driver.merged_schemas import merged
from fastbuf_spark.driver.plan import requests
from fastbuf_spark.driver.reader_options import is_true
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.schema import arrow_schema, large_types, session_zone
from fastbuf_spark.worker.chains import Called, Chain
from fastbuf_spark.worker.lines import JsonLines, ValueLines, with_path
from fastbuf_spark.worker.reading import Read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

CONNECT_TASKS = 8  #: number of splits if Spark does not say how many tasks it runs at once
#: Finds in a filter's text what may be true of NaN: all but =, <, > and null tests joined by "and" and "or"
_ODD_FILTER = re.compile(r"!=|nan_is_null=true|(?<=\w)(?<!is_null)(?<!is_valid)\(|\) [=<>]|[=<>] \(")


@dataclasses.dataclass(frozen=True)
class Source:
    """An input that workers read themselves.

    Attributes
    ----------
    about
        For the plan's text: what is read, and how it is split.
    """

    spark: Any
    read: Read
    schema: StructType
    about: str

    @property
    def nbytes(self) -> int:
        """Bytes that are read."""
        return sum(piece.nbytes for split in self.read.splits for piece in split)

    def staged(self) -> Staged:
        """Its stage."""
        frame = requests(self.spark, len(self.read.splits))
        return Staged(frame, self.schema, Called(Chain((self.read,))), "fastbuf_read", numbered=True)

    def filtered(self, expression: Any) -> Source:
        """The same with fewer rows: the filter is pushed down to the files."""
        check_filter(expression, self.read.shown)
        both = expression if self.read.filter is None else self.read.filter & expression
        late = _meets_nan(both, self.read.files)
        return dataclasses.replace(self, read=dataclasses.replace(self.read, filter=both, late=late))


def counted(number: int, what: str) -> str:
    """A number with its noun, as text."""
    return f"{number} {what}{'' if number == 1 else 's'}"


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
        said = str(error).splitlines()[0]
        if "Precision is not great enough" in said:
            said = "a decimal is compared with a whole number: give a decimal.Decimal"
        raise ConfigError(f"filter {expression} is not valid here: {said}; the columns are {schema.names}") from error


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a function that reads files was asked for; ``name`` is its own."""

    spark: Any
    name: str
    path: Any
    columns: Iterable[str] | None
    filter: Any
    filesystem: Any = None
    options: dict[str, str] = dataclasses.field(default_factory=dict)

    def is_set(self, option: str, default: bool = False) -> bool:
        """Whether an option is true."""
        return is_true(self.options, option, default)

    def listed(self) -> tuple[Any, list[str], list[listing.File]]:
        """The file system, and the paths and files there."""
        return listing.listed(self.path, self.filesystem, self.options)


def parquet_source(asked: Asked, schema: StructType | None, types_given: dict[str, DataType]) -> Source:
    """A source of Parquet files."""
    import pyarrow.dataset as ds

    system, paths, files = asked.listed()
    layout = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    if schema is not None:
        schema, told = _without_directories(schema, files)
        types_given = told | types_given
    types = _types_of_directories(files, types_given, asked)
    files = listing.matching(files, asked.options)
    if schema is None:
        schema = _schema_of_files(asked, system, paths, files, layout)
    whole = _with_directories(nullable(schema), types, asked.is_set("caseSensitive"))
    return _source(asked, system, files, layout, types, whole)


def _schema_of_files(asked: Asked, system: Any, paths: list[str], files: list[listing.File], layout: Any) -> StructType:
    """That of a summary, else of the first file; or those of all of them, merged."""
    ntz = asked.is_set("parquet.inferTimestampNTZ.enabled", True)
    texts, merges = asked.is_set("parquet.binaryAsString"), asked.is_set("mergeSchema")

    def of(path: str) -> tuple[str, StructType]:
        file = layout.make_fragment(path, system)
        with with_path(path):
            file.ensure_complete_metadata()
        return path, parquet_schema(file.metadata, file.physical_schema, path, ntz, texts)

    summaries = listing.summaries(system, paths)
    found = [*summaries, *(file.path for file in files)]
    if merges:
        only = summaries if asked.is_set("parquet.respectSummaryFiles") else found
        found = [*(path for path in only if path not in summaries), *reversed(summaries)]
    if not found:
        raise ConfigError(f"{paths[0]} has no Parquet files to take the schema from: give schema=")
    if not merges:
        return of(found[0])[1]
    with ThreadPoolExecutor(splits.READERS) as readers:
        return merged(readers.map(of, found), asked.is_set("caseSensitive"))


def _types_of_directories(files: list[listing.File], given: dict[str, DataType], asked: Asked) -> dict[str, DataType]:
    from pyspark.sql.types import TimestampNTZType, TimestampType

    infer = asked.is_set("sources.partitionColumnTypeInference.enabled", True)
    ntz = str(asked.options.get("timestampType", "TIMESTAMP_LTZ")).upper() == "TIMESTAMP_NTZ"
    timestamps = TimestampNTZType() if ntz else TimestampType()
    return partition_types(files, infer, given, asked.is_set("caseSensitive"), timestamps)


def _with_directories(schema: StructType, types: dict[str, DataType], case: bool) -> StructType:
    """The schema of files with the columns from directories' names: of one that is in both, as in Spark, theirs counts.

    It stays where the files have it.

    Raises
    ------
    SchemaError
        The names differ in case: readers would take the column of the files.
    """
    from pyspark.sql.types import StructField, StructType

    for name in schema.names:
        other = next((key for key in types if key != name and key.casefold() == name.casefold()), None)
        if other is not None and not case:
            raise SchemaError(
                f"column {name!r} of the files is {other!r} in the directories' names, whose values Spark takes: use "
                "spark.read.parquet, or rename one"
            )
    left = {key: StructField(key, kind, True) for key, kind in types.items()}
    fields = [left.pop(field.name, field) for field in schema.fields]
    return StructType([*fields, *left.values()])


def _without_directories(schema: StructType, files: list[listing.File]) -> tuple[StructType, dict[str, DataType]]:
    """A schema without the columns from directories' names, which Spark's own has too, and the types of these."""
    from pyspark.sql.types import StructType

    names = {key for key, _ in files[0].values} if files else set()
    types = {field.name: field.dataType for field in schema.fields if field.name in names}
    return StructType([field for field in schema.fields if field.name not in names]), types


def text_source(asked: Asked, lines: JsonLines | ValueLines, schema: StructType) -> Source:
    """A source of files of lines, with a given schema; each file is read by one task."""
    import pyarrow.dataset as ds
    from pyspark.sql.types import TimestampType

    corrupt = asked.options.get("columnNameOfCorruptRecord", "_corrupt_record")
    if corrupt in schema.names:
        raise SchemaError(
            f"column {corrupt!r} is the one that Spark puts bad records into, which are errors here: leave it out, or "
            f"use spark.read ({asked.name})"
        )
    system, _, files = asked.listed()
    # Lines of values have the schema's columns by their places, whatever their names
    schema, told = (schema, {}) if isinstance(lines, ValueLines) else _without_directories(schema, files)
    types = _types_of_directories(files, told, asked)
    if "timeZone" in asked.options and any(isinstance(kind, TimestampType) for kind in types.values()):
        raise ConfigError("timeZone= is not for directories of timestamps: set spark.sql.session.timeZone")
    files = listing.matching(files, asked.options)
    listing.check_codecs(files)
    whole = nullable(schema)
    for key, kind in types.items():
        whole.add(key, kind, True)
    return _source(asked, system, files, ds.JsonFileFormat(), types, whole, lines)


def ipc_source(asked: Asked) -> Source:
    """A source of Arrow IPC files."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    system, paths, files = asked.listed()
    types = _types_of_directories(files, {}, asked)
    files = listing.matching(files, asked.options)
    if not files:
        raise ConfigError(f"{paths[0]} has no files to take the schema from")
    layout = ds.IpcFileFormat()
    try:
        whole = of_arrow(layout.make_fragment(files[0].path, system).physical_schema)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"{files[0].path}: {error}; read_ipc reads Arrow's files (pyarrow.ipc.new_file, Feather version 2), and "
            "not its streams"
        ) from error
    for key, kind in types.items():
        whole.add(key, kind, True)
    return _source(asked, system, files, layout, types, whole)


def dataset_source(spark: Any, dataset: Any, columns: Iterable[str] | None, filter: Any) -> Source:
    """A source from a dataset of pyarrow, or an object that has one: a table of deltalake."""
    import pyarrow.dataset as ds

    if hasattr(dataset, "to_pyarrow_dataset"):
        dataset = dataset.to_pyarrow_dataset()
    if not isinstance(dataset, ds.Dataset):
        raise ConfigError(
            f"scan takes a pyarrow.dataset.Dataset or a deltalake table, not a {type(dataset).__module__}."
            f"{type(dataset).__name__}"
        )
    schema = of_arrow(dataset.schema)
    files, shown = _schemas(spark, schema, columns, filter)
    # Without the filter: it refers to the types shown to users, and a dataset's own may differ
    try:
        found = [(None, fragment) for fragment in dataset.get_fragments()]
    except ValueError as error:
        raise ConfigError(f"scan: {error} Give filter and columns to scan itself, or to the pipeline") from error
    if isinstance(dataset, ds.InMemoryDataset) or any(not isinstance(each, ds.FileFragment) for _, each in found):
        raise ConfigError("scan takes a dataset of files; give rows in memory to spark.createDataFrame(table)")
    return _shared(Asked(spark, "scan", None, columns, filter), found, files, shown, schema)


def of_arrow(schema: pa.Schema) -> StructType:
    """Spark's schema for an Arrow schema, for files without more information.

    A field whose type Spark does not have has the type void, and the reason in its metadata.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import types as T

    made = T.StructType()
    for field in schema:
        try:
            spark_type = pyspark_private.from_arrow_type(_plain(field.type))
        except PySparkException as error:
            why = SchemaError(f"column {field.name!r} has Arrow's type {field.type}: {error}; leave it out (columns=)")
            made.add(refused(field.name, why))
        else:
            made.add(field.name, nullable(spark_type), True)
    return made


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type to read one as that Spark has not: views, dictionaries, unsigned numbers and days, at any depth."""
    import pyarrow as pa

    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if pa.types.is_dictionary(kind):  # Arrow decodes none of views
        return kind.value_type if kind.value_type in views else _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    # No views of lists: what Arrow 26 casts them to has offsets beyond its memory
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    unsigned = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20),
        pa.date64(): pa.date32(),
    }
    return (views | unsigned).get(kind, kind)


def _schemas(spark: Any, whole: StructType, columns: Iterable[str] | None, filter: Any) -> tuple[pa.Schema, pa.Schema]:
    """The schema to read files with, and the schema of the requested result.

    Only requested columns, and those in the filter, must have supported types.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    if isinstance(columns, str):
        raise ConfigError(f"columns is {columns!r}: give a list of names")
    names = list(whole.names if columns is None else columns)
    twice = sorted({name for name in whole.names if whole.names.count(name) > 1})
    if any(name in twice for name in names):
        others = [name for name in whole.names if name not in twice]
        raise SchemaError(
            f"the files, or schema=, have more than one column {' and one '.join(map(repr, twice))}, of {whole.names}: "
            f"leave them out (columns={others}), or give names of their own"
        )
    if not whole.names:
        raise ConfigError("the files, or schema=, have no columns: there is nothing to read")
    missing = [name for name in names if name not in whole.names]
    if missing or not names or len(set(names)) < len(names):
        raise ConfigError(f"columns is {names}: give some of {whole.names}, each once")
    refusals = {field.name: field.metadata[REFUSED] for field in whole.fields if REFUSED in field.metadata}
    for name in names:
        if name in refusals:
            raise SchemaError(refusals[name])
        if "EXISTS_DEFAULT" in whole[name].metadata:
            raise SchemaError(
                f"column {name!r} has a default, which Spark gives where a file has no such column, and nulls are read "
                "here: use spark.read, or take EXISTS_DEFAULT from the field's metadata"
            )
    zone, large = session_zone(spark), large_types(spark)
    shown = arrow_schema(StructType([whole[name] for name in names]), zone, large)
    if filter is None:
        return shown, shown
    carried = []
    for field in whole.fields:
        if field.name in refusals:
            continue
        try:
            carried.append(arrow_schema(StructType([field]), zone, large).field(0))
        except SchemaError:
            if field.name in names:
                raise
    files = pa.schema(carried)
    check_filter(filter, files)
    return files, shown


def _has_field(filter: Any, name: str, schema: pa.Schema) -> bool:
    """Whether an expression needs the values of a column: it is not valid then for one of a type without values."""
    import pyarrow as pa

    at = schema.get_field_index(name)
    return not _is_valid(filter, schema.set(at, pa.field(name, pa.struct([]))))


def _is_valid(filter: Any, schema: pa.Schema) -> bool:
    import pyarrow as pa

    try:
        schema.empty_table().filter(filter)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError):
        return False
    return True


def _meets_nan(filter: Any, schema: pa.Schema) -> bool:
    """Whether a filter may keep NaNs of a row group whose least and greatest value, which are no NaNs, say no."""
    if filter is None or not _ODD_FILTER.search(str(filter)):
        return False
    floats = (i for i, field in enumerate(schema) if _has_floats(field.type))
    return any(not _is_valid(filter, schema.remove(i)) for i in floats)


def _has_floats(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind)) or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def _source(
    asked: Asked,
    system: Any,
    files: list[listing.File],
    layout: Any,
    types: dict[str, DataType],
    whole: StructType,
    lines: JsonLines | ValueLines | None = None,
) -> Source:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    spark, filter = asked.spark, asked.filter
    read_with, shown = _schemas(spark, whole, asked.columns, filter)
    texts: tuple[pa.Field, ...] = ()
    if lines is not None:
        named = [
            i for i, f in enumerate(read_with) if f.name in shown.names or not _is_valid(filter, read_with.remove(i))
        ]
        read_with = pa.schema([read_with.field(i) for i in named])
        typed = [f for f in read_with if f.name not in types and lines.has_text(f.type)]
        texts = tuple(f for f in typed if f.name in shown.names or _has_field(filter, f.name, read_with))
        read_with = pa.schema([f.with_type(pa.string()) if f in typed else f for f in read_with])
    kinds = arrow_schema(StructType([whole[key] for key in types]), session_zone(spark)) if types else ()
    found = splits.fragments(system, files, layout, {field.name: field.type for field in kinds})
    chosen = StructType([whole[key] for key in shown.names])
    return _shared(asked, found, read_with, shown, chosen, texts, lines)


def _shared(
    asked: Asked,
    found: list[Any],
    read_with: pa.Schema,
    shown: pa.Schema,
    schema: StructType,
    texts: tuple[pa.Field, ...] = (),
    lines: JsonLines | ValueLines | None = None,
) -> Source:
    from pyspark.sql.types import StructType

    spark, filter = asked.spark, asked.filter
    tasks = None if is_connect(spark) else slots_of(spark.sparkContext)
    # Columns of the filter are read as well, but the filter does not tell which they are
    needed = set(shown.names)
    late = _meets_nan(filter, read_with)
    pushed = None if lines is not None or late else filter
    parts = splits.pieces(found, read_with, needed, pushed)
    shared = splits.shared_out(parts, tasks or CONNECT_TASKS)
    mib = sum(part.nbytes for part in parts) / (1 << 20)
    pieces = f"{counted(len(found), 'file')}, {counted(len(parts), 'piece')}"
    about = f"{asked.name}: {pieces}, {mib:.1f} MiB, in {counted(len(shared), 'split')}"
    any_case = lines is None and asked.name != "scan" and not asked.is_set("caseSensitive")
    zone = asked.options.get("timeZone") or session_zone(spark)
    read = Read(shared, read_with, shown, filter, texts, zone, any_case, late, lines)
    return Source(spark, read, StructType([schema[key] for key in shown.names]), about)
