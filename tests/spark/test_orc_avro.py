"""ORC and Avro files that the workers read: ORC beside Spark's reader, Avro, whose reader Spark has not, by hand."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.orc as po
import pytest
from conftest import failure
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch

pytestmark = pytest.mark.spark

TYPES = """
    SELECT id = 0 AS bo, CAST(id AS tinyint) by, CAST(-id AS smallint) sh, CAST(id AS int) i, id l,
    CAST(id / 3 AS float) f, id / 7D d, CAST(id / 3 AS decimal(5, 2)) de, CAST(id / 3 AS decimal(38, 10)) de38,
    CONCAT('é', id) s, CAST(id AS char(5)) c, CAST(id AS varchar(5)) v, CAST(CAST(id AS string) AS binary) b,
    date'1582-10-15' + CAST(id * 200 AS int) da,
    timestamp'1700-01-01 00:00:00.123456' + make_dt_interval(id * 30, id) t,
    timestamp_ntz'1500-01-01 00:00:00.123456' + make_dt_interval(id * 9999, id) n, make_dt_interval(id, 1, 2, 3.5) ds,
    ARRAY(CAST(id AS int), NULL) ar, MAP(CONCAT('k', id), id / 2D) m,
    STRUCT(id AS x, timestamp_ntz'2020-01-01 00:00:00' AS y, STRUCT('z' AS z)) st,
    ARRAY(STRUCT(timestamp'2020-07-01' AS t)) at
    FROM RANGE(20)
"""  # fmt: skip


def test_all_types_of_orc(new_york: Any, tmp_path: Path) -> None:
    """Each with nulls, in a session whose zone is not that of the JVM."""
    values = new_york.sql(TYPES)
    nulls = values.selectExpr(*(f"IF(true, NULL, {name}) {name}" for name in values.columns))
    values.union(nulls).coalesce(1).write.orc(str(tmp_path / "a"), compression="snappy")
    assert same(fbs.read_orc(new_york, tmp_path / "a").to_df(), new_york.read.orc(str(tmp_path / "a"))) == 40
    kinds = "L int, s string, missing double"
    assert same(
        fbs.read_orc(new_york, tmp_path / "a", schema=kinds).to_df(),
        new_york.read.schema(kinds).orc(str(tmp_path / "a")),
    )
    read = fbs.read_orc(
        new_york, tmp_path / "a", ["s"], pc.field("t") > pa.scalar(dt.datetime(1700, 6, 1, tzinfo=dt.UTC))
    )
    assert sorted(read.collect()) == sorted(
        new_york.read.orc(str(tmp_path / "a")).where("t > '1700-05-31 19:03:58'").select("s").collect()
    )


def test_what_arrow_wrote_as_orc(spark: Any, tmp_path: Path) -> None:
    noon = dt.datetime(2020, 7, 1, 12, 30, 1, 123456)
    table = pa.table(
        {
            "clock": pa.array([noon, None], pa.timestamp("us")),
            "instant": pa.array([noon, None], pa.timestamp("us", "Europe/Paris")),
            "large": pa.array(["a", None], pa.large_string()),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "inside": pa.array([{"x": [1, None]}, None], pa.struct([("x", pa.list_(pa.int8()))])),
        }
    )
    (tmp_path / "k=1").mkdir()
    po.write_table(table, tmp_path / "k=1" / "a.orc")
    assert same(fbs.read_orc(spark, tmp_path).to_df(), spark.read.orc(str(tmp_path))) == 2
    read = fbs.scan(spark, ds.dataset(tmp_path, format="orc"), ["large", "inside"])
    assert read.collect() == spark.read.orc(str(tmp_path)).select("large", "inside").collect()


def test_orc_files_that_differ(spark: Any, tmp_path: Path) -> None:
    """Names in another case, a column less, wider types; merged by Spark's rules."""
    for i, table in enumerate(
        [{"n": pa.array([1], pa.int64()), "a": ["x"]}, {"N": pa.array([2], pa.int64()), "b": [True]}]
    ):
        po.write_table(pa.table(table), tmp_path / f"{i}.orc")
    path = str(tmp_path)
    assert same(fbs.read_orc(spark, path).to_df(), spark.read.orc(path)) == 2
    merged = spark.read.option("mergeSchema", True).orc(path)
    assert same(fbs.read_orc(spark, path, mergeSchema=True).to_df(), merged) == 2
    assert fbs.read_orc(spark, path, filter=pc.field("n") > 1).collect() == [(2, None)]


