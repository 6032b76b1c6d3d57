"""Files and datasets of pyarrow as the first stage of a pipeline: the driver lists them, the workers read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.driver import files as listing
from fastbuf_spark.driver import splits
from fastbuf_spark.driver.checks import is_connect, slots_of
from fastbuf_spark.driver.directory_names import partition_types
from fastbuf_spark.driver.file_types import REFUSED, nullable, of_arrow
from fastbuf_spark.driver.plan import requests
from fastbuf_spark.driver.reader_options import is_true
from fastbuf_spark.driver.staged import Staged
from fastbuf_spark.driver.store_options import Storage
from fastbuf_spark.expressions import check_filter, needs_values, used
from fastbuf_spark.formats.base import Format, OfDataset
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.schema import arrow_schema, large_types, session_zone, twice
from fastbuf_spark.worker.chains import Called, Chain
from fastbuf_spark.worker.reading import Read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

CONNECT_TASKS = 8  #: number of splits if Spark does not say how many tasks it runs at once


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
        return dataclasses.replace(self, read=dataclasses.replace(self.read, filter=both))


def counted(number: int, what: str) -> str:
    """A number with its noun, as text."""
    return f"{number} {what}{'' if number == 1 else 's'}"


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
    storage: Storage | None = dataclasses.field(default=None, repr=False)

    def is_set(self, option: str, default: bool = False) -> bool:
        """Whether an option is true."""
        return is_true(self.options, option, default)

    def listed(self) -> listing.Listing:
        """The file system, and the files there."""
        return listing.listed(self.path, self.filesystem, self.options, self.storage)


def files_source(
    asked: Asked, format: Format, schema: StructType | None = None, types_given: Mapping[str, DataType] | None = None
) -> Source:
    """A source of files of a format.

    Parameters
    ----------
    schema
        Of the files; None: they tell it.
    types_given
        Of columns from directories' names.
    """
    directory_types: dict[str, DataType] = {}
    if schema is not None:
        format.check(asked, schema)
    system, files, summaries = asked.listed()
    # Columns that are found by their places are those of the schema, whatever their names
    if schema is not None and format.by_name:
        schema, directory_types = _without_directories(schema, files)
    types = _types_of_directories(files, directory_types | dict(types_given or {}), asked)
    check_zone(asked.options, types)
    files = listing.matching(files, asked.options)
    format.check_files(files)
    if schema is None:
        schema = format.schema(asked, system, files, summaries)
        format.check(asked, schema)
    return listed_source(asked, format.with_columns(asked, schema), system, files, schema, types)


def check_zone(options: Mapping[str, str], types: Mapping[str, DataType]) -> None:
    """ConfigError if directories' names have timestamps, and an option a zone that is not for them."""
    from pyspark.sql.types import TimestampType

    if "timeZone" in options and any(isinstance(kind, TimestampType) for kind in types.values()):
        raise ConfigError("timeZone= is not for directories of timestamps: set spark.sql.session.timeZone")


def listed_source(
    asked: Asked,
    format: Format,
    system: Any,
    files: list[listing.File],
    schema: StructType,
    types: Mapping[str, DataType] | None = None,
) -> Source:
    """A source of these files, of this schema; ``types``: of columns from directories' names."""
    from pyspark.sql.types import StructField, StructType

    types = dict(types or {})
    whole = nullable(schema)
    if format.by_name:
        whole = with_directories(whole, types, asked.is_set("caseSensitive"))
    else:
        whole = StructType([*whole.fields, *(StructField(key, kind, True) for key, kind in types.items())])
    read_with, shown = _schemas(asked.spark, whole, asked.columns, asked.filter)
    kinds = arrow_schema(StructType([whole[key] for key in types]), session_zone(asked.spark)) if types else ()
    fragments = splits.fragments(system, files, format, {field.name: field.type for field in kinds})
    return _shared(asked, fragments, read_with, shown, whole, format, types)


