"""Writes rows to a table of PostgreSQL: see :func:`to_postgres`.

Rows are staged in files of the checkpoint's.  A commit is one transaction: a marker, a row that names the file, and the
file's rows.  A marker that is there already says that they are, so a commit may be made again, by any task; one that
another session is about to write is waited for.  No prepared transactions, so no setting of the server's is needed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.postgres_types import COLUMNS, Column, check_columns, copy_csv
from fastbuf_spark.streams.sink import CommitFailed, Committable, SinkContext, SinkWriter, StagedRows
from fastbuf_spark.streams.staged import MARKERS_KEPT, StagingWriter, attempts, rows_of, staged_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import Connection, Cursor, sql

MARKERS = "fastbuf_commits"
MARKER_COLUMNS = (
    "job text, file text, task int, checkpoint bigint, rows bigint, "
    "at timestamptz DEFAULT now(), PRIMARY KEY (job, file)"
)
#: A session whose host is gone holds what its transaction has locked no longer than this
LIMITS = {"idle_in_transaction_session_timeout": "60s", "lock_timeout": "60s", "tcp_keepalives_idle": "30"}
TEMPORARY = "fastbuf_rows"


def to_postgres(dsn: str, table: str, *, keys: Sequence[str] = (), markers: str = MARKERS) -> PostgresSink:
    """A sink that writes rows to a table of PostgreSQL.

    Parameters
    ----------
    dsn
        What libpq takes, as ``"host=db dbname=sales user=writer"`` or ``"postgresql://writer@db/sales"``.  A password
        may stand in it, and is shown nowhere; or in the executors' ``PGPASSWORD`` or ``PGPASSFILE``.
    table
        As ``"orders"`` or ``"sales.orders"``, without quotes.  It must exist, with columns of the rows' names.
    keys
        Columns of a primary key, or of a unique index without nulls: a row replaces the one with the same key, so that
        the output mode "update" can be written too.
    markers
        The table of markers: many streams may share it.  It is created where it is missing.

    Raises
    ------
    ConfigError
        `dsn` is none, or psycopg is not installed.
    """
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise ConfigError("streams to PostgreSQL need psycopg: pip install 'fastbuf[postgres]'") from error
    try:
        secret = conninfo_to_dict(dsn).get("password")
    except psycopg.Error:
        words = "dsn is not what libpq takes, as 'host=db dbname=sales user=writer' or 'postgresql://writer@db/sales'"
        raise ConfigError(f"{words}; what libpq says of it may show a password, and is left out") from None
    return PostgresSink(
        Server(dsn, str(secret or "")), table, tuple([keys] if isinstance(keys, str) else keys), markers
    )


@dataclass(frozen=True)
class Server:
    """Where the database is, and how to get in, which no text that is made of this shows."""

    dsn: str = field(repr=False)
    secret: str = field(repr=False)

    def connect(self, name: str) -> Connection:
        """A connection, which `name` tells from others; a commit that is told is durable."""
        import psycopg

        connection = psycopg.connect(
            self.dsn, application_name=name, connect_timeout=10, keepalives_idle=30, tcp_user_timeout=60_000
        )
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with connection.transaction():
            for setting, value in LIMITS.items():
                connection.execute("SELECT set_config(%s, %s, false)", (setting, value))
            durable = "SELECT set_config('synchronous_commit', 'on', false)"
            connection.execute(f"{durable} WHERE current_setting('synchronous_commit') = 'off'")
        return connection

    def text_of(self, error: Exception) -> str:
        """What an error says, in one line, without the password."""
        text = " ".join(str(error).split())
        for hidden in filter(None, (self.dsn, self.secret)):
            text = text.replace(hidden, "***")
        return f"{type(error).__name__}: {text}"

    @contextlib.contextmanager
    def asked(self, what: str, kind: type[Exception] = ConfigError) -> Iterator[Connection]:
        """A connection for some questions; its errors are of that kind."""
        import psycopg

        try:
            with self.connect("fastbuf") as connection:
                yield connection
        except psycopg.Error as error:
            raise kind(f"{what}: {self.text_of(error)}") from None


class PostgresSink:
    """See :func:`to_postgres`."""

    def __init__(self, server: Server, table: str, keys: tuple[str, ...], markers: str) -> None:
        self.server, self.table, self.keys, self.markers = server, table, keys, markers
        self.output_modes = ("append", "update") if keys else ("append",)
        self.name = f"postgres({table})"

    def check(self, schema: pa.Schema, exactly_once: bool) -> None:
        if missing := set(self.keys) - set(schema.names):
            raise ConfigError(f"keys are {', '.join(sorted(missing))}: the columns are {', '.join(schema.names)}")
        with self.server.asked(f"{self.name} cannot be looked at") as connection:
            oid, columns = table_of(connection, self.table)
            check_columns(schema, columns, self.table)
            if self.keys:
                self._check_keys(connection, oid)
            self._check_rights(
                connection, oid, self.table, ("INSERT", "UPDATE", "SELECT") if self.keys else ("INSERT",)
            )
            if exactly_once:
                self._make_markers(connection)

    def restore(self, context: SinkContext, committables: Sequence[Committable]) -> None:
        StagedRows.keep_only(context, committables)
        what = f"{self.name}: sessions of older generations cannot be ended"
        with self.server.asked(what, ConnectionError) as connection:  # it may be back for the next try
            # Those of hosts that are gone: what they have locked would be waited for
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE starts_with(application_name, %s) AND usename = current_user AND pid <> pg_backend_pid()",
                (session_name(context, ""),),
            )

    def writer(self, context: SinkContext) -> SinkWriter:
        rows = PostgresRows(self, context)
        return StagingWriter(context, rows) if context.exactly_once else DirectWriter(rows)

    def _check_keys(self, connection: Connection, oid: int) -> None:
        indexes = connection.execute(
            "SELECT array_agg(a.attname::text), bool_and(a.attnotnull) FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = %s AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL "
            "GROUP BY i.indexrelid",
            (oid,),
        ).fetchall()
        if not any(set(names) == set(self.keys) and not_null for names, not_null in indexes):
            raise ConfigError(
                f"table {self.table} has no primary key ({', '.join(self.keys)}), and no such unique index: "
                "ALTER TABLE ... ADD PRIMARY KEY, or name other keys (columns that take nulls are none)"
            )

    def _check_rights(self, connection: Connection, oid: int, table: str, rights: Sequence[str]) -> None:
        missing = [right for right in rights if not _one(connection, "has_table_privilege(%s::oid, %s)", oid, right)]
        user = _one(connection, "current_user")
        if missing:
            raise ConfigError(
                f"{user} may not {' or '.join(missing)} on {table}: GRANT {', '.join(missing)} ON {table} TO {user}"
            )
        if self.keys and not _one(connection, "has_database_privilege(current_database(), 'TEMP')"):
            database = _one(connection, "current_database()")
            raise ConfigError(f"{user} may not make temporary tables: GRANT TEMP ON DATABASE {database} TO {user}")

    def _make_markers(self, connection: Connection) -> None:
        import psycopg
        from psycopg import sql

        markers = identifier(self.markers)
        try:
            with connection.transaction():
                if _one(connection, "to_regclass(%s)", markers.as_string(connection)) is None:
                    statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(markers, sql.SQL(MARKER_COLUMNS))
                    connection.execute(statement)
        except psycopg.errors.UniqueViolation:
            pass  # another stream has made it at the same time
        except psycopg.Error as error:
            raise ConfigError(
                f"the table of markers cannot be made ({self.server.text_of(error)}).  Let its owner do it: "
                f"CREATE TABLE {self.markers} ({MARKER_COLUMNS}); "
                f"GRANT SELECT, INSERT, DELETE ON {self.markers} TO {_one(connection, 'current_user')}"
            ) from None
        oid, _ = table_of(connection, self.markers)
        self._check_rights(connection, oid, self.markers, ("SELECT", "INSERT", "DELETE"))


def identifier(name: str) -> sql.Identifier:
    """The name of a table, with its schema perhaps, as SQL writes it."""
    from psycopg import sql

    return sql.Identifier(*name.split("."))


def session_name(context: SinkContext, task: object) -> str:
    """What servers show of a task's session."""
    return f"fastbuf {context.job} {task}"


