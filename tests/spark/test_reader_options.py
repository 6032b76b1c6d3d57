"""Settings of the session and options of readers: honoured as by Spark's own reader, or refused by name."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import failure
from pyarrow import fs
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch
from fastbuf_spark.driver.reader_options import ANY, FILES, OPTIONS, PREFIX, SAME, read_options
from fastbuf_spark.formats.csv import Csv

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "reader-options.md"
SECOND = dt.datetime(2020, 1, 2, 3, 4, 5)


@pytest.fixture
def setting(spark: Any) -> Iterator[Any]:
    """Sets settings of the session for one test."""
    before: dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield put
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def written(folder: Path, *tables: dict[str, Any], names: str = "a b c d") -> str:
    for name, columns in zip(names.split(), tables, strict=False):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
    return str(folder)


def struct(*values: Any, **fields: Any) -> pa.Array:
    return pa.array(values, pa.struct(list(fields.items())))


NUMBER, TEXT = pa.int64(), pa.string()
MERGED = {
    "columns": [{"a": [1]}, {"b": ["x"]}, {"c": [1.5], "a": [7]}],
    "fields": [{"v": struct({"a": 1}, a=NUMBER)}, {"v": struct({"b": "x", "a": 2}, None, b=TEXT, a=NUMBER)}],
    "fields in another case": [{"v": struct({"a": 1}, a=NUMBER)}, {"v": struct({"A": 5}, A=NUMBER, b=TEXT)}],
    "fields of list": [{"v": pa.array([[{"a": 1}]])}, {"v": pa.array([[{"b": 2.5}], None])}],
    "fields of a map": [
        {"v": pa.array([[("k", {"a": 1})]], pa.map_(TEXT, pa.struct([("a", NUMBER)])))},
        {"v": pa.array([[("k", {"b": "z"})]], pa.map_(TEXT, pa.struct([("b", TEXT)])))},
    ],
    "deep": [
        {"v": pa.array([{"s": [{"a": 1}]}])},
        {"v": pa.array([{"t": 1.5, "s": [{"b": {"c": [1]}}]}])},
        {"v": pa.array([{"s": [{"b": {"d": "x"}}]}])},
    ],
    "columns in another case": [{"id": [1]}, {"ID": [2], "x": [1]}],
    "decimals": [
        {"v": pa.array([Decimal("1.2")], pa.decimal128(5, 1))},
        {"v": pa.array([Decimal("123456.7")], pa.decimal128(12, 1))},
    ],
    "an empty file": [{"a": pa.array([], NUMBER)}, {"b": [2]}],
    "no fields in common": [{"v": struct({"a": 1}, None, a=NUMBER)}, {"v": struct({"b": 2}, None, b=NUMBER)}],
}


@pytest.mark.parametrize("case", MERGED)
def test_schemas_are_merged(spark: Any, setting: Any, tmp_path: Path, case: str) -> None:
    """By the option and by the setting, of which the option counts."""
    path = written(tmp_path, *MERGED[case])
    want = spark.read.option("mergeSchema", "true").parquet(path)
    assert same(fbs.read_parquet(spark, path, mergeSchema=True).to_df(), want)
    setting("spark.sql.parquet.mergeSchema", "true")
    assert same(fbs.read_parquet(spark, path).to_df(), want)
    first = fbs.read_parquet(spark, path, mergeSchema=False).to_df()
    assert first.schema == spark.read.option("mergeSchema", "false").parquet(path).schema


def test_schemas_are_merged_by_case(spark: Any, setting: Any, tmp_path: Path) -> None:
    setting("spark.sql.caseSensitive", "true")
    path = written(tmp_path, {"id": [1], "v": struct({"a": 1}, a=NUMBER)}, {"ID": [2], "v": struct({"A": 1}, A=NUMBER)})
    want = spark.read.option("mergeSchema", "true").parquet(path)
    assert len(want.columns) == 3
    assert same(fbs.read_parquet(spark, path, mergeSchema=True).to_df(), want) == 2


def test_schemas_of_directories_and_summaries_are_merged(spark: Any, setting: Any, tmp_path: Path) -> None:
    """A column that some files and all directories have; a summary with columns that no file has comes last."""
    path = written(tmp_path, {"a": [1]}, {"b": [2], "p": ["z"]}, names="p=1/a p=2/b")
    pq.write_metadata(pa.schema([("z", pa.int64())]), tmp_path / "_common_metadata")
    want = spark.read.option("mergeSchema", "true").parquet(path)
    assert want.columns == ["a", "b", "p", "z"]
    assert same(fbs.read_parquet(spark, path, mergeSchema=True).to_df(), want) == 2
    setting("spark.sql.parquet.respectSummaryFiles", "true")
    want = spark.read.option("mergeSchema", "true").parquet(path)
    assert same(fbs.read_parquet(spark, path, mergeSchema=True).to_df(), want) == 2
    given = spark.read.option("mergeSchema", "true").schema("b long, q string").parquet(path)
    assert same(fbs.read_parquet(spark, path, schema="b long, q string", mergeSchema=True).to_df(), given) == 2


def test_filters_of_merged_columns(spark: Any, tmp_path: Path) -> None:
    """Of files that do not have the column all rows are null there."""
    path = written(tmp_path, {"a": [1, 2]}, {"b": [2, None], "v": struct({"x": 1}, None, x=NUMBER)}, {"a": [3]})
    want = spark.read.option("mergeSchema", "true").parquet(path)
    filters: list[tuple[Any, str, int]] = [
        (pc.field("b") == 2, "b = 2", 1),
        (pc.field("b").is_null(), "b is null", 4),
        (pc.field("a") > 1, "a > 1", 2),
        (pc.field("v", "x") == 1, "v.x = 1", 1),
        (pc.field("v").is_null() & (pc.field("a") != 2), "v is null and a != 2", 2),
    ]
    for filter, condition, rows in filters:
        made = fbs.read_parquet(spark, path, filter=filter, mergeSchema=True).to_df()
        assert same(made, want.where(condition)) == rows
    assert same(fbs.read_parquet(spark, path, ["v"], mergeSchema=True).to_df(), want.select("v")) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1], pa.int32()), pa.array([1])),
        (pa.array([1.5]), pa.array([1.5], pa.float32())),
        (pa.array([Decimal("1.2")]), pa.array([Decimal("1.23")])),
        (pa.array([1]), pa.array(["x"])),
        (pa.array([SECOND], pa.timestamp("us")), pa.array([SECOND], pa.timestamp("us", "UTC"))),
        (struct({"a": 1}, a=NUMBER), struct({"a": "1"}, a=TEXT)),
        (pa.array([[1]]), pa.array([["x"]])),
        (struct({"a": 1}, a=NUMBER), pa.array([1])),
    ],
)
def test_types_that_spark_does_not_merge(spark: Any, tmp_path: Path, one: pa.Array, other: pa.Array) -> None:
    path = written(tmp_path, {"v": one}, {"v": other})
    with pytest.raises(SchemaError, match=r"b\.parquet: column 'v.* in a file before it"):
        fbs.read_parquet(spark, path, mergeSchema=True)
    assert failure(lambda: spark.read.option("mergeSchema", "true").parquet(path))


CSV = "s string, i int, t string"
TIMES = "d date, t timestamp, n timestamp_ntz"
LINES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "nullValue": ('NA,NA,"NA"\n,,""\n"",1,x\nna,3,\n', CSV, {"nullValue": "NA"}),
    "nullValue of a sign": ("-,1,-\n-x,-,--\n", CSV, {"nullValue": "-"}),
    "nullValue in a header": ("NA,b,\nx,NA,1\n", "", {"nullValue": "NA", "header": True}),
    "quote": ("'a,b',1,x\n'',2,\"y\"\n", CSV, {"quote": "'", "escape": "'"}),
    "a quote that is doubled": ("'it''s',1,'a\n,b'\n", CSV, {"quote": "'", "escape": "'", "multiLine": True}),
    "no quotes": ('"a,1,b"c\n"x",2,""\na\\b,3,\\"\n', CSV, {"quote": ""}),
    "comment": ('#x,"abc\na,1,#b\n# y\n\n #z,2,q\n"#w",3,v\n', CSV, {"comment": "#"}),
    "comments alone": ("#x\n#y\n", CSV, {"comment": "#"}),
    "comments with quotes alone": ('#x\n#"y"\n', CSV, {"comment": "#"}),
    "comment before a header": ("#x\n\n#y\ns,i,t\n#z,1,2\na,1,b\n", CSV, {"comment": "#", "header": True}),
    "comment without a schema": ("#x\na,b\n#z,1\n1,2\n", "", {"comment": "#", "header": True}),
    "comment in one column": ("#x\na\n#y\nb\n", "s string", {"comment": "#"}),
    "comment within quotes": ('"a\n#b",1,b\n#c,"\nd,2,e\n', CSV, {"comment": "#", "multiLine": True}),
    "lineSep": ("a,1,b\nc,2,d\n", CSV, {"lineSep": "\n"}),
    "encoding": ("é,1,ß\x85\n".encode("latin-1"), CSV, {"encoding": "ISO-8859-1"}),
    "encoding and a header": ("é,b\nü,2\n".encode("latin-1"), "", {"encoding": "iso-8859-1", "header": True}),
    "ascii": ("a,1,b\n", CSV, {"encoding": "US-ASCII"}),
    "delimiter": ("a;1;b\n", CSV, {"delimiter": ";"}),
    "header as a text": ("s,i,t\na,1,b\n", CSV, {"header": "true"}),
    "a line of blanks": ("a\n  \n\nb\n", "s string", {"multiLine": True}),
    "lines that end otherwise within quotes": ('a,1,x\r\nb,2,"c\nd"\r\n', CSV, {"multiLine": True}),
    "no line of blanks": ("a\n  \n\nb\n", "s string", {}),
    "a line of blanks as a header": ("  \na\n", "s string", {"multiLine": True, "header": True}),
    "what makes no difference": ("a,1,b\n", CSV, {"maxColumns": 99, "samplingRatio": 0.5, "mode": "FAILFAST"}),
    "dates": ("31/01/2020|1/2/2020 3:4|20200102030405\n||\n", TIMES, {
        "sep": "|", "dateFormat": "dd/MM/yyyy", "timestampFormat": "d/M/yyyy H:m",
        "timestampNTZFormat": "yyyyMMddHHmmss",
    }),
    "times": ("2020-31-12|2020-01-02T03:04:05.67+02:00|05:04:03 2020.01.02 x'y\n", TIMES, {
        "sep": "|", "dateFormat": "yyyy-dd-MM", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "timestampNTZFormat": "ss:mm:HH yyyy.MM.dd 'x''y'",
    }),
    "offsets": ("x|2020-01-02 03:04:05+0230|x\nx|2020-01-02 03:04:05Z|x\nx|2020-01-02 03:04:05-08|x\n",
                "d string, t timestamp, n string", {"sep": "|", "timestampFormat": "yyyy-MM-dd HH:mm:ssX"}),
    "nanoseconds": ("2020-11-01 01:30:00.123456789|\n2020-11-01 01:00:00.1|x\n", "t timestamp, s string",
                    {"sep": "|", "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSSSS"}),
    "a pattern of days for times": ("01/02/2020,x\n", "t timestamp, s string", {"timestampFormat": "dd/MM/yyyy"}),
    "timeZone": ("2020-01-02 03:04:05,1\n2020-01-02T03:04:05Z,2\n", "t timestamp, i int", {"timeZone": "Asia/Tokyo"}),
    "a zone and a pattern": ("2020/01/02 03,1\n", "t timestamp, i int",
                             {"timeZone": "Asia/Tokyo", "timestampFormat": "yyyy/MM/dd HH"}),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_options_for_lines_of_values(new_york: Any, tmp_path: Path, case: str) -> None:
    text, schema, options = LINES[case]
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = new_york.read.options(**options)
    want = (reader.schema(schema) if schema else reader).csv(str(tmp_path))
    same(fbs.read_csv(new_york, tmp_path, schema or None, **options).to_df(), want)


def random_options(rng: random.Random) -> dict[str, str]:
    quote = rng.choice(["'", "", "|", '"'])
    options = {"quote": quote, "sep": rng.choice([",", "\t", " "])}
    options |= {"comment": rng.choice(["", "#"]), "nullValue": rng.choice(["", "NA", "a"])}
    options |= {"escape": quote} if quote else {}
    options |= {"header": "true"} if rng.random() < 0.3 else {}
    options |= {"multiLine": "true"} if rng.random() < 0.7 else {}
    return options | ({"lineSep": "\n"} if rng.random() < 0.3 else {})


def random_lines(rng: random.Random, columns: int, options: dict[str, str]) -> str:
    """A few lines, some of which are no rows."""
    quote, sep = options["quote"], options["sep"]
    within = ["", "a", f"a{sep}b", "#", "NA", f"x{quote}{quote}y", "a\n#b" if "multiLine" in options else "z"]
    values = [value for value in ["a", "NA", "-", "b c", "#", "#x", "", "  "] if sep not in value]
    values += [f"{quote}{value}{quote}" for value in within if quote]
    lines = [sep.join(rng.choices(values, k=columns)) for _ in range(rng.randint(1, 6))]
    lines.insert(rng.randint(0, len(lines)), rng.choice(["#x", f"# {quote}y", "", "", "  ", sep.join("abc"[:columns])]))
    end = "\n" if "lineSep" in options else rng.choice(["\n", "\r\n"])
    return end.join(lines) + rng.choice([end, ""])


@pytest.mark.parametrize("seed", range(8))
def test_random_lines_of_values(spark: Any, tmp_path: Path, seed: int) -> None:
    """Each file's rows as Spark has them, or an error; never others."""
    rng = random.Random(seed)
    options, columns = random_options(rng), rng.randint(1, 3)
    texts = {f"{i}.csv": random_lines(rng, columns, options) for i in range(60)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, newline="")
    names = [f"c{i}" for i in range(columns)]
    frame = spark.read.options(**options).schema(", ".join(f"{name} string" for name in names)).csv(str(tmp_path))
    want: dict[str, list[Any]] = {name: [] for name in texts}
    for *row, name in frame.select("*", "_metadata.file_name").collect():
        want[name].append(row)
    told = read_options(spark, "csv", options)
    lines, schema = replace(Csv.of(told), names=tuple(names)), pa.schema([(name, TEXT) for name in names])
    alike = 0
    for name, text in texts.items():
        fragment = ds.JsonFileFormat().make_fragment(str(tmp_path / name), fs.LocalFileSystem())
        try:
            rows = [
                list(row.values())
                for batch in lines.read(fragment, schema, schema.names, None, 100)
                for row in batch.to_pylist()
            ]
        except SchemaMismatch:
            continue
        assert rows == want[name], (text, options)
        alike += 1
    assert alike > 5


