"""Files of Iceberg tables as manifests have them, and what they are written by: partitions, and statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastbuf.errors import ConfigError
from fastbuf_spark.worker.iceberg import TIMES, ByValue, value_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_CALL = re.compile(r"(\w+)\((?:(\d+),)?(.+)\)")


def may_miss(mine: DataType, theirs: Any) -> bool:
    """Whether values may have a null in them where the table has none."""
    from pyspark.sql import types as T

    if isinstance(mine, T.StructType):
        pairs = zip(mine.fields, theirs.fields, strict=True)
        return any((f.required and m.nullable) or may_miss(m.dataType, f.field_type) for m, f in pairs)
    if isinstance(mine, T.ArrayType):
        return (theirs.element_required and mine.containsNull) or may_miss(mine.elementType, theirs.element_type)
    if isinstance(mine, T.MapType):
        missing = theirs.value_required and mine.valueContainsNull
        return missing or may_miss(mine.keyType, theirs.key_type) or may_miss(mine.valueType, theirs.value_type)
    return False


def shown(field: Any, schema: Any) -> str:
    """A field of a partition, as ``partition_by`` has it."""
    name, how = schema.find_column_name(field.source_id), str(field.transform)
    if how == "identity":
        return str(name)
    head, _, number = how.rstrip("]").partition("[")
    return f"{head}({number}, {name})" if number else f"{head}({name})"


def spec_of(by: Iterable[str], schema: Any) -> Any:
    """The partitions that these texts ask for: names of columns, or transforms of them."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform, UnknownTransform, parse_transform

    fields, columns = [], {field.name.casefold(): field for field in schema.fields}
    for at, text in enumerate([by] if isinstance(by, str) else by):
        call = None if str(text).casefold() in columns else _CALL.fullmatch(str(text))
        head, number, name = (
            (call[1].removesuffix("s"), call[2], call[3].strip()) if call else ("identity", None, str(text))
        )
        source = columns.get(name.casefold())
        if source is None:
            raise ConfigError(f"partition_by has {text!r}: give names of {list(schema.column_names)}, or 'day(name)'")
        how = IdentityTransform() if call is None else parse_transform(f"{head}[{number}]" if number else head)
        if isinstance(how, UnknownTransform) or not how.can_transform(source.field_type):
            raise ConfigError(
                f"partition_by has {text!r}, of a column that is {source.field_type}: give year, month, day or hour of "
                "times, bucket(16, name), truncate(4, name), or a name"
            )
        ends = {"identity": "", "truncate": "_trunc"}
        field = f"{source.name}{ends.get(head, f'_{head}')}"
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + at, how, field))
    return PartitionSpec(*fields)


def transform_of(part: Any, source: Any, schema: Any) -> Any:
    """What tasks do for a field of a partition."""
    how = str(part.transform)
    if how == "identity" and str(source.field_type) == "double":
        raise ConfigError(
            f"partitions by {source.name}, which is double: pyiceberg rounds such values as it reads and rewrites "
            "manifests, and readers would miss rows; leave it out, or let Spark write it"
        )
    if how in (*TIMES, "identity", "void"):
        return how
    if not how.startswith(("bucket[", "truncate[")) or not part.transform.can_transform(source.field_type):
        raise ConfigError(f"{shown(part, schema)} is a partition that fastbuf does not know: let Spark write it")
    return ByValue(part.transform, source.field_type)


def data_file(metadata: Any, folder: str, row: Any, footer: Any) -> Any:
    """A file that a task wrote, as manifests have it, with the statistics of its footer."""
    from pyiceberg.io import pyarrow as statistics
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema, spec = metadata.schema(), metadata.spec()
    paths = statistics.parquet_path_to_id_mapping(schema)
    plan = statistics.compute_statistics_plan(schema, metadata.properties)
    counts = statistics.MetricsMode(statistics.MetricModeTypes.COUNTS)
    for number in {paths[path] for path in _without_bounds(footer)}:
        if plan[number].mode.type != statistics.MetricModeTypes.NONE:
            plan[number] = statistics.StatisticsCollector(
                number, plan[number].iceberg_type, counts, plan[number].column_name
            )
    stats = statistics.data_file_statistics_from_parquet_metadata(footer, plan, paths)
    texts = [unquote(each.partition("=")[2]) for each in row.path.split("/")[:-1]]
    kinds = [str(field.field_type) for field in spec.partition_type(schema).fields]
    values = [
        value_of(text, "int" if kind in ("date", "timestamp", "timestamptz") else kind)
        for text, kind in zip(texts, kinds, strict=True)
    ]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder}/{row.attempt}/{row.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=row.bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **stats.to_serialized_dict(),
    )


def _without_bounds(footer: Any) -> Iterator[str]:
    """Columns, by their paths, with row groups that have no bounds: pyiceberg would take those of the others."""
    import pyarrow as pa

    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(footer.num_columns)):
            stats = column.statistics
            if stats is None or (not stats.has_min_max and not stats.has_null_count):
                yield column.path_in_schema
            elif not stats.has_min_max:
                if stats.null_count < column.num_values:
                    yield column.path_in_schema
            else:
                try:
                    _ = stats.min, stats.max
                except (OverflowError, ValueError, pa.ArrowNotImplementedError):  # no values of Python's
                    yield column.path_in_schema
