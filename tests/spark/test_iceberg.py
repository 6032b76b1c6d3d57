"""Iceberg tables that the workers read and write: beside pyiceberg, DuckDB and Spark's reader of their files."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg", reason="pip install 'fastbuf[iceberg]'")
pytest.importorskip("sqlalchemy", reason="pip install 'pyiceberg[sql-sqlite]'")

from iceberg_tables import delete_rows, home, rows_of
from test_delta import ALL, NOON, UTC, _known, _split, files, left_by_a_killed_driver
from test_delta import TYPES as DELTA_TYPES
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver.file_types import nullable

pytestmark = pytest.mark.spark
#: Of those of test_delta, what Iceberg has, and a decimal of few digits
TYPES = {name: column for name, column in DELTA_TYPES.items() if name not in ("i8", "i16", "st")} | {
    "short": pa.array([Decimal("-1.23"), None], pa.decimal128(9, 2)),
    "st": pa.array([{"a": 1, "t": [NOON]}, None], pa.struct([("a", pa.int32()), ("t", pa.list_(pa.timestamp("us")))])),
}
#: The same of Spark's
OWN = ", ".join(each for each in _split(ALL) if not re.search(r"as (tiny|small)int", each))


def by_pyiceberg(catalog: Any, table: pa.Table, name: str = "a.t", **options: Any) -> Any:
    made = catalog.create_table(name, table.schema, **options)
    made.append(table)
    return made


def test_types(new_york: Any, tmp_path: Path) -> None:
    """As Spark reads the table's files, which have the types of its columns; what it has not is refused by column."""
    properties, catalog = home(tmp_path)
    by_pyiceberg(catalog, pa.table(TYPES))
    (file,) = (tmp_path / "warehouse").rglob("*.parquet")
    assert same(fbs.read_iceberg(new_york, properties, "a.t").to_df(), new_york.read.parquet(str(file))) == 2
    other = {"x": [1], "u": pa.array([b"0" * 16], pa.uuid()), "f": pa.array([b"ab"], pa.binary(2))}
    by_pyiceberg(catalog, pa.table(other), "a.u")
    read = fbs.read_iceberg(new_york, properties, "a.u", columns=["x", "f"])
    assert read.to_arrow().to_pylist() == [{"x": 1, "f": b"ab"}]
    with pytest.raises(SchemaError, match="'u'"):
        fbs.read_iceberg(new_york, properties, "a.u")


def test_columns_that_were_changed(spark: Any, tmp_path: Path) -> None:
    """By their ids: new names, names of others, wider types, dropped and added ones, nested ones too."""
    from pyiceberg.types import DoubleType, IntegerType, LongType, StringType

    properties, catalog = home(tmp_path)
    struct = pa.struct([("p", pa.int32()), ("q", pa.string())])
    old = pa.table({
        "x": pa.array([1, 2, 3], pa.int32()),
        "y": ["a", "b", None],
        "st": pa.array([{"p": 1, "q": "u"}, None, {"p": 3, "q": "w"}], struct),
        "l": pa.array([[{"p": 1}], [], None], pa.list_(pa.struct([("p", pa.float32())]))),
        "gone": [7, 8, 9],
    })  # fmt: skip
    table = by_pyiceberg(catalog, old)
    with table.update_schema() as change:
        change.rename_column("y", "z").update_column("x", LongType()).rename_column("st.p", "r")
        change.update_column("l.element.p", DoubleType()).delete_column("gone").move_first("l")
    with table.update_schema() as change:
        change.rename_column("x", "y").add_column(("st", "p"), StringType()).add_column("gone", StringType())
    with table.update_schema() as change:
        change.add_column("x", IntegerType())
    new = {"l": None, "y": 2**40, "z": "c", "st": {"r": 1, "q": "", "p": "new"}, "gone": "no", "x": 5}
    table.append(pa.Table.from_pylist([new], table.schema().as_arrow()))
    want = rows_of(catalog)
    assert len(want) == 4
    everything = table.scan().to_arrow()
    y, gone, x = pc.field("y"), pc.field("gone"), pc.field("x")
    for filter in [None, y > 1, y == 1, gone == "no", gone.is_null(), x == 5, pc.field("z") == "b", x == 1]:
        read = fbs.read_iceberg(spark, properties, "a.t", filter=filter)
        rows = everything if filter is None else everything.filter(filter)
        assert sorted(map(str, read.to_arrow().to_pylist())) == sorted(map(str, rows.to_pylist())), filter
    assert fbs.read_iceberg(spark, properties, "a.t", columns=["x"]).to_df().schema.simpleString() == "struct<x:int>"


