"""Commits to Delta tables: what a table takes, the actions of files that tasks wrote, and who came first."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver import table_columns
from fastbuf_spark.driver.delta import again, delta_errors, features, opened, package, spark_schema
from fastbuf_spark.driver.directory_names import unescaped, values_of
from fastbuf_spark.driver.file_types import nullable
from fastbuf_spark.schema import types_in

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("fastbuf_spark")

#: What a table may ask of its writers; of some only that they are not used (see check_table)
WRITE_FEATURES = frozenset(
    (
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns"),
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    )
)
#: Settings of a table, and metadata of its columns, that ask writers to look at rows
_RULES = re.compile(
    r"delta\.(constraints\..*|invariants|generationExpression|identity\..*|columnMapping\.physicalName)"
)
_TYPES = re.compile(
    r"(string|tinyint|smallint|int|bigint|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(.*\))"
)
_ODD_NAME = re.compile(r"[ ,;{}()\n\t=]")
#: How often a commit is tried, if another write has changed the table meanwhile and deltalake cannot commit behind it
TRIES = 3
#: How often deltalake itself tries a stream's commit behind the versions that other tasks have just made
RETRIES = 100
MARK = "fastbufTransaction"
FOLDER = "fastbufFolder"


@dataclass(frozen=True)
class Added:
    """A file that a task wrote: its path below the table, size, partition values by name, and statistics."""

    path: str
    size: int
    values: Mapping[str, str | None]
    statistics: str

    @classmethod
    def of(cls, folder: str, attempt: str, path: str, size: int, statistics: str) -> Added:
        """From what a task reports of it."""
        named = values_of(path.split("/")[:-1])
        values = {name: None if value is None else unescaped(value) for name, value in named}
        return cls(f"{folder}/{attempt}/{path}", size, values, statistics)

    def action(self) -> Any:
        """For deltalake, which escapes the path."""
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        return AddAction(self.path, self.size, dict(self.values), now, True, self.statistics)


def existing(uri: str, options: Mapping[str, str] | None) -> Any | None:
    """The table, if there is one."""
    with delta_errors(uri):
        is_there = again(uri, lambda: package().DeltaTable.is_deltatable(uri, dict(options) if options else None))
    return opened(uri, options) if is_there else None


def check_columns(schema: StructType) -> None:
    """SchemaError for columns that Delta does not have, by their names."""
    from pyspark.sql.types import StructType

    table_columns.check_types(schema, _TYPES, "Delta")
    for field in schema.fields:
        nested = (each.names for each in types_in(field.dataType) if isinstance(each, StructType))
        for name in [field.name, *(name for names in nested for name in names)]:
            if _ODD_NAME.search(name):
                raise SchemaError(f"column {name!r} has one of ' ,;{{}}()=' in its name, which Delta does not take")


def check_table(table: Any, uri: str, schema: StructType, by: Sequence[str] | None, replaces: bool) -> list[str]:
    """The table's own names for these columns, if it takes such rows.

    Raises
    ------
    ConfigError
        It asks for what is not done here, or has other partitions.
    SchemaError
        Its columns, or their types, are others.
    """
    theirs = table.metadata()
    raw = json.loads(table.schema().to_json())["fields"]
    asks = sorted(features(table)[1] - WRITE_FEATURES)
    asks += [name for name in theirs.configuration if _RULES.fullmatch(name)]
    asks += [
        f"{name} of column {field['name']!r}" for field in raw for name in field["metadata"] if _RULES.fullmatch(name)
    ]
    if asks:
        raise ConfigError(
            f"{uri} asks its writers for {asks[0]}, which fastbuf does not do: let Spark or deltalake write"
        )
    if replaces and theirs.configuration.get("delta.appendOnly", "false").lower() == "true":
        raise ConfigError(f"{uri} has delta.appendOnly=true, and an overwrite would remove rows: append")
    columns = list(theirs.partition_columns)
    needed = [field["name"] for field in raw if not field["nullable"] or field["name"] in columns]
    names = table_columns.matched(uri, spark_schema(table), needed, schema)
    if by is not None and [name.casefold() for name in by] != [name.casefold() for name in columns]:
        raise ConfigError(f"partition_by is {list(by)}, and {uri} is partitioned by {columns}: leave it out")
    return names


def check_nulls(table: Any, files: Sequence[Added]) -> None:
    """SchemaError if there is a null in a column of the table's that has none."""
    needed = [f["name"] for f in json.loads(table.schema().to_json())["fields"] if not f["nullable"]]
    for file in files:
        nulls = json.loads(file.statistics)["nullCount"]
        for name in needed:
            if file.values.get(name, "") is None or (name not in file.values and nulls.get(name, 1)):
                raise SchemaError(
                    f"column {name!r} may not be null in this table, and {nulls.get(name)} rows have none there"
                )


