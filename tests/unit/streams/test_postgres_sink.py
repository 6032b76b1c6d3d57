"""The sink of a PostgreSQL table, with a real server and without Spark."""

from __future__ import annotations

import datetime
import json
import pickle
import secrets
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from real_parts import Postgres, free_port

from fastbuf.errors import ConfigError
from fastbuf_spark.schema import arrow_schema
from fastbuf_spark.streams import staged
from fastbuf_spark.streams.sink import CommitFailed, SinkContext

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'fastbuf[postgres]'")
import psycopg

from fastbuf_spark.streams.postgres import PostgresSink, to_postgres

N = pa.schema([("n", pa.int64())])
KEYED = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(secrets.token_hex(16), 0, 0, N, str(tmp_path), True)


def changed(context: SinkContext, **more: Any) -> SinkContext:
    return SinkContext(**{**vars(context), **more})


def numbers(begin: int, end: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(begin, end), pa.int64())})


def keyed(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=KEYED)


def rows_in(postgres: Postgres, table: str) -> list[Any]:
    return [row[0] if len(row) == 1 else row for row in postgres.query(f"SELECT * FROM {table} ORDER BY 1")]


def markers(postgres: Postgres, context: SinkContext) -> list[Any]:
    return postgres.query(
        "SELECT task, checkpoint, rows FROM fastbuf_commits WHERE job = %s ORDER BY 2, 1", context.job
    )


def a_sink(postgres: Postgres, table: str, schema: pa.Schema = N, **more: Any) -> PostgresSink:
    sink = to_postgres(postgres.dsn(), table, **more)
    sink.check(schema, exactly_once=True)
    return pickle.loads(pickle.dumps(sink))  # as tasks have it