def test_files_without_ids(spark: Any, tmp_path: Path) -> None:
    """Added by others, by the names that the table has for its columns; with the value of their partition."""
    from pyiceberg.transforms import IdentityTransform

    properties, catalog = home(tmp_path)
    table = catalog.create_table("a.t", pa.schema([("k", pa.int64()), ("x", pa.string())]))
    pq.write_table(pa.table({"k": [1, 1], "x": ["a", "b"]}), tmp_path / "f.parquet")
    with table.update_spec() as change:
        change.add_field("k", IdentityTransform())
    table.add_files([f"file://{tmp_path}/f.parquet"])
    with table.update_schema() as change:
        change.rename_column("x", "y")
    pq.write_table(pa.table({"x": ["a", "b"]}), tmp_path / "f.parquet")  # as Hive's files: k is in no file
    read = fbs.read_iceberg(spark, properties, "a.t", filter=pc.field("k") == 1)
    assert sorted(read.collect()) == [(1, "a"), (1, "b")]
    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(Exception, match="has no ids of its columns"):
        fbs.read_iceberg(spark, properties, "a.t").collect()


def test_rows_that_were_deleted(spark: Any, tmp_path: Path) -> None:
    properties, catalog = home(tmp_path)
    table = by_pyiceberg(catalog, pa.table({"x": range(5), "y": range(5)}))
    table.append(pa.table({"x": range(5, 9), "y": range(5, 9)}))
    first, second = sorted((task.file for task in table.scan().plan_files()), key=lambda file: -file.record_count)
    delete_rows(table, {first.file_path: [0, 3], second.file_path: [3]})
    delete_rows(table, {first.file_path: [1, 3]})
    assert sorted(row["x"] for row in rows_of(catalog)) == [2, 4, 5, 6, 7]
    assert sorted(fbs.read_iceberg(spark, properties, "a.t", columns=["x"]).to_arrow()["x"].to_pylist()) == [
        2,
        4,
        5,
        6,
        7,
    ]
    filtered = fbs.read_iceberg(spark, properties, "a.t", columns=["y"], filter=pc.field("x") > 3)
    assert sorted(filtered.to_arrow()["y"].to_pylist()) == [4, 5, 6, 7]
    fbs.write_iceberg(spark.range(3).selectExpr("id x", "id y"), properties, "a.t")
    assert fbs.read_iceberg(spark, properties, "a.t").count() == 8
    fbs.write_iceberg(spark.range(3).selectExpr("id x", "id y"), properties, "a.t", "overwrite")
    assert sorted(row["x"] for row in rows_of(catalog)) == [0, 1, 2]
    delete_rows(table.refresh(), {"x": [1]}, equality=True)
    with pytest.raises(ConfigError, match=r"a\.t has equality deletes.*let Spark read it"):
        fbs.read_iceberg(spark, properties, "a.t")


def test_files_that_are_skipped(spark: Any, tmp_path: Path) -> None:
    """By the bounds in manifests, and never a file that has a row: nulls, NaNs, texts that are cut."""
    properties, catalog = home(tmp_path)
    step = "if(x = 9, null, if(i = 3 and x = 8, double('nan'), i * 10 + x)) d"
    df = spark.range(40, numPartitions=1).selectExpr("cast(id / 10 as int) i", "id % 10 x").selectExpr(
        "i", step, "if(i = 0, null, i) k", "timestamp_micros(i * 86400000000 + 123456) t",
        "if(x = 9, '', concat(i, repeat('z', 20), x)) s", "cast(i as decimal(38, 2)) dec",
        "date_add(date'2020-01-01', i) day",
    )  # fmt: skip
    assert fbs.write_iceberg(df, properties, "a.t", partition_by="i").files == 4
    everything = catalog.load_table("a.t").scan().to_arrow()
    assert everything.num_rows == 40
    d, k, t = pc.field("d"), pc.field("k"), pc.field("t")
    at = pa.scalar(dt.datetime(1970, 1, 3, 0, 0, 0, 123000, UTC), pa.timestamp("us", "UTC"))
    for filter, most in [
        (d > 25, 2),
        (d == 15, 1),
        (~(d <= 35), 4),
        (d.is_null(), 4),
        (d.is_nan(), 4),
        (k.is_null(), 1),
        (k == 2, 1),
        (t > at, 2),
        ((k == 1) | (pc.field("s") == "3" + "z" * 20 + "5"), 2),
        (pc.field("s") == "1" + "z" * 21, 3),
        (pc.field("dec") == Decimal(2), 1),
        (pc.field("day") < dt.date(2020, 1, 2), 1),
        (d > 100, 1),
    ]:
        read = fbs.read_iceberg(spark, properties, "a.t", filter=filter)
        assert len(files(read)) <= most, filter
        assert sorted(map(str, read.to_arrow().to_pylist())) == sorted(map(str, everything.filter(filter).to_pylist()))


