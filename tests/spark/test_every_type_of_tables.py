"""Every type of Spark's: written as other readers have it, values and types, or refused by its column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
import pytest
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import SchemaError

duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
pytest.importorskip("pyiceberg", reason="pip install 'fastbuf[iceberg]'")
pytest.importorskip("sqlalchemy", reason="pip install 'pyiceberg[sql-sqlite]'")

from iceberg_tables import home  # noqa: E402

pytestmark = pytest.mark.spark
POINT = "X'0101000000000000000000F03F0000000000000040'"
#: What makes a value of each class; of one that has two kinds, a name behind a space tells which
EXPRESSIONS = {
    "NullType": "null",
    "StringType": "concat('aé\\u0000', id)",
    "StringType collated": "cast(id as string) collate utf8_lcase",
    "BinaryType": "cast(concat('x', id) as binary)",
    "BooleanType": "id % 2 = 0",
    "DateType": "date_add(date'1500-01-01', cast(id as int))",
    "TimeType": "make_time(1, 2, id)",
    "TimestampType": "timestamp_micros(id * 86400123456)",
    "TimestampNTZType": "cast(timestamp_micros(id * 123456) as timestamp_ntz)",
    "DecimalType": "cast(id - 4 as decimal(9, 2))",
    "DecimalType wide": "cast(id - 4 as decimal(38, 6))",
    "DoubleType": "if(id = 3, double('nan'), id / 3)",
    "FloatType": "if(id = 3, float('-infinity'), cast(id / 3 as float))",
    "GeographyType": f"st_geogfromwkb({POINT})",
    "GeometryType": f"st_geomfromwkb({POINT})",
    "ByteType": "cast(id - 4 as tinyint)",
    "ShortType": "cast(id - 4 as smallint)",
    "IntegerType": "cast(id - 4 as int)",
    "LongType": "id - 4 + (1L << 60)",
    "VariantType": "parse_json(concat('{\"a\":', id, '}'))",
    "DayTimeIntervalType": "make_dt_interval(1, 2, 3, id)",
    "YearMonthIntervalType": "make_ym_interval(1, cast(id as int))",
    "CalendarIntervalType": "make_interval(1, 2, 3)",
    "ArrayType": "array(array(id), null, array())",
    "MapType": "map('a', array(id), 'b', null)",
    "StructType": "named_struct('a', id, 'b', array(named_struct('c', timestamp_micros(id))))",
}
TABLES = {"CharType": "char(4)", "VarcharType": "varchar(4)"}  # columns that a table alone has
ABSTRACT = "DataType AtomicType NumericType IntegralType FractionalType DatetimeType AnyTimeType SpatialType"
ABSTRACT += " AnsiIntervalType DataTypeSingleton StructField"
NEVER = {"NullType", "TimeType", "GeographyType", "GeometryType", "VariantType", "YearMonthIntervalType"}
NEVER |= {"CalendarIntervalType"}
REFUSED = {
    "parquet": NEVER,
    "delta": NEVER | {"StringType collated", "DayTimeIntervalType", "UserDefinedType"},
    "iceberg": NEVER | {"StringType collated", "DayTimeIntervalType", "UserDefinedType", "ByteType", "ShortType"},
}


@pytest.fixture
def frames(new_york: Any, tmp_path: Path) -> Any:
    """A DataFrame for each type, with a column `c`, of which a row is null."""
    from pyspark.sql import types as T
    from pyspark.testing.objects import PythonOnlyPoint, PythonOnlyUDT

    spark, made = new_york, {}
    spark.conf.set("spark.sql.timeType.enabled", "true")
    for name, expression in EXPRESSIONS.items():
        if hasattr(T, name.partition(" ")[0]):  # else it is of a later Spark
            made[name] = spark.range(0, 6, 1, 2).selectExpr("id", f"if(id = 5, null, {expression}) as c")
    for name, kind in TABLES.items():
        spark.sql(f"create table {name} (id long, c {kind}) using parquet location '{tmp_path}/{name}'")
        spark.range(3).selectExpr("id", "cast(id as string)").write.insertInto(name)
        made[name] = spark.table(name)
    points = T.StructType([T.StructField("id", T.LongType()), T.StructField("c", PythonOnlyUDT())])
    made["UserDefinedType"] = spark.createDataFrame([(i, PythonOnlyPoint(float(i), -0.5)) for i in range(3)], points)
    try:
        yield made
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
        for name in TABLES:
            spark.sql(f"drop table {name}")


def kind_of(kind: pa.DataType) -> str:
    """A type of Arrow's without what readers differ in: names of elements, zones, large or small offsets."""
    if kinds.is_map(kind):
        return f"map({kind_of(kind.key_type)}, {kind_of(kind.item_type)})"
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return f"list({kind_of(kind.value_type)})"
    if kinds.is_struct(kind):
        return f"struct({', '.join(f'{field.name} {kind_of(field.type)}' for field in kind)})"
    if kinds.is_timestamp(kind):
        return f"timestamp {kind.tz is not None}"
    return str(kind).removeprefix("large_").replace("string_view", "string").replace("decimal32", "decimal128")


