"""Delta tables, by their log: which files have the rows of a version, and what the log says of these."""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver import skipping, sources
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.file_types import nullable, refused
from fastbuf_spark.driver.files import File
from fastbuf_spark.driver.reader_options import read_options
from fastbuf_spark.driver.store_options import store_of
from fastbuf_spark.expressions import Skipping
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.schema import arrow_schema, session_zone
from fastbuf_spark.worker.stores import is_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("fastbuf_spark")

LOOKS = 4  #: at a table, where answers are cut off
CUT = "error reading a body"  #: in the words of deltalake's client
#: What a table may ask of its readers.  Of the others the values of files are not those of the table, or not all
READ_FEATURES = frozenset(
    ("deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview")
)
READ_ADVICE = {
    "columnMapping": "drop the feature with Spark (ALTER TABLE ... DROP FEATURE columnMapping)",
    "variantType": "leave such columns to Spark",
}
#: Most digits of decimals whose bounds are used: some writers make floats of longer ones
EXACT_DIGITS = 15


def package() -> Any:
    """The package deltalake."""
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError("Delta tables need the package deltalake: pip install 'fastbuf[delta]'") from error
    return deltalake


@contextmanager
def delta_errors(uri: str) -> Iterator[None]:
    """Errors of deltalake as ours, with the table's name."""
    exceptions = package().exceptions
    try:
        yield
    except exceptions.TableNotFoundError as error:
        raise ResourceError(f"{uri} is no Delta table: it has no _delta_log") from error
    except (exceptions.DeltaError, OSError) as error:
        if isinstance(error, exceptions.DeltaProtocolError) or "is not supported" in str(error):
            raise ConfigError(f"{uri}: {error}; let Spark do it, by spark.read.format('delta') or df.write") from error
        # deltalake paints what a store's client says, line by line
        words = re.sub(r"\x1b\[[0-9;]*m|↳", "", str(error)).split()
        raise ResourceError(f"{uri}: {' '.join(words)}") from error


def again(uri: str, look: Callable[[], Any]) -> Any:
    """What a look at a table gives, asked again where an answer of its store ends amid its body: deltalake does not."""
    for _ in range(LOOKS - 1):
        try:
            return look()
        except (package().exceptions.DeltaError, OSError) as error:
            if CUT not in str(error):
                raise
            log.info("%s: an answer of the store ended amid its body: asked again", uri)
    return look()


def location(path: Any, filesystem: Any = None, options: Mapping[str, str] | None = None) -> tuple[Any, str, str]:
    """The file system of a table, its path there, and what deltalake calls it; ``options``: what opens the table."""
    if filesystem is None and isinstance(path, str):
        filesystem = store_of(path, options)
    # deltalake decodes a URI: the files belong where it has the log
    decoded = unquote(re.split("[?#]", path)[0]) if isinstance(path, str) and "://" in path else path
    system, paths = file_system(decoded, filesystem)
    if len(paths) != 1:
        raise ConfigError(f"path is {path!r:.100}: give the path of one table")
    uri = str(path) if "://" in str(path) else paths[0]
    root = paths[0] if filesystem is None or is_store(system) else str(decoded).rpartition("://")[2]
    return system, root.rstrip("/"), uri


def opened(uri: str, options: Mapping[str, str] | None, version: Any = None, timestamp: Any = None) -> Any:
    """The table as it is, or was."""
    if version is not None and timestamp is not None:
        raise ConfigError(f"version is {version!r} and timestamp {timestamp!r}: give one of them")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise ConfigError(f"version is {version!r}: give a whole number, as in DESCRIBE HISTORY")
    if timestamp is not None and not isinstance(timestamp, str | datetime.datetime):
        raise ConfigError(f"timestamp is {timestamp!r}: give a datetime, or text as in '2026-01-31T12:00:00Z'")
    with delta_errors(uri):
        table = again(uri, lambda: package().DeltaTable(uri, storage_options=dict(options) if options else None))
        newest = table.version()
        if version is not None and version > newest:
            raise ResourceError(f"{uri} has no version {version}: its newest one is {newest}")
        if version is not None:
            table.load_as_version(version)
        if timestamp is not None:
            try:
                table.load_as_version(timestamp)
            except ValueError as error:
                raise ConfigError(
                    f"timestamp is {timestamp!r}: {error}; give a datetime, or text as in '2026-01-31T12:00:00Z'"
                ) from error
    return table