def test_options_for_lines_of_json(new_york: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(
        '{"d":"31/01/2020","t":"1/2/2020 3:4","n":"20200102030405","s":"é"}\n{"s":null}\n'.encode("latin-1")
    )
    schema, options = f"{TIMES}, s string", LINES["dates"][2] | {"encoding": "ISO-8859-1", "lineSep": "\n"}
    del options["sep"]
    want = new_york.read.options(**options).schema(schema).json(str(tmp_path))
    assert same(fbs.read_json(new_york, tmp_path, schema, **options).to_df(), want) == 2
    (tmp_path / "a.json").write_text('{"t":"2020-01-02 03:04:05"}\n')
    want = new_york.read.option("timeZone", "Asia/Tokyo").schema("t timestamp").json(str(tmp_path))
    assert same(fbs.read_json(new_york, tmp_path, "t timestamp", timeZone="Asia/Tokyo").to_df(), want) == 1


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("2020-01-02,x\n", {"dateFormat": "dd/MM/yyyy"}, "'2020-01-02' is not in the pattern"),
        ("1/2/2020,x\n", {"dateFormat": "dd/MM/yyyy"}, "'1/2/2020' is not in the pattern"),
        ("30/02/2020,x\n", {"dateFormat": "dd/MM/yyyy"}, "2020-02-30"),
        ("01/02/12020,x\n", {"dateFormat": "dd/MM/yyyy"}, "is not in the pattern"),
        ("2020-01-02,x\r\n", {"lineSep": "\n"}, "has a carriage return"),
        ("2020-01-02,é\n", {"encoding": "us-ascii"}, "'ascii' codec"),
        ("2020-01-02,x\n   \n", {"multiLine": True}, "Expected 2 columns"),
        ("2020-01-02,x\r\n2020-01-02,y\n2020-01-02,z\r\n", {"multiLine": True}, "has lines that end by"),
        ('2020-01-02,"x\n"\r\n2020-01-02,y\r\n', {"multiLine": True}, "has lines that end by"),
        ("x,2020\n", {}, "read it as a string"),
    ],
)
def test_what_spark_would_make_null(spark: Any, tmp_path: Path, text: str, options: Any, said: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert said in failure(fbs.read_csv(spark, tmp_path, "d date, s string", **options).collect)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *[("csv", {name: value}, name) for name, value in (
        ("mode", "PERMISSIVE"), ("mode", "DROPMALFORMED"), ("multiLine", False), ("inferSchema", True),
        ("lineSep", ";"), ("encoding", "UTF-16"), ("emptyValue", "x"), ("ignoreLeadingWhiteSpace", True),
        ("nanValue", "nan?"), ("modifiedAfter", "2020-01-01T00:00:00"), ("locale", "de"), ("enforceSchema", False),
        ("unescapedQuoteHandling", "RAISE_ERROR"), ("charToEscapeQuoteEscaping", "x"), ("ignoreCorruptFiles", True),
        ("dateFormat", "dd-MMM-yyyy"), ("dateFormat", "yy-MM-dd"), ("timestampFormat", "[yyyy-MM-dd]"),
        ("timestampFormat", "yyyy-MM-dd hh:mm a"), ("dateFormat", "yyyy"), ("fitler", 3),
        ("dateFormat", "dd/MM/yyyy HH"), ("sep", "||"),
        ("quote", "''"), ("comment", "//"), ("quote", ","), ("comment", '"'), ("escape", "x"), ("header", "yes"),
    )],
    *[("json", {name: value}, name) for name, value in (
        ("multiLine", True), ("allowComments", True), ("mode", "PERMISSIVE"), ("nullValue", "x"),
        ("allowSingleQuotes", False), ("lineSep", "\r\n"),
    )],
    *[("parquet", {name: value}, name) for name, value in (
        ("mergeSchema", "yes"), ("datetimeRebaseMode", "LEGACY"), ("int96RebaseMode", "EXCEPTION"), ("header", True),
        ("modifiedBefore", "2020-01-01T00:00:00"), ("ignoreCorruptFiles", True), ("timeZone", "UTC"),
    )],
]  # fmt: skip