class DeltaCommit:
    """A commit of files to a table, which there may not be yet.

    Parameters
    ----------
    schema, by
        Those of a table that is made.
    options
        For deltalake.
    """

    def __init__(self, uri: str, options: Mapping[str, str] | None, schema: StructType, by: Sequence[str]) -> None:
        self._uri, self._options, self._schema, self._by = uri, options, schema, list(by)

    def append(
        self,
        files: Sequence[Added],
        application: tuple[str, int] | None = None,
        check: Callable[[Sequence[Added]], None] | None = None,
    ) -> bool:
        """Add files, whoever else adds some; False if the application's transaction is in the log already.

        Parameters
        ----------
        application
            Name and version of a transaction that is made once.  Versions may come in any order.
        check
            Called before files are added.
        """
        return self._commit(files, "append", None, application, check)

    def replace(
        self, files: Sequence[Added], predicate: Sequence[tuple[str, str, Any]] | None, read: int | None = None
    ) -> None:
        """Replace the table's files, or those of some partitions.

        Parameters
        ----------
        read
            The version whose files are replaced: what was added since stays.  None: the newest one.

        Raises
        ------
        ResourceError
            Another write has removed some of them meanwhile.
        """
        self._commit(files, "overwrite", predicate, read=read)

    def create(self, files: Sequence[Added]) -> None:
        """Make the table.

        Raises
        ------
        ResourceError
            Another write has made it meanwhile.
        """
        self._create(files, None)

    def has(self, folder: str) -> bool:
        """Whether a version of the table has files of this directory."""
        table = existing(self._uri, self._options)
        if table is None:
            return False
        import pyarrow as pa

        now = map(unquote, pa.table(table.get_add_actions())["path"].to_pylist())
        return any(path.startswith(f"{folder}/") for path in now) or any(
            each.get(FOLDER) == folder for each in table.history()
        )

    def _commit(
        self,
        files: Sequence[Added],
        mode: str,
        predicate: Any,
        application: Any = None,
        check: Any = None,
        read: int | None = None,
    ) -> bool:
        exceptions = package().exceptions
        for attempt in range(TRIES):
            table = existing(self._uri, self._options)
            if read is not None:
                table = opened(self._uri, self._options, read)
            try:
                named = application
                if application and table is not None:
                    named = not_made(table, *application)
                    if named is None:
                        return False
                if check is not None:
                    check(files)
                if table is None:
                    self._create(files, application)
                    return True
                check_table(table, self._uri, self._schema, None, mode == "overwrite")
                check_nulls(table, files)
                with delta_errors(self._uri):
                    table.create_write_transaction(
                        [file.action() for file in files],
                        mode,
                        table.schema(),
                        self._by,
                        partition_filters=predicate,
                        commit_properties=properties_of(named, application, files),
                    )
                return True
            except ResourceError as error:
                conflict = isinstance(error.__cause__, exceptions.CommitFailedError) or "made it meanwhile" in str(
                    error
                )
                if not conflict:
                    raise
                if mode == "overwrite" or attempt + 1 == TRIES:
                    raise ResourceError(
                        f"{self._uri}: another write has changed the table meanwhile, and nothing of this one is seen: "
                        f"run it again ({error.__cause__ or error})"
                    ) from error
                log.info("%s: another write came first: commit %d of %d", self._uri, attempt + 2, TRIES)
        raise AssertionError("not reached")

    def _create(self, files: Sequence[Added], application: Any) -> None:
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        try:
            with delta_errors(self._uri):
                create_table_with_add_actions(
                    self._uri,
                    Schema.from_json(json.dumps(nullable(self._schema).jsonValue())),
                    [file.action() for file in files],
                    "error",
                    self._by,
                    storage_options=dict(self._options) if self._options else None,
                    commit_properties=properties_of(application, application, files),
                )
        except ResourceError as error:
            if existing(self._uri, self._options) is None:
                raise
            raise ResourceError(f"{self._uri}: another write has made it meanwhile; use mode='append'") from error


def not_made(table: Any, name: str, version: int) -> tuple[str, int] | None:
    """The transaction to make for this version of an application; None: it is in the log.

    Delta keeps the newest version alone.  One that comes after a newer one gets a name of its own.
    """
    newest = table.transaction_version(name)
    if newest is None or newest < version:
        return name, version
    own = f"{name}-{version}"
    is_made = newest == version or table.transaction_version(own) is not None
    return None if is_made or any(each.get(MARK) == own for each in table.history()) else (own, version)


def properties_of(named: tuple[str, int] | None, application: tuple[str, int] | None, files: Sequence[Added]) -> Any:
    """The directory of the files, the transaction, and a mark of it, in the table's history."""
    from deltalake.transaction import CommitProperties, Transaction

    info = {FOLDER: files[0].path.partition("/")[0]} if files else {}
    if named is None or application is None:
        return CommitProperties(custom_metadata=info)
    info[MARK] = f"{application[0]}-{application[1]}"
    # Tasks of a stream commit at the same time: each adds its files to what the others have added
    return CommitProperties(custom_metadata=info, max_commit_retries=RETRIES, app_transactions=[Transaction(*named)])