def test_a_snapshot_of_the_table(spark: Any, tmp_path: Path) -> None:
    properties, catalog = home(tmp_path)
    table = by_pyiceberg(catalog, pa.table({"x": [1]}))
    first = table.current_snapshot()
    table.manage_snapshots().create_tag(first.snapshot_id, "old").commit()
    with table.update_schema() as change:
        change.rename_column("x", "y")
    table.append(pa.table({"y": [2]}))
    assert sorted(fbs.read_iceberg(spark, properties, "a.t").collect()) == [(1,), (2,)]
    then = dt.datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    for snapshot in (first.snapshot_id, "old", then):
        read = fbs.read_iceberg(spark, catalog, ("a", "t"), snapshot)
        assert read.to_arrow().to_pylist() == [{"x": 1}]
    for snapshot, words in [
        (7, "no snapshot 7"),
        ("new", "no snapshot new, only .* and .*old"),
        (then.replace(year=2000), "no snapshot 2000"),
        (1.5, "give its number"),
    ]:
        with pytest.raises((ConfigError, ResourceError), match=words):
            fbs.read_iceberg(spark, properties, "a.t", snapshot)
    with pytest.raises(ResourceError, match="no such Iceberg table"):
        fbs.read_iceberg(spark, properties, "a.other")


def test_properties_are_not_shown(spark: Any, tmp_path: Path, capsys: Any) -> None:
    properties, catalog = home(tmp_path)
    by_pyiceberg(catalog, pa.table({"x": [1]}))
    read = fbs.read_iceberg(spark, {**properties, "s3.secret-access-key": "hidden"}, "a.t")
    read.explain()
    assert read.collect() == [(1,)]
    read.to_df().explain(True)
    assert "hidden" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())
    for wrong in [
        {"uri": "other://me:hidden@host", "token": "hidden"},
        {"uri": f"sqlite:////no/hidden/{tmp_path}.db", "password": "hidden"},
        {"type": "hidden", "uri": "x", "credential": "hidden"},
    ]:
        with pytest.raises((ConfigError, ResourceError)) as error:
            fbs.read_iceberg(spark, wrong, "a.t")
        shown = [str(error.value), str(error.value.__cause__)]
        assert not any("hidden" in each for each in shown), shown
    with pytest.raises(ConfigError, match="give its name"):
        fbs.read_iceberg(spark, None, "a.t")


def test_what_others_read(new_york: Any, tmp_path: Path) -> None:
    """All types, nulls in all columns: pyiceberg, DuckDB and Spark find the rows and types that were written."""
    properties, catalog = home(tmp_path)
    nulls = ", ".join(
        f"if(id = 5, null, {name}) {name}" for name in new_york.range(1).selectExpr(*_split(OWN)).columns[1:]
    )
    df = new_york.range(9).selectExpr(*_split(OWN)).selectExpr("id", *_split(nulls))
    assert fbs.write_iceberg(df, properties, "a.t", "error").rows == 9
    table = catalog.load_table("a.t")
    arrow = df.toArrow()
    theirs = table.scan().to_arrow().select(arrow.schema.names)
    assert sorted(map(_known, theirs.to_pylist()), key=str) == sorted(map(_known, arrow.to_pylist()), key=str)
    kinds = {field.name: str(field.field_type) for field in table.schema().fields}
    assert (kinds["ts"], kinds["ntz"], kinds["dec"], kinds["i32"]) == (
        "timestamptz",
        "timestamp",
        "decimal(9, 2)",
        "int",
    )
    want = new_york.createDataFrame(df.rdd, nullable(df.schema))
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert same(new_york.read.parquet(*paths), want) == 9
    assert same(fbs.read_iceberg(new_york, properties, "a.t").to_df(), want) == 9
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    (count,) = duckdb.sql(f"select count(*), sum(i32), count(distinct dec) from read_parquet({paths})").fetchall()
    assert count == (9, 31, 8)