def test_what_is_refused_of_orc(spark: Any, tmp_path: Path) -> None:
    spark.sql(
        "SELECT timestamp'1500-01-01' t, ARRAY(date'1582-10-04') d, 1 n, INTERVAL '1-2' YEAR TO MONTH ym"
    ).write.orc(str(tmp_path / "a"))
    with pytest.raises(SchemaError, match="'ym' has Spark's type interval year to month"):
        fbs.read_orc(spark, tmp_path / "a")
    assert fbs.read_orc(spark, tmp_path / "a", ["n"]).collect() == [(1,)]
    assert "out of range for nanosecond" in failure(fbs.read_orc(spark, tmp_path / "a", ["t"]).collect)
    assert "'d' has a day before 1582-10-15" in failure(fbs.read_orc(spark, tmp_path / "a", ["d"]).collect)
    po.write_table(pa.table({"_col0": [1], "_col1": [2]}), tmp_path / "b.orc")
    assert "columns without names" in failure(fbs.read_orc(spark, tmp_path / "b.orc", schema="x long").collect)
    (tmp_path / "c.orc").write_bytes(b"none of it")
    with pytest.raises(SchemaMismatch, match=r"c\.orc"):
        fbs.read_orc(spark, tmp_path / "c.orc")


def test_clocks_of_another_zone(tmp_path: Path) -> None:
    """Instants are those of a JVM in New York; an hour that comes twice there is an error."""
    from fastbuf_spark.formats.orc import Orc

    times = [dt.datetime(2020, 7, 1, 12), dt.datetime(2100, 1, 1), None]
    for name, more in (("a", []), ("b", [dt.datetime(2020, 11, 1, 1, 30)]), ("c", [dt.datetime(2100, 11, 7, 1, 30)])):
        po.write_table(pa.table({"t": pa.array(times + more, pa.timestamp("us"))}), tmp_path / f"{name}.orc")
    orc, schema = Orc("America/New_York"), pa.schema({"t": pa.timestamp("us", "UTC")})

    def read(name: str) -> list[Any]:
        fragment = orc.fragment(str(tmp_path / f"{name}.orc"), pa.fs.LocalFileSystem())
        return pa.Table.from_batches(orc.read(fragment, schema, ["t"], None, 100), schema)["t"].to_pylist()

    utc = dt.UTC
    assert read("a") == [dt.datetime(2020, 7, 1, 16, tzinfo=utc), dt.datetime(2100, 1, 1, 5, tzinfo=utc), None]
    for name in "bc":
        with pytest.raises(SchemaMismatch, match=r"'t' has a time that the zone .* has twice"):
            read(name)


def logical(kind: str, base: str = "long", **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


LONG = Decimal("-1234567890123456789012345678.0123456789")
START = dt.datetime(1970, 1, 1)
DAY = [{"name": "x", "type": ["null", logical("date", "int")]}]
# Field's type in Avro, Spark's type, what fastavro writes, what is read where it is another value
AVRO = {
    "bo": ("boolean", "boolean", True),
    "i": ("int", "int", -5),
    "l": ("long", "bigint", 2**40),
    "f": ("float", "float", 0.5),
    "d": ("double", "double", 0.1),
    "s": ("string", "string", "é"),
    "b": ("bytes", "binary", b"\0x"),
    "none": (["null", "int"], "int", None),
    "some": (["string", "null"], "string", "x"),
    "wide": (["int", "long"], "bigint", 7),
    "real": (["null", "float", "double"], "double", 0.25),
    "en": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B"),
    "en2": ("E", "string", "A"),
    "fi": ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab"),
    "da": (logical("date", "int"), "date", dt.date(1500, 2, 28)),
    "ms": (logical("timestamp-millis"), "timestamp", START.replace(tzinfo=dt.UTC, microsecond=1000)),
    "us": (logical("timestamp-micros"), "timestamp", START.replace(tzinfo=dt.UTC, year=1500)),
    "lm": (logical("local-timestamp-millis"), "timestamp_ntz", START.replace(microsecond=1000)),
    "lu": (logical("local-timestamp-micros"), "timestamp_ntz", START.replace(microsecond=1)),
    "de": (logical("decimal", "bytes", precision=38, scale=10), "decimal(38,10)", LONG),
    "df": (logical("decimal", "fixed", name="G", size=5, precision=9, scale=2), "decimal(9,2)", Decimal("1.23")),
    "uu": (logical("uuid", "string"), "string", "00000000-0000-0000-0000-000000000001"),
    "ar": ({"type": "array", "items": ["null", "int"]}, "array<int>", [1, None]),
    "ma": ({"type": "map", "values": {"type": "array", "items": "E"}}, "map<string,array<string>>", {"k": ["A"]}),
    "re": ({"type": "record", "name": "R", "fields": DAY}, "struct<x:date>", {"x": dt.date(2020, 1, 1)}),
    "re2": (["null", "R"], "struct<x:date>", None),
}
REFUSED: dict[str, Any] = {
    "a union": (["int", "string"], 1, "Spark makes a struct"),
    "a time": (logical("time-micros"), 1, "depends on its version"),
    "null": ("null", None, "no values"),
    "itself": (
        {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]},
        {"n": None},
        "itself",
    ),
    "Spark's own": ({"type": "int", "spark.sql.catalyst.type": "interval year"}, 1, "Spark wrote interval year so"),
}


