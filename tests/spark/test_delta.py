"""Delta tables that the workers read and write: beside deltalake, DuckDB and Spark's reader of their files."""

from __future__ import annotations

import datetime as dt
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")

from delta_tables import by_hand  # noqa: E402
from test_sources import same  # noqa: E402

import fastbuf_spark as fbs  # noqa: E402
from fastbuf.errors import ConfigError, ResourceError, SchemaError  # noqa: E402
from fastbuf_spark.driver.file_types import nullable  # noqa: E402

pytestmark = pytest.mark.spark
NOON = dt.datetime(2020, 7, 1, 12, 30, 1, 123456)
UTC = dt.UTC
TYPES = {
    "i8": pa.array([1, None], pa.int8()),
    "i16": pa.array([1, None], pa.int16()),
    "i32": pa.array([1, None], pa.int32()),
    "i64": pa.array([2**60, None]),
    "f": pa.array([1.5, None], pa.float32()),
    "d": pa.array([float("nan"), None]),
    "b": pa.array([True, None]),
    "s": pa.array(["a", None]),
    "bin": pa.array([b"\0\xff", None]),
    "day": pa.array([dt.date(1500, 1, 1), None]),
    "t": pa.array([NOON.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "ntz": pa.array([NOON, None], pa.timestamp("us")),
    "dec": pa.array([Decimal("-1.23"), None], pa.decimal128(38, 2)),
    "l": pa.array([[1, None], None], pa.list_(pa.int32())),
    "m": pa.array([[("a", NOON)], None], pa.map_(pa.string(), pa.timestamp("us"))),
    "st": pa.array([{"a": 1, "t": [NOON]}, None], pa.struct([("a", pa.int16()), ("t", pa.list_(pa.timestamp("us")))])),
}


def files(read: Any) -> set[str]:
    return {piece.fragment.path for split in read._start.read.splits for piece in split}


def test_types(new_york: Any, tmp_path: Path) -> None:
    """As Spark reads the table's files, which have the types of its columns."""
    deltalake.write_deltalake(tmp_path, pa.table(TYPES))
    (file,) = tmp_path.glob("*.parquet")
    assert same(fbs.read_delta(new_york, tmp_path).to_df(), new_york.read.parquet(str(file))) == 2


def test_columns_of_partitions(new_york: Any, tmp_path: Path) -> None:
    """In their place among the others, by the log's values."""
    values = {name: TYPES[name] for name in ("i64", "d", "b", "s", "day", "t", "ntz", "dec")} | {
        "d": pa.array([1e7, None])
    }
    values["s"] = pa.array(["a b/%=:", None])
    values["dec"] = pa.array([Decimal("1.23"), None], pa.decimal128(38, 2))  # deltalake spoils negative ones
    table = pa.table({**values, "id": [1, 2]}).select(["s", "id", "day", "t", "ntz", "dec", "b", "d", "i64"])
    deltalake.write_deltalake(tmp_path, table, partition_by=list(values))
    made = fbs.read_delta(new_york, tmp_path).to_df()
    assert dict(made.dtypes)["ntz"] == "timestamp_ntz"
    assert same(made, new_york.createDataFrame(table, made.schema)) == 2
    read = fbs.read_delta(new_york, tmp_path, columns=["id"], filter=pc.field("s") == "a b/%=:")
    assert len(files(read)) == 1
    assert read.collect() == [(1,)]


def test_files_that_are_skipped(spark: Any, tmp_path: Path) -> None:
    """By the log's bounds, and never a file that has a row: nulls, NaNs, and times cut to milliseconds."""
    for i in range(4):
        step = [i * 10.0, i * 10 + 9.0, None, float("nan") if i == 3 else None]
        at = dt.datetime(2020, 1, 1 + i, 0, 0, 0, 123456, UTC)
        table = pa.table({
            "x": step,
            "k": [i, i, i, None] if i else pa.array([None] * 4, pa.int64()),
            "t": pa.array([at] * 4, pa.timestamp("us", "UTC")),
            "s": [f"{i}a", f"{i}z", None, ""],
            "dec": pa.array([Decimal(f"12345678901234567890.{i}1")] * 4, pa.decimal128(22, 2)),
        })  # fmt: skip
        deltalake.write_deltalake(tmp_path, table, mode="append")
    everything = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    x, k, t = pc.field("x"), pc.field("k"), pc.field("t")
    for filter, most in [
        (x > 25, 2),
        (x == 15, 1),
        (~(x <= 39), 4),
        (x.is_null(), 4),
        (x.is_nan(), 4),
        (k.is_null(), 4),
        (k == 2, 1),
        (k.is_valid(), 3),
        (t > pa.scalar(dt.datetime(2020, 1, 4, 0, 0, 0, 123000, UTC), pa.timestamp("us", "UTC")), 1),
        ((k == 1) | (pc.field("s") == "3z"), 4),
        (pc.field("dec") == Decimal("12345678901234567890.21"), 4),
        (x > 100, 1),
    ]:
        read = fbs.read_delta(spark, tmp_path, filter=filter)
        assert len(files(read)) <= most, filter
        assert sorted(map(str, read.to_arrow().to_pylist())) == sorted(map(str, everything.filter(filter).to_pylist()))


def test_a_version_of_the_table(spark: Any, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    deltalake.write_deltalake(tmp_path, pa.table({"x": [2]}), mode="append")
    history = deltalake.DeltaTable(tmp_path).history()
    first = dt.datetime.fromtimestamp(history[-1]["timestamp"] / 1000, UTC)
    assert sorted(fbs.read_delta(spark, tmp_path).collect()) == [(1,), (2,)]
    assert fbs.read_delta(spark, tmp_path, 0).collect() == [(1,)]
    assert fbs.read_delta(spark, tmp_path, timestamp=first).collect() == [(1,)]
    assert fbs.read_delta(spark, tmp_path, timestamp=first.isoformat()).collect() == [(1,)]
    for arguments, words in [
        ({"version": 7}, "no version 7: its newest one is 1"),
        ({"version": 0, "timestamp": first}, "give one of them"),
        ({"version": "0"}, "give a whole number"),
        ({"timestamp": "yesterday"}, "give a datetime, or text"),
        ({"timestamp": 3}, "give a datetime, or text"),
    ]:
        with pytest.raises((ConfigError, ResourceError), match=words):
            fbs.read_delta(spark, tmp_path, **arguments)
    with pytest.raises(ResourceError, match="is no Delta table"):
        fbs.read_delta(spark, tmp_path / "other")


def test_rows_that_were_deleted(spark: Any, tmp_path: Path) -> None:
    """A deletion vector names rows that are not the table's; with a filter and without, in several batches."""
    by_hand(
        tmp_path / "t",
        pa.table({"x": range(200_000), "y": range(200_000)}),
        reader_features=["deletionVectors"],
        deleted=[1, 3, 9],
    )
    read = fbs.read_delta(spark, tmp_path / "t")
    got = read.to_arrow()
    assert sorted(set(range(200_000)) - set(got["x"].to_pylist())) == [1, 3, 9]
    filtered = fbs.read_delta(spark, tmp_path / "t", columns=["y"], filter=pc.field("x") < 11)
    assert sorted(filtered.to_arrow()["y"].to_pylist()) == [0, 2, 4, 5, 6, 7, 8, 10]


def test_what_is_refused(spark: Any, tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    told = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    by_hand(
        tmp_path / "m", pa.table({"x": [1]}), reader_features=["columnMapping"], configuration=mapped, metadata=told
    )
    with pytest.raises(ConfigError, match=r"columnMapping.*DROP FEATURE"):
        fbs.read_delta(spark, tmp_path / "m")
    by_hand(tmp_path / "n", pa.table({"x": [1]}), reader_features=["columnMapping"])
    assert fbs.read_delta(spark, tmp_path / "n").collect() == [(1,)]  # it may be used there, and is not
    by_hand(tmp_path / "o", pa.table({"x": [1]}), reader_features=["someFeature"])
    with pytest.raises(ConfigError, match="someFeature"):
        fbs.read_delta(spark, tmp_path / "o")


def test_storage_options_are_not_shown(spark: Any, tmp_path: Path, capsys: Any) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    read = fbs.read_delta(spark, tmp_path, storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})
    read.explain()
    assert read.collect() == [(1,)]
    read.to_df().explain(True)
    assert "hidden" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())


ALL = (
    "id, cast(id as tinyint) i8, cast(id as smallint) i16, cast(id as int) i32, cast(id / 3 as float) f, "
    "if(id = 3, double('nan'), id / 3) d, id % 2 = 0 b, concat('aé/ =%', id) s, cast(id as string) t, "
    "cast(concat('x', id) as binary) bin, date_add(date'1999-12-30', cast(id as int)) day, "
    "timestamp_micros(id * 86400123456) ts, cast(timestamp_micros(id * 123456) as timestamp_ntz) ntz, "
    "cast(id - 4 as decimal(9, 2)) dec, cast(id - 4 as decimal(38, 6)) wide, array(id, null) l, map('a', id) m, "
    "named_struct('a', id, 'b', array(named_struct('c', timestamp_micros(id)))) st"
)


def rows_of(path: Any) -> list[str]:
    """The table as deltalake has it."""
    return sorted(map(str, deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()))


def test_what_others_read(new_york: Any, tmp_path: Path) -> None:
    """All types, nulls in all columns: deltalake, DuckDB and Spark find the rows and types that were written."""
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    nulls = ", ".join(
        f"if(id = 5, null, {name}) {name}" for name in new_york.range(1).selectExpr(*_split(ALL)).columns[1:]
    )
    df = new_york.range(9).selectExpr(*_split(ALL)).selectExpr("id", *_split(nulls))
    wrote = fbs.write_delta(df, tmp_path / "t", "error")
    assert wrote.rows == 9
    table = deltalake.DeltaTable(tmp_path / "t")
    arrow = df.toArrow()
    theirs = table.to_pyarrow_table().select(arrow.schema.names)
    assert sorted(map(_known, theirs.to_pylist()), key=str) == sorted(map(_known, arrow.to_pylist()), key=str)
    uris = [str(tmp_path / "t" / file) for file in _paths(table)]
    (count,) = duckdb.sql(f"select count(*), sum(i32) from read_parquet({uris})").fetchall()
    assert count == (9, 31)
    want = new_york.createDataFrame(df.rdd, nullable(df.schema))
    assert same(new_york.read.parquet(*uris), want) == 9
    assert same(fbs.read_delta(new_york, tmp_path / "t").to_df(), want) == 9


def _split(text: str) -> list[str]:
    """Expressions of a list, at its outer commas."""
    made, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            made.append("")
        else:
            made[-1] += character
    return made


def _known(value: Any) -> Any:
    """A value that equals itself, instants in UTC."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    if isinstance(value, dt.datetime) and value.tzinfo:
        return value.astimezone(UTC)
    return "NaN" if value != value else value


def _paths(table: Any) -> list[str]:
    from urllib.parse import unquote

    return [unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]


def test_partitions_that_others_read(new_york: Any, tmp_path: Path) -> None:
    """Values as the log has them, of every type that names a partition."""
    df = new_york.range(9).selectExpr(*_split(ALL)).selectExpr("id", *_split(
        "if(id = 5, null, s) s, day, ts, ntz, if(id = 3, null, dec) dec, b, cast(id * 1e6 as double) d, i8"
    ))  # fmt: skip
    by = df.columns[1:]
    fbs.pipeline(df).write_delta(tmp_path / "t", partition_by=by)
    assert deltalake.DeltaTable(tmp_path / "t").metadata().partition_columns == by
    made = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().select(df.columns).to_pylist()
    assert sorted(map(_known, made), key=str) == sorted(map(_known, df.toArrow().to_pylist()), key=str)
    assert same(fbs.read_delta(new_york, tmp_path / "t").to_df(), df) == 9


def test_modes(spark: Any, tmp_path: Path) -> None:
    df, path = spark.range(8).selectExpr("id", "id % 2 as p", "cast(id as string) as s"), tmp_path / "t"
    assert fbs.write_delta(df, path, "ignore", "p").rows == 8
    assert fbs.write_delta(df, path, "ignore").rows == 0
    with pytest.raises(ResourceError, match="is there already"):
        fbs.write_delta(df, path, "error")
    fbs.write_delta(df.selectExpr("P", "ID"), path)  # names in another case and order, and a column that is missing
    assert len(rows_of(path)) == 16
    assert set(deltalake.DeltaTable(path).schema().to_arrow().names) == {"id", "p", "s"}
    odd = df.where("p = 1")
    with pytest.raises(ConfigError, match=r"there are rows with p='1', and predicate replaces p in \['0'\]"):
        fbs.write_delta(odd, path, "overwrite", predicate=[("p", "=", 0)])
    fbs.write_delta(odd, path, "overwrite", predicate=[("p", "=", 1)])
    assert len(rows_of(path)) == 12
    fbs.write_delta(odd, path, "overwrite")
    assert len(rows_of(path)) == 4
    assert fbs.write_delta(df.where("id > 99"), path).files == 0
    fbs.write_delta(df.where("id > 99"), path, "overwrite")
    assert rows_of(path) == []
    assert len(list(path.glob("fastbuf-*"))) == 4, "runs without files leave none"
    assert fbs.read_delta(spark, path, version=0).count() == 8
    fbs.write_delta(df.where("id > 99"), tmp_path / "empty")
    assert fbs.read_delta(spark, tmp_path / "empty").to_df().schema == fbs.read_delta(spark, path).to_df().schema


def test_what_a_table_does_not_take(spark: Any, tmp_path: Path) -> None:
    df = spark.range(3).selectExpr("id", "cast(id as int) as x")
    fbs.write_delta(df, tmp_path / "t", partition_by="x")
    rule = {"delta.constraints.positive": "id > 0"}
    by_hand(tmp_path / "c", pa.table({"id": [1]}), configuration=rule)
    by_hand(tmp_path / "a", pa.table({"id": [1]}), configuration={"delta.appendOnly": "true"})
    by_hand(tmp_path / "n", pa.table({"id": [1]}, schema=pa.schema([pa.field("id", pa.int64(), False)])))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x.csv").write_text("1")
    one = spark.range(3)
    for path, frame, arguments, words in [
        ("t", df.selectExpr("id", "x", "1 as y"), {}, "has no column 'y'"),
        ("t", df.selectExpr("id", "id as x"), {}, "column 'x' is bigint, and int in"),
        ("t", df.select("id"), {}, r"no column \['x'\]"),
        ("t", df, {"partition_by": "id"}, r"partition_by is \['id'\]"),
        ("t", df, {"predicate": [("x", "=", 1)]}, "mode is 'append'"),
        ("t", df, {"predicate": [("id", "=", 1)], "mode": "overwrite"}, "give triples"),
        ("t", df, {"mode": "merge"}, "mode"),
        ("t", df, {"compression": "zip"}, "compression"),
        ("c", one, {}, "constraints.positive"),
        ("a", one, {"mode": "overwrite"}, "appendOnly"),
        ("n", one.selectExpr("if(id = 1, null, id) as id"), {}, "may not be null"),
        ("f", one, {}, "is no Delta table, and has files"),
        ("new", one.selectExpr("id", "interval '1' day as i"), {}, "'i' has Spark's type interval day"),
        ("new", one.selectExpr("id", "null as i"), {}, "'i' has Spark's type void"),
        ("new", one.selectExpr("array(interval '1' year) as i"), {}, "'i' has Spark's type array<interval year>"),
        ("new", one.selectExpr("id as `a b`"), {}, "'a b' has one of"),
        ("new", one, {"partition_by": "id"}, "leave one for the files"),
    ]:
        with pytest.raises((ConfigError, ResourceError, SchemaError), match=words):
            fbs.write_delta(frame, tmp_path / path, **arguments)
    assert not (tmp_path / "new").exists()
    assert not [each for each in tmp_path.glob("[acn]/fastbuf-*")]
    assert fbs.write_delta(one, tmp_path / "n").rows == 3


def test_writes_that_fail_or_meet(spark: Any, tmp_path: Path) -> None:
    """A run that fails leaves nothing; several at once, of which one makes the table, all count."""
    from concurrent.futures import ThreadPoolExecutor

    df, path = spark.range(4), tmp_path / "t"

    def fails(batches: Any) -> Any:
        for batch in batches:
            yield batch
            raise ValueError("no more")

    with pytest.raises(Exception, match="no more"):
        fbs.pipeline(df).map_in_arrow(fails, "id long").write_delta(path)
    assert not list(path.rglob("*.parquet"))
    with ThreadPoolExecutor(3) as threads:
        done = [threads.submit(fbs.write_delta, df, path) for _ in range(3)]
        assert [each.result().rows for each in done] == [4, 4, 4]
    assert len(rows_of(path)) == 12


def test_a_table_that_changes_before_the_commit(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Another overwrite, between the look at the table and the commit, is told; another append stays; files go."""
    from fastbuf_spark.driver import delta_commit

    path, meanwhile = tmp_path / "t", []
    fbs.write_delta(spark.range(2), path)

    def check(table: Any, files: Any) -> None:
        deltalake.write_deltalake(path, pa.table({"id": [7]}), mode=meanwhile[0])

    monkeypatch.setattr(delta_commit, "check_nulls", check)
    meanwhile[:] = ["overwrite"]
    with pytest.raises(ResourceError, match="another write has changed the table meanwhile"):
        fbs.write_delta(spark.range(3), path, "overwrite")
    assert rows_of(path) == ["{'id': 7}"]
    meanwhile[:] = ["append"]
    fbs.write_delta(spark.range(1), path)
    assert rows_of(path) == ["{'id': 0}", "{'id': 7}", "{'id': 7}"]
    # The answer to a commit is lost: its files stay
    monkeypatch.setattr(delta_commit, "check_nulls", lambda table, files: None)
    commit = delta_commit.DeltaCommit._commit

    def lost(*arguments: Any) -> bool:
        commit(*arguments)
        raise ResourceError("no answer")

    monkeypatch.setattr(delta_commit.DeltaCommit, "_commit", lost)
    with pytest.raises(ResourceError, match="no answer"):
        fbs.write_delta(spark.range(2), path)
    assert len(rows_of(path)) == 5
    assert fbs.read_delta(spark, path).count() == 5


def test_what_was_added_since_it_was_read_stays(spark: Any, tmp_path: Path) -> None:
    """An overwrite of the rows of an older version; if some of these have gone since, that is told."""
    path = tmp_path / "t"
    fbs.write_delta(spark.range(4), path)
    deltalake.write_deltalake(path, pa.table({"id": [7]}), mode="append")
    read = fbs.read_delta(spark, path, version=0)
    read.write_delta(path, "overwrite", read_version=0)
    assert sorted(rows_of(path)) == [f"{{'id': {i}}}" for i in (0, 1, 2, 3, 7)]
    with pytest.raises(ResourceError, match="another write has changed the table meanwhile"):
        read.write_delta(path, "overwrite", read_version=1)
    with pytest.raises(ConfigError, match="read_version says what an overwrite replaces, and mode is 'append'"):
        read.write_delta(path, read_version=1)
    assert len(rows_of(path)) == 5


def left_by_a_killed_driver(root: Path, folder: str) -> Path:
    """What its run has written below a table, and the note that it goes on."""
    from fastbuf_spark.driver.unfinished import _host

    with subprocess.Popen(["true"]) as gone:
        pass
    (root / "_fastbuf").mkdir(exist_ok=True)
    (root / "_fastbuf" / f"{folder}.{_host()}.{gone.pid}.5").touch()
    made = root / folder
    (made / "x").mkdir(parents=True, exist_ok=True)
    (made / "x" / "a.parquet").touch()
    return made


def test_what_a_killed_driver_leaves(spark: Any, tmp_path: Path) -> None:
    """The next write takes it away, unless a version has it, be it an old one."""
    path = tmp_path / "t"
    fbs.write_delta(spark.range(3), path)
    (committed,) = path.glob("fastbuf-*")
    deltalake.write_deltalake(path, pa.table({"id": [7]}), mode="overwrite")
    left_by_a_killed_driver(path, committed.name)
    gone = left_by_a_killed_driver(path, "fastbuf-gone")
    fbs.write_delta(spark.range(1), path)
    assert not gone.exists()
    assert list((path / "_fastbuf").iterdir()) == []
    assert fbs.read_delta(spark, path, 0).count() == 3
    assert len(rows_of(path)) == 2