BY = [
    "year(ts)", "month(day)", "days(ntz)", "hour(ts)", "bucket(3, id)", "bucket(2, s)", "bucket(4, dec)",
    "bucket(5, ts)", "truncate(2, s)", "truncate(100, wide)", "truncate(3, i32)", "b", "day", "ts", "dec", "f", "bin",
    "s",
]  # fmt: skip


def test_partitions(new_york: Any, tmp_path: Path) -> None:
    """Values as pyiceberg's own transforms give them, of every transform and type; all rows of a file have them."""
    properties, catalog = home(tmp_path)
    old = "if(id = 5, null, timestamp_micros(id * 86400123456 * 200 - 86400000000 * 999)) ts"
    df = new_york.range(9).selectExpr(*_split(OWN)).selectExpr(
        "id", "i32", "if(id = 4, null, s) s", "if(id = 3, '', if(id = 2, 'null', t)) t", "bin", "f", "d", "b",
        "date_add(day, -400 + cast(id as int)) day", old, "ntz", "dec", "wide",
    )  # fmt: skip
    by = [*BY, "t"]
    for _ in range(2):
        fbs.pipeline(df).write_iceberg(properties, "a.t", partition_by=by)
    table = catalog.load_table("a.t")
    assert len(table.spec().fields) == len(by)
    everything = table.scan().to_arrow()
    assert everything.num_rows == 18
    schema, spec = table.schema(), table.spec()
    for task in table.scan().plan_files():
        for row in pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None).to_pylist():
            for field, value in zip(spec.fields, task.file.partition, strict=True):
                source = schema.find_field(field.source_id)
                want = field.transform.transform(source.field_type)(_inner(row[source.name]))
                assert str(want) == str(value), field
    assert same(fbs.read_iceberg(new_york, properties, "a.t").to_df(), df.union(df)) == 18
    for text, filter in [
        ("t == ''", pc.field("t") == ""),
        ("t == 'null'", pc.field("t") == "null"),
        ("s is null", pc.field("s").is_null()),
        ("day < '1999-01-01'", pc.field("day") < dt.date(1999, 1, 1)),
        ("dec = -3.00", pc.field("dec") == Decimal("-3.00")),
        ("b = true", pc.field("b")),
        ("d is nan", pc.field("d").is_nan()),
    ]:
        rows = [_known(row) for row in everything.filter(filter).to_pylist()]
        read = fbs.read_iceberg(new_york, properties, "a.t", filter=filter)
        theirs = table.scan(row_filter=text).to_arrow()
        assert sorted(map(str, rows)) == sorted(str(_known(row)) for row in read.to_arrow().to_pylist()), text
        assert sorted(map(str, rows)) == sorted(str(_known(row)) for row in theirs.to_pylist()), text
        assert rows


def _inner(value: Any) -> Any:
    """A value as manifests have it."""
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1)
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


