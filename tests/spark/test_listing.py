"""Paths, patterns, directories and the columns that their names give, beside what Spark's own readers make of them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import failure
from nights import nightly
from test_sources import same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError, SchemaError, SchemaMismatch

pytestmark = pytest.mark.spark


@nightly(values=[["1", "99999999999"], ["2026-02-30"], ["2020-01-01"], ["-2147483648", "2147483647"]])
@pytest.mark.parametrize(
    "values",
    [
        *(["-NaN", "+Infinity", "+1.5"], ["2026-02-30"], ["2026-02-28", "2026-02-30"]),
        *(["1", "2"], ["1", "99999999999"], ["1.5", "2"], ["NaN", "-Infinity", "1.5"], ["2020-01-01"], ["a b%=c", "1"]),
        *([], ["-2147483648", "2147483647"], ["-9223372036854775808", "9223372036854775807"]),
    ],
)
def test_columns_of_directories(spark: Any, tmp_path: Path, values: list[str]) -> None:
    """Of the types that Spark finds, nulls among them; filtered files are not opened."""
    path = str(tmp_path / "made")
    rows = spark.createDataFrame([(v, i, i) for i, v in enumerate([*values, None])], "k string, j int, n int")
    rows.write.partitionBy("k", "j").parquet(path)
    want = spark.read.parquet(path)
    assert same(fbs.read_parquet(spark, path).to_df(), want) == len(values) + 1
    some = fbs.read_parquet(spark, path, filter=pc.field("j") == 0)
    assert same(some.to_df(), want.where("j = 0")) == 1
    for file in (tmp_path / "made").rglob("j=1/*.parquet"):
        file.write_bytes(b"PAR1 no more")
    assert same(some.to_df(), want.where("j = 0")) == 1


def test_a_schema_with_columns_of_directories(spark: Any, tmp_path: Path) -> None:
    """As Spark's own has them, and with other types than it finds; they stand last."""
    rows = spark.range(4).selectExpr("id", "id % 2 as k")
    for kind in ("parquet", "json"):
        path = str(tmp_path / kind)
        rows.write.partitionBy("k").format(kind).save(path)
        for schema in (spark.read.format(kind).load(path).schema, "k string, id long"):
            made = (fbs.read_parquet if kind == "parquet" else fbs.read_json)(spark, path, schema=schema)
            assert same(made.to_df(), spark.read.schema(schema).format(kind).load(path)) == 4


@pytest.mark.parametrize("values", [("1", "2"), ("u", "v")])
def test_a_column_in_files_and_in_names_of_directories(spark: Any, values: tuple[str, str], tmp_path: Path) -> None:
    """The names' values count, as for Spark, and statistics of the files' column leave no file out."""
    for value in values:
        (tmp_path / f"k={value}").mkdir()
        pq.write_table(pa.table({"n": [1, 2], "k": [7, 8], "z": ["x", None]}), tmp_path / f"k={value}" / "a.parquet")
    own, one = spark.read.parquet(str(tmp_path)), int(values[1]) if values[1].isdigit() else values[1]
    from pyspark.sql import functions as F

    made = fbs.read_parquet(spark, tmp_path)
    assert made.schema == own.schema
    assert same(made.to_df(), own) == 4
    assert same(made.shuffle("k", partitions=2).to_df(), own) == 4
    assert same(fbs.read_parquet(spark, tmp_path, columns=["z", "k"]).to_df(), own.select("z", "k")) == 4
    found = fbs.read_parquet(spark, tmp_path, columns=["n"], filter=pc.field("k") == one)
    assert same(found.to_df(), own.where(F.col("k") == one).select("n")) == 2
    assert fbs.read_parquet(spark, tmp_path, filter=pc.field("n") > 1).count() == 2


def test_a_column_of_another_type_in_files_and_in_names_of_directories(spark: Any, tmp_path: Path) -> None:
    """As Polars writes times by their day: the files' type does not matter."""
    (tmp_path / "t=2020-01-01").mkdir()
    times = pa.array([dt.datetime(2020, 1, 1, 12)])
    pq.write_table(pa.table({"n": [1], "t": times}), tmp_path / "t=2020-01-01" / "a.parquet")
    own = spark.read.parquet(str(tmp_path))
    assert own.schema["t"].dataType.simpleString() == "date"
    assert same(fbs.read_parquet(spark, tmp_path).to_df(), own) == 1


