"""Iceberg tables, by their catalog: which files have the rows of a snapshot, and what its manifests say of these."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, FastbufError, ResourceError, SchemaError
from fastbuf_spark.driver import skipping, sources
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.file_types import nullable, of_arrow, refused
from fastbuf_spark.driver.files import File
from fastbuf_spark.driver.reader_options import read_options
from fastbuf_spark.expressions import Skipping
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.schema import arrow_schema, session_zone
from fastbuf_spark.worker.reading import FIELD_ID, NAMES, NEEDED

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

DIGITS = 38  #: most digits of decimals whose bounds are used
LEFT_TO_SPARK = "let Spark read it: fbs.pipeline(spark.table(...))"
_SECRET = re.compile(r"secret|password|token|credential|key|sas|auth", re.I)
_USER = re.compile(r"(?<=//)[^/@\s]*:[^@\s]*(?=@)")  #: user and password in a URI


def package() -> Any:
    """The package pyiceberg."""
    try:
        import pyiceberg
    except ImportError as error:
        raise ConfigError("Iceberg tables need the package pyiceberg: pip install 'fastbuf[iceberg]'") from error
    return pyiceberg


@contextmanager
def opened(given: Any, table: Any = "") -> Iterator[Any]:
    """A catalog, by its name in pyiceberg's configuration, or by its properties, which errors do not show.

    Parameters
    ----------
    given
        A name, properties (``name`` among them if it has one), or a catalog of pyiceberg, which stays open.
    table
        The name of the table that errors are about.
    """
    package()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError

    catalog: Any = None
    secrets: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    try:
        if isinstance(given, str):
            catalog = load_catalog(given)
        elif isinstance(given, Mapping):
            rest = dict(given)
            catalog = load_catalog(rest.pop("name", "default"), **rest)
        elif hasattr(given, "load_table"):
            catalog = given
        else:
            raise ConfigError(
                f"catalog is a {type(given).__name__}: give its name, its properties, or one of pyiceberg"
            )
        secrets = {**secrets, **catalog.properties}
        yield catalog
    except FastbufError:
        raise
    except Exception as error:  # catalogs have libraries of their own, with errors of their own
        kind: type[FastbufError] = ResourceError
        if isinstance(error, NoSuchTableError | NoSuchNamespaceError):
            text = f"there is no such Iceberg table ({error})"
        else:
            text = f"{error}"
            if catalog is None or isinstance(error, ValueError | NotInstalledError | NotImplementedError):
                kind = ConfigError
        hidden = _hidden(text, secrets)
        shows = any(_hidden(str(each), secrets) != str(each) for each in _chain(error))
        raise kind(f"Iceberg table {named(table)}: {hidden}") from (None if shows else error)
    finally:
        if catalog is not None and catalog is not given:
            catalog.close()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _hidden(text: str, properties: Mapping[str, Any]) -> str:
    """Without the values of properties that are nobody's business."""
    for name, value in properties.items():
        if _SECRET.search(name) and str(value):
            text = text.replace(str(value), "***")
    return _USER.sub("***", text)


def named(table: Any) -> str:
    """A table's name as text."""
    return table if isinstance(table, str) else ".".join(map(str, table))