def test_modes(spark: Any, tmp_path: Path) -> None:
    properties, catalog = home(tmp_path)
    df = spark.range(8).selectExpr("id", "id % 2 as p", "cast(id as string) as s")

    def write(frame: Any, *arguments: Any, **options: Any) -> Any:
        return fbs.write_iceberg(frame, properties, "a.t", *arguments, **options)

    assert write(df, "ignore", "p").rows == 8
    assert write(df, "ignore").rows == 0
    first = catalog.load_table("a.t").current_snapshot().snapshot_id
    with pytest.raises(ResourceError, match="is there already"):
        write(df, "error")
    write(df.selectExpr("P", "ID"))  # names in another case and order, and a column that is missing
    assert len(rows_of(catalog)) == 16
    assert catalog.load_table("a.t").schema().column_names == ["id", "p", "s"]
    odd = df.where("p = 1")
    with pytest.raises(ConfigError, match="there are rows with p=1, and predicate replaces p in"):
        write(odd, "overwrite", predicate=[("p", "=", 0)])
    write(odd, "overwrite", predicate=[("p", "=", 1)])
    assert len(rows_of(catalog)) == 12
    write(odd, "overwrite")
    assert len(rows_of(catalog)) == 4
    count = len(catalog.load_table("a.t").snapshots())
    assert write(df.where("id > 99")).files == 0
    assert len(catalog.load_table("a.t").snapshots()) == count
    write(df.where("id > 99"), "overwrite")
    assert rows_of(catalog) == []
    assert len(list((tmp_path / "warehouse").rglob("fastbuf-*"))) == 4, "runs without files leave none"
    assert fbs.read_iceberg(spark, properties, "a.t", first).count() == 8
    fbs.write_iceberg(df.where("id > 99"), properties, "a.empty", partition_by="bucket(4, id)")
    assert fbs.read_iceberg(spark, properties, "a.empty").count() == 0
    with catalog.load_table("a.t").transaction() as change:
        change.set_properties({"write.parquet.compression-codec": "gzip"})
    write(df)
    (path, *_) = [task.file.file_path for task in catalog.load_table("a.t").scan().plan_files()]
    assert pq.read_metadata(path.removeprefix("file://")).row_group(0).column(0).compression == "GZIP"