def test_a_column_in_files_and_in_another_case_in_names_of_directories(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "k=1").mkdir()
    pq.write_table(pa.table({"K": [7], "n": [1]}), tmp_path / "k=1" / "a.parquet")
    with pytest.raises(SchemaError, match="column 'K' of the files is 'k' in the directories' names"):
        fbs.read_parquet(spark, tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "z.csv"])
def test_a_file_that_is_none_of_parquet(spark: Any, name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "m.parquet")
    (tmp_path / name).write_text("n\n1\n" * 9)
    with pytest.raises(SchemaMismatch, match=f"{name}.*not a parquet file") as caught:
        fbs.read_parquet(spark, tmp_path)
    assert str(caught.value).count(name) == 1


NAMES = ("k=%C3%A9", "k=%c3%a9", "k=é", "k=%", "k=%4", "k=%%41", "k=%zz", "%6B=x", "k=a=b", "k=😀")


def test_escapes_in_names_of_directories(spark: Any, tmp_path: Path) -> None:
    """Are characters, as for Spark, and no bytes of UTF-8."""
    for i, name in enumerate(NAMES):
        path = tmp_path / str(i)
        (path / name).mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), path / name / "a.parquet")
        assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(str(path))) == 1, name
    for name in ("k=", "=v", "a=1/x/b=2"):  # what Spark refuses, or leaves out
        path = tmp_path / name.replace("/", "-")
        (path / name).mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), path / name / "a.parquet")
        with pytest.raises(SchemaError, match=r"before or behind '='|stands between others"):
            fbs.read_parquet(spark, path)


def test_links_to_a_directory_above_them(spark: Any, tmp_path: Path) -> None:
    """Are refused: whoever follows one comes to the same files again and again.  Other links are followed."""
    (tmp_path / "there").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "there" / "a.parquet")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "k=1").symlink_to(tmp_path / "there")
    path = str(tmp_path / "in")
    assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == 1
    (tmp_path / "there" / "j=1").symlink_to(tmp_path / "there")
    with pytest.raises(ResourceError, match=r"j=1 is a link to .*there, which it is in"):
        fbs.read_parquet(spark, path)


@pytest.mark.parametrize(
    ("setting", "value", "kinds"),
    [
        ("spark.sql.sources.partitionColumnTypeInference.enabled", "false", ["string", "string", "void"]),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ", ["timestamp_ntz", "double", "void"]),
        ("spark.sql.timestampType", "TIMESTAMP_LTZ", ["timestamp", "double", "void"]),
    ],
)
def test_settings_of_the_types_of_directories(
    spark: Any, tmp_path: Path, setting: str, value: str, kinds: list[str]
) -> None:
    """As Spark infers with them."""
    path = str(tmp_path / "made")
    df = spark.range(1).selectExpr("id", "'2020-01-01 10:00:00' as k", "'1.0E-10' as p", "cast(null as string) as z")
    df.write.partitionBy("k", "p", "z").parquet(path)
    spark.conf.set(setting, value)
    try:
        own, ours = spark.read.parquet(path), fbs.read_parquet(spark, path)
        assert [field.dataType.simpleString() for field in own.schema.fields[1:]] == kinds
        assert ours.schema == own.schema
        assert same(ours.to_df(), own) == 1
    finally:
        spark.conf.unset(setting)
    assert fbs.read_parquet(spark, path, partition_types={"k": "string"}).collect()[0].k == "2020-01-01 10:00:00"