def _one(connection: Connection, expression: str, *arguments: object) -> Any:
    row = connection.execute(f"SELECT {expression}", arguments).fetchone()
    return row[0] if row else None


def table_of(connection: Connection, table: str) -> tuple[int, dict[str, Column]]:
    """A table's number, and its columns by name.

    Raises
    ------
    ConfigError
        There is none.
    """
    relation = connection.execute(
        "SELECT oid, relkind IN ('r', 'p', 'f') FROM pg_class WHERE oid = to_regclass(%s)",
        (identifier(table).as_string(connection),),
    ).fetchone()
    if relation is None or not relation[1]:
        user, database = _one(connection, "current_user"), _one(connection, "current_database()")
        raise ConfigError(f"database {database} has no table {table} that {user} can see: create it first")
    return relation[0], {row[0]: Column(*row) for row in connection.execute(COLUMNS, relation[:1])}


class PostgresRows:
    """Writes rows, in a connection that is made when it is needed; used by one thread."""

    def __init__(self, sink: PostgresSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._connection: Connection | None = None
        self._columns: dict[str, Column] = {}
        self._temporary: Sequence[str] = ()  # columns of the temporary table

    def commit(self, committables: Sequence[Committable]) -> None:
        """Commit staged rows, those alone that have no marker."""

        def write(cursor: Cursor) -> None:
            new = [each for each in committables if self._mark(cursor, each)]
            if new:
                self._write(cursor, (batch for each in new for batch in staged_batches(self._context, each)))
                reach("in commit", new[-1]["checkpoint"])

        self.transact(write, rows_of(committables))

    def transact(self, write: Any, what: str) -> None:
        """Call ``write(cursor)`` in a transaction, again where the connection breaks.

        Raises
        ------
        CommitFailed
            It cannot be done.
        """
        import psycopg

        server = self._sink.server
        for again in attempts(f"{what} for table {self._sink.table}"):
            try:
                with self._connected() as connection, connection.transaction(), connection.cursor() as cursor:
                    write(cursor)
                return
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                # It may have been committed all the same: the marker says so next time
                self.close()
                again(ConnectionError(server.text_of(error)))
            except psycopg.Error as error:
                self.close()
                raise CommitFailed(f"table {self._sink.table} refuses {what}: {server.text_of(error)}") from None
            except ConfigError as error:
                raise CommitFailed(f"{what} are at risk: {error}") from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows at once."""
        self.transact(lambda cursor: self._write(cursor, iter([batch])), f"{batch.num_rows:,} rows")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        if self._connection is None:
            connection = self._sink.server.connect(session_name(self._context, self._context.task))
            try:
                with connection.transaction():
                    _, self._columns = table_of(connection, self._sink.table)
                check_columns(self._context.schema, self._columns, self._sink.table)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        yield self._connection

    def _mark(self, cursor: Cursor, each: Committable) -> bool:
        """Write the marker; False if it is there already.  Waits for a session that is about to write it."""
        from psycopg import sql

        job, markers = self._context.job, identifier(self._sink.markers)
        cursor.execute(
            sql.SQL("DELETE FROM {} WHERE job = %s AND task = %s AND checkpoint < %s").format(markers),
            (job, each["task"], each["checkpoint"] - MARKERS_KEPT),
        )
        statement = (
            "INSERT INTO {} (job, file, task, checkpoint, rows) VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
        )
        values = (job, each["file"], each["task"], each["checkpoint"], each["rows"])
        return cursor.execute(sql.SQL(statement).format(markers), values).rowcount == 1

    def _write(self, cursor: Cursor, batches: Iterator[pa.RecordBatch]) -> None:
        # Rows that wait are of the program that wrote them: the columns of today's may stand in another order
        for names, some in itertools.groupby(batches, lambda batch: batch.schema.names):
            self._copy(cursor, names, some)

    def _copy(self, cursor: Cursor, names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> None:
        from psycopg import sql

        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        table, keys = identifier(self._sink.table), self._sink.keys
        if keys:
            self._make_temporary(cursor, names)
        target = sql.Identifier("pg_temp", TEMPORARY) if keys else table
        with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(target, columns)) as copy:
            for batch in batches:
                copy.write(copy_csv(batch, self._columns))
        if keys:
            # A command touches a row once: of several rows with a key, the last
            others = [sql.Identifier(name) for name in names if name not in keys]
            sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(each) for each in others)
            statement = sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM pg_temp.{rows} "
                "ORDER BY {keys}, fastbuf_row DESC ON CONFLICT ({keys}) {do}"
            )
            cursor.execute(
                statement.format(
                    table=table,
                    columns=columns,
                    keys=sql.SQL(", ").join(map(sql.Identifier, keys)),
                    rows=sql.Identifier(TEMPORARY),
                    do=sql.SQL("DO UPDATE SET {}").format(sets) if others else sql.SQL("DO NOTHING"),
                )
            )

    def _make_temporary(self, cursor: Cursor, names: Sequence[str]) -> None:
        from psycopg import sql

        if names != self._temporary:
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS pg_temp.{}").format(sql.Identifier(TEMPORARY)))
            self._temporary = names
        typed = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(self._columns[n].written)) for n in names]
        cursor.execute(
            sql.SQL(
                "CREATE TEMP TABLE IF NOT EXISTS {} (fastbuf_row bigint GENERATED ALWAYS AS IDENTITY, {}) "
                "ON COMMIT DELETE ROWS"
            ).format(sql.Identifier(TEMPORARY), sql.SQL(", ").join(typed))
        )


class DirectWriter:
    """At least once: a transaction for each batch."""

    def __init__(self, rows: PostgresRows) -> None:
        self._rows = rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.write(batch)

    def prepare(self, checkpoint: int) -> list[Committable]:
        return []

    def commit(self, checkpoint: int, committables: Sequence[Committable]) -> None:
        pass

    def close(self) -> None:
        self._rows.close()