def written(path: Path, fields: dict[str, Any], rows: list[dict[str, Any]], codec: str = "null", **told: str) -> None:
    import fastavro

    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "type": "record",
        "name": "row",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }
    with path.open("wb") as out:
        fastavro.writer(out, fastavro.parse_schema(record), rows, codec=codec, metadata=told)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_all_types_of_avro(spark: Any, tmp_path: Path, codec: str) -> None:
    fields = {name: kind for name, (kind, _, _) in AVRO.items()}
    row = {name: value for name, (_, _, value) in AVRO.items()}
    written(tmp_path / "k=1" / "a.avro", fields, [row] * 3, codec)
    made = fbs.read_avro(spark, tmp_path).to_df()
    kinds = {name: kind for name, (_, kind, _) in AVRO.items()} | {"k": "int"}
    assert {field.name: field.dataType.simpleString() for field in made.schema} == kinds
    found = made.toArrow().to_pylist(maps_as_pydicts="strict")
    assert found == [row | {"k": 1}] * 3


def test_avro_files_that_differ(spark: Any, tmp_path: Path) -> None:
    """By a name's case, a column less, a narrower type; a column of directories; rows that a filter takes."""
    written(tmp_path / "k=1" / "a.avro", {"n": "long", "s": "string"}, [{"n": i, "s": f"t{i}"} for i in range(20_000)])
    written(tmp_path / "k=2" / "b.avro", {"N": "int"}, [{"N": -1}])
    read = fbs.read_avro(spark, tmp_path, filter=(pc.field("n") > 19_997) | (pc.field("k") == 2))
    assert sorted(read.collect()) == [(-1, None, 2), (19_998, "t19998", 1), (19_999, "t19999", 1)]
    assert fbs.read_avro(spark, tmp_path).count() == 20_001


def test_years_that_python_does_not_have(spark: Any, tmp_path: Path) -> None:
    """A file of numbers under the header of one of instants."""
    for name, kind, rows in (("a", "long", [{"t": 2**58}]), ("b", logical("timestamp-micros"), [])):
        written(tmp_path / f"{name}.avro", {"t": kind}, rows)
    numbers, header = ((tmp_path / f"{name}.avro").read_bytes() for name in "ab")
    mark = numbers[-16:]
    block = numbers[numbers.index(mark) + 16 : -16]
    (tmp_path / "b.avro").write_bytes(header + block + header[-16:])
    read = fbs.read_avro(spark, tmp_path / "b.avro").to_df()
    assert read.selectExpr("unix_micros(t)").collect() == [(2**58,)]


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_of_avro(spark: Any, tmp_path: Path, what: str) -> None:
    """By its column, if it is asked for."""
    kind, value, said = REFUSED[what]
    written(tmp_path / "a.avro", {"n": "int", "odd": kind}, [{"n": 1, "odd": value}])
    with pytest.raises(SchemaError, match=f"a.avro: column 'odd' has Avro's type .*{said}"):
        fbs.read_avro(spark, tmp_path)
    assert fbs.read_avro(spark, tmp_path, ["n"]).collect() == [(1,)]
    assert "column 'odd'" in failure(fbs.read_avro(spark, tmp_path, schema="odd string").collect)


def test_avro_of_the_old_calendar_or_none_at_all(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"d": {"type": "int", "logicalType": "date"}, "n": "int"}
    written(
        tmp_path / "a.avro", fields, [{"d": dt.date(2020, 1, 1), "n": 1}], **{"org.apache.spark.legacyDateTime": ""}
    )
    with pytest.raises(SchemaError, match="calendar used before Spark 3"):
        fbs.read_avro(spark, tmp_path)
    assert fbs.read_avro(spark, tmp_path, ["n"]).collect() == [(1,)]
    (tmp_path / "b.avro").write_bytes(b"none of it")
    with pytest.raises(SchemaMismatch, match=r"b\.avro is no Avro file"):
        fbs.read_avro(spark, tmp_path / "b.avro")
    whole = (tmp_path / "a.avro").read_bytes()
    (tmp_path / "c.avro").write_bytes(whole[:-20])
    assert "c.avro" in failure(fbs.read_avro(spark, tmp_path / "c.avro", ["n"]).collect)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"pip install 'fastbuf\[avro\]'"):
        fbs.read_avro(spark, tmp_path / "a.avro")
