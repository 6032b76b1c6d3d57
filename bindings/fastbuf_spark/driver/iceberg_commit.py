"""Commits to Iceberg tables: what a table takes, and who came first."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver import table_columns, writer_options
from fastbuf_spark.driver.commit import CommitUnknown
from fastbuf_spark.driver.iceberg import (
    existing,
    named,
    opened,
    places,
    planned,
    snapshot_id,
    spark_schema,
    with_ids,
)
from fastbuf_spark.driver.iceberg_files import data_file, may_miss, shown, spec_of, transform_of
from fastbuf_spark.worker.iceberg import IcebergWrite

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("fastbuf_spark")

_TYPES = re.compile(r"(string|int|bigint|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(.*\))")
CODEC = "write.parquet.compression-codec"  #: a table's property
TRIES = 25  #: of a commit that finds a new snapshot, each with the retries that the table asks for
MARK = "fastbuf.folder"  #: in a snapshot's summary: the directory of its files
VERSIONS = (1, 2)  #: of the format that pyiceberg writes


def check_columns(schema: StructType) -> None:
    """SchemaError for columns that Iceberg does not have, by their names."""
    table_columns.check_types(schema, _TYPES, "Iceberg", " (tinyint and smallint: cast them to int)")


class IcebergCommit:
    """A commit of files to a table, which there may not be yet.

    Parameters
    ----------
    rows
        Spark's schema of the rows.
    arrow
        The same, as Arrow has it.
    by
        Partitions of a table that is made, as texts (``"day(t)"``); of one that is there they must be these.

    Attributes
    ----------
    is_there
        Whether there is such a table.
    metadata
        That of the table, or of the one that is to be made.
    names
        The table's own names of the columns.
    """

    def __init__(self, catalog: Any, table: Any, rows: StructType, arrow: pa.Schema, by: Iterable[str] | None) -> None:
        self._catalog, self._table, self._rows = catalog, table, rows
        self.name = f"Iceberg table {named(table)}"
        with opened(catalog, table) as home:
            there = existing(home, table)
            self.is_there = there is not None
            if there is None:
                transaction = self._make(home, arrow, by)
                self.metadata, self._io = transaction.table_metadata, transaction._table.io.properties
            else:
                self.metadata, self._io = there.metadata, there.io.properties
            # The table may set a folder of its own for its data (write.data.path)
            self.data = (there or transaction._table).location_provider().data_path
        if self.metadata.format_version not in VERSIONS:
            raise ConfigError(
                f"{self.name} has version {self.metadata.format_version} of the format, which pyiceberg does not "
                "write: let Spark write it, by df.writeTo"
            )
        schema, spec = self.metadata.schema(), self.metadata.spec()
        parts = [schema.find_column_name(field.source_id) for field in spec.fields]
        needed = [field.name for field in schema.fields if field.required or field.name in parts]
        self.names = table_columns.matched(self.name, spark_schema(schema), needed, rows)
        self._check_nulls()
        if self.is_there and by is not None:
            theirs = [shown(field, schema) for field in spec.fields]
            if [shown(field, schema) for field in spec_of(by, schema).fields] != theirs:
                raise ConfigError(
                    f"partition_by is {list(by)}, and {self.name} is partitioned by {theirs}: leave it out"
                )

    def _make(self, home: Any, arrow: pa.Schema, by: Iterable[str] | None, location: str | None = None) -> Any:
        """A transaction that makes the table."""
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
        from pyiceberg.schema import assign_fresh_schema_ids

        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))
        self._arrow, self._by = arrow, by
        return home.create_table_transaction(self._table, schema, location, spec_of(by or (), schema))

    def _check_nulls(self) -> None:
        """SchemaError if fields below a column may be null, that have none in the table."""
        fields = {field.name: field for field in self.metadata.schema().fields}
        for field, name in zip(self._rows.fields, self.names, strict=True):
            theirs = fields[name]
            unseen = theirs.required and field.nullable and not theirs.field_type.is_primitive
            if unseen or may_miss(field.dataType, theirs.field_type):
                raise SchemaError(
                    f"column {field.name!r} may have nulls, as {field.dataType.simpleString()}, where {self.name} has "
                    "none: give it a type without, or let Spark write it, by df.writeTo"
                )

    def write(self, files: pa.Schema, filesystem: Any, compression: str | None, memory_bytes: int) -> Any:
        """The file system, the path of the table's data there, and a function that gives what tasks do.

        Parameters
        ----------
        files
            Arrow's schema of the files, with the table's names.
        """
        import pyarrow as pa

        codec = compression or writer_options.codec(self.metadata.properties.get(CODEC, "zstd"), CODEC)
        schema, spec = self.metadata.schema(), self.metadata.spec()
        fields = {field.name: field for field in schema.fields}
        numbered = pa.schema([with_ids(field, fields[field.name], {}) for field in files], files.metadata)
        by, transforms = [], []
        for part in spec.fields:
            name = schema.find_column_name(part.source_id)
            if name not in fields:
                raise ConfigError(
                    f"{self.name} is partitioned by a field of a nested column, {name}: let Spark write it"
                )
            by.append((part.name, files.names.index(name)))
            transforms.append(transform_of(part, fields[name], schema))
        system, root = places(self._io, filesystem)(self.data)
        columns = tuple(range(len(files)))

        def of(folder: str) -> IcebergWrite:
            return IcebergWrite(
                system, folder, numbered, columns, tuple(by), codec, memory_bytes, transforms=tuple(transforms)
            )

        return system, root, of

    def read_snapshot(self, snapshot: Any) -> int | None:
        """The number of the snapshot whose rows an overwrite replaces."""
        if snapshot is None or not self.is_there:
            return None
        with opened(self._catalog, self._table) as home:
            return snapshot_id(home.load_table(self._table), snapshot, named(self._table))

    def has(self, folder: str) -> bool:
        """Whether a snapshot of the table has files of this directory."""
        with opened(self._catalog, self._table) as home:
            there = existing(home, self._table)
            return there is not None and _has(there, folder)

    def files(self, folder: str, rows: Sequence[Any]) -> list[Any]:
        """Files that tasks wrote, as manifests have them.

        Raises
        ------
        SchemaError
            There is a null in a column that has none.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        needed = {field.name for field in self.metadata.schema().fields if field.required}
        files = []
        for row in rows:
            footer = pq.read_metadata(pa.BufferReader(base64.b64decode(row.details)))
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for column in map(group.column, range(footer.num_columns)):
                    if column.path_in_schema in needed and column.statistics.null_count:
                        raise SchemaError(
                            f"column {column.path_in_schema!r} may not be null in {self.name}, and "
                            f"{column.statistics.null_count} rows have none there"
                        )
            files.append(data_file(self.metadata, f"{self.data}/{folder}", row, footer))
        return files

    def commit(self, folder: str, files: Sequence[Any], mode: str, predicate: Any = None, read: Any = None) -> None:
        """Add files, in place of those of some partitions, or of all, if ``mode`` is ``"overwrite"``.

        Parameters
        ----------
        read
            The snapshot whose files are replaced; None: the newest one.

        Raises
        ------
        ResourceError
            Another write has changed what this one replaces, the table's columns or its partitions, or has made it.
        """
        from pyiceberg.exceptions import (
            CommitFailedException,
            CommitStateUnknownException,
            TableAlreadyExistsError,
            ValidationException,
        )

        for attempt in range(TRIES):
            with opened(self._catalog, self._table) as home:
                there = existing(home, self._table)
                if there is not None and _has(there, folder):
                    return
                self._check_same(there, mode)
                try:
                    if there is None:
                        self._create(home, folder, files)
                    elif mode == "overwrite":
                        self._replace(there, folder, files, predicate, read)
                    else:
                        self._append(there, folder, files)
                    return
                except TableAlreadyExistsError:
                    pass
                except (CommitFailedException, ValidationException) as error:
                    if (mode == "overwrite" and read is None) or attempt + 1 == TRIES:
                        raise ResourceError(
                            f"{self.name}: another write has changed the table meanwhile, and nothing of this one is "
                            f"seen: run it again ({error})"
                        ) from error
                except CommitStateUnknownException as error:
                    raise CommitUnknown(
                        f"{self.name}: the catalog does not say whether the table has the rows of this write now: "
                        "look, and run it again if they are missing; its files stay until the next write"
                    ) from error
            log.info("%s: another write came first: commit %d of %d", self.name, attempt + 2, TRIES)
        raise ResourceError(f"{self.name}: the catalog has something of this name that is no Iceberg table")

    def _check_same(self, there: Any, mode: str) -> None:
        """ResourceError unless the table has the columns and the partitions that files were written for."""
        if there is None:
            if self.is_there:
                raise ResourceError(f"{self.name} has been removed meanwhile, and nothing of this write is seen")
            return
        mine, theirs = self.metadata, there.metadata
        if not self.is_there and mode != "append":
            raise ResourceError(f"{self.name}: another write has made it meanwhile; use mode='append'")
        if mine.schema() != theirs.schema() or mine.spec() != theirs.spec():
            raise ResourceError(
                f"{self.name}: another write has changed its columns or partitions meanwhile, and nothing of this one "
                "is seen: run it again"
            )
        if self.is_there and mine.table_uuid != theirs.table_uuid:
            raise ResourceError(f"{self.name} has been replaced by another table meanwhile: run it again")

    def _create(self, home: Any, folder: str, files: Sequence[Any]) -> None:
        transaction = self._make(home, self._arrow, self._by, self.metadata.location)
        if transaction.table_metadata.schema() != self.metadata.schema():
            raise ResourceError(f"{self.name}: the catalog has given its columns other numbers: run it again")
        if files:
            with transaction.update_snapshot(snapshot_properties={MARK: folder}).fast_append() as append:
                for file in files:
                    append.append_data_file(file)
        transaction.commit_transaction()

    def _append(self, there: Any, folder: str, files: Sequence[Any]) -> None:
        transaction = self._begun(there)
        with transaction.update_snapshot(snapshot_properties={MARK: folder}).fast_append() as append:
            for file in files:
                append.append_data_file(file)
        transaction.commit_transaction()

    def _replace(self, there: Any, folder: str, files: Sequence[Any], predicate: Any, read: Any) -> None:
        now = planned(there.scan(), named(self._table))
        tasks = now
        if read is not None:
            tasks = planned(there.scan(snapshot_id=read), named(self._table))
            deletes = {task.file.file_path: task.delete_files for task in now}
            if any(deletes.get(task.file.file_path) != task.delete_files for task in tasks):
                raise ResourceError(
                    f"{self.name}: another write has removed rows since snapshot {read}, and nothing of this one is "
                    "seen: run it again"
                )
        old = [task.file for task in tasks if self._is_chosen(there, task.file, predicate)]
        if not old and not files:
            return
        transaction = self._begun(there)
        with transaction.update_snapshot(snapshot_properties={MARK: folder}).overwrite() as overwrite:
            for file in old:
                overwrite.delete_data_file(file)
            for file in files:
                overwrite.append_data_file(file)
        transaction.commit_transaction()

    def _begun(self, there: Any) -> Any:
        """A transaction that fails if somebody changes columns or partitions meanwhile."""
        from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId

        transaction = there.transaction()
        schema = AssertCurrentSchemaId(current_schema_id=there.metadata.current_schema_id)
        transaction._apply((), (schema, AssertDefaultSpecId(default_spec_id=there.metadata.default_spec_id)))
        return transaction

    def predicate(self, predicate: Any) -> list[tuple[str, int, frozenset[Any]]] | None:
        """Names, ids and values of the columns of partitions that an overwrite replaces."""
        if predicate is None:
            return None
        from pyiceberg.expressions.literals import literal
        from pyiceberg.transforms import IdentityTransform

        schema = self.metadata.schema()
        parts = {
            schema.find_column_name(field.source_id): schema.find_field(field.source_id)
            for field in self.metadata.spec().fields
            if isinstance(field.transform, IdentityTransform)
        }
        triples = []
        for name, values in table_columns.partition_values(predicate, parts):
            field = parts[name]
            triples.append(
                (
                    field.name,
                    field.field_id,
                    frozenset(None if v is None else literal(v).to(field.field_type).value for v in values),
                )
            )
        return triples

    def check_predicate(self, files: Sequence[Any], predicate: Any) -> None:
        """ConfigError for files with rows that the predicate does not name."""
        for name, number, values in predicate or ():
            for file in files:
                table_columns.check_replaced(name, _identity(file, self.metadata.spec(), number), values)

    def _is_chosen(self, there: Any, file: Any, predicate: Any) -> bool:
        return all(
            _identity(file, there.specs()[file.spec_id], number) in values for _, number, values in predicate or ()
        )


def _identity(file: Any, spec: Any, source: int) -> Any:
    """The value of a column in all rows of a file."""
    from pyiceberg.transforms import IdentityTransform

    for at, field in enumerate(spec.fields):
        if field.source_id == source and isinstance(field.transform, IdentityTransform):
            return file.partition[at]
    raise ConfigError(f"predicate: {file.file_path} is of other partitions than the table has now: leave predicate out")


def _has(table: Any, folder: str) -> bool:
    """By the snapshots that are still listed, and by the files of the newest one, if that of the write has expired."""
    if any(each.summary is not None and each.summary.get(MARK) == folder for each in table.snapshots()):
        return True
    return any(f"/{folder}/" in path for path in table.inspect.data_files()["file_path"].to_pylist())