def test_what_a_table_does_not_take(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import ListType, LongType, NestedField

    from fastbuf_spark.driver import iceberg_commit

    properties, catalog = home(tmp_path)
    df, one = spark.range(3).selectExpr("id", "cast(id as int) as x"), spark.range(3)
    fbs.write_iceberg(df, properties, "a.t", partition_by="x")
    items = ListType(element_id=3, element_type=LongType(), element_required=True)
    needed = [NestedField(1, "id", LongType(), required=True), NestedField(2, "l", items, required=False)]
    catalog.create_table("a.n", Schema(*needed))
    listed = "array(if(id = 1, null, id)) l"
    for name, frame, arguments, words in [
        ("t", df.selectExpr("id", "x", "1 as y"), {}, "has no column 'y'"),
        ("t", df.selectExpr("id", "id as x"), {}, "column 'x' is bigint, and int in"),
        ("t", df.select("id"), {}, r"no column \['x'\]"),
        ("t", df, {"partition_by": "id"}, r"partition_by is \['id'\], and .* by \['x'\]"),
        ("t", df, {"partition_by": ["bucket(3, x)"]}, "leave it out"),
        ("t", df, {"predicate": [("x", "=", 1)]}, "mode is 'append'"),
        ("t", df, {"predicate": [("id", "=", 1)], "mode": "overwrite"}, "give triples"),
        ("t", df, {"mode": "merge"}, "mode"),
        ("t", df, {"compression": "zip"}, "compression"),
        ("n", one.selectExpr("if(id = 1, null, id) as id"), {}, "'id' may not be null in .*a.n, and 1 rows"),
        ("n", one.selectExpr("id", listed), {}, "column 'l' may have nulls"),
        ("new", one.selectExpr("id", "double(id) d"), {"partition_by": "d"}, "partitions by d, which is double"),
        ("new", one.selectExpr("id", "interval '1' day as i"), {}, "'i' has Spark's type interval day"),
        ("new", one.selectExpr("id", "null as i"), {}, "'i' has Spark's type void"),
        ("new", one.selectExpr("cast(id as smallint) i"), {}, "'i' has Spark's type smallint.*cast them to int"),
        ("new", one.selectExpr("array(cast(id as tinyint)) as i"), {}, "'i' has Spark's type array<tinyint>"),
        ("new", one, {"partition_by": "day(id)"}, "'day\\(id\\)', of a column that is long: give year"),
        ("new", one, {"partition_by": "week(id)"}, "give year"),
        ("new", one, {"partition_by": "other"}, "give names of"),
    ]:
        with pytest.raises((ConfigError, ResourceError, SchemaError), match=words):
            fbs.write_iceberg(frame, properties, f"a.{name}", **arguments)
    with pytest.raises(ResourceError, match=r"no such Iceberg table .*none"):
        fbs.write_iceberg(df, properties, "none.t")
    assert not catalog.table_exists("a.new")
    assert len(list((tmp_path / "warehouse").rglob("fastbuf-*"))) == 1
    assert fbs.write_iceberg(one.selectExpr("id", "array(id) l"), properties, "a.n").rows == 3
    assert len(rows_of(catalog, "a.n")) == 3
    monkeypatch.setattr(iceberg_commit, "VERSIONS", (1,))  # pyiceberg makes no table of version 3
    with pytest.raises(ConfigError, match="version 2 of the format"):
        fbs.write_iceberg(one, properties, "a.n")


def test_writes_that_fail_or_meet(spark: Any, tmp_path: Path) -> None:
    """A run that fails leaves nothing; several at once, of which one makes the table, all count."""
    from concurrent.futures import ThreadPoolExecutor

    properties, catalog = home(tmp_path)
    df = spark.range(4)

    def fails(batches: Any) -> Any:
        for batch in batches:
            yield batch
            raise ValueError("no more")

    with pytest.raises(Exception, match="no more"):
        fbs.pipeline(df).map_in_arrow(fails, "id long").write_iceberg(properties, "a.t")
    assert not list(tmp_path.rglob("*.parquet"))
    assert not catalog.table_exists("a.t")
    with ThreadPoolExecutor(3) as threads:
        done = [threads.submit(fbs.write_iceberg, df, properties, "a.t") for _ in range(3)]
        assert [each.result().rows for each in done] == [4, 4, 4]
    assert len(rows_of(catalog)) == 12


def raiser(error: Exception) -> Any:
    def fails(*arguments: Any) -> None:
        raise error

    return fails


def files_of(catalog: Any) -> list[str]:
    return list(catalog.load_table("a.t").inspect.data_files()["file_path"].to_pylist())


def test_commits_of_which_nobody_knows(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Files stay while it is not known whether the table has them; a name that something else has is told."""
    from pyiceberg.exceptions import CommitStateUnknownException, TableAlreadyExistsError

    from fastbuf_spark.driver.iceberg_commit import IcebergCommit

    properties, catalog = home(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergCommit, "_create", raiser(TableAlreadyExistsError("it is a Hive table")))
        with pytest.raises(ResourceError, match="something of this name that is no Iceberg table"):
            fbs.write_iceberg(spark.range(2), properties, "a.t")
    assert not list(tmp_path.rglob("*.parquet"))
    fbs.write_iceberg(spark.range(2), properties, "a.t")
    before = len(list(tmp_path.rglob("*.parquet")))
    with monkeypatch.context() as patched:
        patched.setattr(IcebergCommit, "_append", raiser(CommitStateUnknownException("502")))
        with pytest.raises(ResourceError, match="does not say whether the table has the rows"):
            fbs.write_iceberg(spark.range(3), properties, "a.t")
    assert len(rows_of(catalog)) == 2
    assert len(list(tmp_path.rglob("*.parquet"))) > before
    # Whether a table has a write's files is seen by these, too: its snapshot may have expired
    commit = IcebergCommit(properties, "a.t", spark.range(1).schema, pa.schema([("id", pa.int64())]), None)
    (folder,) = {path.split("/fastbuf-")[1].split("/")[0] for path in files_of(catalog)}
    monkeypatch.setattr("fastbuf_spark.driver.iceberg_commit.MARK", "of another program")
    assert commit.has(f"fastbuf-{folder}")
    assert not commit.has("fastbuf-0123456789abcdef")


def test_a_table_that_changes_before_the_commit(spark: Any, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    """Another write between the look at the table and the commit: appends both count, an overwrite is told."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.types import StringType

    from fastbuf_spark.driver.iceberg_commit import IcebergCommit

    properties, catalog = home(tmp_path)
    fbs.write_iceberg(spark.range(2), properties, "a.t")
    begun, other = IcebergCommit._begun, pa.table({"id": [7]})
    meanwhile: list[Any] = []

    def begin(self: Any, there: Any) -> Any:
        transaction = begun(self, there)
        if meanwhile:
            meanwhile.pop()(catalog.load_table("a.t"))
        return transaction

    def count() -> int:
        return len(rows_of(catalog))

    monkeypatch.setattr(IcebergCommit, "_begun", begin)
    meanwhile[:] = [lambda table: table.append(other)]
    fbs.write_iceberg(spark.range(3), properties, "a.t")
    assert count() == 6
    kept = len(list(tmp_path.rglob("fastbuf-*")))
    for change in [lambda table: table.append(other), lambda table: table.overwrite(other)]:
        meanwhile[:], before = [change], count()
        with pytest.raises(ResourceError, match="another write has changed the table meanwhile"):
            fbs.write_iceberg(spark.range(3), properties, "a.t", "overwrite")
        assert count() in (before + 1, 1)
    meanwhile[:] = [lambda table: table.update_schema().add_column("s", StringType()).commit()]
    with pytest.raises(ResourceError, match="changed"):
        fbs.write_iceberg(spark.range(3), properties, "a.t")
    assert len(list(tmp_path.rglob("fastbuf-*"))) == kept
    # pyiceberg has tried in vain to commit behind others: it is tried again, and told
    append, before = IcebergCommit._append, count()
    refusals = iter([CommitFailedException("too many others")])

    def beaten(self: Any, *arguments: Any) -> None:
        for error in refusals:
            raise error
        append(self, *arguments)

    with monkeypatch.context() as patched, caplog.at_level("INFO", "fastbuf_spark"):
        patched.setattr(IcebergCommit, "_append", beaten)
        fbs.write_iceberg(spark.range(3).selectExpr("id", "'x' s"), properties, "a.t")
    assert count() == before + 3
    assert "a.t: another write came first: commit 2 of 25" in caplog.text
    # The answer to a commit is lost: its files stay, and are not added again

    def lost(self: Any, *arguments: Any) -> None:
        append(self, *arguments)
        raise OSError("no answer")

    before = count()
    monkeypatch.setattr(IcebergCommit, "_append", lost)
    with pytest.raises(ResourceError, match="no answer"):
        fbs.write_iceberg(spark.range(2), properties, "a.t")
    assert count() == before + 2
    assert fbs.read_iceberg(spark, properties, "a.t").count() == before + 2


def test_what_was_added_since_it_was_read_stays(spark: Any, tmp_path: Path) -> None:
    """An overwrite of the rows of an older snapshot; if some of these have gone since, that is told."""
    properties, catalog = home(tmp_path)
    fbs.write_iceberg(spark.range(4), properties, "a.t")
    first = catalog.load_table("a.t").current_snapshot().snapshot_id
    catalog.load_table("a.t").append(pa.table({"id": [7]}))
    read = fbs.read_iceberg(spark, properties, "a.t", first)
    read.write_iceberg(properties, "a.t", "overwrite", read_snapshot=first)
    assert sorted(row["id"] for row in rows_of(catalog)) == [0, 1, 2, 3, 7]
    table = catalog.load_table("a.t")
    second = table.current_snapshot().snapshot_id
    delete_rows(table, {next(iter(table.scan().plan_files())).file.file_path: [0]})
    for snapshot in (first, second):
        with pytest.raises(ResourceError, match=f"has removed rows since snapshot {snapshot}"):
            read.write_iceberg(properties, "a.t", "overwrite", read_snapshot=snapshot)
    assert len(rows_of(catalog)) == 4


def test_what_a_killed_driver_leaves(spark: Any, tmp_path: Path) -> None:
    """The next write takes it away, unless a snapshot has it, be it an old one."""
    properties, catalog = home(tmp_path)
    fbs.write_iceberg(spark.range(3), properties, "a.t")
    first = catalog.load_table("a.t").current_snapshot().snapshot_id
    data = tmp_path / "warehouse" / "a" / "t" / "data"
    (committed,) = data.glob("fastbuf-*")
    catalog.load_table("a.t").overwrite(pa.table({"id": [7]}))
    left_by_a_killed_driver(data, committed.name)
    gone = left_by_a_killed_driver(data, "fastbuf-gone")
    fbs.write_iceberg(spark.range(1), properties, "a.t")
    assert not gone.exists()
    assert list((data / "_fastbuf").iterdir()) == []
    assert fbs.read_iceberg(spark, properties, "a.t", first).count() == 3
    assert len(rows_of(catalog)) == 2