def existing(catalog: Any, table: Any) -> Any | None:
    """The table, if there is one."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(table)
    except NoSuchTableError:
        return None


def places(properties: Mapping[str, Any], filesystem: Any) -> Callable[[str], tuple[Any, str]]:
    """Gives the file system of a location by which workers read and write, and the path there."""
    from pyarrow import fs
    from pyiceberg.io.pyarrow import PyArrowFileIO

    stores = PyArrowFileIO(dict(properties))
    other = None if filesystem is None else file_system("/", filesystem)[0]

    def of(location: str) -> tuple[Any, str]:
        scheme, host, path = PyArrowFileIO.parse_location(location, stores.properties)
        if other is not None:
            return other, path
        return fs.LocalFileSystem() if scheme == "file" else stores.fs_by_scheme(scheme, host), path

    return of


def iceberg_source(
    spark: Any,
    catalog: Any,
    table: Any,
    snapshot: Any,
    columns: Iterable[str] | None,
    filter: Any,
    filesystem: Any,
) -> sources.Source:
    """A source of the files that have the rows of a snapshot of an Iceberg table."""
    import pyarrow as pa

    honoured = read_options(spark, "parquet", {})
    with opened(catalog, table) as home:
        from pyiceberg.io.pyarrow import _read_all_delete_files

        there = home.load_table(table)
        scan = there.scan(snapshot_id=snapshot_id(there, snapshot, named(table)))
        schema = scan.projection()
        tasks = planned(scan, named(table))
        deleted = _read_all_delete_files(there.io, tasks)
    whole = spark_schema(schema)
    read_with, shown = sources._schemas(spark, whole, columns, filter)
    filtered = Skipping(filter, read_with)
    fields = {field.name: field for field in schema.fields}
    types = {field.name: field.type for field in read_with}
    place = places(there.io.properties, filesystem)
    parts = {number: _identities(spec, schema, whole, spark) for number, spec in there.specs().items()}
    layout = Parquet()
    fragments = []
    for task in tasks:
        file = task.file
        _check_file(file, named(table))
        # Files that others have added may lack the columns of their partition
        values = {name: scalar(file.partition[at], kind) for name, (at, kind) in parts[file.spec_id].items()}
        expression = skipping.equal({name: value for name, value in values.items() if value.as_py() == value.as_py()})
        bounded = {name: fields[name] for name in filtered.columns}
        if filtered.columns and filtered.skips(expression, _bounds(file, bounded, types)):
            continue
        system, path = place(file.file_path)
        mask = _mask(deleted[file.file_path]) if file.file_path in deleted else None
        size = file.file_size_in_bytes
        fragments.append((File(path, size, -1, (), mask), layout.fragment(path, system, expression, size)))
    names, unknown = _names(there), _rounded(there, schema)
    numbered = pa.schema(
        [
            with_ids(field, fields[field.name], names, {NEEDED: b""} if field.name in unknown else {})
            for field in read_with
        ]
    )
    asked = sources.Asked(spark, "read_iceberg", named(table), columns, filter, filesystem, honoured)
    return sources._shared(asked, fragments, numbered, shown, whole)


def spark_schema(schema: Any) -> StructType:
    """The table's columns as Spark has them; one that is not read here stands refused."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyspark.sql.types import StructType

    struct = StructType()
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    for field, shown in zip(schema.fields, of_arrow(arrow), strict=True):
        odd = [each for each in _nested(field) if each.initial_default is not None]
        if odd:
            why = f"column {field.name!r} has a default in files without it ({odd[0].name}), and nulls are read here"
            struct.add(refused(field.name, SchemaError(f"{why}: {LEFT_TO_SPARK}")))
        else:
            struct.add(shown)
    return nullable(struct)


def _nested(field: Any) -> Iterator[Any]:
    """A field, and those in it."""
    yield field
    for each in getattr(field.field_type, "fields", ()):
        yield from _nested(each)


def with_ids(
    field: pa.Field, theirs: Any, names: Mapping[int, str], more: Mapping[bytes, bytes] | None = None
) -> pa.Field:
    """A field with the ids of the table's, at any depth, and its ``names`` in files without ids, as JSON."""
    metadata = {**(field.metadata or {}), FIELD_ID: str(theirs.field_id).encode(), **(more or {})}
    if names:
        metadata[NAMES] = names.get(theirs.field_id, "[]").encode()
    return field.with_type(_numbered(field.type, theirs.field_type, names)).with_metadata(metadata)


def _numbered(kind: pa.DataType, theirs: Any, names: Mapping[int, str]) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([with_ids(*pair, names) for pair in zip(kind, theirs.fields, strict=True)])
    if pa.types.is_list(kind):
        return pa.list_(with_ids(kind.value_field, theirs.element_field, names))
    if pa.types.is_map(kind):
        key = with_ids(kind.key_field, theirs.key_field, names)
        return pa.map_(key, with_ids(kind.item_field, theirs.value_field, names))
    return kind


def _names(table: Any) -> dict[int, str]:
    """The names of fields in files without ids, if the table has them."""
    texts: dict[int, str] = {}

    def add(fields: Iterable[Any]) -> None:
        for each in fields:
            if each.field_id is not None:
                texts[each.field_id] = json.dumps(list(each.names))
            add(each.fields)

    mapping = table.name_mapping()
    if mapping is not None:
        add(mapping.root)
    return texts