@pytest.mark.parametrize(("reader", "options", "name"), REFUSED, ids=str)
def test_options_that_are_refused(spark: Any, tmp_path: Path, reader: str, options: Any, name: str) -> None:
    """By their names, and with what to use in their place."""
    schema = {} if reader == "parquet" else {"schema": "a string"}
    with pytest.raises(ConfigError, match=rf"(?s){'the pattern' if 'Format' in name else name}.*spark\.read"):
        getattr(fbs, f"read_{reader}")(spark, tmp_path, **schema, **options)


@pytest.mark.parametrize(
    ("reader", "options", "message"),
    [
        (
            "csv",
            {"encoding": "utf-16"},
            "encoding is 'utf-16', and read_csv takes 'utf-8' or .*'us-ascii': give one of",
        ),
        ("csv", {"lineSep": "\r\n"}, r"lineSep is '\\r\\n', and read_csv takes '\\n' \(a carriage return is no line"),
        (
            "parquet",
            {"mergeSchema": "yes"},
            "mergeSchema is 'yes', and read_parquet takes 'true' or 'false' .the schemas",
        ),
    ],
)
def test_values_that_are_refused_say_what_is_taken(
    spark: Any, tmp_path: Path, reader: str, options: Any, message: str
) -> None:
    schema = {} if reader == "parquet" else {"schema": "a string"}
    with pytest.raises(ConfigError, match=message) as refused:
        getattr(fbs, f"read_{reader}")(spark, tmp_path, **schema, **options)
    assert "honoured" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxFilesPerTrigger": 1}, "stream_files has no option maxFilesPerTrigger: a task reads one file after the"),
        ({"maxBytesPerTrigger": 1}, "stream_files has no option maxBytesPerTrigger: a task reads"),
        ({"maxFileAge": "1h"}, "stream_files has no option maxFileAge: give max_file_age="),
        ({"latestFirst": True}, "stream_files has no option latestFirst: leave it out"),
        ({"pathFilter": "x"}, "stream_files has no option pathFilter: leave it out"),
        ({"mergeSchema": "yes"}, "mergeSchema is 'yes', and stream_files takes 'true' or 'false'"),
        (
            {"ignoreCorruptFiles": True},
            "ignoreCorruptFiles is 'true', with which stream_files would not give what Spark",
        ),
    ],
)
def test_a_stream_of_files_says_what_streams_have(spark: Any, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        fbs.stream_files(spark, str(tmp_path), schema="a string", **options)
    assert "pipeline" not in str(refused.value)
    assert "read_parquet" not in str(refused.value)


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.settings and each.values != ANY], ids=str)
def test_settings_that_are_refused(spark: Any, setting: Any, tmp_path: Path, option: Any) -> None:
    """Whatever else a setting of the table is; those that may be true or false have no other values."""
    if option.values == ("true", "false"):
        return
    other = {"true": "false", "false": "true", "corrected": "LEGACY", "native": "hive"}.get(option.values[0], "zzz")
    for name in option.settings.split():
        setting(PREFIX + name, other)
        for reader in option.readers.split():
            schema = {"schema": "a string"} if reader in ("csv", "json") else {}
            with pytest.raises(ConfigError, match=rf"{re.escape(PREFIX + name)} is '{other}'"):
                getattr(fbs, f"read_{reader}")(spark, tmp_path, **schema)
            if option.names:  # it counts, so that the next error is that there are no files
                given = {option.names: option.values[0]}
                said = failure(lambda: getattr(fbs, f"read_{reader}")(spark, tmp_path, **schema, **given).collect())  # noqa: B023
                assert PREFIX not in said
        spark.conf.unset(PREFIX + name)