def test_what_readers_do_not_see(spark: Any, tmp_path: Path) -> None:
    """Names that begin with a dot or an underscore, and empty files."""
    for name in ("a.parquet", "_b.parquet", ".c.parquet", "_temporary/d.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [1]}), tmp_path / name)
    (tmp_path / "e.parquet").touch()
    path = str(tmp_path)
    assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == 1
    named = f"{path}/[ae].parquet"
    assert same(fbs.read_parquet(spark, named).to_df(), spark.read.parquet(named)) == 1
    (tmp_path / "a.csv").write_text("1\n")
    (tmp_path / "b.csv").touch()
    for files in (f"{path}/*.csv", f"{path}/b.csv"):
        assert same(fbs.read_csv(spark, files, "n int").to_df(), spark.read.csv(files, "n int")) == ("*" in files)


def test_types_are_told_apart_from_names(spark: Any, tmp_path: Path) -> None:
    """A field may have the name of a type that is not supported."""
    schema = "meta struct<timestamp:string,void:int>"
    (tmp_path / "a.json").write_text('{"meta": {"timestamp": "now", "void": 1}}\n')
    read = fbs.read_json(spark, tmp_path / "a.json", schema)
    assert same(read.to_df(), spark.read.schema(schema).json(f"{tmp_path}/a.json")) == 1
    read.write_parquet(tmp_path / "out")
    assert same(fbs.read_parquet(spark, tmp_path / "out").to_df(), read.to_df()) == 1
    with pytest.raises(SchemaError, match="which read_json does not read"):
        fbs.read_json(spark, tmp_path / "a.json", "meta struct<when:timestamp>")
    with pytest.raises(SchemaError, match="which write_parquet does not write"):
        fbs.write_parquet(spark.sql("select named_struct('a', null) as s"), tmp_path / "none")


def test_a_path_that_is_given_twice_is_read_twice(spark: Any, tmp_path: Path) -> None:
    """As by Spark, however few bytes it has."""
    pq.write_table(pa.table({"n": range(6)}), tmp_path / "a.parquet", row_group_size=2)
    paths = [str(tmp_path), str(tmp_path / "a.parquet")]
    assert same(fbs.read_parquet(spark, paths).to_df(), spark.read.parquet(*paths)) == 12


def test_files_of_the_same_path_in_two_file_systems(spark: Any, tmp_path: Path) -> None:
    """Each is read, and no other in its place."""
    from pyarrow import fs

    parts = []
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        pq.write_table(pa.table({"n": [i, i + 10]}), tmp_path / str(i) / "part-0.parquet")
        below = fs.SubTreeFileSystem(str(tmp_path / str(i)), fs.LocalFileSystem())
        parts.append(ds.dataset("part-0.parquet", filesystem=below))
    assert sorted(row.n for row in fbs.scan(spark, ds.dataset(parts)).collect()) == [0, 1, 10, 11]


PATTERNS = (
    "year=*/m=1",
    "year=2023/m=*",
    "year=2023/*",
    "*/*/*.parquet",
    "year=202[34]/m=1",
    "year=202[^4]/m=1/",
    "year={2023,2024}/m=2",
    "year=?02?/m=*/*",
    "y*=2023",
)


def test_wildcards(spark: Any, tmp_path: Path) -> None:
    """As Spark reads them: the names that a pattern has or matches are no columns, those below are."""
    for year in (2023, 2024):
        for month in (1, 2):
            folder = tmp_path / "a" / f"year={year}" / f"m={month}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"v": [10 * year + month]}), folder / "a.parquet")
            (folder / "_done.parquet").write_text("no Parquet")
    base = str(tmp_path / "a")
    for pattern in PATTERNS:
        if pattern != "y*=2023":
            assert same(fbs.read_parquet(spark, f"{base}/{pattern}").to_df(), spark.read.parquet(f"{base}/{pattern}"))
        else:  # a single directory: with those below it as columns
            made = fbs.read_parquet(spark, f"{base}/{pattern}").to_df()
            assert same(made, spark.read.parquet(f"{base}/{pattern}")) == 2
            assert made.columns == ["v", "m"]
    assert same(fbs.read_parquet(spark, f"file://{base}/year=*/m=1").to_df(), spark.read.parquet(f"{base}/*/m=1")) == 2
    with pytest.raises(SchemaError, match=r"year=\* matches directories with others of m in them: give the directory"):
        fbs.read_parquet(spark, f"{base}/year=*")  # Spark: conflicting directory structures
    assert "CONFLICTING_DIRECTORY" in failure(lambda: spark.read.parquet(f"{base}/year=*"))
    with pytest.raises(ResourceError, match=r"year=1\* does not exist: nothing matches"):
        fbs.read_parquet(spark, f"{base}/year=1*")
    with pytest.raises(ConfigError, match="wildcard"):
        fbs.write_parquet(spark.range(1), f"{base}/*")
    odd = tmp_path / "a[1].parquet"  # a name, not a pattern
    pq.write_table(pa.table({"v": [1]}), odd)
    assert fbs.read_parquet(spark, odd).count() == 1


def test_file_systems(spark: Any, tmp_path: Path) -> None:
    """A URI, a file system of pyarrow's, one of fsspec's where it is there, several paths."""
    import fsspec
    from pyarrow import fs

    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [3]}), tmp_path / "b.parquet")
    inside = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert fbs.read_parquet(spark, tmp_path.as_uri()).count() == 3
    assert fbs.read_parquet(spark, "a.parquet", filesystem=inside).count() == 2
    assert fbs.read_parquet(spark, [tmp_path / "b.parquet", tmp_path / "a.parquet"]).to_df().count() == 3
    assert fbs.read_parquet(spark, str(tmp_path), filesystem=fsspec.filesystem("file")).count() == 3