def _types_of_directories(files: list[listing.File], types: dict[str, DataType], asked: Asked) -> dict[str, DataType]:
    from pyspark.sql.types import TimestampNTZType, TimestampType

    infer = asked.is_set("sources.partitionColumnTypeInference.enabled", True)
    ntz = str(asked.options.get("timestampType", "TIMESTAMP_LTZ")).upper() == "TIMESTAMP_NTZ"
    timestamps = TimestampNTZType() if ntz else TimestampType()
    return partition_types(files, infer, types, asked.is_set("caseSensitive"), timestamps)


def with_directories(schema: StructType, types: dict[str, DataType], case: bool) -> StructType:
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
                "spark.read, or rename one"
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
        fragments = [(None, fragment) for fragment in dataset.get_fragments()]
    except ValueError as error:
        raise ConfigError(f"scan: {error} Give filter and columns to scan itself, or to the pipeline") from error
    if isinstance(dataset, ds.InMemoryDataset) or any(not isinstance(each, ds.FileFragment) for _, each in fragments):
        raise ConfigError("scan takes a dataset of files; give rows in memory to spark.createDataFrame(table)")
    return _shared(Asked(spark, "scan", None, columns, filter), fragments, files, shown, schema, None)


def _schemas(spark: Any, whole: StructType, columns: Iterable[str] | None, filter: Any) -> tuple[pa.Schema, pa.Schema]:
    """The schema to read files with, and the schema of the requested result.

    Only requested columns, and those in the filter, must have supported types.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    if isinstance(columns, str):
        raise ConfigError(f"columns is {columns!r}: give a list of names")
    names = list(whole.names if columns is None else columns)
    several = twice(whole.names)
    if any(name in several for name in names):
        others = [name for name in whole.names if name not in several]
        raise SchemaError(
            f"the files, or schema=, have more than one column {' and one '.join(map(repr, several))}, of "
            f"{whole.names}: leave them out (columns={others}), or give names of their own"
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
    needed = {*names, *used(filter, files)}
    return pa.schema([field for field in files if field.name in needed]), shown


def _shared(
    asked: Asked,
    fragments: list[Any],
    read_with: pa.Schema,
    shown: pa.Schema,
    schema: StructType,
    format: Format | None = Parquet(),  # noqa: B008
    named: Collection[str] = (),
) -> Source:
    """A source of fragments.

    Parameters
    ----------
    format
        None: fragments of a dataset know their own.
    named
        Columns whose values are in the names of directories.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    spark, filter, texts = asked.spark, asked.filter, []
    if format is not None:
        typed = [field for field in read_with if field.name not in named and format.has_text(field.type)]
        texts = [f for f in typed if f.name in shown.names or needs_values(filter, f.name, read_with)]
        read_with = pa.schema([field.with_type(pa.string()) if field in typed else field for field in read_with])
    any_case = format is not None and format.any_case and not asked.is_set("caseSensitive")
    zone = asked.options.get("timeZone") or session_zone(spark)
    missing_ok = asked.is_set("ignoreMissingFiles")
    read = Read((), read_with, shown, filter, tuple(texts), zone, any_case, missing_ok)
    tasks = None if is_connect(spark) else slots_of(spark.sparkContext)
    files = [(file, format or _of_dataset(fragment), fragment) for file, fragment in fragments]
    parts = splits.pieces(files, read_with, read.skipping, missing_ok)
    shared = splits.shared_out(parts, tasks or CONNECT_TASKS)
    mib = sum(part.nbytes for part in parts) / (1 << 20)
    pieces = f"{counted(len(fragments), 'file')}, {counted(len(parts), 'piece')}"
    about = f"{asked.name}: {pieces}, {mib:.1f} MiB, in {counted(len(shared), 'split')}"
    shape = StructType([schema[key] for key in shown.names])
    return Source(spark, dataclasses.replace(read, splits=shared), shape, about)


def _of_dataset(fragment: Any) -> Format:
    return Parquet() if hasattr(fragment, "split_by_row_group") else OfDataset()