def entries(spark: Any) -> dict[str, str]:
    """All settings of Spark, with their defaults."""
    module = getattr(spark._jvm.org.apache.spark.sql.internal, "SQLConf$")
    found = getattr(module, "MODULE$").getConfigEntries().toArray()
    names = {name: entry for entry in found for name in [entry.key(), *scala(entry.alternatives())]}
    return {name: entry.defaultValueString() for name, entry in names.items()}


def scala(values: Any) -> list[str]:
    made, each = [], values.iterator()
    while each.hasNext():
        made.append(each.next())
    return made


def test_every_setting_for_files_is_in_the_table(spark: Any) -> None:
    """Those of this Spark's that have to do with the files that are read here; their defaults are read alike."""
    found = entries(spark)
    concerning = re.compile(rf"{re.escape(PREFIX)}(legacy\.)?(parquet|csv|json|files|orc|avro)\.")
    told = {PREFIX + name: option for option in OPTIONS for name in option.settings.split()}
    assert sorted(name for name in found if concerning.match(name) and name not in told) == sorted(
        PREFIX + name for name in SAME if PREFIX + name in found
    )
    for name, option in told.items():
        if name in found and option.values != ANY:
            default = found[name].lower()
            assert any(default == fits or fits.strip("*") in default for fits in option.values), (name, default)


