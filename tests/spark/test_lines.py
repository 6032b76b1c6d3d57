"""Lines of values and of JSON, beside Spark's own readers: the same rows, or an error."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from conftest import failure
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch

pytestmark = pytest.mark.spark
LINES = (
    "a,1,1.5,true,2020-01-01,2020-01-01 10:00:00,1.50\n,,,,,,\n"
    '"x, y",-2,1e3,FALSE,1999-12-31,2020-07-01T10:00:00Z,2.25\n'
)
KINDS = "s string, i int, d double, b boolean, day date, t timestamp, m decimal(10,2)"


@pytest.mark.parametrize("header", [False, True])
def test_comma_separated_values(new_york: Any, tmp_path: Path, header: bool) -> None:
    """As Spark's reader, with a schema and without."""
    (tmp_path / "a.csv").write_text(("s,i,d,b,day,t,m\n" if header else "") + LINES)
    path = str(tmp_path)
    want = new_york.read.csv(path, KINDS, header=header)
    assert same(fbs.read_csv(new_york, path, KINDS, header=header).to_df(), want) == 3
    texts = new_york.read.csv(path, header=header)
    assert same(fbs.read_csv(new_york, path, header=header).to_df(), texts) == 3
    some = fbs.read_csv(new_york, path, KINDS, header=header, columns=["t", "i"], filter=pc.field("i") > 0)
    assert same(some.to_df(), want.where("i > 0").select("t", "i")) == 1


TEXTS = {
    "int": "1|-5|+5| 5|5 |0x1F|007|2147483648|1e3|1.0|x|-0|1_0|nan|٣",
    "long": "9223372036854775807|9223372036854775808|0X10",
    "tinyint": "127|128|-128",
    "double": "1.5| 1.5|nan|NaN|inf|Inf|-Inf|Infinity|-Infinity|1e400|0x10|1.|.5|4.9e-324|1E+5|-0.0|-nan|.|1e-400|0.1",
    "float": "0.1|1e39|16777217|3.4028236e38|1e-46|nan",
    "boolean": "true|FALSE|tRue|1|0|t| true",
    "decimal(5,2)": "1.23|1.235|1000|1e2|1E-1|nan|0x1| 1.0|1.|-.5|0001.10|-0",
    "date": "2020-01-01|2020-1-1|2020-01|20200101|2020-02-30|0001-01-01| 2020-01-01|9999-12-31",
    "timestamp": "2020-01-01 10:00:00|2020-01-01T10:00:00|2020-01-01|2020-01-01 10|2020-01-01 10:00"
    "|2020-01-01T10:00:00Z|2020-01-01T10:00:00+0100|2020-01-01T10:00:00-02:30|2020-01-01T10:00:00+01|2020-01-01Z"
    "|2020-01-01 10:00:00.123456|2020-01-01 10:00:00.1|2020-01-01 24:00:00|2020-01-01 10:00:60|2020-03-08 02:30:00"
    "|2020-11-01 01:30:00"
    "| 2020-01-01 10:00:00|2020-01-01T10:00Z",
    "timestamp_ntz": "2020-01-01 10:00:00|2020-01-01|2020-01-01T10:00:00Z|2020-01-01 10:00:00.123456",
}