def delta_source(
    spark: Any,
    path: Any,
    version: int | None,
    timestamp: Any,
    columns: Iterable[str] | None,
    filter: Any,
    filesystem: Any,
    options: Mapping[str, str] | None,
) -> sources.Source:
    """A source of the files that have the rows of a version of a Delta table."""
    import pyarrow as pa

    honoured = read_options(spark, "parquet", {})
    system, root, uri = location(path, filesystem, options)
    table = opened(uri, options, version, timestamp)
    _check_reading(table, uri)
    whole = spark_schema(table)
    read_with, shown = sources._schemas(spark, whole, columns, filter)
    filtered = Skipping(filter, read_with)
    by = list(table.metadata().partition_columns)
    with delta_errors(uri):
        actions = pa.table(table.get_add_actions())
        rows = _kept_rows(table) if "deletionVectors" in features(table)[0] else {}
    types = {name: arrow_schema(_only(whole, name), session_zone(spark)).field(0).type for name in by}
    layout = Parquet()
    fragments = []
    for at, raw in enumerate(actions["path"].to_pylist()):
        if "://" in raw or raw.startswith("/"):
            raise ConfigError(
                f"{uri} has a file that is not below it, {raw}, as a shallow clone has: let Spark read it"
            )
        values = pa_scalars(actions, "partition", by, at)
        expression = skipping.equal({name: value.cast(types[name]) for name, value in values.items()})
        bounded = {name: read_with.field(name).type for name in filtered.columns if name not in by}
        if filtered.columns and filtered.skips(expression, _bounds(actions, at, bounded)):
            continue
        file = File(f"{root}/{unquote(raw)}", actions["size_bytes"][at].as_py(), -1, (), rows.get(raw))
        fragments.append((file, layout.fragment(file.path, system, expression, file.size)))
    asked = sources.Asked(spark, "read_delta", path, columns, filter, filesystem, honoured)
    return sources._shared(asked, fragments, read_with, shown, whole)


def spark_schema(table: Any) -> StructType:
    """The table's columns as Spark has them; one whose type Spark cannot read here stands refused."""
    from pyspark.sql.types import StructType

    struct = StructType()
    for field in json.loads(table.schema().to_json())["fields"]:
        try:
            struct.add(nullable(StructType.fromJson({"type": "struct", "fields": [{**field, "metadata": {}}]}))[0])
        except Exception as error:  # PySpark has several
            struct.add(
                refused(field["name"], SchemaError(f"column {field['name']!r} has the type {field['type']}: {error}"))
            )
    return struct


def features(table: Any) -> tuple[set[str], set[str]]:
    """What a table asks of readers, and of writers, by name; those that have numbers alone count too."""
    protocol, config = table.protocol(), table.metadata().configuration
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    if protocol.min_reader_version == 2 and config.get("delta.columnMapping.mode", "none") != "none":
        readers.add("columnMapping")
    if config.get("delta.columnMapping.mode", "none") == "none":
        readers.discard("columnMapping")  # it may be used, and is not
    return readers, writers


def _check_reading(table: Any, uri: str) -> None:
    for name in sorted(features(table)[0] - READ_FEATURES):
        advice = READ_ADVICE.get(name, "let Spark read it: fbs.pipeline(spark.read.format('delta').load(path))")
        raise ConfigError(f"{uri} needs readers that know Delta's feature {name}, and read_delta does not: {advice}")


def _only(schema: StructType, name: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([schema[name]])


def pa_scalars(actions: pa.Table, group: str, names: Iterable[str], at: int) -> dict[str, Any]:
    """The values of an action in one of its structs: ``partition``, ``min``, ``max``, ``null_count``."""
    if group not in actions.schema.names:
        return {}
    row, kind = actions[group][at], actions.schema.field(group).type
    return {name: row[name] for name in names if kind.get_field_index(name) >= 0 and row.is_valid}


def _bounds(actions: pa.Table, at: int, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """What the log says of a file's values in these columns, as expressions that are true of all its rows."""
    rows = actions["num_records"][at].as_py()
    least, most, nulls = (pa_scalars(actions, group, types, at) for group in ("min", "max", "null_count"))
    counts = {name: count.as_py() for name, count in nulls.items() if not hasattr(count, "keys")}
    return skipping.between(rows, types, counts, least, most, EXACT_DIGITS)


def _kept_rows(table: Any) -> dict[str, Any]:
    """Of files with deletion vectors, by their path in the log: whether each row is kept; those behind the last are."""
    import pyarrow as pa

    base = table.table_uri.rstrip("/") + "/"
    return {
        path.removeprefix(base): vector.values
        for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
        for path, vector in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True)
    }