def test_every_option_of_sparks_readers_is_known(spark: Any) -> None:
    """Honoured, or refused since there is no line for it: none of those is one that only differs by its name."""
    packages = spark._jvm.org.apache.spark.sql
    honoured = {name.lower() for option in OPTIONS for name in option.names.split()}
    unknown = set()
    for reader, module in (
        ("csv", getattr(packages.catalyst.csv, "CSVOptions$")),
        ("json", getattr(packages.catalyst.json, "JSONOptions$")),
        ("orc", getattr(packages.execution.datasources.orc, "OrcOptions$")),
        ("parquet", getattr(packages.execution.datasources.parquet, "ParquetOptions$")),
        ("", getattr(packages.execution.datasources, "FileIndexOptions$")),
    ):
        names = scala(getattr(module, "MODULE$").getAllOptions())
        assert names
        unknown |= {f"{reader} {name}".strip() for name in names if name.lower() not in honoured}
    assert {name for name in unknown if not name.startswith("json allow")} <= {
        *("csv charToEscapeQuoteEscaping", "csv unescapedQuoteHandling", "csv singleVariantColumn", "csv timeFormat"),
        *("csv extension", "csv compression", "csv codec", "json compression", "json timeFormat", "json sortKeys"),
        *("json singleVariantColumn", "json pretty", "json ignoreNullFields", "json writeNonAsciiCharacterAsCodePoint"),
        *("json explodeEmbeddedArray", "parquet compression", "parquet parquet.compression", "modifiedbefore"),
        *("orc compression", "orc orc.compress"),
        *("modifiedafter",),
    }