def test_a_plus_before_a_whole_number(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("+5,+1.5\n-6,2\n,\n+0007,+1e3\n")
    kinds = "n int, x double"
    assert same(fbs.read_csv(spark, tmp_path, kinds).to_df(), spark.read.csv(str(tmp_path), kinds)) == 4
    (tmp_path / "a.csv").write_text("+-5,1\n")
    assert "no int32 as Spark writes it: '+-5'" in failure(fbs.read_csv(spark, tmp_path, kinds).collect)


def test_a_file_compressed_as_hadoop_does_it_is_named(spark: Any, tmp_path: Path) -> None:
    """Blocks of LZ4 behind their lengths, which are no frame of LZ4."""
    text = b"1\n" * 50
    block = bytes(pa.compress(text, "lz4_raw", asbytes=True))
    (tmp_path / "a.csv.lz4").write_bytes(len(text).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block)
    with pytest.raises(SchemaMismatch, match=r"a\.csv\.lz4: .*Hadoop's \.lz4 is another format"):
        fbs.read_csv(spark, tmp_path)
    said = failure(fbs.read_csv(spark, tmp_path, "n long").collect)
    assert "a.csv.lz4: " in said
    assert "Hadoop's .lz4 is another format" in said


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_are_the_values_that_spark_finds(new_york: Any, tmp_path: Path, kind: str) -> None:
    """Or an error, where Spark finds none; never another value."""
    from fastbuf_spark.schema import arrow_schema, struct_type
    from fastbuf_spark.worker.texts import of_text

    texts, schema = TEXTS[kind].split("|"), f"text string, v {kind}"
    (tmp_path / "a.csv").write_text("".join(f"{text}|{text}\n" for text in texts))
    table = new_york.read.csv(str(tmp_path), schema, sep="|").toArrow()
    want = dict(zip(table["text"].to_pylist(), table["v"], strict=True))
    made, found = arrow_schema(struct_type(f"v {kind}"), "America/New_York").field(0).type, 0
    for text in texts:
        try:
            value = of_text(pa.array([text]), made, "America/New_York", "v")[0]
        except SchemaMismatch:
            continue
        assert repr(value.cast(want[text].type)) == repr(want[text]), text
        found += 1
    assert 0 < found < len(texts)


LINES_OF = {
    "a blank line before the header": ("\n\na,b\n1,2\n", True),
    "spaces before the header": ("  \na,b\n1,2\n", True),
    "a header and no more": ("a,b", True),
    "a header and its line break": ("a,b\r\n", True),
    "a mark of the byte order": ("\ufeffa,b\n1,2\n", True),
    "the same before values": ("\ufeff1,2\n", False),
    "the same behind the header": ("a,b\n1,\ufeffx\n", True),
    "line breaks of Windows": ("a,b\r\n1,2\r\n\r\n3,4", True),
    "line breaks of long ago": ("a,b\r1,2\r3,4", True),
    "lines of spaces": ("1,2\n  \n3,4\n\t\n", False),
    "quotes in values": ('1,5" pipe\n2,a"b\n3,"a ""b"""\n', False),
    "no line break at the end": ('1,2\n3,"4"', False),
    "nothing but blank lines": ("\n \n", False),
}


@pytest.mark.parametrize("what", LINES_OF)
@pytest.mark.parametrize("schema", [None, "a int, b string"])
def test_lines_as_spark_finds_them(spark: Any, tmp_path: Path, what: str, schema: str | None) -> None:
    """Which line is the header, which one is a row, and what its values are."""
    text, header = LINES_OF[what]
    (tmp_path / "a.csv").write_text(text, newline="")
    want = spark.read.csv(str(tmp_path), schema, header=header, escape='"')
    if not want.columns:
        with pytest.raises(ConfigError, match="no files with lines: give schema="):
            fbs.read_csv(spark, tmp_path, schema, header=header)
        return
    same(fbs.read_csv(spark, tmp_path, schema, header=header).to_df(), want)


def test_lines_of_separators_alone(spark: Any, tmp_path: Path) -> None:
    """Are blank where the separator is, as for Spark."""
    (tmp_path / "a.csv").write_text("a\tb\n\t\n\t\t\nc\td\n")
    want = spark.read.csv(str(tmp_path), sep="\t")
    assert same(fbs.read_csv(spark, tmp_path, sep="\t").to_df(), want) == 2


def test_lines_of_one_value(spark: Any, tmp_path: Path) -> None:
    """A line of spaces is none, as for Spark, with quotes in other lines too."""
    for text in ("x\n  \ny \n\n\t\r\n z", '"x"\n  \ny \n\n\t\r\n z', '  \n"x"\n"""  "\n \n"y"'):
        (tmp_path / "a.csv").write_text(text)
        want = spark.read.csv(str(tmp_path), escape='"')
        assert same(fbs.read_csv(spark, tmp_path).to_df(), want) == 3
    (tmp_path / "a.csv").write_text('"x\n  \n"\n \ny\n')
    assert [row[0] for row in fbs.read_csv(spark, tmp_path, "s string").collect()] == ["x\n  \n", "y"]


def test_line_breaks_in_quotes(spark: Any, tmp_path: Path) -> None:
    """In the header too; as in Spark they are of one kind where the file's lines end as on Windows."""
    for text in (
        '"x\r\ny","z"\r\n1,2\r\n',
        'n,s\r1,"a\rb"\r',
        '"x\ny","z"\n1,2\n',
        'n,s\r\n1,"a\r\nb"\r\n',
        'n,s\n1,"a\r\nb"\n',
        '"n",s\n"1\n2",3',
    ):
        (tmp_path / "a.csv").write_text(text, newline="")
        for schema in (None, "n string, s string"):
            want = spark.read.csv(str(tmp_path), schema, header=True, multiLine=True)
            assert same(fbs.read_csv(spark, tmp_path, schema, header=True).to_df(), want) == 1, (text, schema)


def test_a_mark_that_is_none(spark: Any, tmp_path: Path) -> None:
    """Behind the header, or at the beginning of a block."""
    (tmp_path / "a.csv").write_text("a,b\n\ufeffx,y\n")
    want = spark.read.csv(str(tmp_path), header=True)
    assert same(fbs.read_csv(spark, tmp_path, header=True).to_df(), want) == 1


@pytest.mark.parametrize("zone", ["GMT+2", "UTC-3", "UT+1", "+05:30", "Z", "GMT-09:30", "Africa/Casablanca"])
def test_times_in_zones_by_any_name(spark: Any, tmp_path: Path, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        (tmp_path / "a.csv").write_text("2020-07-01 12:00:00\n2050-01-01 00:00:00\n2600-07-01 12:00:00\n")
        made = fbs.read_csv(spark, tmp_path, "t timestamp").to_df()
        assert same(made, spark.read.csv(str(tmp_path), "t timestamp")) == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_times_in_all_years(spark: Any, tmp_path: Path) -> None:
    """Summer time too: Arrow has no rules of it after 2037."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    try:
        times = [
            "0500-07-01",
            "1911-01-01",
            *(f"{year}-0{month}-01" for year in (2037, 2038, 2050, 9999) for month in (1, 7)),
        ]
        (tmp_path / "a.csv").write_text("".join(f"{time} 12:00:00\n" for time in times) + "2050-10-30 02:30:00\n")
        (tmp_path / "a.json").write_text("".join(f'{{"t": "{time} 12:00:00"}}\n' for time in times))
        read = spark.read.schema("t timestamp")
        made = fbs.read_csv(spark, tmp_path / "a.csv", "t timestamp").to_df()
        assert same(made, read.csv(f"{tmp_path}/a.csv")) == len(times) + 1
        made = fbs.read_json(spark, tmp_path / "a.json", "t timestamp").to_df()
        assert same(made, read.json(f"{tmp_path}/a.json")) == len(times)
        (tmp_path / "a.csv").write_text("2050-03-27 02:30:00\n")
        said = failure(fbs.read_csv(spark, tmp_path / "a.csv", "t timestamp").collect)
        assert "does not exist in Europe/Paris" in said
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_quotes_that_readers_take_differently(spark: Any, tmp_path: Path) -> None:
    """Are errors, or are read as the caller has said; line breaks in quotes are values, in any block."""
    for text in ('"a"b,1\n', '"a" ,1\n', '"x",1\n"a,1\n', '1,"a""\n'):
        (tmp_path / "a.csv").write_text(text)
        assert "a quoted value " in failure(fbs.read_csv(spark, tmp_path, "s string, n string").to_df().collect)
    (tmp_path / "a.csv").write_text('"C:\\",1\n"x",2\n')
    assert "has a quote behind a backslash" in failure(fbs.read_csv(spark, tmp_path, "s string, n int").to_df().collect)
    made = fbs.read_csv(spark, tmp_path, "s string, n int", escape='"')
    assert same(made.to_df(), spark.read.csv(str(tmp_path), "s string, n int", escape='"')) == 2
    (tmp_path / "a.csv").write_text('5" pipe,"a\n""b"",\n",3\n"x",y,4\n')
    want = spark.read.csv(str(tmp_path), "a string, b string, n int", escape='"', multiLine=True)
    assert same(fbs.read_csv(spark, tmp_path, "a string, b string, n int").to_df(), want) == 2


def test_rows_that_blocks_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever a block ends, in a quoted value too."""
    from fastbuf_spark.formats import lines
    from fastbuf_spark.formats.csv import Csv

    text = '\ufeffa,b\r\n1,"x\r\n""y"""\r\n2,5" pipe\n\n3,"é,"\n4,z'
    (tmp_path / "a.csv").write_text(text, newline="")
    fragment = ds.CsvFileFormat().make_fragment(str(tmp_path / "a.csv"), pa.fs.LocalFileSystem())
    schema = pa.schema({"a": pa.string(), "b": pa.string()})
    want = {"a": ["1", "2", "3", "4"], "b": ['x\n"y"', '5" pipe', "é,", "z"]}
    for size in range(4, len(text) + 5):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        batches = Csv(names=("a", "b"), header=True).read(fragment, schema, schema.names, None, 100)
        assert pa.Table.from_batches(batches, schema).to_pydict() == want, size


@pytest.mark.parametrize("ends", ["\n", "\r", "\r\n"])
def test_rows_of_one_value_that_blocks_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: str) -> None:
    """Rows of blanks are left out one by one where a block has quotes; the header is one row."""
    from fastbuf_spark.formats import lines
    from fastbuf_spark.formats.csv import Csv

    text = ends.join(['"a', 'b"', '"x"', "  ", "y", "", '"z', " ", '"', "é"])
    (tmp_path / "a.csv").write_text(text, newline="")
    fragment = ds.CsvFileFormat().make_fragment(str(tmp_path / "a.csv"), pa.fs.LocalFileSystem())
    schema = pa.schema({"a": pa.string()})
    for size in range(4, len(text) + 5):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        batches = Csv(names=("a",), header=True).read(fragment, schema, schema.names, None, 100)
        made = pa.Table.from_batches(batches, schema)["a"].to_pylist()
        assert made == ["x", "y", "z\n \n", "é"], size


def test_compressed_lines(spark: Any, tmp_path: Path) -> None:
    """As Spark reads them, in several members too; of a kind that Arrow has not, an error at once."""
    import bz2
    import gzip

    pieces = [b"a,1\nb,", b"2\nc,3\n"]
    (tmp_path / "a.csv.gz").write_bytes(b"".join(map(gzip.compress, pieces)))
    (tmp_path / "a.csv.bz2").write_bytes(b"".join(map(bz2.compress, pieces)))
    for name in ("a.csv.gz", "a.csv.bz2"):
        want = spark.read.csv(str(tmp_path / name), "s string, n int")
        assert same(fbs.read_csv(spark, tmp_path / name, "s string, n int").to_df(), want) == 3
    with pa.CompressedOutputStream(str(tmp_path / "a.csv.zst"), "zstd") as sink:
        sink.write(b"".join(pieces))
    assert fbs.read_csv(spark, tmp_path / "a.csv.zst", "s string, n int").count() == 3
    (tmp_path / "c.csv.bz2").write_bytes(bz2.compress(b"a,1\n") + bz2.compress(b"") + bz2.compress(b"b,2\n"))
    assert "c.csv.bz2: " in failure(fbs.read_csv(spark, tmp_path / "c.csv.bz2", "s string, n int").collect)
    for name in ("b.csv.snappy", "b.json.deflate"):
        (tmp_path / name).write_bytes(b"x")
        read = fbs.read_csv if "csv" in name else fbs.read_json
        with pytest.raises(ConfigError, match="lines may be compressed by gzip"):
            read(spark, tmp_path / name, "s string")


def test_empty_values_are_null(spark: Any, tmp_path: Path) -> None:
    """As for Spark, in quotes too."""
    (tmp_path / "a.csv").write_text('1,\n2,""\n"",x\n')
    path, kinds = str(tmp_path), "n int, s string"
    assert same(fbs.read_csv(spark, path, kinds).to_df(), spark.read.csv(path, kinds, escape='"')) == 3


def test_a_value_that_is_none_is_an_error(spark: Any, tmp_path: Path) -> None:
    """Never a null in silence; the file is named."""
    (tmp_path / "a.csv").write_text("1\nx\n")
    (tmp_path / "b.csv").write_text("1,2\n\u00a0\n")
    assert "Expected 2 columns, got 1" in failure(fbs.read_csv(spark, tmp_path / "b.csv", "n int, m int").collect)
    (tmp_path / "b.csv").unlink()
    said = failure(fbs.read_csv(spark, tmp_path, "n int").to_df().collect)
    assert f"{tmp_path}/a.csv: column n has a text that is no int32 as Spark writes it" in said
    (tmp_path / "a.csv").write_text("2020-01-01\nsoon\n")
    assert "a text that is no timestamp" in failure(fbs.read_csv(spark, tmp_path, "n timestamp").to_df().collect)


def test_a_header_that_is_not_utf8(spark: Any, tmp_path: Path) -> None:
    """Is named on the driver, with what reads it."""
    (tmp_path / "a.csv").write_bytes("a,é\n1,2\n".encode("latin-1"))
    with pytest.raises(SchemaMismatch, match=r"a\.csv: text that is not UTF-8: .*; use spark.read with its encoding="):
        fbs.read_csv(spark, tmp_path, header=True)


def test_lines_whose_timestamp_is_not_chosen(spark: Any, tmp_path: Path) -> None:
    """Its text is parsed only where the filter needs it."""
    schema, moment = "n int, t timestamp, u timestamp", pa.scalar(dt.datetime(2020, 1, 2), pa.timestamp("us", "UTC"))
    for i, line in enumerate(["2020-01-01 00:00:00", "2020-01-03 00:00:00", ""]):
        (tmp_path / f"{i}.csv").write_text(f"{i},{line},soon\n")
        text = f'"{line}"' if line else "null"
        (tmp_path / f"{i}.json").write_text(f'{{"n": {i}, "t": {text}, "u": "soon"}}\n')
    for read, files in (fbs.read_csv, "*.csv"), (fbs.read_json, "*.json"):
        for condition, want in (
            (pc.field("n") > 0, [1, 2]),
            (pc.field("t") > moment, [1]),
            (pc.field("t").isin([moment]), []),
            (pc.field("t").is_valid(), [0, 1]),
            ((pc.field("n") > 0) & pc.is_null(pc.field("t")), [2]),
        ):
            made = read(spark, tmp_path / files, schema, columns=["n"], filter=condition).to_df()
            assert sorted(row.n for row in made.collect()) == want, (read, condition)


def test_lines_of_json(new_york: Any, tmp_path: Path) -> None:
    """As Spark's reader with the same schema; what it has not is passed over."""
    lines = [
        '{"s": "a", "n": 1, "t": "2020-01-01 10:00:00", "st": {"x": [1, null]}, "more": 1}',
        '{"n": null, "t": "2020-07-01T10:00:00+02:00", "d": 2.5, "b": true}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines) + "\n")
    schema = "s string, n long, t timestamp, st struct<x: array<int>>, d double, b boolean"
    want = new_york.read.schema(schema).json(str(tmp_path))
    assert same(fbs.read_json(new_york, tmp_path, schema).to_df(), want) == 2


NO_OBJECTS = {
    "null": "no JSON object: 'null'",
    '{"n": 1} null': "Extra data",
    "[1]": "no JSON object",
    "1": "no JSON object",
    '{"n": 1} {"n": 2}': "several JSON objects",
    '{\n"n": 1}': "no JSON object: '\"n\": 1}'",
    '{"n":\n{"x": 1}}': "changed from number to object",
    '{"n": 1, "n": 2}': "specified twice",
    '{"n": 1': "Missing a comma",
    '{"s": "\udcff"}': r"not UTF-8: .*; use spark.read with its encoding=",
}


@pytest.mark.parametrize("line", NO_OBJECTS)
def test_lines_that_are_no_objects(tmp_path: Path, line: str) -> None:
    """Are errors; Arrow's own parser ends the process at a null, and lets bytes pass that are no UTF-8."""
    from fastbuf_spark.formats.json import Json

    path = tmp_path / "a.json"
    good = '{"n": 1}\n\n {"n": null, "s": "} null"}\n'
    path.write_text(f"{good}{line}\n", errors="surrogateescape")
    fragment = ds.JsonFileFormat().make_fragment(str(path), pa.fs.LocalFileSystem())
    schema = pa.schema({"n": pa.int64(), "s": pa.string()})
    with pytest.raises(SchemaMismatch, match=NO_OBJECTS[line]):
        list(Json().read(fragment, schema, schema.names, None, 100))
    path.write_text(good)
    rows = pa.Table.from_batches(Json().read(fragment, schema, schema.names, None, 100)).to_pylist()
    assert rows == [{"n": 1, "s": None}, {"n": None, "s": "} null"}]


def test_fields_of_json_that_nobody_asks_for(spark: Any, tmp_path: Path) -> None:
    """May have any types, and several; days are days; files that their directories' names rule out are not opened."""
    for day in (1, 2):
        (tmp_path / f"day=2026-01-0{day}").mkdir()
        lines = [
            f'{{"n": {day}, "d": "2026-02-0{day}", "odd": 1, "x": 0.5}}',
            '{"odd": ["a"], "d": null}',
            '{"odd": "b"}',
        ]
        (tmp_path / f"day=2026-01-0{day}" / "a.json").write_text("\n".join(lines))
    kinds, path = "n int, d date, x double", str(tmp_path)
    want = spark.read.schema(kinds).json(path)
    assert same(fbs.read_json(spark, path, kinds).to_df(), want) == 6
    (tmp_path / "day=2026-01-02" / "a.json").write_text("no JSON")
    days = (pc.field("day") < dt.date(2026, 1, 2)) & pc.field("d").is_valid()
    made = fbs.read_json(spark, path, kinds, columns=["day"], filter=days).collect()
    assert [row.day for row in made] == [dt.date(2026, 1, 1)]
    with pytest.raises(SchemaError, match="array<date>, which read_json does not read"):
        fbs.read_json(spark, path, "l array<date>")


def test_long_lines(spark: Any, tmp_path: Path) -> None:
    """Longer than Arrow's own blocks."""
    text = "x" * (3 << 20)
    (tmp_path / "a.json").write_text(f'{{"s": "{text}"}}\n')
    (tmp_path / "a.csv").write_text(f"{text}\n")
    for read in (fbs.read_json(spark, tmp_path / "a.json", "s string"), fbs.read_csv(spark, tmp_path / "a.csv")):
        assert [len(row[0]) for row in read.collect()] == [len(text)]
