"""Files that the workers read themselves, beside Spark's own readers: the same schema, the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyspark.errors
import pytest
from conftest import failure
from nights import nightly
from pyspark.sql import Row

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError, SchemaError

pytestmark = pytest.mark.spark
NOON = dt.datetime(2020, 7, 1, 12, 30, 1, 123456)
OLD = dt.datetime(1500, 2, 28, 23, 59, 59, 999999)


def same(made: Any, want: Any) -> int:
    """Both DataFrames have the same schema and rows; how many."""
    assert [(f.name, f.dataType) for f in made.schema] == [(f.name, f.dataType) for f in want.schema]
    rows = sorted(map(repr, want.collect()))
    assert sorted(map(repr, made.collect())) == rows
    return len(rows)


ARROW = {
    "i8": pa.array([1, None], pa.int8()),
    "i16": pa.array([1, None], pa.int16()),
    "u8": pa.array([200, None], pa.uint8()),
    "u16": pa.array([60000, None], pa.uint16()),
    "u32": pa.array([4_000_000_000, None], pa.uint32()),
    "u64": pa.array([2**63 + 1, None], pa.uint64()),
    "local_us": pa.array([NOON, OLD, None], pa.timestamp("us")),
    "local_ms": pa.array([NOON.replace(microsecond=123000), None], pa.timestamp("ms")),
    "local_s": pa.array([NOON.replace(microsecond=0), None], pa.timestamp("s")),
    "instant_us": pa.array([NOON, OLD, None], pa.timestamp("us", "UTC")),
    "instant_ms": pa.array([NOON.replace(microsecond=0), None], pa.timestamp("ms", "Europe/Paris")),
    "duration": pa.array([5, None], pa.duration("us")),
    "date": pa.array([dt.date(1500, 1, 1), dt.date(9999, 12, 31), None], pa.date32()),
    "date64": pa.array([dt.date(2020, 1, 1), None], pa.date64()),
    "decimal9": pa.array([Decimal("1.23"), None], pa.decimal128(9, 2)),
    "decimal38": pa.array([Decimal("-1.23"), None], pa.decimal128(38, 2)),
    "decimal256": pa.array([Decimal("1.23"), None], pa.decimal256(20, 2)),
    "null": pa.array([None, None], pa.null()),
    "large": pa.array(["a", "", None], pa.large_string()),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "binary": pa.array([b"a", b"", None]),
    "fixed": pa.array([b"abcd", None], pa.binary(4)),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
    "large_list": pa.array([[1], None], pa.large_list(pa.uint8())),
    "fixed_list": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.uint32())),
    "struct": pa.array([{"a": 1, "t": NOON}, None], pa.struct([("a", pa.uint8()), ("t", pa.timestamp("us"))])),
    "list_struct": pa.array([[{"x": NOON}], None], pa.list_(pa.struct([("x", pa.timestamp("us", "UTC"))]))),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2,)), pa.array([[1, 2], None], pa.list_(pa.float32(), 2))
    ),
    "boolean": pa.array([True, False, None]),
    "double": pa.array([1.5, float("nan"), None]),
    "float": pa.array([1.5, None], pa.float32()),
}


@pytest.mark.parametrize("kind", ARROW)
def test_what_pyarrow_wrote(new_york: Any, tmp_path: Path, kind: str) -> None:
    """Types and values as Spark reads the same files, in a zone that is not UTC."""
    values = ARROW[kind]
    pq.write_table(
        pa.table({"id": range(len(values)), "v": values, "n": ["x"] * len(values)}), tmp_path / "one.parquet"
    )
    path = str(tmp_path)
    assert same(fbs.read_parquet(new_york, path).to_df(), new_york.read.parquet(path)) == len(values)


def test_what_pandas_wrote(spark: Any, tmp_path: Path) -> None:
    """An interval is a type of pandas' own, of two columns; what stands behind it is read by its own type."""
    import pandas as pd

    frame = pd.DataFrame({"v": pd.interval_range(0, 3), "n": [1, 2, 3], "x": [0.5, 1.5, 2.5]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert same(fbs.read_parquet(spark, tmp_path).to_df(), spark.read.parquet(str(tmp_path))) == 3


def test_types_that_differ_from_file_to_file(spark: Any, tmp_path: Path) -> None:
    """Numbers are widened; what would become other values is refused, as by Spark."""
    day, double, wide = pa.array([dt.date(2020, 1, 1)]), pa.array([0.1]), pa.array([2**40, None])
    pairs = [
        (wide, pa.array([7, None], pa.int32()), 4),
        (double, pa.array([0.5], pa.float32()), 2),
        (pa.array([NOON], pa.timestamp("us", "UTC")), day, "is date32"),
        (day, pa.array([NOON], pa.timestamp("us", "UTC")), "is timestamp"),
        (pa.array([NOON], pa.timestamp("us", "UTC")), wide, "is int64"),
        (pa.array([NOON], pa.timestamp("us")), pa.array([NOON], pa.timestamp("us", "UTC")), 2),
        (pa.array([True]), wide, "is int64 there, and to be read as bool"),
        (pa.array([0.5], pa.float32()), double, "is double there, and to be read as float"),
        (pa.array([7], pa.int32()), wide, "not in range"),
        (pa.array([Decimal("1.00")]), double, "is double there, and to be read as decimal"),
        (double, pa.array([Decimal("1.00")]), "is decimal"),
        (pa.array([[0.5]], pa.list_(pa.float32())), pa.array([[0.1]]), "is list<element: double>"),
        (pa.array([[True]]), pa.array([[2]]), "is list<element: int64>"),
        (pa.array(["x"]), pa.array([NOON], pa.timestamp("us", "UTC")), "is timestamp[us, tz=UTC] there"),
        (pa.array([{"a": 1, "b": day[0]}]), pa.array([{"b": NOON, "a": 2}]), "is struct<"),
    ]
    for i, (first, second, want) in enumerate(pairs):
        path = tmp_path / str(i)
        path.mkdir()
        pq.write_table(pa.table({"v": first}), path / "a.parquet")
        pq.write_table(pa.table({"v": second}), path / "b.parquet")
        ours, theirs = fbs.read_parquet(spark, path).to_df(), spark.read.parquet(str(path))
        if isinstance(want, int):
            assert same(ours, theirs) == want
        else:
            assert want in failure(ours.collect)
            assert failure(theirs.collect)


def test_a_column_of_nulls_alone(spark: Any, tmp_path: Path) -> None:
    """pandas writes one without a type, which is null of the type of the first file."""
    firsts = {
        "flag": pa.array([True]),
        "n": pa.array([7]),
        "s": pa.array(["x"]),
        "day": pa.array([dt.date(2020, 1, 1)]),
    }
    pq.write_table(pa.table(firsts), tmp_path / "a.parquet")
    pq.write_table(pa.table({name: pa.nulls(1) for name in firsts}), tmp_path / "b.parquet")
    rows = fbs.read_parquet(spark, tmp_path).collect()
    assert sorted(map(repr, map(tuple, rows))) == [
        "(None, None, None, None)",
        "(True, 7, 'x', datetime.date(2020, 1, 1))",
    ]


def test_instants_of_96_bits(new_york: Any, tmp_path: Path) -> None:
    """Those of years that nanoseconds do not reach as well; nested ones too."""
    pq.write_table(pa.table({"v": ARROW["local_us"]}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(tmp_path / "a.parquet").schema.column(0).physical_type == "INT96"
    assert same(fbs.read_parquet(new_york, tmp_path).to_df(), new_york.read.parquet(str(tmp_path))) == 3


REFUSED = {
    "nanoseconds": pa.array([1, None], pa.timestamp("ns")),
    "half": pa.array(np.array([1, 2], np.float16)),
    "wide": pa.array([Decimal("1.23")], pa.decimal256(40, 2)),
    "time": pa.array([dt.time(1, 2, 3)], pa.time32("ms")),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_spark_does_not_read_is_refused(spark: Any, tmp_path: Path, kind: str) -> None:
    """With the column's name and type, on the driver; the other columns can be read."""
    pq.write_table(pa.table({"odd": REFUSED[kind], "n": range(len(REFUSED[kind]))}), tmp_path / "a.parquet")
    assert failure(lambda: spark.read.parquet(str(tmp_path)).collect())
    with pytest.raises(SchemaError, match=r"column 'odd' has Parquet's type .*columns="):
        fbs.read_parquet(spark, tmp_path)
    for read in (
        fbs.read_parquet(spark, tmp_path, schema="n long"),
        fbs.read_parquet(spark, tmp_path, ["n"]),
        fbs.read_parquet(spark, tmp_path, ["n"], pc.field("n") >= 0),
    ):
        assert read.to_df().count() == len(REFUSED[kind])
    with pytest.raises(ConfigError, match="odd"):
        fbs.read_parquet(spark, tmp_path, ["n"], pc.field("odd").is_valid())


def test_the_old_calendar_is_refused(spark: Any, tmp_path: Path) -> None:
    """Whichever file has it, and with a schema too; what has no dates is read."""
    (tmp_path / "b").mkdir()
    spark.sql("select 1L as n, date'2000-01-01' as d").write.parquet(f"{tmp_path}/a/x")
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    try:
        spark.sql("select 2L as n, date'1000-01-01' as d").write.parquet(f"{tmp_path}/b/x")
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInWrite")
    old, both = f"{tmp_path}/b/x", [f"{tmp_path}/a/x", f"{tmp_path}/b/x"]
    assert spark.read.parquet(old).collect()[0].d.year == 1000
    for read in (
        lambda: fbs.read_parquet(spark, old),
        lambda: fbs.read_parquet(spark, both),
        lambda: fbs.read_parquet(spark, both, schema="d date"),
    ):
        with pytest.raises(SchemaError, match="calendar used before Spark 3"):
            read()
    assert sorted(row.n for row in fbs.read_parquet(spark, both, ["n"]).collect()) == [1, 2]


def test_the_old_calendar_is_found_by_workers_too(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many files the driver reads no footers."""
    from fastbuf_spark.driver import splits

    pq.write_table(pa.table({"d": [dt.date(2000, 1, 1)]}), tmp_path / "a.parquet")
    told = pa.schema([("d", pa.date32())], {"org.apache.spark.legacyDateTime": ""})
    pq.write_table(pa.table({"d": [dt.date(1000, 1, 1)]}, told), tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"without a footer")
    monkeypatch.setattr(splits, "MOST_FOOTERS", 1)
    assert "calendar used before Spark 3" in failure(fbs.read_parquet(spark, tmp_path).collect)


SPARKS = (
    "id",
    "cast(id as int) as i",
    "if(id % 5 = 0, null, concat('é', id)) as s",
    "timestamp_micros(id * 86400123456 - 9000000000000000) as t",
    "cast(timestamp_micros(id) as timestamp_ntz) as n",
    "cast(id as decimal(10, 2)) as d9",
    "cast(id as decimal(38, 10)) as d38",
    "date_add(date'1400-01-01', cast(id * 5000 as int)) as day",
    "named_struct('x', timestamp_seconds(id), 'y', array(id, null)) as st",
    "map(id, named_struct('z', cast(id as string))) as m",
    "make_dt_interval(1, 2, id) as span",
    "cast(id as float) as f",
    "id % 2 = 0 as b",
    "cast(cast(id as string) as binary) as raw",
)


def test_what_spark_wrote(new_york: Any, tmp_path: Path) -> None:
    """Instants of 96 bits, intervals, decimals, nested columns."""
    path = str(tmp_path / "made")
    new_york.range(0, 100, 1, 3).selectExpr(*SPARKS).write.parquet(path)
    want = new_york.read.parquet(path)
    assert same(fbs.read_parquet(new_york, path).to_df(), want) == 100
    chosen = fbs.read_parquet(new_york, path, ["s", "st"], pc.field("id") < 10)
    assert same(chosen.to_df(), want.where("id < 10").select("s", "st")) == 10


def test_files_that_tell_the_schema(spark: Any, tmp_path: Path) -> None:
    """As for Spark: the common one first."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    path = str(tmp_path)
    for name, column in (("_metadata", "m"), ("_common_metadata", "c")):
        pq.write_metadata(pa.schema({"n": pa.int64(), column: pa.string()}), tmp_path / name)
        assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == 1
        assert fbs.read_parquet(spark, path).to_df().columns == ["n", column]


def test_variants(spark: Any, tmp_path: Path) -> None:
    """Are read as Spark wrote them; those that it has shredded are refused with the column's name."""
    df = spark.sql("""select id, parse_json('{"a": ' || id || '}') as v, named_struct('x', parse_json('1')) as s
                      from range(3)""")
    for name, kind in (("whole", ""), ("shredded", "a int")):
        spark.conf.set("spark.sql.variant.writeShredding.enabled", str(bool(kind)).lower())
        spark.conf.set("spark.sql.variant.inferShreddingSchema", "false")
        spark.conf.set("spark.sql.variant.forceShreddingSchemaForTest", kind)
        df.write.parquet(str(tmp_path / name))
    for each in ("writeShredding.enabled", "inferShreddingSchema", "forceShreddingSchemaForTest"):
        spark.conf.unset(f"spark.sql.variant.{each}")
    shown = ("id", "to_json(v)", "to_json(s.x)")
    want = spark.read.parquet(str(tmp_path / "whole")).selectExpr(*shown)
    assert same(fbs.read_parquet(spark, tmp_path / "whole").to_df().selectExpr(*shown), want) == 3
    with pytest.raises(SchemaError, match="column 'v' has shredded variants"):
        fbs.read_parquet(spark, tmp_path / "shredded")
    with pytest.raises(SchemaError, match="column 's' has shredded variants"):
        fbs.read_parquet(spark, tmp_path / "shredded", ["s"])
    assert fbs.read_parquet(spark, tmp_path / "shredded", ["id"]).count() == 3


def test_filters_of_other_types(spark: Any, tmp_path: Path) -> None:
    """Are refused at once."""
    pq.write_table(pa.table({"z": pa.array([NOON], pa.timestamp("us", "UTC")), "n": [NOON]}), tmp_path / "a.parquet")
    for condition in (pc.field("z") > NOON, pc.field("n") > NOON.replace(tzinfo=dt.UTC), pc.field("z") > pc.field("n")):
        for read in (
            lambda at=condition: fbs.read_parquet(spark, tmp_path, filter=at),
            lambda at=condition: fbs.read_parquet(spark, tmp_path).filter(at),
        ):
            with pytest.raises(ConfigError, match="is not valid here: Cannot compare timestamp with timezone"):
                read()
    made = fbs.read_parquet(spark, tmp_path, filter=pc.field("z") == NOON.replace(tzinfo=dt.UTC))
    assert made.count() == 1


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint32()], ids=str)
def test_literals_that_are_floats_of_32_bits(spark: Any, tmp_path: Path, kind: pa.DataType) -> None:
    """Arrow takes 2.5 as one, and fails for whole numbers that such a float is not: said before a job, with the way."""
    pq.write_table(pa.table({"n": pa.array([1, 3, 2**24 + 1], kind)}), tmp_path / "a.parquet")
    source = fbs.read_parquet(spark, tmp_path)
    for filtered in (
        lambda at: source.filter(at),
        lambda at: source.map_in_arrow(iter, "n long").filter(at),
        lambda at: fbs.read_parquet(spark, tmp_path, filter=at),
        lambda at: fbs.stream_files(spark, str(tmp_path), schema="n long").filter(at),
    ):
        with pytest.raises(ConfigError, match=r"cast one side to double, as in pc\.scalar\(2\.5\)\.cast\('double'\)"):
            _ = filtered(pc.field("n") > 2.5).schema
    assert source.filter(pc.field("n") > pc.scalar(2.5).cast("double")).count() == 2
    assert source.filter(pc.field("n") > 2.1).count() == 2  # no float of 32 bits is 2.1
    assert source.filter(pc.field("n") > 2).count() == 2


def test_row_groups_are_shared_out_by_the_bytes_of_the_columns(spark: Any, tmp_path: Path) -> None:
    """A long column that is not asked for does not count, and row groups that the filter leaves out are not read."""
    rows = 1 << 20
    for i in range(2):
        numbers = np.random.default_rng(i).integers(0, 1 << 62, rows)
        table = pa.table({"n": np.arange(i * rows, (i + 1) * rows), "x": numbers, "y": numbers, "z": numbers})
        pq.write_table(table, tmp_path / f"{i}.parquet", row_group_size=rows // 8)
    everything, narrow = fbs.read_parquet(spark, tmp_path), fbs.read_parquet(spark, tmp_path, ["x"])
    sizes = [sum(p.nbytes for p in split) for split in everything._start.read.splits]
    assert max(sizes) < 1.3 * min(sizes)
    assert len(sizes) > 3
    assert 2.5 < sum(sizes) / sum(p.nbytes for split in narrow._start.read.splits for p in split) < 4.5
    few = fbs.read_parquet(spark, tmp_path, ["x"], pc.field("n") < rows // 8)
    pieces = [piece for split in few._start.read.splits for piece in split]
    assert sum(piece.rows for piece in pieces) == rows // 8
    assert few.to_df().count() == rows // 8
    hundred = spark.read.parquet(str(tmp_path)).where("n < 100")
    assert same(everything.filter(pc.field("n") < 100).to_df(), hundred) == 100


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_many_splits_in_few_tasks(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """More than eight for each slot: producers read several of them, one after the other, each once."""
    from fastbuf_spark.driver import splits

    monkeypatch.setattr(splits, "MOST_BYTES", 1)
    monkeypatch.setattr(splits, "LEAST_BYTES", 1)
    pq.write_table(pa.table({"n": np.arange(10_000)}), tmp_path / "a.parquet", row_group_size=100)
    source = fbs.read_parquet(spark, tmp_path)
    assert len(source._start.read.splits) == 100
    moved = fbs.repartition(source, 2, "n", mode=mode)
    assert sorted(row.n for row in moved.collect()) == list(range(10_000))
    if mode == "pipelined":
        assert len(fbs.last_run().producers) < 40


def test_a_file_that_was_replaced_is_refused(spark: Any, tmp_path: Path) -> None:
    """What was planned holds for the files that were there."""
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    df = fbs.read_parquet(spark, tmp_path).to_df()
    assert df.count() == 2
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "a.parquet")
    assert "has been changed since it was planned" in failure(df.count)


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_a_file_that_is_gone(spark: Any, tmp_path: Path, format: str) -> None:
    """An error that says what to set; with that set, the others are read, as Spark reads them."""

    def put(name: str, value: int) -> Path:
        path = tmp_path / f"{name}.{format}"
        if format == "csv":
            path.write_text(f"{value}\n")
        else:
            pq.write_table(pa.table({"n": [value]}), path)
        return path

    put("a", 1)
    gone = put("b", 2)
    schema = {"schema": "n long"} if format == "csv" else {}
    reader = spark.read.option("ignoreMissingFiles", True).schema("n long")
    theirs = getattr(reader, format)(str(tmp_path))
    read = getattr(fbs, f"read_{format}")
    strict, lenient = (read(spark, tmp_path, ignoreMissingFiles=ignore, **schema).to_df() for ignore in (False, True))
    gone.unlink()
    assert f"b.{format} is gone since files were listed" in failure(strict.count)
    assert lenient.collect() == theirs.collect() == [Row(n=1)]


@pytest.mark.parametrize("step", ["schema", "footers"])
@pytest.mark.parametrize(
    ("format", "options"),
    [("parquet", {}), ("parquet", {"mergeSchema": True}), ("orc", {}), ("csv", {"header": True})],
    ids=["parquet", "merged", "orc", "csv"],
)
def test_a_file_that_goes_while_the_driver_plans(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, options: dict[str, Any], step: str
) -> None:
    """Behind the listing: as one that goes later, in the step that reads schemas and in the one that reads footers."""
    from fastbuf_spark.driver import splits
    from fastbuf_spark.formats.base import Format
    from fastbuf_spark.formats.csv import Csv

    for name, value in (("a", 1), ("b", 2)):
        path = tmp_path / f"{name}.{format}"
        if format == "csv":
            path.write_text(f"n\n{value}\n")
        elif format == "orc":
            orc.write_table(pa.table({"n": [value]}), path)
        else:
            pq.write_table(pa.table({"n": [value]}), path)
    gone = tmp_path / f"a.{format}"

    def after(call: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any, **named: Any) -> Any:
            gone.unlink(missing_ok=True)
            return call(*args, **named)

        return first

    if step == "footers":
        monkeypatch.setattr(splits, "pieces", after(splits.pieces))
    else:
        owner = Csv if format == "csv" else Format
        monkeypatch.setattr(owner, "schema", after(owner.schema))
    content = gone.read_bytes()
    read = getattr(fbs, f"read_{format}")
    assert [int(row.n) for row in read(spark, tmp_path, ignoreMissingFiles=True, **options).to_df().collect()] == [2]
    gone.write_bytes(content)
    if step == "schema" or format == "parquet":
        with pytest.raises(ResourceError, match=rf"a\.{format} is gone since files were listed"):
            read(spark, tmp_path, **options)
    else:
        assert f"a.{format} is gone since files were listed" in failure(read(spark, tmp_path, **options).to_df().count)


def test_all_files_go_while_the_driver_plans(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbuf_spark.formats.parquet import Parquet

    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    tell = Parquet.tell

    def gone(self: Parquet, asked: Any, files: list[str], summaries: list[str]) -> list[str]:
        (tmp_path / "a.parquet").unlink()
        return tell(self, asked, files, summaries)

    monkeypatch.setattr(Parquet, "tell", gone)
    with pytest.raises(ConfigError, match="has no Parquet files to take the schema from"):
        fbs.read_parquet(spark, tmp_path, ignoreMissingFiles=True)


def test_no_row_enters_the_jvm(spark: Any, tmp_path: Path) -> None:
    """In every verb that takes a DataFrame, the producers' tasks read the files: Spark sees one row for a split."""
    pq.write_table(pa.table({"k": np.arange(20_000) % 7, "n": np.arange(20_000)}), tmp_path / "a.parquet")
    source = fbs.read_parquet(spark, tmp_path)
    path = str(tmp_path)
    plain = spark.read.parquet(path)
    for mode in ("pipelined", "blocking"):
        moved = fbs.repartition(source, 2, "k", mode=mode)
        assert same(moved, plain) == 20_000
        grouped = fbs.group_by(source, "k", num_partitions=2, mode=mode).agg_arrow([("n", "sum")])
        assert sorted(grouped.collect()) == sorted(plain.groupBy("k").sum("n").collect())
        mapped = fbs.map_in_arrow(
            source, ones, "n long", keys="k", num_partitions=2, before=evens, before_schema="k long, n long", mode=mode
        )
        assert same(mapped, plain.where("n % 2 = 0").selectExpr("n + 1 as n")) == 10_000
        plan = mapped._jdf.queryExecution().executedPlan().toString()
        assert "FileScan" not in plan
        assert "BatchScan" not in plan


def evens(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pa.array(batch["n"].to_numpy() % 2 == 0))


def ones(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"n": pc.add(batch["n"], 1)})


def test_a_filter_that_nan_passes(spark: Any, tmp_path: Path) -> None:
    """The statistics of a row group leave NaN out, and nothing is lost for that."""
    table = pa.table({"x": [5.0, 5.0, float("nan"), 1.0], "n": range(4)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    x = pc.field("x")
    for condition in (~(x > 3), x != 5, (x > 3) == False, ~x.isin([5.0]), x > 3, (x > 3) & (pc.field("n") != 1)):  # noqa: E712
        want = table.filter(condition)["n"].to_pylist()
        for made in (
            fbs.read_parquet(spark, tmp_path, ["n"], condition),
            fbs.read_parquet(spark, tmp_path).filter(condition),
        ):
            assert sorted(row.n for row in made.collect()) == want, condition


def test_what_polars_wrote(spark: Any, tmp_path: Path) -> None:
    """Text and bytes are views in its files."""
    import polars as pl

    frame = pl.DataFrame({"s": ["a", None], "b": [b"x", None], "l": [["a"], None], "st": [{"x": "y", "u": 1}, None]})
    frame.cast({"st": pl.Struct({"x": pl.String, "u": pl.UInt8})}).write_ipc(tmp_path / "a.arrow")
    rows = fbs.read_ipc(spark, tmp_path).to_df()
    assert rows.schema.simpleString() == "struct<s:string,b:binary,l:array<string>,st:struct<x:string,u:smallint>>"
    assert [row.asDict(True) for row in rows.collect()] == frame.to_dicts()


def test_arrows_own_files_that_differ(spark: Any, tmp_path: Path) -> None:
    """The first file decides; what would become other values is refused."""
    for name, values in (("a", pa.array([0.5], pa.float32())), ("b", pa.array([0.1, 1e300]))):
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", pa.schema([("v", values.type)])) as sink:
            sink.write_table(pa.table({"v": values}))
    assert "is double there, and to be read as float" in failure(fbs.read_ipc(spark, tmp_path).collect)
    (tmp_path / "b.arrow").rename(tmp_path / "0.arrow")
    assert sorted(row.v for row in fbs.read_ipc(spark, tmp_path).collect()) == [0.1, 0.5, 1e300]


def test_text_that_is_no_number_names_what_to_change(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": ["7", "k4"]}), path)
    said = failure(fbs.read_parquet(spark, path, schema="k long").collect)
    assert f"{path}: Failed to parse string: 'k4' as a scalar of type int64; a column is text there" in said
    assert "give a schema= that fits all files" in said


def test_nanoseconds_beyond_sparks_microseconds_are_told_with_the_file(spark: Any, tmp_path: Path) -> None:
    for name, nanoseconds in (("a", 2_000), ("b", 2_001)):
        table = pa.table({"t": pa.array([nanoseconds, None], pa.timestamp("ns"))})
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as sink:
            sink.write_table(table)
    assert fbs.read_ipc(spark, tmp_path / "a.arrow").count() == 2
    said = failure(fbs.read_ipc(spark, tmp_path).collect)
    assert "SchemaMismatch" in said
    assert f"{tmp_path}/b.arrow: " in said
    assert "would lose data: 2001" in said


def test_arrows_own_files_and_datasets(spark: Any, tmp_path: Path) -> None:
    """Through read_ipc, and through any dataset of files."""
    table = pa.table({"n": pa.array([1, 2, None], pa.uint32()), "s": ["a", None, "c"]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as sink:
        sink.write_table(table)
    want = spark.createDataFrame([(1, "a"), (2, None), (None, "c")], "n long, s string")
    assert same(fbs.read_ipc(spark, tmp_path).to_df(), want) == 3
    assert same(fbs.scan(spark, ds.dataset(tmp_path, format="ipc")).to_df(), want) == 3
    some = fbs.scan(spark, ds.dataset(tmp_path, format="ipc"), ["s"], pc.field("n") > 1)
    assert [row.s for row in some.collect()] == [None]
    for rows in (ds.dataset(table), ds.dataset([ds.dataset(table), ds.dataset(table)])):
        with pytest.raises(ConfigError, match="dataset of files"):
            fbs.scan(spark, rows)
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema) as sink:
        sink.write_table(table)
    with pytest.raises(SchemaError, match=r"b\.arrow: .*; read_ipc reads Arrow's files .* not its streams"):
        fbs.read_ipc(spark, tmp_path / "b.arrow")
    with pytest.raises(pyspark.errors.PySparkException, match=r"b\.arrow'?: Not an Arrow file"):
        fbs.read_ipc(spark, tmp_path).count()


def test_types_that_arrow_alone_has(spark: Any, tmp_path: Path) -> None:
    """Lists of a fixed size, and days in milliseconds, are read; what Arrow casts to no other is refused."""
    table = pa.table(
        {
            "l": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8(), 2)),
            "d": pa.array([0, None, 86400000], pa.date64()),
            "view": pa.array([[1, 2], None, []], pa.list_view(pa.int32())),
            "large": pa.array([["a"], None, []], pa.large_list_view(pa.string())),
            "ends": pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array(["x"])),
        }
    )
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as sink:
        sink.write_table(table)
    rows = fbs.read_ipc(spark, tmp_path, ["l", "d"]).to_df()
    assert rows.schema.simpleString() == "struct<l:array<smallint>,d:date>"
    assert [row.asDict() for row in rows.collect()] == table.select(["l", "d"]).to_pylist()
    for name in ("view", "large", "ends"):
        with pytest.raises(SchemaError, match=f"column '{name}' has Arrow's type .*leave it out"):
            fbs.read_ipc(spark, tmp_path, [name])


class OfDelta:
    """What deltalake's tables have."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def to_pyarrow_dataset(self) -> Any:
        return ds.dataset(self._path)


def test_a_table_that_gives_a_dataset(spark: Any, tmp_path: Path) -> None:
    """Deltalake's do."""
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    assert fbs.scan(spark, OfDelta(tmp_path)).count() == 2


def test_names_in_another_case(spark: Any, tmp_path: Path) -> None:
    """Spark takes them for the same, also inside of structs, and never reads nulls for them."""
    inner = {"x": [{"In": 1, "of": [{"Deep": 2}], "by": [("k", {"Z": 3})]}]}
    kind = pa.struct(
        [
            ("In", pa.int64()),
            ("of", pa.list_(pa.struct([("Deep", pa.int64())]))),
            ("by", pa.map_(pa.string(), pa.struct([("Z", pa.int64())]))),
        ]
    )
    (tmp_path / "flat").mkdir()
    (tmp_path / "nested").mkdir()
    pq.write_table(pa.table({"a": [1, 2], "v": [1.5, 2.5]}), tmp_path / "flat" / "1.parquet")
    pq.write_table(pa.table({"V": [3.5, 4.5], "A": [3, 4]}), tmp_path / "flat" / "2.parquet")
    pq.write_table(pa.table({"x": pa.array(inner["x"], kind)}), tmp_path / "nested" / "1.parquet")
    flat, nested = str(tmp_path / "flat"), str(tmp_path / "nested")
    assert same(fbs.read_parquet(spark, flat).to_df(), spark.read.parquet(flat)) == 4
    given = "V double, a long"
    assert same(fbs.read_parquet(spark, flat, schema=given).to_df(), spark.read.schema(given).parquet(flat)) == 4
    some = fbs.read_parquet(spark, flat, ["a"], pc.field("v") > 2)
    assert same(some.to_df(), spark.read.parquet(flat).where("v > 2").select("a")) == 3
    given = "X struct<IN:bigint,Of:array<struct<deep:bigint>>,By:map<string,struct<z:bigint>>>"
    assert same(fbs.read_parquet(spark, nested, schema=given).to_df(), spark.read.schema(given).parquet(nested)) == 1
    pq.write_table(pa.table({"Xa": [5], "xA": [6]}), tmp_path / "flat" / "3.parquet")
    assert "'xa' may be any of them" in failure(fbs.read_parquet(spark, f"{flat}/3.parquet", schema="xa long").collect)


def test_names_of_ipc_files_in_another_case(spark: Any, tmp_path: Path) -> None:
    """One column unless spark.sql.caseSensitive is true; of each file's type, also inside of structs."""
    kinds = pa.struct([("x", pa.int64())]), pa.struct([("X", pa.int32())])
    tables = (
        pa.table({"a": [1, 2], "s": pa.array([{"x": 1}, None], kinds[0])}),
        pa.table({"S": pa.array([{"X": 3}, {"X": 4}], kinds[1]), "A": pa.array([3, 4], pa.uint8())}),
    )
    for i, table in enumerate(tables):
        with pa.ipc.new_file(tmp_path / f"{i}.arrow", table.schema) as sink:
            sink.write_table(table)
    want = spark.createDataFrame([(1, (1,)), (2, None), (3, (3,)), (4, (4,))], "a long, s struct<x: long>")
    assert same(fbs.read_ipc(spark, tmp_path).to_df(), want) == 4
    some = fbs.read_ipc(spark, tmp_path, ["s"], pc.field("a") > 1)
    assert same(some.to_df(), want.where("a > 1").select("s")) == 3
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert sorted(str(row.a) for row in fbs.read_ipc(spark, tmp_path).collect()) == ["1", "2", "None", "None"]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_columns_whose_names_differ_in_case(spark: Any, tmp_path: Path) -> None:
    """Two columns if spark.sql.caseSensitive is true, read and written."""
    path = str(tmp_path / "a")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        df = spark.range(20).selectExpr("id % 5 as a", "id * 1.5D as A")
        assert fbs.pipeline(df).shuffle("A", partitions=2).write_parquet(path).rows == 20
        assert same(fbs.read_parquet(spark, path).to_df(), spark.read.parquet(path)) == 20
        given = "a long, B long"
        assert same(fbs.read_parquet(spark, path, schema=given).to_df(), spark.read.schema(given).parquet(path)) == 20
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    with pytest.raises(SchemaError, match="has a name twice"):
        fbs.write_parquet(df, tmp_path / "b")


def test_columns_of_the_same_name(spark: Any, tmp_path: Path) -> None:
    """The message has the names, and what to write; a header of CSV is numbered, as by Spark."""
    columns = [pa.array([1, 2]), pa.array([3.0, 4.0]), pa.array(["x", "y"])]
    table = pa.Table.from_arrays(columns, names=["a", "x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"more than one column 'x', of \['a', 'x', 'x'\].*columns=\['a'\]"):
        fbs.read_parquet(spark, tmp_path / "a.parquet")
    assert [row.a for row in fbs.read_parquet(spark, tmp_path / "a.parquet", ["a"]).collect()] == [1, 2]
    path = str(tmp_path / "a.csv")
    Path(path).write_text("a,x,X,,b\n1,2,3,4,5\n")
    assert same(fbs.read_csv(spark, path, header=True).to_df(), spark.read.csv(path, header=True)) == 1
    with pytest.raises(SchemaError, match="more than one column 'x'"):
        fbs.read_csv(spark, path, "a int, x int, x int", header=True)


def test_what_cannot_be_is_said_at_once(spark: Any, tmp_path: Path) -> None:
    """On the driver, before anything runs."""
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ResourceError, match="does not exist"):
        fbs.read_parquet(spark, tmp_path / "none")
    with pytest.raises(ConfigError, match="give some of"):
        fbs.read_parquet(spark, tmp_path, ["m"])
    with pytest.raises(ConfigError, match=r"columns are \['n'\]"):
        fbs.read_parquet(spark, tmp_path, filter=pc.field("m") > 1)
    with pytest.raises(ConfigError, match="compute expression"):
        fbs.read_parquet(spark, tmp_path, filter="n > 1")
    with pytest.raises(SchemaError, match="array<int>, which read_csv does not read"):
        fbs.read_csv(spark, tmp_path, "a array<int>")
    with pytest.raises(ConfigError, match=r"sep is '\|\|': give one ASCII character"):
        fbs.read_csv(spark, tmp_path, sep="||")
    with pytest.raises(ConfigError, match=r"partition_types has \['k'\]: the directories are named by \[\]"):
        fbs.read_parquet(spark, tmp_path, partition_types={"k": "int"})
    with pytest.raises(ConfigError, match="Give filter and columns to scan itself"):
        fbs.scan(spark, ds.dataset(tmp_path).filter(pc.field("n") > 1))
    with pytest.raises(ConfigError, match="escape is '/'"):
        fbs.read_csv(spark, tmp_path, escape="/")