def test_an_empty_directory(spark: Any, tmp_path: Path) -> None:
    """Has no rows, if the schema is said."""
    with pytest.raises(ConfigError, match="schema="):
        fbs.read_parquet(spark, tmp_path)
    assert fbs.read_parquet(spark, tmp_path, schema="n long").collect() == []


def written(folder: Path) -> None:
    """A file with one row in a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": [1]}), folder / "a.parquet")


def test_directories_that_are_no_columns(spark: Any, tmp_path: Path) -> None:
    """Are not looked into, as by Spark, unless they are in one that is; if there is nothing else, it is said."""
    for folder in ("top", "top/below", "named/k=1", "named/k=2/below", "alone/below"):
        written(tmp_path / folder)
    for name, rows in (("top", 1), ("named", 2), ("*/k=1", 1), ("alone/*", 1)):
        path = f"{tmp_path}/{name}"
        assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == rows, name
    with pytest.raises(
        ResourceError, match=r"alone has files in directories in it alone, as .*/below/a\.parquet, which"
    ):
        fbs.read_parquet(spark, tmp_path / "alone")
    written(tmp_path / "named" / "other")
    with pytest.raises(SchemaError, match=r"other/a\.parquet is in directories of \[\], and .*k=1.* of \['k'\]"):
        fbs.read_parquet(spark, tmp_path / "named")
    assert "CONFLICTING_DIRECTORY" in failure(lambda: spark.read.parquet(f"{tmp_path}/named"))


def test_a_name_that_comes_twice(spark: Any, tmp_path: Path) -> None:
    """Is refused, as by Spark; two spellings of one name are one column, unless case counts."""
    for name in ("k=1/k=2", "k=1/K=2"):
        written(tmp_path / "twice" / name)
        with pytest.raises(SchemaError, match=r"in directories of \['k', '[kK]'\]: a name comes twice"):
            fbs.read_parquet(spark, tmp_path / "twice")
        assert "COLUMN_ALREADY_EXISTS" in failure(lambda: spark.read.parquet(f"{tmp_path}/twice"))
        (tmp_path / "twice" / name / "a.parquet").unlink()
    written(tmp_path / "two" / "k=1")
    written(tmp_path / "two" / "K=2")
    path = f"{tmp_path}/two"
    want = spark.read.parquet(path).toDF("n", "K")  # it takes the spelling that it lists first
    assert same(fbs.read_parquet(spark, path).to_df(), want) == 2
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(SchemaError, match=r"in directories of \['k'\], and .* of \['K'\]"):
            fbs.read_parquet(spark, path)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize(
    "pattern",
    [r"g\[1\]", r"g\[?\]", r"g[\[]1*", r"[!x]\[1]", r"{g\[1\],none}", r"a\{b\,c\}", r"{a\{b\,c\},g\[1\]}", r"a[^x]*"],
)
def test_wildcards_behind_a_backslash(spark: Any, tmp_path: Path, pattern: str) -> None:
    """Are characters like others, as for Spark."""
    for name in ("g[1]", "a{b,c}", "x"):
        written(tmp_path / name)
    path = f"{tmp_path}/{pattern}"
    assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == (2 if "},g" in pattern else 1)


def test_a_pattern_that_is_none(spark: Any, tmp_path: Path) -> None:
    """Is refused."""
    with pytest.raises(ConfigError, match=r"\[z-a\] is no pattern: '\[z-a\]': bad character range"):
        fbs.read_parquet(spark, f"{tmp_path}/[z-a]")


def test_a_path_without_a_scheme_where_sparks_default_is_another_file_system(spark: Any, tmp_path: Path) -> None:
    """It was the driver's disk, silently, where Spark reads and writes HDFS."""
    fbs.read_parquet(spark, _parquet(tmp_path)).count()
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:9")
    words = r"has no scheme, and is in hdfs://127.0.0.1:9 for Spark \(fs.defaultFS\): say which is meant"
    try:
        for use in (
            lambda: fbs.read_parquet(spark, str(tmp_path)),
            lambda: fbs.read_parquet(spark, f"file://{tmp_path}").write_parquet(str(tmp_path / "out")),
            lambda: fbs.read_delta(spark, str(tmp_path)),
        ):
            with pytest.raises(ConfigError, match=words):
                use()
        assert fbs.read_parquet(spark, f"file://{tmp_path}").count() == 3
    finally:
        settings.set("fs.defaultFS", before)


def _parquet(folder: Path) -> str:
    pq.write_table(pa.table({"v": [1, 2, 3]}), folder / "a.parquet")
    return str(folder)