def test_rows_are_seen_when_they_are_committed_and_once(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("n bigint")
    sink = a_sink(postgres, table)
    sink.restore(context, [])
    writer = sink.writer(context)
    writer.write(numbers(0, 3))
    writer.write(numbers(3, 5))
    made = json.loads(json.dumps(writer.prepare(1)))  # as the checkpoint keeps it
    writer.write(numbers(5, 8))
    assert rows_in(postgres, table) == []
    writer.commit(1, made)
    writer.commit(1, made)
    assert rows_in(postgres, table) == list(range(5))
    assert list(Path(context.folder).glob("*.arrow")) != []  # those of the next checkpoint
    second = writer.prepare(2)
    writer.commit(2, second)
    assert writer.prepare(3) == []
    writer.commit(3, [])
    writer.close()
    # Another task, in another generation, which does not know what was done
    other = changed(context, task=7, generation=1)
    sink.restore(other, made + second)
    again = sink.writer(other)
    again.commit(2, second + made)
    again.forget(second + made)
    again.close()
    assert rows_in(postgres, table) == list(range(8))
    assert markers(postgres, context) == [(0, 1, 5), (0, 2, 3)]
    assert list(Path(context.folder).iterdir()) == []


def test_rows_that_no_checkpoint_has_are_left_out(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("n bigint")
    sink = a_sink(postgres, table)
    writer = sink.writer(context)
    writer.write(numbers(0, 3))
    kept = writer.prepare(1)
    writer.write(numbers(3, 5))
    writer.prepare(2)  # which was not completed
    writer.write(numbers(5, 7))  # and these were not prepared, as the task was killed
    later = changed(context, generation=1)
    sink.restore(later, kept)
    assert [path.name for path in Path(context.folder).iterdir()] == [kept[0]["file"]]
    again = sink.writer(later)
    again.commit(1, kept)
    assert rows_in(postgres, table) == [0, 1, 2]
    again.close()


def test_one_of_two_that_commit_at_once_waits_for_the_other(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("n bigint")
    sink = a_sink(postgres, table)
    writer = sink.writer(context)
    writer.write(numbers(0, 1000))
    made = writer.prepare(1)
    tasks = [sink.writer(changed(context, task=task, generation=1)) for task in range(4)]
    commits = [threading.Thread(target=task._commits.commit, args=(made,)) for task in tasks]
    for each in commits:
        each.start()
    for each in commits:
        each.join()
    for task in tasks:
        task.close()
    assert rows_in(postgres, table) == list(range(1000))
    assert markers(postgres, context) == [(0, 1, 1000)]


def test_a_zombie_that_holds_the_marker_is_ended(postgres: Postgres, context: SinkContext) -> None:
    """A task of an older generation stands in the middle of its transaction: restoring ends it."""
    table = postgres.table("n bigint")
    sink = a_sink(postgres, table)
    writer = sink.writer(context)
    writer.write(numbers(0, 10))
    made = writer.prepare(1)
    zombie = psycopg.connect(postgres.dsn(), application_name=f"fastbuf {context.job} 0")
    zombie.execute("INSERT INTO fastbuf_commits (job, file) VALUES (%s, %s)", (context.job, made[0]["file"]))
    later = changed(context, generation=1)
    sink.restore(later, made)
    again = sink.writer(later)
    again.commit(1, made)
    assert rows_in(postgres, table) == list(range(10))
    with pytest.raises(psycopg.OperationalError):
        zombie.execute("SELECT 1")
    zombie.close()
    again.close()


def test_upserts_keep_the_last_row_of_a_key(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("k text PRIMARY KEY, v bigint, at timestamptz DEFAULT now()")
    sink = a_sink(postgres, table, KEYED, keys=["k"])
    assert sink.output_modes == ("append", "update")
    writer = sink.writer(changed(context, schema=KEYED))
    writer.write(keyed(("a", 1), ("b", 1), ("a", 2)))
    writer.write(keyed(("a", 3), ("c", None)))
    first = writer.prepare(1)
    writer.write(keyed(("b", 7), ("d", 1)))
    second = writer.prepare(2)
    writer.commit(2, second + first)  # in the order of their checkpoints all the same
    assert [row[:2] for row in rows_in(postgres, table)] == [("a", 3), ("b", 7), ("c", None), ("d", 1)]
    writer.write(keyed(("a", 9)))
    writer.commit(3, writer.prepare(3))
    assert rows_in(postgres, table)[0][:2] == ("a", 9)
    writer.commit(1, first)
    assert rows_in(postgres, table)[0][:2] == ("a", 9)
    writer.close()


def test_upserts_of_keys_alone(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("n bigint PRIMARY KEY")
    sink = a_sink(postgres, table, keys="n")
    writer = sink.writer(context)
    for checkpoint in (1, 2):
        writer.write(numbers(0, 5))
        writer.commit(checkpoint, writer.prepare(checkpoint))
    assert rows_in(postgres, table) == list(range(5))
    writer.close()


def test_at_least_once_writes_at_once(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("n bigint")
    sink = to_postgres(postgres.dsn(), table)
    sink.check(N, exactly_once=False)
    writer = sink.writer(changed(context, exactly_once=False))
    writer.write(numbers(0, 5))
    assert rows_in(postgres, table) == list(range(5))
    assert writer.prepare(1) == []
    writer.commit(1, [])
    writer.close()


def test_old_markers_go(postgres: Postgres, context: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbuf_spark.streams import postgres as module

    monkeypatch.setattr(module, "MARKERS_KEPT", 5)
    table = postgres.table("n bigint")
    writer = a_sink(postgres, table).writer(context)
    for checkpoint in range(20):
        writer.write(numbers(checkpoint, checkpoint + 1))
        writer.commit(checkpoint, writer.prepare(checkpoint))
    writer.close()
    assert [checkpoint for _, checkpoint, _ in markers(postgres, context)] == list(range(14, 20))
    assert rows_in(postgres, table) == list(range(20))


def test_a_server_that_is_started_again(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("n bigint")
    writer = a_sink(postgres, table).writer(context)
    writer.write(numbers(0, 5))
    writer.commit(1, writer.prepare(1))
    postgres.stop()
    writer.write(numbers(5, 9))
    made = writer.prepare(2)
    starting = threading.Timer(0.3, postgres.start)
    starting.start()
    writer.commit(2, made)
    starting.join()
    assert rows_in(postgres, table) == list(range(9))
    writer.close()


def test_a_server_that_is_gone(context: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "WAITS_S", (0.0, 0.0))
    sink = to_postgres(f"host=127.0.0.1 port={free_port()} user=me password=hunter2", "orders")
    writer = sink.writer(context)
    writer.write(numbers(0, 5))
    made = writer.prepare(4)
    with pytest.raises(CommitFailed, match=r"5 rows of checkpoint 4 .* for table orders .* in 3 attempts") as met:
        writer.commit(4, made)
    assert "hunter2" not in str(met.value)
    assert met.value.__cause__ is None
    assert [path.name for path in Path(context.folder).iterdir()] == [made[0]["file"]]
    writer.close()


def test_no_text_has_the_password(postgres: Postgres, context: SinkContext) -> None:
    sink = to_postgres(postgres.dsn("nobody-here", password="hunter2"), "orders")
    texts = [repr(sink.server), sink.name, str(vars(sink))]
    for call, kind in (
        (lambda: sink.check(N, True), ConfigError),
        (lambda: sink.restore(context, []), ConnectionError),
    ):
        with pytest.raises(kind, match="nobody-here") as met:
            call()
        texts.append(str(met.value))
        assert met.value.__cause__ is None
    with pytest.raises(ConfigError, match="dsn is not what libpq takes") as met:
        to_postgres("host=db user=me hunter2", "orders")
    assert "hunter2" not in "".join([*texts, str(met.value)])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "is gone, and they were not committed before"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "were written"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "the file is broken"),
    ],
    ids=["gone", "short", "overwritten"],
)
def test_a_broken_file_is_told(postgres: Postgres, context: SinkContext, damage: Any, says: str) -> None:
    table = postgres.table("n bigint")
    writer = a_sink(postgres, table).writer(context)
    writer.write(numbers(0, 5))
    made = writer.prepare(1)
    writer.write(numbers(5, 7))
    whole = writer.prepare(1)
    damage(Path(context.folder, made[0]["file"]))
    with pytest.raises(CommitFailed, match=says) as met:
        writer.commit(1, whole + made)
    assert "5 rows" in str(met.value)
    assert rows_in(postgres, table) == []  # nor half of it
    assert markers(postgres, context) == []
    writer.commit(1, whole)
    assert rows_in(postgres, table) == [5, 6]
    writer.close()


def test_rows_that_the_table_refuses(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("k text, v bigint CHECK (v > 0)")
    context = changed(context, schema=KEYED)
    writer = a_sink(postgres, table, KEYED).writer(context)
    for rows, says in {
        (("a", 1), ("b", -1)): r"refuses 2 rows of checkpoint 1 .*CheckViolation",
        (("a\0", 1),): r"refuses 1 rows .* 0x00 CONTEXT: COPY .* line 1",
    }.items():
        writer.write(keyed(*rows))
        made = writer.prepare(1)
        with pytest.raises(CommitFailed, match=says):
            writer.commit(1, made)
    assert rows_in(postgres, table) == []
    postgres.query(f"ALTER TABLE {table} DROP COLUMN v")  # connections are made anew after an error
    writer.write(keyed(("c", 1)))
    made = writer.prepare(2)
    with pytest.raises(CommitFailed, match=r"it has no column 'v'"):
        writer.commit(2, made)
    writer.close()


def test_missing_rights_are_named(postgres: Postgres) -> None:
    table = postgres.table("n bigint PRIMARY KEY")
    poor = f"p{secrets.token_hex(4)}"
    other = f"m{secrets.token_hex(4)}"
    postgres.query(f"CREATE ROLE {poor} LOGIN")
    sink = to_postgres(postgres.dsn(poor), table, markers=other)
    upsert = to_postgres(postgres.dsn(poor), table, keys=["n"])
    with pytest.raises(ConfigError, match=f"{poor} may not INSERT on {table}: GRANT INSERT ON {table} TO {poor}"):
        sink.check(N, exactly_once=False)
    postgres.query(f"GRANT INSERT ON {table} TO {poor}")
    sink.check(N, exactly_once=False)
    with pytest.raises(ConfigError, match=f"may not UPDATE or SELECT on {table}"):
        upsert.check(N, exactly_once=False)
    with pytest.raises(ConfigError, match="the table of markers cannot be made") as met:
        sink.check(N, exactly_once=True)
    for statement in str(met.value).partition("Let its owner do it: ")[2].split("; "):
        postgres.query(statement)  # what it says to do helps
    sink.check(N, exactly_once=True)
    postgres.query(f"REVOKE DELETE ON {other} FROM {poor}")
    with pytest.raises(ConfigError, match=f"may not DELETE on {other}"):
        sink.check(N, exactly_once=True)
    postgres.query("REVOKE TEMP ON DATABASE postgres FROM public")
    try:
        postgres.query(f"GRANT UPDATE, SELECT ON {table} TO {poor}")
        with pytest.raises(ConfigError, match=f"GRANT TEMP ON DATABASE postgres TO {poor}"):
            upsert.check(N, exactly_once=False)
    finally:
        postgres.query("GRANT TEMP ON DATABASE postgres TO public")


def test_a_table_in_a_schema_with_names_that_need_quotes(postgres: Postgres, context: SinkContext) -> None:
    space = f"S{secrets.token_hex(4)}"
    postgres.query(f'CREATE SCHEMA "{space}"; CREATE TABLE "{space}"."My Orders" ("select" bigint, "a""b%s" text)')
    schema = pa.schema([("select", pa.int64()), ('a"b%s', pa.string())])
    sink = a_sink(postgres, f"{space}.My Orders", schema, markers=f"{space}.Marks")
    writer = sink.writer(changed(context, schema=schema))
    writer.write(pa.RecordBatch.from_pylist([{"select": 1, 'a"b%s': "x"}], schema=schema))
    writer.commit(1, writer.prepare(1))
    assert rows_in(postgres, f'"{space}"."My Orders"') == [(1, "x")]
    writer.close()


def test_what_the_table_cannot_take_is_said_before_the_stream_starts(postgres: Postgres) -> None:
    table = postgres.table(
        "n int, t text NOT NULL, made int GENERATED ALWAYS AS (n + 1) STORED, d numeric(5, 2), s timestamp(3), a int[]"
    )
    view = f"v{secrets.token_hex(4)}"
    postgres.query(f"CREATE VIEW {view} AS SELECT 1 AS n")

    def refused(schema: pa.Schema, says: str, name: str = table, **more: Any) -> None:
        with pytest.raises(ConfigError, match=says):
            to_postgres(postgres.dsn(), name, **more).check(schema, exactly_once=True)

    text = ("t", pa.string())
    refused(N, "has no table nothing-here that postgres can see", "nothing-here")
    refused(N, "has no table", view)
    refused(
        pa.schema([text, ("n", pa.int64())]), "column 'n' is integer, the rows have int64, which go to int8, numeric"
    )
    refused(
        pa.schema([("n", pa.int32())]), "column 't' may not be null, has no default, and the rows have no such column"
    )
    refused(pa.schema([text, ("x", pa.int32())]), "it has no column 'x'")
    refused(pa.schema([text, ("made", pa.int32())]), "column 'made' is generated")
    refused(pa.schema([text, ("d", pa.decimal128(7, 2))]), r"numeric\(5,2\), the rows have .*, which may not fit")
    refused(pa.schema([text, ("d", pa.int16())]), "which may not fit")
    refused(pa.schema([text, ("s", pa.timestamp("us"))]), "which may not fit")
    refused(pa.schema([text, ("a", pa.list_(pa.int64()))]), "column 'a' is integer")
    refused(pa.schema([text]), r"no primary key \(t\), and no such unique index", keys=["t"])
    refused(pa.schema([text]), "keys are z", keys=["z"])
    variant = pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
    both = pa.schema([text, ("n", variant), ("x", pa.int32())])
    refused(both, "column 'n' is integer.*it has no column 'x'")
    to_postgres(postgres.dsn(), table).check(
        pa.schema([text, ("d", pa.decimal128(5, 2)), ("n", pa.int8()), ("a", pa.list_(pa.int32()))]), True
    )


UTC = datetime.UTC
STRUCT = T.StructType([T.StructField("x", T.IntegerType()), T.StructField("when", T.DateType())])
#: Spark's type, PostgreSQL's, values, and what PostgreSQL gives back, if not the same
TYPES: list[tuple[T.DataType, str, list[Any], list[Any] | None]] = [
    (T.BooleanType(), "boolean", [True, False], None),
    (T.ByteType(), "smallint", [-128, 127], None),
    (T.ShortType(), "smallint", [-32768, 32767], None),
    (T.IntegerType(), "integer", [-(2**31), 2**31 - 1], None),
    (T.LongType(), "bigint", [-(2**63), 2**63 - 1], None),
    (T.LongType(), "numeric(19)", [-(2**63), 2**63 - 1], None),
    (T.FloatType(), "real", [0.5, -float("inf"), 3.4028235e38], None),
    (T.DoubleType(), "double precision", [0.1, float("inf"), -5e-324, 1.7976931348623157e308], None),
    (T.DecimalType(38, 18), "numeric(38, 18)", [Decimal("12345678901234567890.123456789012345678"), Decimal(0)], None),
    (T.DecimalType(10, 2), "numeric", [Decimal("-99999999.99")], None),
    (T.StringType(), "text", ["", "null", 'a"b\\N\n\r\t,', "\u00e9\U0001f600", "\\."], None),
    (T.StringType(), "varchar(5)", ["abcde", ""], None),
    (T.StringType(), "jsonb", ['{"a": [1, null]}'], [{"a": [1, None]}]),
    (T.BinaryType(), "bytea", [b"", bytes(range(256))], None),
    (T.DateType(), "date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], None),
    (
        T.TimestampType(),
        "timestamptz",
        [datetime.datetime(1900, 1, 1, tzinfo=UTC), datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)],
        None,
    ),
    (
        T.TimestampNTZType(),
        "timestamp",
        [datetime.datetime(1, 1, 1), datetime.datetime(2024, 3, 31, 2, 30, 0, 1)],
        None,
    ),
    (T.DayTimeIntervalType(), "interval", [datetime.timedelta(days=-3, microseconds=1), datetime.timedelta(0)], None),
    (T.ArrayType(T.IntegerType()), "integer[]", [[1, None, -3], []], None),
    (T.ArrayType(T.StringType()), "text[]", [["", "NULL", None, 'a"\\,{}'], ["x"]], None),
    (T.ArrayType(T.BinaryType()), "bytea[]", [[b"\0\\", None]], None),
    (T.ArrayType(T.DateType()), "date[]", [[datetime.date(2024, 2, 29)]], None),
    (T.ArrayType(T.StringType()), "jsonb", [["a", None]], None),
    (T.MapType(T.StringType(), T.LongType()), "jsonb", [[("a", 1), ("b", None)]], [{"a": 1, "b": None}]),
    (STRUCT, "jsonb", [{"x": 1, "when": datetime.date(2024, 2, 29)}], [{"x": 1, "when": "2024-02-29"}]),
    (T.NullType(), "point", [], None),
]


@pytest.mark.parametrize(
    ("kind", "column", "values", "seen"), TYPES, ids=[f"{t[0].simpleString()}-{t[1]}" for t in TYPES]
)
@pytest.mark.parametrize("keys", [(), ("id",)], ids=["append", "upsert"])
def test_values_of_each_type(
    postgres: Postgres,
    context: SinkContext,
    kind: T.DataType,
    column: str,
    values: Any,
    seen: Any,
    keys: tuple[str, ...],
) -> None:
    table = postgres.table(f"id int PRIMARY KEY, c {column}")
    spark_schema = T.StructType([T.StructField("id", T.IntegerType()), T.StructField("c", kind)])
    schema = arrow_schema(spark_schema, "America/New_York")
    values = [None, *values, None]
    rows = [{"id": number, "c": value} for number, value in enumerate(values)]
    batch = pa.RecordBatch.from_pylist([{"id": -1, "c": None}, *rows], schema=schema)
    writer = a_sink(postgres, table, schema, keys=keys).writer(changed(context, schema=schema))
    writer.write(batch.slice(1))  # offsets that do not begin at 0
    writer.commit(1, writer.prepare(1))
    writer.close()
    with psycopg.connect(postgres.dsn(options="-ctimezone=UTC")) as connection:
        found = [row[0] for row in connection.execute(f"SELECT c FROM {table} ORDER BY id")]
    assert found == (values if seen is None else [None, *seen, None])


def test_not_a_number(postgres: Postgres, context: SinkContext) -> None:
    table = postgres.table("a real, b double precision")
    schema = pa.schema([("a", pa.float32()), ("b", pa.float64())])
    writer = a_sink(postgres, table, schema).writer(changed(context, schema=schema))
    writer.write(pa.RecordBatch.from_pylist([{"a": float("nan"), "b": float("nan")}], schema=schema))
    writer.commit(1, writer.prepare(1))
    writer.close()
    assert postgres.query(f"SELECT a = 'NaN', b = 'NaN' FROM {table}") == [(True, True)]


@pytest.mark.parametrize("upsert", [False, True])
def test_rows_that_wait_have_the_columns_of_the_program_that_wrote_them(
    postgres: Postgres, context: SinkContext, upsert: bool
) -> None:
    """Columns of one type that change their places, and one more, between two programs: none is taken for another."""
    table = postgres.table("a bigint PRIMARY KEY, b bigint, c bigint")
    first = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    second = pa.schema([("c", pa.int64()), ("b", pa.int64()), ("a", pa.int64())])
    sink = a_sink(postgres, table, first, **({"keys": ["a"]} if upsert else {}))
    writer = sink.writer(changed(context, schema=first))
    writer.write(pa.record_batch([[1, 2], [10, 20]], schema=first))
    waiting = writer.prepare(1)
    writer.close()
    later = changed(context, schema=second, generation=context.generation + 1)
    sink.restore(later, waiting)
    writer = sink.writer(later)
    writer.commit(1, waiting)
    writer.write(pa.record_batch([[300], [30], [3]], schema=second))
    writer.commit(2, writer.prepare(2))
    writer.close()
    assert sorted(rows_in(postgres, table)) == [(1, 10, None), (2, 20, None), (3, 30, 300)]