def snapshot_id(table: Any, snapshot: Any, name: str) -> int | None:
    """The id of a snapshot: itself, the one that a branch or tag has, or the newest one of a time."""
    if snapshot is None:
        return None
    if isinstance(snapshot, bool) or not isinstance(snapshot, int | str | datetime.datetime):
        raise ConfigError(f"snapshot is {snapshot!r:.100}: give its number, the name of a branch or tag, or a datetime")
    if isinstance(snapshot, datetime.datetime):
        at = snapshot if snapshot.tzinfo else snapshot.replace(tzinfo=datetime.UTC)
        chosen = table.snapshot_as_of_timestamp(int(at.timestamp() * 1000))
    else:
        chosen = (table.snapshot_by_name if isinstance(snapshot, str) else table.snapshot_by_id)(snapshot)
    if chosen is None:
        there = [each.snapshot_id for each in table.snapshots()]
        raise ResourceError(
            f"Iceberg table {name} has no snapshot {snapshot}, only {there[-5:]} and {sorted(table.refs())}"
        )
    return int(chosen.snapshot_id)


def planned(scan: Any, name: str) -> list[Any]:
    """The files of a scan, each with the files of its deletes."""
    try:
        return list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        if "equality delete" not in str(error):
            raise
        raise ConfigError(
            f"Iceberg table {name} has equality deletes, which fastbuf does not apply: {LEFT_TO_SPARK}, or have it "
            "rewrite the files (rewrite_data_files)"
        ) from error


def _check_file(file: Any, name: str) -> None:
    if file.file_format != "PARQUET":
        raise ConfigError(f"Iceberg table {name} has files of {file.file_format}, not of Parquet: {LEFT_TO_SPARK}")
    if file.key_metadata is not None:
        raise ConfigError(f"Iceberg table {name} has encrypted files: {LEFT_TO_SPARK}")


def scalar(value: Any, kind: pa.DataType) -> Any:
    """A value as manifests have it: days and microseconds as whole numbers."""
    import pyarrow as pa

    if value is not None and pa.types.is_date(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    if value is not None and pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def _identities(spec: Any, schema: Any, whole: StructType, spark: Any) -> dict[str, tuple[int, pa.DataType]]:
    """The columns that have one value in all rows of a file: their places in its partition, and their types."""
    import pyarrow as pa
    from pyiceberg.transforms import IdentityTransform
    from pyspark.sql.types import StructType

    identities = {}
    for at, part in enumerate(spec.fields):
        name = schema.find_column_name(part.source_id)
        if not isinstance(part.transform, IdentityTransform) or name not in whole.names:
            continue
        kind = arrow_schema(StructType([whole[name]]), session_zone(spark)).field(0).type
        if skipping.has_bounds(kind, DIGITS) and kind != pa.float64():
            identities[name] = at, kind
    return identities


def _rounded(table: Any, schema: Any) -> set[str]:
    """Columns whose values in partitions pyiceberg rounds as it reads them: files must have them."""
    from pyiceberg.transforms import IdentityTransform

    parts = (part for spec in table.specs().values() for part in spec.fields)
    sources = {part.source_id for part in parts if isinstance(part.transform, IdentityTransform)}
    return {each.name for each in schema.fields if each.field_id in sources and str(each.field_type) == "double"}


def _bounds(file: Any, fields: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """What a manifest says of a file's values in these columns, as expressions that are true of all its rows."""
    from pyiceberg.conversions import from_bytes

    def of(bounds: Any) -> dict[str, Any]:
        return {
            name: scalar(from_bytes(field.field_type, bounds[field.field_id]), types[name])
            for name, field in fields.items()
            if bounds and field.field_id in bounds and skipping.has_bounds(types[name], DIGITS)
        }

    nulls = file.null_value_counts or {}
    counts = {name: nulls.get(field.field_id) for name, field in fields.items()}
    kinds = {name: types[name] for name in fields}
    return skipping.between(file.record_count, kinds, counts, of(file.lower_bounds), of(file.upper_bounds), DIGITS)


def _mask(deleted: Iterable[Any]) -> Any:
    """Whether each row of a file, up to the last one that was deleted, is kept."""
    import numpy as np
    import pyarrow as pa

    places = np.concatenate([np.asarray(each) for each in deleted])
    mask = np.ones(int(places.max(initial=-1)) + 1, dtype=bool)
    mask[places] = False
    return pa.array(mask)