def assert_same(theirs: pa.Table, ours: pa.Table) -> None:
    """Types of all columns, and all rows."""
    names = ours.schema.names
    theirs = theirs.select(names)
    assert {name: kind_of(theirs.schema.field(name).type) for name in names} == {
        name: kind_of(ours.schema.field(name).type) for name in names
    }
    assert sorted(map(repr, map(plain, theirs.to_pylist()))) == sorted(map(repr, map(plain, ours.to_pylist())))
    assert theirs.num_rows == ours.num_rows == 6


def plain(value: Any) -> Any:
    """A value, with times as seconds, whatever the zone that a reader shows them in."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.timestamp() if getattr(value, "tzinfo", None) is not None else value


def together(spark: Any, frames: dict[str, Any], format: str) -> Any:
    """One DataFrame with a column of each type that a format has."""
    names = [name for name in frames if name in EXPRESSIONS and name not in REFUSED[format]]
    columns = [f"if(id = 5, null, {EXPRESSIONS[name]}) as `{name.replace(' ', '_')}`" for name in names]
    assert len(columns) >= 15
    return spark.range(0, 6, 1, 2).selectExpr("id", *columns)


def in_duckdb(files: list[str], like: pa.Table) -> pa.Table:
    return duckdb.sql(f"select {', '.join(like.schema.names)} from read_parquet({files})").to_arrow_table()


def test_every_type_is_here() -> None:
    """A type that a later Spark brings has to be put into the tables above."""
    from pyspark.sql import types as T

    classes = {name for name, made in vars(T).items() if isinstance(made, type) and issubclass(made, T.DataType)}
    here = {name.partition(" ")[0] for name in EXPRESSIONS} | set(TABLES) | {"UserDefinedType"}
    assert classes - set(ABSTRACT.split()) <= here


def test_what_a_format_has_not_is_refused_by_its_column(frames: dict[str, Any], tmp_path: Path) -> None:
    properties, _ = home(tmp_path)
    writes: dict[str, Callable[[str, Any], Any]] = {
        "parquet": lambda name, df: fbs.write_parquet(df, tmp_path / "parquet" / name),
        "delta": lambda name, df: fbs.write_delta(df, tmp_path / "delta" / name),
        "iceberg": lambda name, df: fbs.write_iceberg(df, properties, f"a.{name.replace(' ', '')}"),
    }
    for format, write in writes.items():
        assert set(frames) >= REFUSED[format] - {"TimeType", "GeographyType", "GeometryType"}
        for name in REFUSED[format] & set(frames):
            with pytest.raises(SchemaError, match="field 'c'"):
                write(name, frames[name])
            assert not (tmp_path / format / name).exists()
        for name in set(frames) - set(EXPRESSIONS) - REFUSED[format]:  # those that are not in one table, below
            assert write(name, frames[name]).rows == 3


def test_parquet(new_york: Any, frames: dict[str, Any], tmp_path: Path) -> None:
    """As Spark reads what it wrote itself; the chars, and what people define, too."""
    df = together(new_york, frames, "parquet")
    others = ("CharType", "VarcharType", "UserDefinedType")
    for name, frame in [("all", df), *((name, frames[name]) for name in others)]:
        fbs.write_parquet(frame, tmp_path / "ours" / name)
        frame.write.parquet(str(tmp_path / "theirs" / name))
        ours, theirs = (new_york.read.parquet(str(tmp_path / whose / name)) for whose in ("ours", "theirs"))
        assert same(ours, theirs) == frame.count()
    files = [str(path) for path in (tmp_path / "ours" / "all").glob("*.parquet")]
    arrow = df.drop("DayTimeIntervalType").toArrow()  # which DuckDB reads as a number
    assert_same(in_duckdb(files, arrow), arrow)


def test_delta(new_york: Any, frames: dict[str, Any], tmp_path: Path) -> None:
    df = together(new_york, frames, "delta")
    fbs.write_delta(df, tmp_path / "t")
    table, arrow = deltalake.DeltaTable(tmp_path / "t"), df.toArrow()
    assert_same(table.to_pyarrow_table(), arrow)
    assert_same(in_duckdb(table.file_uris(), arrow), arrow)
    assert {f.name: f.type for f in pa.schema(table.schema().to_arrow())}.keys() == set(arrow.schema.names)


def test_iceberg(new_york: Any, frames: dict[str, Any], tmp_path: Path) -> None:
    df = together(new_york, frames, "iceberg")
    properties, catalog = home(tmp_path)
    fbs.write_iceberg(df, properties, "a.t")
    scan, arrow = catalog.load_table("a.t").scan(), df.toArrow()
    assert_same(scan.to_arrow(), arrow)
    assert_same(in_duckdb([task.file.file_path for task in scan.plan_files()], arrow), arrow)


def test_another_reader_skips_files_by_our_statistics(spark: Any, tmp_path: Path) -> None:
    """Those of Delta's log and of Iceberg's manifests."""
    import pyarrow.compute as pc

    df = spark.range(0, 90, 1, 3).selectExpr("id", "cast(id as string) s")
    fbs.write_delta(df, tmp_path / "t")
    dataset = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset()
    assert len(list(dataset.get_fragments())) == 3
    assert len(list(dataset.get_fragments(pc.field("id") > 70))) == 1
    properties, catalog = home(tmp_path)
    fbs.write_iceberg(df, properties, "a.t")
    table = catalog.load_table("a.t")
    assert len(list(table.scan().plan_files())) == 3
    assert len(list(table.scan("id > 70").plan_files())) == 1
    assert table.scan("id > 70").to_arrow().num_rows == 19