def test_the_docs_have_the_table() -> None:
    text = PAGE.read_text()
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in option.names.split())
        settings = ", ".join(f"`{name}`" for name in option.settings.split())
        values = "any" if option.values == ANY else ", ".join(f"`{value!r}`" for value in option.values)
        readers = "all" if option.readers == FILES else option.readers.replace(" ", ", ")
        assert f"| {names} | {settings} | {readers} | {values} | {option.what} |\n" in text
    assert text.partition("## Writing")[0].count("\n| ") == len(OPTIONS) + 2
    assert [name for name in SAME if f"`{name}`" not in text] == []


def test_files_below_directories(spark: Any, tmp_path: Path) -> None:
    """All of them, those that match, and columns of directories above the path; types are those of all directories."""
    for name, text in {"p=1/a.txt": "1", "p=x/b.csv": "2", "q/r/a.txt": "7", "_h/a.txt": "8", "c.txt": "9"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    path, p = str(tmp_path), str(tmp_path / "p=1")
    cases: list[tuple[Any, dict[str, Any]]] = [
        (path, {"recursiveFileLookup": True}),
        (path, {"recursiveFileLookup": True, "pathGlobFilter": "*.txt"}),
        (path, {"recursiveFileLookup": "true", "pathglobfilter": "{b,c}.[ct]*"}),
        (p, {"basePath": path}),
        ([p, f"{path}/p=x/b.csv"], {"basePath": path}),
        (f"{path}/p=*", {"basePath": path, "pathGlobFilter": "*.txt"}),
        (f"{path}/p=*", {"basePath": path, "recursiveFileLookup": True}),
    ]
    for paths, options in cases:
        want = spark.read.options(**options).schema("v int").csv(paths)
        assert same(fbs.read_csv(spark, paths, "v int", **options).to_df(), want), options
    with pytest.raises(ConfigError, match="is not below basePath"):
        fbs.read_csv(spark, path, "v int", basePath=p)


def test_what_a_stream_wrote(spark: Any, setting: Any, tmp_path: Path) -> None:
    """Spark reads the files that the stream's log names, and not one that a batch has left behind."""
    path = str(tmp_path / "made")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "log"))
    writer.trigger(once=True).start(path).awaitTermination()
    pq.write_table(pa.table({"value": [99]}), f"{path}/left.parquet")
    assert spark.read.parquet(path).count() == 3
    with pytest.raises(ConfigError, match="was written by a stream"):
        fbs.read_parquet(spark, path)
    setting("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true")
    assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == 4


def test_columns_with_a_meaning_of_their_own(spark: Any, setting: Any, tmp_path: Path) -> None:
    """Defaults, and the column for bad records, whose values Spark alone has."""
    from pyspark.sql.types import IntegerType, StructType

    (tmp_path / "a.json").write_text('{"a":1}\n')
    default = StructType().add("a", IntegerType(), True, {"CURRENT_DEFAULT": "42", "EXISTS_DEFAULT": "42"})
    with pytest.raises(SchemaError, match="'a' has a default"):
        fbs.read_json(spark, tmp_path, default)
    for read in (fbs.read_json, fbs.read_csv):
        with pytest.raises(SchemaError, match="'_corrupt_record' is the one"):
            read(spark, tmp_path, "a int, _corrupt_record string")
        with pytest.raises(SchemaError, match="'a' is the one"):
            read(spark, tmp_path, "a string", columnNameOfCorruptRecord="a")
    setting("spark.sql.columnNameOfCorruptRecord", "odd")
    with pytest.raises(SchemaError, match="'odd' is the one"):
        fbs.read_json(spark, tmp_path, "odd string")
